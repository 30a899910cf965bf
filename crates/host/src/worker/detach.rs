//! Closes a drive, in a child because closing may wait for it, and proves that it is closed.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use hotbay_core::device::LabelSeen;
use hotbay_core::label::update::Want;
use hotbay_core::label::{Found, Header};

use super::look::{kernel_id, label_at, sectors};
use super::open::{Beside, Meant};
use super::protocol::{Detach, Detached, LabelWant, chain};
use crate::kernel_id::KernelId;
use crate::label::bring_up_to_date;
use crate::locks::WriterLock;
use crate::proof::prove;
use crate::runtime_dir::RuntimeDir;

/// What the label says after a release, if there is one; or why it could not be written.
type Released = Result<Option<LabelSeen>, String>;

/// Marks the label released, closes the drive and proves it closed. A label that cannot be written does not stop the
/// close: a dying drive must be let go.
pub(super) fn detach(
    dir: &RuntimeDir,
    request: &Detach,
    descriptor: Option<OwnedFd>,
    checkpoint: &dyn Fn(&'static str),
) -> Detached {
    let mut known = request.known;
    let released = match (descriptor, request.release) {
        (Some(descriptor), release) => {
            let file = File::from(descriptor);
            let id = kernel_id(&file);
            known = id.as_ref().ok().copied().or(known);
            match id {
                Ok(id) => release_and_close(dir, file, id, release, checkpoint),
                Err(error) => Err(error.to_string()),
            }
        }
        // A drive that is nowhere has no label to write.
        (None, Some(LabelWant(want))) if !request.path.is_empty() => {
            release_closed(dir, request, &want, checkpoint)
        }
        (None, Some(_) | None) => Ok(None),
    };
    checkpoint("detach-closed");
    let (label, label_not_updated) = match released {
        Ok(label) => (label, None),
        Err(why) => (None, Some(why)),
    };
    let proof = prove(Path::new(&request.path), request.kind, &request.evidence, known);
    Detached { label, label_not_updated, proof }
}

fn release_and_close(
    dir: &RuntimeDir,
    file: File,
    id: KernelId,
    want: Option<LabelWant>,
    checkpoint: &dyn Fn(&'static str),
) -> Released {
    let Some(LabelWant(want)) = want else { return Ok(None) };
    let lock = WriterLock::take(dir, id).map_err(|error| chain(&error))?;
    let released = release(&file, id, &want, checkpoint);
    checkpoint("detach-labelled");
    // The last close, as the agent has dropped its own copy. What the kernel still has to write it writes here, under
    // the lock.
    drop(file);
    drop(lock);
    released
}

/// Releases the label of a drive that nobody here has open. One that is released is not opened for writing.
fn release_closed(
    dir: &RuntimeDir,
    request: &Detach,
    want: &Want,
    checkpoint: &dyn Fn(&'static str),
) -> Released {
    let meant = Meant { path: &request.path, kind: request.kind, evidence: &request.evidence };
    // Before it is even read: a drive that hangs under someone's write would keep this child as well.
    let locked = meant.lock(dir, checkpoint).map_err(|error| error.to_string())?;
    match label_at(Path::new(&request.path)) {
        Ok(Found::Valid { header, slot: _ }) if is_held(&header, want) => {}
        Ok(Found::Valid { header, slot: _ }) => return Ok(Some(header.into())),
        // Nothing that could be released, so nothing that could not.
        Ok(Found::Absent | Found::Damaged | Found::UnknownVersion(_)) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    }
    let file =
        meant.open(&locked, Beside::Nobody, checkpoint).map_err(|error| error.to_string())?;
    let released = release(&file, locked.id, want, checkpoint);
    checkpoint("detach-labelled");
    released
}

/// Whether the label calls the drive in operation on the node that is to release it.
fn is_held(header: &Header, want: &Want) -> bool {
    let held = (header.cluster, header.drive, header.node);
    header.in_operation && held == (want.cluster, want.drive, want.node)
}

fn release(file: &File, id: KernelId, want: &Want, checkpoint: &dyn Fn(&'static str)) -> Released {
    let sectors = sectors(file, id).map_err(|error| error.to_string())?;
    // A release writes no new label, so whether the drive is empty does not matter.
    let outcome = bring_up_to_date(&sectors, want, || Err(vec![]), checkpoint)
        .map_err(|error| chain(&error))?;
    Ok(outcome.header().map(LabelSeen::from))
}
