//! Physical drives, and what a step on one comes to. What may be written on a label is decided by core.

use hotbay_core::agent::{AttachWork, Identity};
use hotbay_core::device::{Denied, DeviceKind, LabelSeen, Media, Observed};
use hotbay_core::evidence::{Comparison, Evidence};
use hotbay_core::ids::DriveId;
use hotbay_core::label::update::Want;
use hotbay_core::message::Obstacle;
use hotbay_core::order::Generation;
use hotbay_core::volume::orders::LabelOrder;

use crate::fault::Fault;
use crate::label::Label;
use crate::rng::Rng;
use crate::world::World;

const SIZE_BYTES: u64 = 1 << 29;

/// A drive in somebody's bay, or on the shelf.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) evidence: Evidence,
    pub(crate) label: Label,
    pub(crate) denied: Vec<Denied>,
    /// The machine shows other evidence than the drive's own.
    pub(crate) mistaken: bool,
    pub(crate) attach_fails: bool,
    pub(crate) label_fails: bool,
    /// Another process has it open.
    pub(crate) foreign: bool,
    pub(crate) hangs: bool,
}

/// What a child does on a drive.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Attach { work: AttachWork, identity: Identity },
    Relabel { work: AttachWork, identity: Identity, disk: usize },
    Detach { generation: Generation, identity: Identity, disk: usize, evidence: Evidence },
    Prove { generation: Generation, identity: Identity, evidence: Evidence },
    ChangeLabel { order: Box<LabelOrder>, by: (Identity, Generation), disk: usize },
}

impl Disk {
    pub(crate) fn new(rng: &mut Rng, number: usize) -> Self {
        let serial = Some(format!("S{number:05}"));
        let wwn = rng.chance(500).then(|| format!("5000c5{number:06}"));
        let evidence =
            Evidence { serial, wwn, model: Some("SIM-1".to_owned()), ..Evidence::default() };
        let system = Denied::SystemDrive { mounts: vec!["/".to_owned()] };
        Self {
            evidence,
            label: Label::default(),
            denied: if rng.chance(50) { vec![system] } else { Vec::new() },
            mistaken: false,
            attach_fails: false,
            label_fails: false,
            foreign: false,
            hangs: false,
        }
    }

    /// The evidence that a machine reads.
    pub(crate) fn shown(&self) -> Evidence {
        let mut evidence = self.evidence.clone();
        if self.mistaken {
            evidence.serial = evidence.serial.map(|serial| format!("{serial}-MISREAD"));
            evidence.wwn = None;
        }
        evidence
    }

    pub(crate) fn observed(&self, bay: usize, label: Option<LabelSeen>) -> Observed {
        let mut denied = self.denied.clone();
        if self.mistaken {
            // Nobody may add what is misread: it would get a label under a serial number that it does not have.
            denied.push(Denied::Unreadable { error: "timed out".to_owned() });
        }
        Observed {
            evidence: self.shown(),
            path: path_of(bay),
            bay: Some(bay.to_string()),
            kind: DeviceKind::Block,
            media: Media::Ssd,
            size_bytes: SIZE_BYTES,
            block_bytes: 4_096,
            details: Default::default(),
            label,
            denied,
        }
    }
}

pub(crate) fn path_of(bay: usize) -> String {
    format!("/dev/bay{bay}")
}

fn attach_want(work: &AttachWork, identity: Identity) -> Want {
    Want {
        cluster: identity.cluster,
        drive: work.drive,
        node: identity.node,
        generation: work.generation,
        in_operation: work.in_operation,
        take_over: work.take_over,
    }
}

fn release_want(drive: DriveId, generation: Generation, identity: Identity) -> Want {
    Want {
        cluster: identity.cluster,
        drive,
        node: identity.node,
        generation,
        in_operation: false,
        take_over: false,
    }
}

impl World {
    pub(crate) fn disk_at(&self, machine: usize, path: &str) -> Option<usize> {
        let bays = self.machines[machine].bays.iter().enumerate();
        bays.filter_map(|(bay, disk)| disk.filter(|_| path_of(bay) == path)).next()
    }

    /// The drive with this evidence, if it is in the machine.
    pub(crate) fn disk_with(&self, machine: usize, evidence: &Evidence) -> Option<usize> {
        let mut there = self.machines[machine].bays.iter().copied().flatten();
        there.find(|disk| self.disks[*disk].evidence.compare(evidence) == Comparison::Same)
    }

    /// An attach comes to its end: the drive that was opened, and what its label says now.
    pub(crate) fn attach_ends(
        &mut self,
        machine: usize,
        work: &AttachWork,
        identity: Identity,
    ) -> Result<(usize, LabelSeen), Obstacle> {
        let number = self.disk_at(machine, &work.path).ok_or(Obstacle::DeviceMissing)?;
        if self.outlived(machine, number) {
            return Err(Obstacle::Quarantined { why: "another child has it locked".to_owned() });
        }
        if self.disks[number].foreign {
            return Err(Obstacle::Blocked { by: vec!["fsck (77)".to_owned()] });
        }
        if self.disks[number].shown().compare(&work.evidence) != Comparison::Same {
            return Err(Obstacle::NotOurs { why: "another drive is there".to_owned() });
        }
        if self.disks[number].attach_fails {
            let error = "input/output error".to_owned();
            if self.rng.chance(500) {
                self.fault(Fault::AttachFails);
            } else {
                let want = attach_want(work, identity);
                if self.disks[number].label.write(&want).is_ok() {
                    self.fault(Fault::AttachFailsAfterLabel);
                }
            }
            return Err(Obstacle::AttachFailed { error });
        }
        let label = self.relabel_ends(number, work, identity)?;
        Ok((number, label))
    }

    /// The label of an open drive is brought up to date.
    pub(crate) fn relabel_ends(
        &mut self,
        disk: usize,
        work: &AttachWork,
        identity: Identity,
    ) -> Result<LabelSeen, Obstacle> {
        let disk = &mut self.disks[disk];
        if disk.label_fails {
            return Err(Obstacle::AttachFailed { error: "its label cannot be written".to_owned() });
        }
        let written = disk.label.write(&attach_want(work, identity));
        let label = written.map_err(|refusal| Obstacle::NotOurs { why: refusal.to_string() })?;
        Ok(label.expect("a drive in operation has a label"))
    }

    /// The label is marked released; a drive that cannot be written is let go all the same.
    pub(crate) fn release_ends(
        &mut self,
        disk: usize,
        drive: DriveId,
        generation: Generation,
        identity: Identity,
    ) -> Option<LabelSeen> {
        let want = release_want(drive, generation, identity);
        let there = &mut self.disks[disk];
        let written = if there.label_fails { None } else { there.label.write(&want).ok() };
        if written.is_none() {
            self.fault(Fault::ReleaseNotWritten);
        }
        written.flatten()
    }

    /// The label of a closed drive is marked released, if it is not and nobody else has the drive.
    pub(crate) fn release_closed_ends(
        &mut self,
        machine: usize,
        drive: DriveId,
        generation: Generation,
        identity: Identity,
        evidence: &Evidence,
    ) -> Option<LabelSeen> {
        let disk = self.disk_with(machine, evidence)?;
        let label = self.disks[disk].label.seen()?;
        let held = (label.cluster, label.drive, label.node);
        if !label.in_operation || held != (identity.cluster, drive, identity.node) {
            return Some(label);
        }
        if self.in_use(machine, drive, disk, identity).is_some() {
            return None;
        }
        if self.disks[disk].foreign || self.outlived(machine, disk) {
            self.fault(Fault::ReleaseNotWritten);
            return None;
        }
        self.release_ends(disk, drive, generation, identity)
    }

    /// Whether it can be proved that a drive is closed. One that is gone from the machine is.
    pub(crate) fn proof(&mut self, machine: usize, evidence: &Evidence) -> Result<(), Obstacle> {
        if self.machines[machine].blind {
            self.fault(Fault::CannotProve);
            return Err(Obstacle::CannotProve { why: "no right to look".to_owned() });
        }
        // A child that outlived its agent is seen also when the drive has been pulled.
        let same = |disk: usize| self.disks[disk].evidence.compare(evidence) == Comparison::Same;
        let outlived = self.machines[machine].children.iter().any(|child| same(child.disk));
        let foreign =
            self.disk_with(machine, evidence).is_some_and(|disk| self.disks[disk].foreign);
        if foreign || outlived {
            self.fault(Fault::ForeignHolder);
            return Err(Obstacle::Blocked { by: vec!["fsck (77)".to_owned()] });
        }
        Ok(())
    }

    /// An agent died in the middle of a step: the label may have been written.
    pub(crate) fn step_cut_off(&mut self, machine: usize, drive: DriveId, work: &Work) {
        if self.rng.chance(500) {
            return;
        }
        match work {
            Work::Attach { work, identity } => {
                let (work, identity) = (work.clone(), *identity);
                // It died all the same: only what is on the drive counts.
                drop(self.attach_ends(machine, &work, identity));
            }
            Work::Relabel { work, identity, disk } => {
                drop(self.relabel_ends(*disk, work, *identity));
            }
            Work::Detach { generation, identity, disk, evidence: _ } => {
                if self.in_use(machine, drive, *disk, *identity).is_none() {
                    self.release_ends(*disk, drive, *generation, *identity);
                }
            }
            Work::Prove { generation, identity, evidence } => {
                let (generation, identity, evidence) = (*generation, *identity, evidence.clone());
                self.release_closed_ends(machine, drive, generation, identity, &evidence);
            }
            Work::ChangeLabel { order, by, disk } => {
                self.change_cut_off(machine, *disk, order, *by);
            }
        }
    }

    /// A child that outlived its agent has the drive.
    pub(crate) fn outlived(&self, machine: usize, disk: usize) -> bool {
        self.machines[machine].children.iter().any(|child| child.disk == disk)
    }
}
