//! What the kernel calls a drive while it is there: a device number, or a file's inode.
//!
//! Locks are named after it and the proof of closing searches for it. It is not identity: a number is given again to
//! the next drive, so that whoever acts on a drive compares its [`hotbay_core::evidence::Evidence`] too.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

pub use hotbay_core::device::DeviceNumber;
use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};

/// Splits what `stat` calls a device.
pub(crate) fn device_number(device: u64) -> DeviceNumber {
    DeviceNumber { major: rustix::fs::major(device), minor: rustix::fs::minor(device) }
}

/// The kernel's name for something that can be a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KernelId {
    /// A block device, loop devices included.
    Block(DeviceNumber),
    /// A plain file: the device its filesystem is on, and its inode.
    File { on: DeviceNumber, inode: u64 },
}

impl KernelId {
    /// Asks what is at a path, following links, without opening it. The outer error is the call's; `None` is
    /// anything but a block device or a plain file.
    pub(crate) fn of_path(path: &Path) -> io::Result<Option<Self>> {
        Ok(Self::of_stat(&rustix::fs::stat(path)?))
    }

    /// Asks what an open descriptor is.
    pub(crate) fn of_descriptor(descriptor: impl AsFd) -> io::Result<Option<Self>> {
        Ok(Self::of_stat(&rustix::fs::fstat(descriptor)?))
    }

    fn of_stat(stat: &Stat) -> Option<Self> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => Some(Self::Block(device_number(stat.st_rdev))),
            FileType::RegularFile => {
                Some(Self::File { on: device_number(stat.st_dev), inode: stat.st_ino })
            }
            _ => None,
        }
    }
}

/// The form used in the names of lock files.
impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(number) => write!(f, "drive-{number}"),
            Self::File { on, inode } => write!(f, "file-{on}-{inode}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_file_is_named_by_its_inode_and_a_directory_not_at_all() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let by_path = KernelId::of_path(file.path()).unwrap();
        assert_eq!(by_path, KernelId::of_descriptor(file.as_file()).unwrap());
        assert!(by_path.unwrap().to_string().starts_with("file-"));
        assert_eq!(KernelId::of_path(Path::new("/")).unwrap(), None);
    }

    #[test]
    fn device_numbers_are_read_as_sysfs_writes_them() {
        let number = DeviceNumber { major: 8, minor: 16 };
        assert_eq!(DeviceNumber::parse("8:16\n"), Some(number));
        assert_eq!(KernelId::Block(number).to_string(), "drive-8:16");
        for bad in ["", "8", "8:", ":16", "8:x", "-1:2"] {
            assert_eq!(DeviceNumber::parse(bad), None, "{bad:?}");
        }
    }
}
