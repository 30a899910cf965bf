//! Opens a drive for the agent: proves which one it is, brings its label up to date, hands over the descriptor.
//!
//! ```text
//! name -> writer lock -> evidence -> open -> evidence again, on what is open -> label -> lock released -> answer
//! ```
//!
//! Identity is proved twice, because between a look at a path and its opening another drive can take its place.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use hotbay_core::device::{Denied, DeviceKind};
use hotbay_core::evidence::Comparison;
use hotbay_core::label::Header;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::look::{BLKID_LIMIT, kernel_id, sectors};
use super::protocol::{Attach, AttachError, Attached, chain};
use crate::block_ioctl::disk_sequence;
use crate::identity::evidence_of;
use crate::kernel_id::KernelId;
use crate::label::{LabelError, bring_up_to_date};
use crate::locks::{LockError, WriterLock};
use crate::proof::exclusive_users;
use crate::runtime_dir::RuntimeDir;
use crate::scan::sysfs::Sysfs;
use crate::scan::{blkid, candidate_at, denied_by_contents, denied_from_outside};

/// Attaches a drive, or leaves it as it was.
pub(super) fn attach(
    dir: &RuntimeDir,
    request: &Attach,
    checkpoint: &dyn Fn(&'static str),
) -> Result<(Attached, File), AttachError> {
    let path = Path::new(&request.path);
    let id = match KernelId::of_path(path) {
        Ok(Some(id)) if fits(id, request.kind) => id,
        Ok(_) => return Err(AttachError::Missing { path: request.path.clone() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(AttachError::Missing { path: request.path.clone() });
        }
        Err(error) => return Err(failed("look at the drive")(error)),
    };
    let lock = writer_lock(dir, id)?;
    checkpoint("attach-locked");
    prove_identity(request, id, None)?;
    let file = open(path, id)?;
    if kernel_id(&file).map_err(failed("look at the open drive"))? != id || !is_current(&file, id) {
        return Err(AttachError::Missing { path: request.path.clone() });
    }
    prove_identity(request, id, Some(file.as_fd()))?;
    checkpoint("attach-opened");
    let header = label(&file, id, request, checkpoint)?;
    checkpoint("attach-labelled");
    // All writes have returned.
    drop(lock);
    Ok((Attached { id, label: header.into() }, file))
}

/// Brings the label of a drive that is open up to date, through a descriptor of it.
pub(super) fn relabel(
    dir: &RuntimeDir,
    request: &Attach,
    given: Vec<OwnedFd>,
    checkpoint: &dyn Fn(&'static str),
) -> Result<Attached, AttachError> {
    let missing = || AttachError::Missing { path: request.path.clone() };
    let file = File::from(given.into_iter().next().ok_or_else(missing)?);
    let id = kernel_id(&file).map_err(failed("look at the open drive"))?;
    let lock = writer_lock(dir, id)?;
    if !is_current(&file, id) {
        return Err(missing());
    }
    prove_identity(request, id, Some(file.as_fd()))?;
    let header = label(&file, id, request, checkpoint)?;
    checkpoint("attach-relabelled");
    drop(lock);
    Ok(Attached { id, label: header.into() })
}

fn writer_lock(dir: &RuntimeDir, id: KernelId) -> Result<WriterLock, AttachError> {
    WriterLock::take(dir, id).map_err(|error| match error {
        LockError::LockedBy { by, .. } => AttachError::LockedBy { by },
        error @ LockError::Io { .. } => {
            AttachError::Failed { step: "take the writer lock".into(), error: chain(&error) }
        }
    })
}

fn fits(id: KernelId, kind: DeviceKind) -> bool {
    match kind {
        DeviceKind::Block | DeviceKind::Loop => matches!(id, KernelId::Block(_)),
        DeviceKind::File => matches!(id, KernelId::File { .. }),
    }
}

fn failed(step: &str) -> impl Fn(io::Error) -> AttachError {
    move |error| AttachError::Failed { step: step.to_owned(), error: error.to_string() }
}

fn prove_identity(
    request: &Attach,
    id: KernelId,
    opened: Option<BorrowedFd<'_>>,
) -> Result<(), AttachError> {
    let path = request.path.clone();
    let found = evidence_of(Path::new(&path), id, opened)
        .map_err(failed("gather what tells the drive from others"))
        .map(Box::new)?;
    match found.compare(&request.evidence) {
        Comparison::Same => Ok(()),
        Comparison::Different => Err(AttachError::OtherDrive { path, found }),
        Comparison::NoProof => Err(AttachError::NoProof { path, found }),
    }
}

fn open(path: &Path, id: KernelId) -> Result<File, AttachError> {
    let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
    // On a plain file it would mean "must not exist".
    flags.set(OFlags::EXCL, matches!(id, KernelId::Block(_)));
    match (rustix::fs::open(path, flags, Mode::empty()), id) {
        (Ok(file), _) => Ok(File::from(file)),
        (Err(Errno::BUSY), KernelId::Block(number)) => {
            Err(AttachError::Busy { by: exclusive_users(number) })
        }
        (Err(error), _) => Err(failed("open the drive")(error.into())),
    }
}

/// Whether the number still stands for what is open: a drive that was pulled out leaves its number to the next one.
/// Kernels before 5.15 do not count, and then there is nothing to compare.
fn is_current(file: &File, id: KernelId) -> bool {
    let KernelId::Block(number) = id else { return true };
    let sysfs = Sysfs::of_machine();
    let Some((name, _)) = sysfs.device(number) else { return false };
    match (sysfs.disk(&name).sequence(), disk_sequence(file)) {
        (Some(shown), Ok(opened)) => shown == opened,
        (None, _) | (_, Err(_)) => true,
    }
}

fn label(
    file: &File,
    id: KernelId,
    request: &Attach,
    checkpoint: &dyn Fn(&'static str),
) -> Result<Header, AttachError> {
    let sectors = sectors(file, id).map_err(failed("ask for the drive's size"))?;
    let otherwise_empty = || otherwise_empty(&request.path);
    let outcome = bring_up_to_date(&sectors, &request.want.0, otherwise_empty, checkpoint)
        .map_err(|error| match error {
            LabelError::Unfit(_) | LabelError::Refused(_) | LabelError::NotProvedEmpty { .. } => {
                AttachError::NotOurs { why: chain(&error) }
            }
            LabelError::Read(_)
            | LabelError::Write { .. }
            | LabelError::Sync(_)
            | LabelError::ReadBack { .. } => AttachError::Failed {
                step: "bring the label up to date".into(),
                error: chain(&error),
            },
        })?;
    // A release of a drive without a label leaves none; an attach never comes here.
    outcome.header().ok_or_else(|| AttachError::NotOurs { why: "it was to be released".into() })
}

/// Everything but the bytes at its ends that would show someone else's data.
fn otherwise_empty(path: &str) -> Result<(), Vec<Denied>> {
    let unreadable = |error: String| vec![Denied::Unreadable { error }];
    let candidate = candidate_at(Path::new(path))
        .map_err(|error| unreadable(chain(&error)))?
        .ok_or_else(|| unreadable("it is gone".into()))?;
    let mut denied = denied_from_outside(&candidate);
    denied.extend(denied_by_contents(&candidate, &blkid::probe(path, BLKID_LIMIT), None));
    if denied.is_empty() { Ok(()) } else { Err(denied) }
}
