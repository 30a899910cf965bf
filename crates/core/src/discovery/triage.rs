//! Which device an event concerns, and what to look at there. The shell calls it for every event and pushes the
//! answer into [`super::queue`].
//!
//! The rule: what the event says is not looked for again, what it cannot mean is not looked for at all, and in doubt
//! the cheap questions come first. Probes that open a device run only when the event can mean new contents, or when
//! the cheap ones found something else than was known.

use super::event::{Action, DevType, Event, Origin, Subsystem, UnitAttention};
use super::probes::{Needs, Probes};
use super::queue::DeviceKey;

/// What an event calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Nothing that is known about a drive can have changed.
    Ignore,
    Look(Look<'a>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look<'a> {
    pub target: Target<'a>,
    pub change: Change,
    pub needs: Needs,
}

/// Which device it is about. All but the first need a look into sysfs, which is the shell's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    Device(DeviceKey),
    /// The disk of this name: the event was of a partition, whose disk sequence is that of the disk. If there is no
    /// such disk, it has an event of its own.
    Disk {
        name: &'a str,
        sequence: Option<u64>,
    },
    /// All disks below this place in `/sys`.
    Below {
        devpath: &'a str,
    },
}

/// What happened to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    Came,
    Changed,
    Went,
}

/// Decides what an event needs.
pub fn triage<'a>(event: &Event<'a>) -> Verdict<'a> {
    match (event.origin, event.subsystem, event.devtype) {
        (Origin::Udev, Subsystem::Block, DevType::Disk | DevType::Other) => told_by_udev(event),
        // The database has nothing about a partition that matters to its disk, and the kernel has told the rest.
        (Origin::Udev, Subsystem::Block, DevType::Partition)
        | (Origin::Udev, Subsystem::Scsi | Subsystem::Nvme | Subsystem::Other, _) => {
            Verdict::Ignore
        }
        // A type that no kernel known here uses is taken for a disk: sysfs tells when it is looked at.
        (Origin::Kernel, Subsystem::Block, DevType::Disk | DevType::Other) => disk(event),
        (Origin::Kernel, Subsystem::Block, DevType::Partition) => partition(event),
        (Origin::Kernel, Subsystem::Scsi, _) => scsi(event),
        (Origin::Kernel, Subsystem::Nvme, _) => nvme(event),
        (Origin::Kernel, Subsystem::Other, _) => Verdict::Ignore,
    }
}

/// udev repeats the kernel's event once its database is ready; that is all that it adds.
fn told_by_udev<'a>(event: &Event<'a>) -> Verdict<'a> {
    match event.action {
        Action::Add | Action::Change | Action::Move | Action::Online | Action::Other => {
            itself(event, Change::Changed, Needs::only(Probes::UDEV_DB))
        }
        Action::Remove | Action::Offline | Action::Bind | Action::Unbind => Verdict::Ignore,
    }
}

fn disk<'a>(event: &Event<'a>) -> Verdict<'a> {
    let outside = Needs { now: Probes::OUTSIDE | Probes::UDEV_DB, if_changed: Probes::ALL };
    match (event.action, event.signs.synthetic) {
        // The device was there all the time: somebody asks for it to be looked at again, or plays a part. Only sysfs
        // knows whether it is there.
        (Action::Add, true) => itself(event, Change::Changed, Needs::ALL),
        (Action::Remove, true) => itself(event, Change::Changed, settled(outside)),
        // A mapping comes without a table, empty; what it is over and what it is like is told by a later change.
        (Action::Add, false) if event.is_mapper() => {
            itself(event, Change::Came, Needs::only(Probes::HIERARCHY))
        }
        (Action::Add, false) => itself(event, Change::Came, Needs::ALL),
        (Action::Remove, false) => itself(event, Change::Went, Needs::NONE),
        // Another name: what is mounted and what udev has is found by name.
        (Action::Move, _) => itself(
            event,
            Change::Changed,
            Needs::only(Probes::IDENTITY | Probes::MOUNTS | Probes::UDEV_DB),
        ),
        (Action::Change, _) => changed_disk(event),
        // Not used for disks by any kernel known here.
        (Action::Online | Action::Offline | Action::Other, _) => {
            itself(event, Change::Changed, settled(outside))
        }
        // Drivers are bound to what is below a disk, and a disk that comes of it is added.
        (Action::Bind | Action::Unbind, _) => Verdict::Ignore,
    }
}

/// The keys of a change say what changed; a change without any can mean anything.
fn changed_disk<'a>(event: &Event<'a>) -> Verdict<'a> {
    let signs = &event.signs;
    let mut needs = Needs::NONE;
    let mut told = false;
    let mut tells = |sign: bool, probes: Probes| {
        told |= sign;
        if sign {
            needs = needs.with(Needs::only(probes));
        }
    };
    // One file of sysfs. The bytes that were there are the same ones.
    tells(signs.resized, Probes::SIZE);
    // The flag of the disk; its partitions keep theirs.
    tells(signs.read_only_set, Probes::READ_ONLY);
    // Another medium, or none: everything but the drive around it is new.
    tells(signs.media_changed, Probes::ALL);
    // A wish. What comes of it has an event of its own.
    tells(signs.eject_requested, Probes::NONE);
    // A mapping that was not changed by this, or that must not be read now because it would hang: only what it
    // stands on and what stands on it. The change that resumes it is primary.
    let mapper = signs.mapper.unwrap_or_default();
    tells(event.is_mapper() && (!mapper.is_primary() || mapper.suspended), Probes::HIERARCHY);
    if needs == Needs::NONE && told {
        return Verdict::Ignore;
    }
    if !told {
        needs = plain_change(event);
    }
    itself(event, Change::Changed, needs)
}

fn plain_change(event: &Event<'_>) -> Needs {
    let outside = Probes::OUTSIDE | Probes::UDEV_DB;
    if event.is_mapper() {
        // Loaded and resumed: it is only now what it is going to be.
        return Needs::ALL;
    }
    if event.signs.synthetic {
        // udev asks for this after a writer has closed the device, which may have left anything on it.
        return settled(Needs {
            now: outside | Probes::INSIDE | Probes::HIERARCHY,
            if_changed: Probes::ALL,
        });
    }
    // Drivers send it for things that matter to nobody here, and for a loop device that got another file, which shows
    // from outside.
    settled(Needs { now: outside, if_changed: Probes::ALL })
}

/// A partition is part of its disk.
fn partition<'a>(event: &Event<'a>) -> Verdict<'a> {
    let probes = match event.action {
        // Another table of partitions than before, which is contents of the disk.
        Action::Add | Action::Remove => Probes::HIERARCHY | Probes::INSIDE | Probes::MOUNTS,
        // Something of the partition alone: its size, or what is on it and holds it.
        Action::Change | Action::Move | Action::Online | Action::Offline | Action::Other => {
            Probes::HIERARCHY
        }
        Action::Bind | Action::Unbind => return Verdict::Ignore,
    };
    let Some(name) = event.disk_of_partition() else { return Verdict::Ignore };
    let target = Target::Disk { name, sequence: event.diskseq };
    Verdict::Look(Look { target, change: Change::Changed, needs: Needs::only(probes) })
}

/// The device below a SCSI disk tells of changes that its disk has no event for.
fn scsi<'a>(event: &Event<'a>) -> Verdict<'a> {
    let probes = match event.signs.unit_attention {
        Some(UnitAttention::Capacity) => Probes::SIZE,
        Some(UnitAttention::Inquiry) => Probes::OUTSIDE,
        // Write protection is one of them.
        Some(UnitAttention::ModeParameters) => Probes::READ_ONLY,
        // New logical units are added as devices; the rest is about paths and thresholds. Without the key it is the
        // life of the device below, and the disk on it has events of its own.
        Some(UnitAttention::Other) | None => return Verdict::Ignore,
    };
    below(event, probes)
}

/// A controller that connected again may have found its namespaces with another size or identity.
fn nvme<'a>(event: &Event<'a>) -> Verdict<'a> {
    if event.signs.nvme_event { below(event, Probes::OUTSIDE) } else { Verdict::Ignore }
}

fn itself<'a>(event: &Event<'a>, change: Change, needs: Needs) -> Verdict<'a> {
    match event.number {
        Some(number) => Verdict::Look(Look {
            target: Target::Device(DeviceKey { number, sequence: event.diskseq }),
            change,
            needs,
        }),
        // The parser lets no block device through without its number.
        None => Verdict::Ignore,
    }
}

fn below<'a>(event: &Event<'a>, probes: Probes) -> Verdict<'a> {
    Verdict::Look(Look {
        target: Target::Below { devpath: event.devpath },
        change: Change::Changed,
        needs: Needs::only(probes),
    })
}

/// Without asking again for what is asked anyway.
fn settled(needs: Needs) -> Needs {
    needs.with(Needs::NONE)
}

#[cfg(test)]
#[path = "triage_tests.rs"]
mod tests;
