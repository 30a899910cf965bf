//! Opens a drive to write on it: only the drive that is meant, and only under its writer lock.
//!
//! ```text
//! name -> writer lock -> evidence -> open -> evidence again, on what is open
//! ```
//!
//! Identity is proved twice, because between a look at a path and its opening another drive can take its place.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use hotbay_core::device::DeviceKind;
use hotbay_core::evidence::{Comparison, Evidence};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::look::kernel_id;
use super::protocol::{AttachError, chain};
use crate::block_ioctl::disk_sequence;
use crate::identity::evidence_of;
use crate::kernel_id::{DeviceNumber, KernelId};
use crate::locks::{LockError, WriterLock};
use crate::mapping::held_by_ours;
use crate::proof::{Blocker, exclusive_users};
use crate::runtime_dir::RuntimeDir;
use crate::scan::sysfs::Sysfs;

/// The drive that is meant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meant<'a> {
    pub(super) path: &'a str,
    pub(super) kind: DeviceKind,
    /// What it must be known by.
    pub(super) evidence: &'a Evidence,
}

/// The lock under which a drive may be written to.
#[derive(Debug)]
pub(super) struct Locked {
    pub(super) id: KernelId,
    _lock: WriterLock,
}

/// Who else may have the drive when it is opened.
#[derive(Debug, Clone, Copy)]
pub(super) enum Beside<'a> {
    Nobody,
    /// Mappings of our volumes and the guard: one of them has kept the claim of an agent that is gone.
    OurMappings(&'a RuntimeDir),
}

impl Meant<'_> {
    /// Takes its writer lock.
    pub(super) fn lock(
        self,
        dir: &RuntimeDir,
        checkpoint: &dyn Fn(&'static str),
    ) -> Result<Locked, AttachError> {
        let path = Path::new(self.path);
        let id = match KernelId::of_path(path) {
            Ok(Some(id)) if fits(id, self.kind) => id,
            Ok(_) => return Err(self.missing()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.missing()),
            Err(error) => return Err(failed("look at the drive")(error)),
        };
        let lock = writer_lock(dir, id)?;
        checkpoint("open-locked");
        Ok(Locked { id, _lock: lock })
    }

    /// Opens it, exclusively if it is a block device and unless only `beside` has it.
    pub(super) fn open(
        self,
        locked: &Locked,
        beside: Beside<'_>,
        checkpoint: &dyn Fn(&'static str),
    ) -> Result<File, AttachError> {
        let id = locked.id;
        self.prove_identity(id, None)?;
        let file = open(Path::new(self.path), id, beside)?;
        if kernel_id(&file).map_err(failed("look at the open drive"))? != id {
            return Err(self.missing());
        }
        self.prove_open(&file, id)?;
        checkpoint("open-proved");
        Ok(file)
    }

    /// Proves that what is open is the drive that is meant, and still on the machine.
    pub(super) fn prove_open(self, file: &File, id: KernelId) -> Result<(), AttachError> {
        if !is_current(file, id) {
            return Err(self.missing());
        }
        self.prove_identity(id, Some(file.as_fd()))
    }

    pub(super) fn missing(self) -> AttachError {
        AttachError::Missing { path: self.path.to_owned() }
    }

    fn prove_identity(
        self,
        id: KernelId,
        opened: Option<BorrowedFd<'_>>,
    ) -> Result<(), AttachError> {
        let path = self.path.to_owned();
        let found = evidence_of(Path::new(self.path), id, opened)
            .map_err(failed("gather what tells the drive from others"))
            .map(Box::new)?;
        match found.compare(self.evidence) {
            Comparison::Same => Ok(()),
            Comparison::Different => Err(AttachError::OtherDrive { path, found }),
            Comparison::NoProof => Err(AttachError::NoProof { path, found }),
        }
    }
}

pub(super) fn writer_lock(dir: &RuntimeDir, id: KernelId) -> Result<WriterLock, AttachError> {
    WriterLock::take(dir, id).map_err(|error| match error {
        LockError::LockedBy { by, .. } => AttachError::LockedBy { by },
        error @ LockError::Io { .. } => {
            AttachError::Failed { step: "take the writer lock".into(), error: chain(&error) }
        }
    })
}

pub(super) fn failed(step: &str) -> impl Fn(io::Error) -> AttachError {
    move |error| AttachError::Failed { step: step.to_owned(), error: error.to_string() }
}

fn fits(id: KernelId, kind: DeviceKind) -> bool {
    match kind {
        DeviceKind::Block | DeviceKind::Loop => matches!(id, KernelId::Block(_)),
        DeviceKind::File => matches!(id, KernelId::File { .. }),
    }
}

fn open(path: &Path, id: KernelId, beside: Beside<'_>) -> Result<File, AttachError> {
    let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
    // On a plain file it would mean "must not exist".
    flags.set(OFlags::EXCL, matches!(id, KernelId::Block(_)));
    match (rustix::fs::open(path, flags, Mode::empty()), id) {
        (Ok(file), _) => Ok(File::from(file)),
        (Err(Errno::BUSY), KernelId::Block(number)) => {
            let by = exclusive_users(number);
            match beside {
                Beside::OurMappings(dir) if are_all_ours(dir, number, &by)? => {
                    let opened = rustix::fs::open(path, flags - OFlags::EXCL, Mode::empty());
                    Ok(File::from(opened.map_err(|error| failed("open the drive")(error.into()))?))
                }
                Beside::OurMappings(_) | Beside::Nobody => Err(AttachError::Busy { by }),
            }
        }
        (Err(error), _) => Err(failed("open the drive")(error.into())),
    }
}

/// Whether nothing but mappings of ours and the guard can be what has the claim on a drive. Devices of device-mapper
/// are named; a loop device shows nowhere, so whatever else does show is someone else.
fn are_all_ours(
    dir: &RuntimeDir,
    number: DeviceNumber,
    by: &[Blocker],
) -> Result<bool, AttachError> {
    let is_ours = |blocker: &Blocker| match blocker {
        Blocker::Mapping { .. } | Blocker::Guard { .. } => true,
        Blocker::Process { .. }
        | Blocker::LoopDevice { .. }
        | Blocker::Holder { .. }
        | Blocker::Mount { .. }
        | Blocker::Exclusive
        | Blocker::Leased => false,
    };
    if by.iter().all(is_ours) {
        return Ok(true);
    }
    if by != [Blocker::Exclusive] {
        return Ok(false);
    }
    let ours = held_by_ours(dir, number).map_err(|error| AttachError::Failed {
        step: "look for mappings of volumes on the drive".into(),
        error: error.to_string(),
    })?;
    Ok(!ours.is_empty())
}

/// Whether the number still stands for what is open: a drive that was pulled out leaves its number to the next one.
/// Kernels before 5.15 do not count, and then there is nothing to compare.
pub(crate) fn is_current(file: &File, id: KernelId) -> bool {
    let KernelId::Block(number) = id else { return true };
    let sysfs = Sysfs::of_machine();
    let Some((name, _)) = sysfs.device(number) else { return false };
    match (sysfs.disk(&name).sequence(), disk_sequence(file)) {
        (Some(shown), Ok(opened)) => shown == opened,
        (None, _) | (_, Err(_)) => true,
    }
}
