//! Closes a drive, in a child because closing may wait for it, and proves that it is closed. A drive with volumes on it
//! is left as it is: the last place that can say so. One whose volumes were given up is, while one of them is mapped.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use hotbay_core::device::LabelSeen;
use hotbay_core::label::extents::{Extent, Use};
use hotbay_core::label::update::Want;
use hotbay_core::label::{Found, Header};

use super::follow::Follow;
use super::guard::let_go_of_guard;
use super::look::{kernel_id, open_sectors, sectors};
use super::open::{Beside, Meant, is_current};
use super::protocol::{Detach, Detached, LabelWant, chain};
use crate::kernel_id::KernelId;
use crate::label::{bring_up_to_date, read_whole};
use crate::locks::WriterLock;
use crate::proof::{Blocker, mapped, prove};
use crate::runtime_dir::RuntimeDir;

/// How many volumes are named to a person who would close their drive.
const MOST_NAMED: usize = 16;

/// A drive that is not closed.
#[derive(Debug)]
pub(super) struct NotClosed {
    pub(super) why: InUse,
    /// Open as before, if it was.
    pub(super) descriptor: Option<File>,
}

/// Why a drive is not closed.
#[derive(Debug)]
pub(super) enum InUse {
    /// Volumes are on it.
    Volumes(Vec<String>),
    /// Something is mapped or mounted that is on it.
    By(Vec<Blocker>),
}

/// Why a label does not say that its drive is released.
#[derive(Debug)]
enum NotReleased {
    /// The drive is in use, and nothing was done.
    InUse(InUse),
    /// It could not be read, locked or written.
    Failed(String),
}

/// What the label says after a release, if there is one.
type Released = Result<Option<LabelSeen>, NotReleased>;

/// Marks the label released, closes the drive and proves it closed. A label that cannot be read or written does not
/// stop the close: a dying drive must be let go. One that says that volumes are on the drive does.
pub(super) fn detach(
    dir: &RuntimeDir,
    request: &Detach,
    descriptor: Option<OwnedFd>,
    follow: Follow<'_>,
) -> Result<Detached, NotClosed> {
    let mut known = request.known;
    let mut open = descriptor.map(File::from);
    let released = match (&mut open, request.release) {
        (Some(file), Some(LabelWant(want))) => match kernel_id(file) {
            Ok(id) => {
                known = Some(id);
                release_and_close(dir, &mut open, (id, &want), request, follow)
            }
            Err(error) => Err(NotReleased::Failed(error.to_string())),
        },
        (Some(file), None) => {
            known = kernel_id(file).ok().or(known);
            Ok(None)
        }
        // A drive that is nowhere has no label to write.
        (None, Some(LabelWant(want))) if !request.path.is_empty() => {
            release_closed(dir, request, &want, follow)
        }
        (None, Some(_) | None) => Ok(None),
    };
    let (label, label_not_updated) = match released {
        Ok(label) => (label, None),
        Err(NotReleased::Failed(why)) => (None, Some(why)),
        Err(NotReleased::InUse(why)) => return Err(NotClosed { why, descriptor: open }),
    };
    drop(open);
    if let Some(LabelWant(want)) = request.release {
        let_go_of_guard(want.drive, follow);
    }
    follow.reached("detach-closed");
    let proof = prove(Path::new(&request.path), request.kind, &request.evidence, known);
    Ok(Detached { label, label_not_updated, proof })
}

/// Leaves the drive open if volumes are on it, or its label may not be written now.
fn release_and_close(
    dir: &RuntimeDir,
    open: &mut Option<File>,
    (id, want): (KernelId, &Want),
    request: &Detach,
    follow: Follow<'_>,
) -> Released {
    let Some(file) = open.as_ref() else { return Ok(None) };
    let lock = WriterLock::take(dir, id).map_err(|error| NotReleased::Failed(chain(&error)));
    // Also while somebody else may write to it. A descriptor of what is gone from the machine is of no use to a volume.
    if is_there(file, id, &request.path) {
        if request.even_with_volumes {
            none_mapped(id)?;
        } else {
            refuse_if_in_use(file, id, want)?;
        }
    }
    let lock = lock?;
    let released = release(&request.path, file, id, want, follow);
    follow.reached("detach-labelled");
    // The last close, as the agent has dropped its own copy. What the kernel still has to write it writes here, under
    // the lock.
    drop(open.take());
    drop(lock);
    released
}

/// Whether what is open is still on the machine; a plain file is if it has its name.
fn is_there(file: &File, id: KernelId, path: &str) -> bool {
    match id {
        KernelId::Block(_) => is_current(file, id),
        KernelId::File { .. } => {
            matches!(KernelId::of_path(Path::new(path)), Ok(Some(at)) if at == id)
        }
    }
}

/// Releases the label of a drive that nobody here has open. One that is released is not opened for writing.
fn release_closed(dir: &RuntimeDir, request: &Detach, want: &Want, follow: Follow<'_>) -> Released {
    let meant = Meant { path: &request.path, kind: request.kind, evidence: &request.evidence };
    // Before it is even read: a drive that hangs under someone's write would keep this child as well.
    let locked = meant.lock(dir, follow.checkpoint).map_err(not_released)?;
    let looked = open_sectors(Path::new(&request.path)).and_then(|drive| read_whole(&drive));
    match looked.map_err(not_released)? {
        (Found::Valid { header, slot: _ }, extents) if is_held(&header, want) => {
            if request.even_with_volumes {
                none_mapped(locked.id)?;
            } else {
                none_used(&extents)?;
            }
        }
        (Found::Valid { header, slot: _ }, _) => return Ok(Some(header.into())),
        // Nothing that could be released, so nothing that could not.
        (Found::Absent | Found::Damaged | Found::UnknownVersion(_), _) => return Ok(None),
    }
    // An agent that is gone left it, and it would keep us out as it keeps everybody out.
    let_go_of_guard(want.drive, follow);
    let file = meant.open(&locked, Beside::Nobody, follow.checkpoint).map_err(not_released)?;
    let released = release(&request.path, &file, locked.id, want, follow);
    follow.reached("detach-labelled");
    released
}

fn not_released(error: impl std::fmt::Display) -> NotReleased {
    NotReleased::Failed(error.to_string())
}

/// Whether the label calls the drive in operation on the node that is to release it.
fn is_held(header: &Header, want: &Want) -> bool {
    let held = (header.cluster, header.drive, header.node);
    header.in_operation && held == (want.cluster, want.drive, want.node)
}

/// A label that cannot be read keeps nobody from closing the drive.
fn refuse_if_in_use(file: &File, id: KernelId, want: &Want) -> Result<(), NotReleased> {
    let read = sectors(file, id).and_then(|drive| read_whole(&drive));
    match read {
        Ok((Found::Valid { header, .. }, extents)) if is_held(&header, want) => none_used(&extents),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Refuses if a volume has an extent, and names some of them.
fn none_used(extents: &[Extent]) -> Result<(), NotReleased> {
    let used = extents.iter().filter(|extent| extent.usage == Use::Used);
    let mut volumes: Vec<String> = used.map(|extent| extent.name.to_string()).collect();
    if volumes.is_empty() {
        return Ok(());
    }
    volumes.sort();
    volumes.dedup();
    let more = volumes.len().saturating_sub(MOST_NAMED);
    volumes.truncate(MOST_NAMED);
    if more > 0 {
        volumes.push(format!("{more} more"));
    }
    Err(NotReleased::InUse(InUse::Volumes(volumes)))
}

/// Refuses while something on the drive is mapped, by us or by anybody: what is mounted is.
fn none_mapped(id: KernelId) -> Result<(), NotReleased> {
    let by = mapped(id).map_err(not_released)?;
    if by.is_empty() { Ok(()) } else { Err(NotReleased::InUse(InUse::By(by))) }
}

fn release(path: &str, file: &File, id: KernelId, want: &Want, follow: Follow<'_>) -> Released {
    let sectors = sectors(file, id).map_err(not_released)?;
    // A release writes no new label, so whether the drive is empty does not matter.
    let outcome = bring_up_to_date(&sectors, want, || Err(vec![]), follow.checkpoint)
        .map_err(|error| NotReleased::Failed(chain(&error)))?;
    let header = outcome.header();
    if let Some(header) = header {
        follow.refresh_third_copy(path, &sectors, header.drive);
    }
    Ok(header.map(LabelSeen::from))
}
