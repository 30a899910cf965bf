//! Changes the label of a drive that is open, for the agent, through a descriptor of it; or reads it.

use std::fs::File;
use std::os::fd::OwnedFd;

use hotbay_core::label::change::{Change, LabelTold};

use super::follow::Follow;
use super::look::{kernel_id, sectors};
use super::open::{Meant, failed, writer_lock};
use super::protocol::{ChangeLabel, LabelChangeError, ReadLabel, chain};
use crate::erase;
use crate::kernel_id::KernelId;
use crate::label::{ExtentsError, FileSectors, LabelError, change_extents, told};
use crate::locks::WriterLock;
use crate::mapping;
use crate::runtime_dir::RuntimeDir;

/// A drive that is open here, with the lock under which its label is read and written.
struct Opened {
    file: File,
    id: KernelId,
    sectors: FileSectors,
    /// Let go last, when all writes have returned.
    _lock: WriterLock,
}

fn opened(
    dir: &RuntimeDir,
    meant: Meant<'_>,
    given: Vec<OwnedFd>,
) -> Result<Opened, LabelChangeError> {
    let file = File::from(given.into_iter().next().ok_or_else(|| meant.missing())?);
    let id = kernel_id(&file).map_err(failed("look at the open drive"))?;
    let lock = writer_lock(dir, id)?;
    meant.prove_open(&file, id)?;
    let sectors = sectors(&file, id).map_err(failed("ask for the drive's size"))?;
    Ok(Opened { file, id, sectors, _lock: lock })
}

/// Makes the changes, or leaves the label as it was.
pub(super) fn change_label(
    dir: &RuntimeDir,
    request: &ChangeLabel,
    given: Vec<OwnedFd>,
    follow: Follow<'_>,
) -> Result<LabelTold, LabelChangeError> {
    let ChangeLabel { path, kind, evidence, held, basis, changes, erase_bytes_per_second } =
        request;
    let drive = opened(dir, Meant { path, kind: *kind, evidence }, given)?;
    none_reached(dir, drive.id, changes)?;
    let erase = |range| {
        erase::zero(&drive.file, drive.id, range, *erase_bytes_per_second, follow.checkpoint)
    };
    let told = change_extents(&drive.sectors, &held.0, *basis, changes, &erase, follow.checkpoint)
        .map_err(|error| not_changed("change the label", error))?;
    follow.refresh_third_copy(path, &drive.sectors, held.0.drive);
    Ok(told)
}

/// Refuses to take off the drive what somebody may still write to. Agent and registry know who uses a volume; this is
/// the last place that can say so when the one has lost its record and the other has given up the host.
fn none_reached(
    dir: &RuntimeDir,
    drive: KernelId,
    changes: &[Change],
) -> Result<(), LabelChangeError> {
    let taken_off: Vec<_> = changes.iter().filter_map(Change::takes_off).collect();
    if taken_off.is_empty() {
        return Ok(());
    }
    let uses = mapping::reached(dir, drive, &taken_off).map_err(|error| {
        LabelChangeError::Failed { step: "look at what is mapped".into(), error: chain(&error) }
    })?;
    if uses.is_empty() { Ok(()) } else { Err(LabelChangeError::Mapped { uses }) }
}

/// Tells the label that the next order is decided on.
pub(super) fn read_label(
    dir: &RuntimeDir,
    request: &ReadLabel,
    given: Vec<OwnedFd>,
) -> Result<LabelTold, LabelChangeError> {
    let ReadLabel { path, kind, evidence, held } = request;
    let drive = opened(dir, Meant { path, kind: *kind, evidence }, given)?;
    told(&drive.sectors, &held.0).map_err(|error| not_changed("read the label", error))
}

fn not_changed(step: &str, error: ExtentsError) -> LabelChangeError {
    match error {
        ExtentsError::Refused { why, now } => LabelChangeError::Refused { why, now },
        error @ (ExtentsError::NotHeld
        | ExtentsError::Label(
            LabelError::Unfit(_) | LabelError::Refused(_) | LabelError::NotProvedEmpty { .. },
        )) => LabelChangeError::NotHeld { why: chain(&error) },
        error @ (ExtentsError::Erase(_)
        | ExtentsError::Label(
            LabelError::Read(_)
            | LabelError::Write { .. }
            | LabelError::Sync(_)
            | LabelError::ReadBack { .. },
        )) => LabelChangeError::Failed { step: step.into(), error: chain(&error) },
    }
}
