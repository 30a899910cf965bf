//! A block device that is exactly one volume, on the machine that holds its drive.
//!
//! ```text
//!              drive has a dm guard                    drive is claimed by the agent's descriptor
//!   map ----> device-mapper linear (any parts)   else  loop device over that very descriptor (one part)
//!   fence --> table of `error`                         size 0: every new I/O fails, open descriptors stay
//! ```
//!
//! The kernel alone knows what is mapped; nothing is recorded. So each mapping carries the volume's id and epoch in the
//! kernel ([`name`]), and every function begins by asking for it. That makes each of them safe to repeat after a child
//! was killed anywhere.
//!
//! A loop device keeps the descriptor that it was given, and with it the exclusive claim on the drive: the claim
//! outlives the agent. An agent that starts again and meets EBUSY finds its own mappings by [`held_by_ours`], and opens
//! the drive without a claim of its own ([`crate::worker`]).
//!
//! [`dummy`] is the device that stands for a volume which cannot be reached. It is no mapping: it is named otherwise
//! and never over a drive.
//!
//! Everything here may wait for a drive and runs in a child: `worker::Request` has `Map`, `Unmap`, `Fence`,
//! `GrowMapping` and `ListMappings`; attaching a drive puts its guard, detaching it takes the guard away. One lock per
//! drive keeps two children from mapping a volume twice.

mod check;
mod dm;
mod dm_control;
#[expect(clippy::host_endian_bytes, reason = "the kernel reads in the byte order of the machine")]
mod dm_message;
pub mod dummy;
mod error;
mod loops;
mod name;
mod node;
mod page;

use std::fs::File;
use std::time::{Duration, Instant};

use hotbay_core::ids::{DriveId, VolumeId};
pub use hotbay_core::volume::{MOST_PARTS, Segment};
use serde::{Deserialize, Serialize};

use self::dm_control::Control;
pub use self::error::MappingError;
use self::loops::Silent;
pub(crate) use self::name::{is_guard_by_sysfs, is_ours_by_sysfs, volume_held_by, volume_of};
pub use self::page::MappingPage;
pub(crate) use self::page::page;
use crate::kernel_id::{DeviceNumber, KernelId};
use crate::locks::{LockError, MappingLock};
use crate::proof::Blocker;
use crate::runtime_dir::RuntimeDir;
use crate::scan::sysfs::Sysfs;

/// How long another child may be busy with a mapping on the same drive before that is an error.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The mapping that a volume is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    pub volume: VolumeId,
    /// Under which it may be used. A mapping that is there keeps the epoch that it was made with.
    pub epoch: u64,
    /// In the order in which they make up the volume.
    pub parts: Vec<Segment>,
    pub read_only: bool,
}

/// What kind of device a mapping is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MappingKind {
    DeviceMapper,
    Loop,
}

/// A mapping of ours, as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    pub volume: VolumeId,
    pub epoch: u64,
    pub kind: MappingKind,
    pub path: String,
    pub number: DeviceNumber,
    /// What it is over. A fenced device-mapper mapping is over nothing any more.
    pub drive: Option<KernelId>,
    /// A fenced mapping shows none.
    pub parts: Vec<Segment>,
    pub read_only: bool,
    /// All new I/O fails.
    pub fenced: bool,
    /// Its I/O goes past the page cache. Otherwise it is over a plain file whose filesystem cannot do that.
    pub direct: bool,
    /// It goes away with its last user.
    pub leaving: bool,
}

/// A drive that is open, with what is needed to map a part of it.
#[derive(Debug)]
pub(crate) struct OpenDrive {
    /// The descriptor that the agent attached it with.
    pub(crate) file: File,
    pub(crate) id: KernelId,
    pub(crate) block_bytes: u32,
}

type Checkpoint<'a> = &'a dyn Fn(&'static str);

/// Maps a volume, or finds it mapped just so.
pub(crate) fn map(
    dir: &RuntimeDir,
    wanted: &Wanted,
    drive: &OpenDrive,
    checkpoint: Checkpoint<'_>,
) -> Result<Mapping, MappingError> {
    check::wanted(wanted, drive)?;
    let _lock = lock(dir, drive.id)?;
    checkpoint("map-locked");
    let found = match find(dir, wanted.volume)? {
        Some(found) if found.kind == MappingKind::DeviceMapper => {
            dm::wake(&found)?;
            find(dir, wanted.volume)?
        }
        found => found,
    };
    match found {
        // A child was killed before it had filled, or looked at, what it made.
        Some(found) if dm::is_half_made(&found) => dm::unmap(&found, checkpoint)?,
        Some(found) if loops::is_half_made(&found, drive) => {
            loops::unmap(dir, &found, checkpoint)?;
        }
        Some(found) => return same(found, wanted, drive),
        None => {}
    }
    if !dm::is_guarded(drive.id)? {
        return loops::map(dir, wanted, drive, checkpoint);
    }
    dm::map(wanted, drive, checkpoint)?;
    checkpoint("map-verified");
    let volume = wanted.volume;
    same(find(dir, volume)?.ok_or(MappingError::NotMapped { volume })?, wanted, drive)
}

/// Refuses pieces of a drive that its label does not give to the volume, whole and in this order.
pub(crate) fn on_label(
    volume: VolumeId,
    parts: &[Segment],
    drive: &OpenDrive,
) -> Result<(), MappingError> {
    let wanted = Wanted { volume, epoch: 0, parts: parts.to_vec(), read_only: true };
    check::wanted(&wanted, drive)
}

/// Removes the mapping of a volume; false if it has none. A mapping in use stays.
pub(crate) fn unmap(
    dir: &RuntimeDir,
    volume: VolumeId,
    checkpoint: Checkpoint<'_>,
) -> Result<bool, MappingError> {
    let Some((found, _lock)) = find_locked(dir, volume)? else { return Ok(false) };
    checkpoint("unmap-found");
    match found.kind {
        MappingKind::DeviceMapper => dm::unmap(&found, checkpoint)?,
        MappingKind::Loop => loops::unmap(dir, &found, checkpoint)?,
    }
    Ok(true)
}

/// Makes all new I/O of a volume's mapping fail, whoever has it open or mounted; what was under way has ended when this
/// returns. `None` if the volume has no mapping. A fenced mapping is of no more use: it is unmapped and made anew.
pub(crate) fn fence(
    dir: &RuntimeDir,
    volume: VolumeId,
    checkpoint: Checkpoint<'_>,
) -> Result<Option<Mapping>, MappingError> {
    // Should it ever be mapped twice, on two drives, every one of them is fenced.
    for found in all_of(dir, volume)? {
        let _lock = found.drive.map(|drive| lock(dir, drive)).transpose()?;
        checkpoint("fence-found");
        match found.kind {
            MappingKind::DeviceMapper => dm::fence(&found, checkpoint)?,
            MappingKind::Loop => loops::fence(&found)?,
        }
        checkpoint("fence-done");
    }
    let all = all_of(dir, volume)?;
    // One that has no table yet does no I/O either.
    match all.iter().find(|mapping| !mapping.fenced && !dm::is_half_made(mapping)) {
        // Mapped anew meanwhile, by whoever had the lock before.
        Some(open) => {
            let (difference, found) = ("not fenced".to_owned(), Box::new(open.clone()));
            Err(MappingError::OtherMapping { difference, found })
        }
        None => Ok(all.into_iter().next()),
    }
}

/// All mappings of a volume, with no doubt left.
fn all_of(dir: &RuntimeDir, volume: VolumeId) -> Result<Vec<Mapping>, MappingError> {
    let mut all = loops::all(dir, Silent::Ours)?;
    all.extend(dm::all(dir)?);
    all.retain(|mapping| mapping.volume == volume);
    Ok(all)
}

/// Gives a mapping more of the drive. Whoever has it open or mounted keeps it and sees the new size.
pub(crate) fn grow(
    dir: &RuntimeDir,
    wanted: &Wanted,
    drive: &OpenDrive,
    checkpoint: Checkpoint<'_>,
) -> Result<Mapping, MappingError> {
    check::wanted(wanted, drive)?;
    let _lock = lock(dir, drive.id)?;
    let volume = wanted.volume;
    let found = find(dir, volume)?.ok_or(MappingError::NotMapped { volume })?;
    check::growth(&found, wanted, drive.id)?;
    checkpoint("grow-found");
    if found.parts != wanted.parts {
        match found.kind {
            MappingKind::DeviceMapper => dm::grow(&found, wanted, drive, checkpoint)?,
            MappingKind::Loop => loops::grow(&found, wanted)?,
        }
    }
    checkpoint("grow-done");
    let found = find(dir, volume)?.ok_or(MappingError::NotMapped { volume })?;
    same(found, wanted, drive)
}

/// Whether the kernel has a device-mapper that this process may use.
pub fn has_device_mapper() -> bool {
    Control::open().is_ok_and(|control| control.is_some())
}

/// Has device-mapper claim a drive that nobody else has claimed, so that it can map its volumes; or finds that it has.
/// `label` is the id on the drive's label: one that comes back under another number has the same guard.
pub(crate) fn guard(
    label: DriveId,
    drive: DeviceNumber,
    checkpoint: Checkpoint<'_>,
) -> Result<(), MappingError> {
    dm::guard(label, drive, checkpoint)
}

/// Takes the guard from a drive, wherever that is now, or from what is left of it; false if it has none.
pub(crate) fn unguard(label: DriveId) -> Result<bool, MappingError> {
    dm::unguard(label)
}

/// The mappings by device-mapper that are over a drive which the machine no longer has: over `drive`, or, if that is
/// not known, over any.
pub(crate) fn over_gone(drive: Option<DeviceNumber>) -> Result<Vec<Blocker>, MappingError> {
    let sysfs = Sysfs::of_machine();
    let is_it = |number: DeviceNumber| match drive {
        Some(drive) => number == drive,
        None => sysfs.lacks(number),
    };
    let found =
        dm::over_numbers()?.into_iter().filter(|(_, _, over)| over.iter().any(|n| is_it(*n)));
    Ok(found.map(|(volume, path, _)| Blocker::Mapping { volume, path }).collect())
}

/// All mappings of ours on this machine, ordered by volume.
pub(crate) fn find_all(dir: &RuntimeDir) -> Result<Vec<Mapping>, MappingError> {
    let mut all = loops::all(dir, Silent::ForeignIfOverFile)?;
    all.extend(dm::all(dir)?);
    all.sort_by_key(|mapping| (mapping.volume, mapping.number));
    Ok(all)
}

/// The mappings of ours over a drive: each keeps it open, and one of them may have the claim on it.
pub(crate) fn held_by_ours(
    dir: &RuntimeDir,
    drive: DeviceNumber,
) -> Result<Vec<Mapping>, MappingError> {
    let mut all = find_all(dir)?;
    all.retain(|mapping| mapping.drive == Some(KernelId::Block(drive)));
    Ok(all)
}

/// Those of some volumes on a drive that may be written to by a mapping of ours, each with the epoch that this was made
/// with.
pub(crate) fn reached(
    dir: &RuntimeDir,
    drive: KernelId,
    volumes: &[VolumeId],
) -> Result<Vec<(VolumeId, u64)>, MappingError> {
    let on_it = find_all(dir)?.into_iter().filter(|mapping| mapping.drive == Some(drive));
    let of_them = on_it.filter(|mapping| volumes.contains(&mapping.volume) && !mapping.fenced);
    Ok(of_them.map(|mapping| (mapping.volume, mapping.epoch)).collect())
}

fn find(dir: &RuntimeDir, volume: VolumeId) -> Result<Option<Mapping>, MappingError> {
    Ok(find_all(dir)?.into_iter().find(|mapping| mapping.volume == volume))
}

/// Finds a volume's mapping, takes the lock of its drive, and makes sure that it is still there.
fn find_locked(
    dir: &RuntimeDir,
    volume: VolumeId,
) -> Result<Option<(Mapping, Option<MappingLock>)>, MappingError> {
    let Some(found) = find(dir, volume)? else { return Ok(None) };
    let lock = found.drive.map(|drive| lock(dir, drive)).transpose()?;
    Ok(find(dir, volume)?.map(|found| (found, lock)))
}

fn lock(dir: &RuntimeDir, drive: KernelId) -> Result<MappingLock, MappingError> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match MappingLock::take(dir, drive) {
            Ok(lock) => return Ok(lock),
            Err(LockError::LockedBy { by, .. }) if Instant::now() >= until => {
                return Err(MappingError::LockedBy { by });
            }
            Err(LockError::LockedBy { .. }) => std::thread::sleep(LOCK_PAUSE),
            Err(LockError::Io { path, source }) => {
                let step = format!("lock {}", path.display());
                return Err(MappingError::Failed { step, error: source.to_string() });
            }
        }
    }
}

/// The mapping that was found, if it is the one that is wanted. The epoch is the caller's to compare.
fn same(found: Mapping, wanted: &Wanted, drive: &OpenDrive) -> Result<Mapping, MappingError> {
    match check::difference(&found, wanted, drive.id) {
        None => Ok(found),
        Some(difference) => {
            let found = Box::new(found);
            Err(MappingError::OtherMapping { difference: difference.to_owned(), found })
        }
    }
}
