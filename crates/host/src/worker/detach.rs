//! Closes a drive, in a child because closing may wait for it, and proves that it is closed.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::look::{kernel_id, sectors};
use super::protocol::{Detach, Detached, LabelWant, chain};
use crate::kernel_id::KernelId;
use crate::label::bring_up_to_date;
use crate::locks::WriterLock;
use crate::proof::prove;
use crate::runtime_dir::RuntimeDir;

/// Closes the descriptor, if one came, and proves the drive closed. A label that cannot be written does not stop the
/// close: a dying drive must be let go.
pub(super) fn detach(
    dir: &RuntimeDir,
    request: &Detach,
    descriptor: Option<OwnedFd>,
    checkpoint: &dyn Fn(&'static str),
) -> Detached {
    let mut label_not_updated = None;
    let mut known = request.known;
    if let Some(file) = descriptor.map(File::from) {
        let released = match kernel_id(&file) {
            Ok(id) => {
                known = Some(id);
                release(dir, &file, id, request.release, checkpoint)
            }
            Err(error) => Err(error.to_string()),
        };
        checkpoint("detach-labelled");
        // The last close, as the agent has dropped its own copy. What the kernel still has to write it writes here,
        // under the lock.
        drop(file);
        match released {
            Ok(lock) => drop(lock),
            Err(why) => label_not_updated = Some(why),
        }
        checkpoint("detach-closed");
    }
    let proof = prove(Path::new(&request.path), request.kind, &request.evidence, known);
    Detached { label_not_updated, proof }
}

/// Marks the label released, if that is wanted, and returns the lock under which it was done.
fn release(
    dir: &RuntimeDir,
    file: &File,
    id: KernelId,
    want: Option<LabelWant>,
    checkpoint: &dyn Fn(&'static str),
) -> Result<Option<WriterLock>, String> {
    let Some(LabelWant(want)) = want else { return Ok(None) };
    let lock = WriterLock::take(dir, id).map_err(|error| chain(&error))?;
    let sectors = sectors(file, id).map_err(|error| error.to_string())?;
    // A release writes no new label, so whether the drive is empty does not matter.
    bring_up_to_date(&sectors, &want, || Err(vec![]), checkpoint).map_err(|error| chain(&error))?;
    Ok(Some(lock))
}
