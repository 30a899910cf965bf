//! Checks a filesystem before it is mounted, and grows it with its device.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::seen::mounted_at;
use super::tool::{Answer, Tool};
use super::{FilesystemError, FilesystemKind, VolumeDevice};

const E2FSCK: Tool = Tool { program: "e2fsck", package: "e2fsprogs" };
const RESIZE2FS: Tool = Tool { program: "resize2fs", package: "e2fsprogs" };
const XFS_GROWFS: Tool = Tool { program: "xfs_growfs", package: "xfsprogs" };
const BTRFS: Tool = Tool { program: "btrfs", package: "btrfs-progs" };

// The bits of e2fsck's exit code.
const REPAIRED: i32 = 1 | 2;
const UNREPAIRED: i32 = 4;

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Checked {
    Clean,
    Repaired {
        text: String,
    },
    /// Its mount does it: xfs and btrfs bring themselves up to date from their logs then. Their repair programs are for
    /// a filesystem that cannot be mounted, may throw the log away, and so are for a person.
    AtMount,
}

/// Checks a filesystem that is not mounted, as at the start of a machine: what needs no decision is repaired.
pub(super) fn check(
    device: &VolumeDevice,
    kind: FilesystemKind,
    limit: Duration,
) -> Result<Checked, FilesystemError> {
    device.prove()?;
    match kind {
        FilesystemKind::Ext4 => e2fsck(device, &["-p"], limit),
        FilesystemKind::Xfs | FilesystemKind::Btrfs => Ok(Checked::AtMount),
    }
}

fn e2fsck(
    device: &VolumeDevice,
    options: &[&str],
    limit: Duration,
) -> Result<Checked, FilesystemError> {
    let Answer { code, text } = E2FSCK.call(&[options, &[&device.path]].concat(), limit)?;
    match code {
        Some(0) => Ok(Checked::Clean),
        Some(code) if code & !REPAIRED == 0 => Ok(Checked::Repaired { text }),
        Some(code) if code & !(REPAIRED | UNREPAIRED) == 0 => {
            let (path, kind) = (device.path.clone(), FilesystemKind::Ext4);
            Err(FilesystemError::Damaged { path, kind, text })
        }
        code => Err(FilesystemError::ToolFailed { program: E2FSCK.program.to_owned(), code, text }),
    }
}

/// Grows a filesystem to the size of its device; one that fills it already stays.
pub(super) fn grow(
    device: &VolumeDevice,
    kind: FilesystemKind,
    target: Option<&str>,
    limit: Duration,
) -> Result<(), FilesystemError> {
    device.prove()?;
    if let Some(target) = target {
        let path = target.to_owned();
        let found =
            mounted_at(target)?.ok_or(FilesystemError::NotMounted { path: path.clone() })?;
        if found.device != Some(device.number) {
            return Err(FilesystemError::OtherMount { path, found: Box::new(found) });
        }
    }
    match (kind, target) {
        (FilesystemKind::Ext4, Some(_)) => RESIZE2FS.must(&[&device.path], limit),
        (FilesystemKind::Ext4, None) => {
            // It asks for a whole check first, whatever the filesystem says of itself.
            e2fsck(device, &["-f", "-p"], limit)?;
            RESIZE2FS.must(&[&device.path], limit)
        }
        (FilesystemKind::Xfs, Some(target)) => XFS_GROWFS.must(&["-d", target], limit),
        (FilesystemKind::Btrfs, Some(target)) => {
            BTRFS.must(&["filesystem", "resize", "max", target], limit)
        }
        (FilesystemKind::Xfs | FilesystemKind::Btrfs, None) => {
            Err(FilesystemError::NotMounted { path: device.path.clone() })
        }
    }
}
