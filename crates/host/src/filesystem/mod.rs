//! Filesystems on volumes: made, checked, mounted, grown, unmounted.
//!
//! ```text
//! device -- make --> check --> mount --> target of the stage -- bind --> targets of the users
//!                                 \--> grow, usage
//! ```
//!
//! The kernel's mount table is the truth: what is mounted at a target is asked by its mount id, and compared by device
//! before it counts as mounted already ([`seen`]). So every task may be repeated, after a child was killed anywhere. A
//! path that may be mounted is never removed, and nothing is ever unmounted lazily. A filesystem is made only where
//! `blkid` clearly finds nothing.
//!
//! All of it may wait for a drive and runs in a child, as `worker::Request::Filesystem`. Mounts are made by the calls
//! of Linux 5.12, which take options one by one and tell in words what is wrong with them.

mod check;
mod dummy;
mod error;
mod make;
mod mount;
mod option;
mod seen;
mod target;
mod tool;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use hotbay_core::ids::VolumeId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::check::Checked;
pub use self::dummy::dummies_of;
pub use self::error::FilesystemError;
pub use self::seen::{MountSeen, mounted_beside, shown_at};
use crate::kernel_id::{DeviceNumber, KernelId};
use crate::mapping::Mapping;
use crate::scan::Signatures;

/// The filesystems that volumes can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FilesystemKind {
    Ext4,
    Xfs,
    Btrfs,
}

impl FilesystemKind {
    /// As the kernel and `blkid` call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

impl fmt::Display for FilesystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no filesystem of volumes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no filesystem {text:?}: use ext4, xfs or btrfs")]
pub struct NotAFilesystem {
    text: String,
}

impl FromStr for FilesystemKind {
    type Err = NotAFilesystem;

    fn from_str(text: &str) -> Result<Self, NotAFilesystem> {
        [Self::Ext4, Self::Xfs, Self::Btrfs]
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| NotAFilesystem { text: text.chars().take(64).collect() })
    }
}

/// The block device that a volume is mapped to. Its path must lead to the device with this number at every use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeDevice {
    pub path: String,
    pub number: DeviceNumber,
}

impl From<&Mapping> for VolumeDevice {
    fn from(mapping: &Mapping) -> Self {
        Self { path: mapping.path.clone(), number: mapping.number }
    }
}

impl VolumeDevice {
    fn prove(&self) -> Result<(), FilesystemError> {
        match KernelId::of_path(Path::new(&self.path)) {
            Ok(Some(KernelId::Block(number))) if number == self.number => Ok(()),
            Ok(_) | Err(_) => Err(FilesystemError::OtherDevice { path: self.path.clone() }),
        }
    }
}

/// What a child is asked to do with a filesystem. Paths are absolute; the last name of a target is never followed if it
/// is a link. `limit` is how long a program may take that is called for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilesystemTask {
    /// Tell what is on a device. What a `mkfs.xfs` that did not get to its end has left is nothing: a filesystem may
    /// still be made.
    Signature { device: VolumeDevice, limit: Duration },
    /// Make a filesystem where there is nothing.
    Make { device: VolumeDevice, kind: FilesystemKind, options: Vec<String>, limit: Duration },
    /// Check a filesystem that is not mounted, and repair what needs no decision.
    Check { device: VolumeDevice, kind: FilesystemKind, limit: Duration },
    /// Mount a filesystem on a directory, which is made if only it is missing.
    Mount {
        device: VolumeDevice,
        target: String,
        kind: FilesystemKind,
        flags: Vec<String>,
        read_only: bool,
    },
    /// Show a directory, or a device node, at a second place, which is made if only it is missing. A device node that
    /// is bound read-only can be written through all the same: the mapping must be read-only.
    Bind { source: String, target: String, read_only: bool },
    /// Mount a small filesystem in memory on a directory, which is made if only it is missing: the dummy of a volume,
    /// named after it.
    MountTmpfs { volume: VolumeId, target: String },
    /// Read the first and the last bytes of a device, from the device itself.
    Read { device: VolumeDevice },
    /// Unmount all that is mounted at a target.
    Unmount { target: String },
    /// Tell what is mounted at a target.
    MountedAt { target: String },
    /// Fill the device, after it has grown. A mounted filesystem is grown where it is mounted; one that is not, only if
    /// it is ext4.
    Grow { device: VolumeDevice, kind: FilesystemKind, mounted_at: Option<String>, limit: Duration },
    /// Tell how full the filesystem is that is mounted at a target.
    Usage { target: String },
    /// Remove an empty directory or file that nothing is mounted on.
    RemoveTarget { target: String },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilesystemDone {
    Signature(Signatures),
    Made,
    Checked(Checked),
    /// Also if it was mounted just so before.
    Mounted(MountSeen),
    Read,
    /// How many mounts were removed; none if nothing was mounted.
    Unmounted {
        mounts: u32,
    },
    MountedAt(Option<MountSeen>),
    Grown,
    Usage(Usage),
    /// False if nothing was there.
    Removed(bool),
}

/// How full a filesystem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub total_bytes: u64,
    /// What a user who is not root can still write.
    pub available_bytes: u64,
    pub used_bytes: u64,
    /// Zero for a filesystem that has no limit of inodes.
    pub total_inodes: u64,
    pub free_inodes: u64,
}

type Checkpoint<'a> = &'a dyn Fn(&'static str);

/// Carries out a task.
pub(crate) fn carry_out(
    task: &FilesystemTask,
    checkpoint: Checkpoint<'_>,
) -> Result<FilesystemDone, FilesystemError> {
    use FilesystemDone as Done;
    use FilesystemTask as Task;
    Ok(match task {
        Task::Signature { device, limit } => Done::Signature(make::signatures(device, *limit)?),
        Task::Make { device, kind, options, limit } => {
            make::make(device, *kind, options, *limit, checkpoint)?;
            Done::Made
        }
        Task::Check { device, kind, limit } => Done::Checked(check::check(device, *kind, *limit)?),
        Task::Mount { device, target, kind, flags, read_only } => {
            let options = option::split(*kind, flags, *read_only)?;
            Done::Mounted(mount::mount(device, target, *kind, &options, checkpoint)?)
        }
        Task::Bind { source, target, read_only } => {
            Done::Mounted(mount::bind(source, target, *read_only, checkpoint)?)
        }
        Task::MountTmpfs { volume, target } => {
            Done::Mounted(dummy::mount_tmpfs(*volume, target, checkpoint)?)
        }
        Task::Read { device } => {
            dummy::read(device)?;
            Done::Read
        }
        Task::Unmount { target } => {
            Done::Unmounted { mounts: target::unmount(target, checkpoint)? }
        }
        Task::MountedAt { target } => Done::MountedAt(seen::mounted_at(target)?),
        Task::Grow { device, kind, mounted_at, limit } => {
            check::grow(device, *kind, mounted_at.as_deref(), *limit)?;
            Done::Grown
        }
        Task::Usage { target } => Done::Usage(target::usage(target)?),
        Task::RemoveTarget { target } => Done::Removed(target::remove(target, checkpoint)?),
    })
}
