//! Attaches a drive for the agent: opens it, brings its label up to date, hands over the descriptor.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use hotbay_core::device::Denied;
use hotbay_core::label::Header;

use super::look::{BLKID_LIMIT, kernel_id, sectors};
use super::open::{Beside, Meant, failed, writer_lock};
use super::protocol::{Attach, AttachError, Attached, chain};
use super::wipe::wipe;
use crate::kernel_id::KernelId;
use crate::label::{LabelError, bring_up_to_date};
use crate::runtime_dir::RuntimeDir;
use crate::scan::{blkid, candidate_at, denied_by_contents, denied_from_outside};

/// Attaches a drive, or leaves it as it was.
pub(super) fn attach(
    dir: &RuntimeDir,
    request: &Attach,
    checkpoint: &dyn Fn(&'static str),
) -> Result<(Attached, File), AttachError> {
    let meant = meant(request);
    let locked = meant.lock(dir, checkpoint)?;
    let file = meant.open(&locked, Beside::OurMappings(dir), checkpoint)?;
    if !request.wipe.is_empty() {
        wipe(&file, locked.id, request, checkpoint)?;
    }
    let header = label(&file, locked.id, request, checkpoint)?;
    checkpoint("attach-labelled");
    // The lock ends here: all writes have returned.
    Ok((Attached { id: locked.id, label: header.into() }, file))
}

/// Brings the label of a drive that is open up to date, through a descriptor of it.
pub(super) fn relabel(
    dir: &RuntimeDir,
    request: &Attach,
    given: Vec<OwnedFd>,
    checkpoint: &dyn Fn(&'static str),
) -> Result<Attached, AttachError> {
    let meant = meant(request);
    let file = File::from(given.into_iter().next().ok_or_else(|| meant.missing())?);
    let id = kernel_id(&file).map_err(failed("look at the open drive"))?;
    let lock = writer_lock(dir, id)?;
    meant.prove_open(&file, id)?;
    let header = label(&file, id, request, checkpoint)?;
    checkpoint("attach-relabelled");
    drop(lock);
    Ok(Attached { id, label: header.into() })
}

fn meant(request: &Attach) -> Meant<'_> {
    Meant { path: &request.path, kind: request.kind, evidence: &request.evidence }
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
