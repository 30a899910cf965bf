//! Who holds the claim on a drive that is attached: a guard, where device-mapper is to map its volumes, else the
//! descriptor that the agent gets. `attach` puts the guard and `detach` takes it away, each in the child that opens or
//! closes the drive.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use hotbay_core::device::DeviceKind;
use hotbay_core::ids::DriveId;
use rustix::fs::{Mode, OFlags};

use super::follow::Follow;
use super::look::kernel_id;
use super::open::{Beside, failed, open};
use super::protocol::{Attach, AttachError};
use crate::kernel_id::KernelId;
use crate::mapping;
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
    let again = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
    let reopening = failed("open the drive without a claim");
    let unclaimed = rustix::fs::open(again(&file), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let unclaimed = File::from(unclaimed.map_err(|error| reopening(error.into()))?);
    drop(file);
    follow.reached("guard-unclaimed");
    match mapping::guard(drive, number, follow.checkpoint) {
        Ok(()) => Ok(unclaimed),
        Err(error) => {
            let path = &request.path;
            let warning = format!("{path}: loop devices are to map its volumes: {error}");
            follow.warnings.borrow_mut().push(warning);
            open(Path::new(&again(&unclaimed)), id, Beside::OurMappings(dir))
        }
    }
}

/// Takes the guard from a drive that is to be closed. If it stays, the proof of the close names it.
pub(super) fn let_go_of_guard(drive: DriveId, follow: Follow<'_>) {
    if let Err(error) = mapping::unguard(drive) {
        follow.warnings.borrow_mut().push(error.to_string());
    }
    follow.reached("detach-unguarded");
}
