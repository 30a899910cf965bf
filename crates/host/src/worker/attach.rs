//! Attaches a drive for the agent: opens it, brings its label up to date, hands over the descriptor.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use hotbay_core::device::Denied;
use hotbay_core::label::Found;
use hotbay_core::label::change::{Basis, LabelTold};

use super::follow::Follow;
use super::guard::guarded;
use super::look::{BLKID_LIMIT, kernel_id, sectors, stray_on};
use super::open::{Beside, Meant, failed, writer_lock};
use super::protocol::{Attach, AttachError, Attached, chain};
use super::wipe::wipe;
use crate::kernel_id::KernelId;
use crate::label::{LabelError, bring_up_to_date, limit_bytes, read_whole};
use crate::runtime_dir::RuntimeDir;
use crate::scan::{blkid, candidate_at, denied_by_contents, denied_from_outside};

/// Attaches a drive, or leaves it as it was.
pub(super) fn attach(
    dir: &RuntimeDir,
    request: &Attach,
    follow: Follow<'_>,
) -> Result<(Attached, File), AttachError> {
    let meant = meant(request);
    let locked = meant.lock(dir, follow.checkpoint)?;
    let file = meant.open(&locked, Beside::OurMappings(dir), follow.checkpoint)?;
    if !request.wipe.is_empty() {
        wipe(&file, locked.id, request, follow.checkpoint)?;
    }
    let attached = label(&file, locked.id, request, follow)?;
    follow.reached("attach-labelled");
    // The lock ends here: all writes have returned.
    drop(locked);
    let file = guarded(dir, request, attached.label.drive, file, follow)?;
    Ok((attached, file))
}

/// Brings the label of a drive that is open up to date, through a descriptor of it.
pub(super) fn relabel(
    dir: &RuntimeDir,
    request: &Attach,
    given: Vec<OwnedFd>,
    follow: Follow<'_>,
) -> Result<Attached, AttachError> {
    let meant = meant(request);
    let file = File::from(given.into_iter().next().ok_or_else(|| meant.missing())?);
    let id = kernel_id(&file).map_err(failed("look at the open drive"))?;
    let lock = writer_lock(dir, id)?;
    meant.prove_open(&file, id)?;
    let attached = label(&file, id, request, follow)?;
    follow.reached("attach-relabelled");
    drop(lock);
    Ok(attached)
}

fn meant(request: &Attach) -> Meant<'_> {
    Meant { path: &request.path, kind: request.kind, evidence: &request.evidence }
}

fn label(
    file: &File,
    id: KernelId,
    request: &Attach,
    follow: Follow<'_>,
) -> Result<Attached, AttachError> {
    let sectors = sectors(file, id).map_err(failed("ask for the drive's size"))?;
    let otherwise_empty = || otherwise_empty(&request.path);
    let outcome = bring_up_to_date(&sectors, &request.want.0, otherwise_empty, follow.checkpoint)
        .map_err(|error| match error {
        LabelError::Unfit(_) | LabelError::Refused(_) | LabelError::NotProvedEmpty { .. } => {
            AttachError::NotOurs { why: chain(&error) }
        }
        LabelError::Read(_)
        | LabelError::Write { .. }
        | LabelError::Sync(_)
        | LabelError::ReadBack { .. } => {
            AttachError::Failed { step: "bring the label up to date".into(), error: chain(&error) }
        }
    })?;
    // A release of a drive without a label leaves none; an attach never comes here.
    let header = outcome.header();
    let header =
        header.ok_or_else(|| AttachError::NotOurs { why: "it was to be released".into() })?;
    if header.in_operation {
        follow.grow_table(&request.path, &sectors, &request.want.0);
    }
    follow.refresh_third_copy(&request.path, &sectors, header.drive);
    let reading = failed("read the label");
    match read_whole(&sectors).map_err(&reading)? {
        (Found::Valid { header: read, .. }, extents) if read == header => {
            let limit_bytes = limit_bytes(&sectors, header.drive);
            let limit_bytes = limit_bytes.map_err(|error| reading(io::Error::other(error)))?;
            let told = LabelTold { basis: Basis::of(&header), extents, limit_bytes };
            Ok(Attached { id, label: header.into(), told })
        }
        (found, _) => {
            Err(reading(io::Error::other(format!("{header:?} was written, {found:?} is read"))))
        }
    }
}

/// Everything but the bytes at its ends that would show someone else's data.
fn otherwise_empty(path: &str) -> Result<(), Vec<Denied>> {
    let unreadable = |error: String| vec![Denied::Unreadable { error }];
    let candidate = candidate_at(Path::new(path))
        .map_err(|error| unreadable(chain(&error)))?
        .ok_or_else(|| unreadable("it is gone".into()))?;
    let mut denied = denied_from_outside(&candidate);
    let stray = stray_on(candidate.id);
    if !stray.is_empty() {
        denied.push(Denied::Held { by: stray });
    }
    denied.extend(denied_by_contents(&candidate, &blkid::probe(path, BLKID_LIMIT), None));
    if denied.is_empty() { Ok(()) } else { Err(denied) }
}
