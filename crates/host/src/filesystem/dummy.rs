//! What a filesystem volume that cannot be reached is told from, and replaced by: reads of its device, and a small
//! filesystem in memory that is named after it.

use std::io;

use hotbay_core::ids::VolumeId;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

use super::error::failed;
use super::mount::{found_at, messages, put, same, seen};
use super::seen::{MountSeen, TMPFS, mounts_with};
use super::target::{Shape, ready};
use super::{Checkpoint, FilesystemError, VolumeDevice};
use crate::direct_read::{is_the_drives, read_ends};
use crate::scan::sysfs::Sysfs;

/// How much fits in a dummy.
const SIZE: &str = "1M";

/// Mounts the dummy of a volume, or finds it mounted there. It can always be written: container runtimes label what
/// they are given, and cannot on a read-only mount.
pub(super) fn mount_tmpfs(
    volume: VolumeId,
    path: &str,
    checkpoint: Checkpoint<'_>,
) -> Result<MountSeen, FilesystemError> {
    let (place, target) = ready(path, Shape::Directory)?;
    let is_it =
        |found: &MountSeen| found.is_dummy_of(volume) && found.root == "/" && !found.read_only;
    if let Some(found) = seen(&place, &target, path)? {
        return same(found, is_it, path);
    }
    let name = volume.to_string();
    let not_made = |error: Errno, log: String| FilesystemError::Mount {
        source_path: name.clone(),
        path: hotbay_core::words::plain(path),
        error: io::Error::from(error).to_string(),
        log,
        suspect: false,
    };
    let context = fsopen(TMPFS, FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(|error| not_made(error, String::new()))?;
    let made = fsconfig_set_string(&context, "source", name.as_str())
        .and_then(|()| fsconfig_set_string(&context, "size", SIZE))
        .and_then(|()| fsconfig_create(&context))
        .and_then(|()| fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()));
    let made = made.map_err(|error| not_made(error, messages(&context)))?;
    checkpoint("dummy-made");
    put(&made, &target, path)?;
    checkpoint("dummy-put");
    found_at(&place, path, is_it)
}

/// Reads the first and the last bytes of a volume's device, from the device itself.
pub(super) fn read(device: &VolumeDevice) -> Result<(), FilesystemError> {
    device.prove()?;
    let no_size = || FilesystemError::NoSize { path: device.path.clone() };
    let sysfs = Sysfs::of_machine();
    let size = sysfs.whole_device(device.number).and_then(|name| sysfs.disk(&name).size_if_known());
    let size = size.filter(|size| *size > 0).ok_or_else(no_size)?;
    let path = &device.path;
    read_ends(path, 0, size).map_err(|error| match is_the_drives(&error) {
        true => FilesystemError::Unreadable { path: path.clone(), error: error.to_string() },
        false => failed(format!("read {path}"))(error),
    })
}

/// Everywhere that the dummy of a volume, in memory or as a device node, is shown on this machine. Reads the mount
/// table alone.
pub fn dummies_of(volume: VolumeId, device: Option<&str>) -> io::Result<Vec<String>> {
    mounts_with(|seen| {
        seen.is_dummy_of(volume) || device.is_some_and(|device| seen.is_node(device))
    })
}
