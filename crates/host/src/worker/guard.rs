//! Who holds the claim on a drive that is attached: a guard, where device-mapper is to map its volumes, else the
//! descriptor that the agent gets. `attach` puts the guard and `detach` takes it away, each in the child that opens or
//! closes the drive.

use std::fs::File;
use std::os::fd::AsRawFd;

use hotbay_core::device::DeviceKind;
use hotbay_core::ids::DriveId;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::follow::Follow;
use super::look::{kernel_id, stray_on};
use super::open::failed;
use super::protocol::{Attach, AttachError};
use crate::kernel_id::{DeviceNumber, KernelId};
use crate::mapping;
use crate::proof::exclusive_users;
use crate::runtime_dir::RuntimeDir;

/// Gives the claim on an open drive to a guard where that can be, and returns the descriptor to go on with.
///
/// A drive that is itself a loop device keeps its claim, as on a machine without device-mapper: whoever made it has to
/// be able to take it away. If no guard can be put, because an older mapping by a loop device still has the claim, say,
/// then volumes are mapped by loop devices until the next attach.
pub(super) fn guarded(
    dir: &RuntimeDir,
    request: &Attach,
    drive: DriveId,
    file: File,
    follow: Follow<'_>,
) -> Result<File, AttachError> {
    let id = kernel_id(&file).map_err(failed("look at the open drive"))?;
    let KernelId::Block(number) = id else { return Ok(file) };
    if request.kind != DeviceKind::Block || !mapping::has_device_mapper() {
        return Ok(file);
    }
    let reopened = again(&file, OFlags::empty());
    let unclaimed = reopened.map_err(|error| failed("open the drive again")(error.into()))?;
    drop(file);
    follow.reached("guard-unclaimed");
    let Err(error) = mapping::guard(drive, number, follow.checkpoint) else {
        return Ok(unclaimed);
    };
    let warning = format!("{}: loop devices are to map its volumes: {error}", request.path);
    follow.warnings.borrow_mut().push(warning);
    match again(&unclaimed, OFlags::EXCL) {
        Ok(claimed) => Ok(claimed),
        // As it was opened, beside them.
        Err(Errno::BUSY) if is_held_by_ours(dir, id, number)? => Ok(unclaimed),
        Err(Errno::BUSY) => {
            drop(unclaimed);
            Err(AttachError::Busy { by: exclusive_users(number) })
        }
        Err(error) => Err(failed("claim the drive")(error.into())),
    }
}

/// Another descriptor of what is open.
fn again(file: &File, how: OFlags) -> Result<File, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | how;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from)
}

fn is_held_by_ours(
    dir: &RuntimeDir,
    id: KernelId,
    number: DeviceNumber,
) -> Result<bool, AttachError> {
    let mapped = mapping::held_by_ours(dir, number).map_err(|error| AttachError::Failed {
        step: "look for mappings of volumes on the drive".into(),
        error: error.to_string(),
    })?;
    Ok(!mapped.is_empty() || !stray_on(id).is_empty())
}

/// Takes the guard from a drive that is to be closed. If it stays, the proof of the close names it.
pub(super) fn let_go_of_guard(drive: DriveId, follow: Follow<'_>) {
    if let Err(error) = mapping::unguard(drive) {
        follow.warnings.borrow_mut().push(error.to_string());
    }
    follow.reached("detach-unguarded");
}
