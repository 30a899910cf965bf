//! Makes a filesystem where there is nothing. The last place that can say no.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{OFlags, SeekFrom};

use super::error::failed;
use super::tool::Tool;
use super::{Checkpoint, FilesystemError, FilesystemKind, VolumeDevice};
use crate::loop_ioctl::open;
use crate::scan::{Signatures, blkid};

/// Where an xfs superblock says that the filesystem is still being made.
const XFS_IN_PROGRESS_AT: u64 = 126;

/// Makes a filesystem, if `blkid` clearly finds nothing on the device, and reads back that it is there.
pub(super) fn make(
    device: &VolumeDevice,
    kind: FilesystemKind,
    options: &[String],
    limit: Duration,
    checkpoint: Checkpoint<'_>,
) -> Result<(), FilesystemError> {
    check_options(options)?;
    device.prove()?;
    let unfinished = prove_empty(device, kind, limit)?;
    checkpoint("make-proved");
    let mut arguments: Vec<&str> = match kind {
        // What is erased needs no discard; a volume is one user's, so root needs no reserve.
        FilesystemKind::Ext4 => vec!["-q", "-m", "0", "-E", "nodiscard"],
        FilesystemKind::Xfs => vec!["-q", "-K"],
        FilesystemKind::Btrfs => vec!["-q", "-K"],
    };
    if unfinished {
        arguments.push("-f");
    }
    arguments.extend(options.iter().map(String::as_str));
    arguments.push(&device.path);
    mkfs(kind).must(&arguments, limit)?;
    checkpoint("make-made");
    device.prove()?;
    match blkid::probe(&device.path, limit) {
        Signatures::Found { content: Some(found), .. } if found == kind.name() => Ok(()),
        found @ (Signatures::Found { .. } | Signatures::Nothing | Signatures::Unclear(_)) => {
            let step = format!("find the new {kind} filesystem on {}", device.path);
            Err(FilesystemError::Failed { step, error: format!("{found:?}") })
        }
    }
}

fn mkfs(kind: FilesystemKind) -> Tool {
    match kind {
        FilesystemKind::Ext4 => Tool { program: "mkfs.ext4", package: "e2fsprogs" },
        FilesystemKind::Xfs => Tool { program: "mkfs.xfs", package: "xfsprogs" },
        FilesystemKind::Btrfs => Tool { program: "mkfs.btrfs", package: "btrfs-progs" },
    }
}

/// What is on a device. What a `mkfs.xfs` that did not get to its end has left is nothing.
pub(super) fn signatures(
    device: &VolumeDevice,
    limit: Duration,
) -> Result<Signatures, FilesystemError> {
    device.prove()?;
    let found = blkid::probe(&device.path, limit);
    if is_xfs(&found) && is_in_progress(&open_to_read(device)?) {
        return Ok(Signatures::Nothing);
    }
    Ok(found)
}

/// Refuses over anything; true if all that is there is what an unfinished `mkfs.xfs` has left.
fn prove_empty(
    device: &VolumeDevice,
    kind: FilesystemKind,
    limit: Duration,
) -> Result<bool, FilesystemError> {
    let path = device.path.clone();
    let file = open_to_read(device)?;
    let size = rustix::fs::seek(&file, SeekFrom::End(0))
        .map_err(failed(format!("ask for the size of {path}")))?;
    if size == 0 {
        return Err(FilesystemError::NoSize { path });
    }
    match blkid::probe(&path, limit) {
        Signatures::Nothing => Ok(false),
        found if kind == FilesystemKind::Xfs && is_xfs(&found) && is_in_progress(&file) => Ok(true),
        Signatures::Found { table, content } => {
            let what = content.or(table).unwrap_or_else(|| "something".into());
            Err(FilesystemError::HasContents { path, what })
        }
        Signatures::Unclear(why) => Err(FilesystemError::Unclear { path, why }),
    }
}

fn open_to_read(device: &VolumeDevice) -> Result<File, FilesystemError> {
    let path = &device.path;
    open(Path::new(path), OFlags::RDONLY).map_err(failed(format!("open {path} for reading")))
}

fn is_xfs(found: &Signatures) -> bool {
    matches!(found, Signatures::Found { table: None, content: Some(content) } if content == "xfs")
}

/// Of an xfs. It marks the superblock first and unmarks it last. Nobody could ever mount it, so nobody has data in it.
fn is_in_progress(file: &File) -> bool {
    let mut byte = [0];
    file.read_exact_at(&mut byte, XFS_IN_PROGRESS_AT).is_ok() && byte == [1]
}

/// Options come from a storage class. None may lead the program to another device.
fn check_options(options: &[String]) -> Result<(), FilesystemError> {
    const LEADING_ELSEWHERE: [&str; 6] = ["/", "device=", "dev=", "name=", "UUID=", "LABEL="];
    let refused = |option: &String, why: &str| {
        Err(FilesystemError::Option { option: option.clone(), why: why.to_owned() })
    };
    if let Some(first) = options.first().filter(|first| !first.starts_with('-')) {
        return refused(first, "the first option of mkfs begins with '-'");
    }
    for option in options {
        if option.is_empty() || option.contains('\0') {
            return refused(option, "it is empty or has a zero byte");
        }
        if LEADING_ELSEWHERE.iter().any(|part| option.contains(part)) {
            return refused(option, "it could name another device");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_names_another_device() {
        let check = |options: &[&str]| {
            check_options(&options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>())
        };
        for good in [&["-m", "1"][..], &["-i", "size=1024", "-n", "ftype=1"], &["-T", "news"], &[]]
        {
            check(good).unwrap();
        }
        for bad in [
            &["/dev/sda"][..],
            &["sda"],
            &["-J", "device=UUID=1"],
            &["-l", "logdev=sdb"],
            &["-d", "name=x"],
            &["-q", ""],
            &["-L", "a\0b"],
        ] {
            assert!(matches!(check(bad), Err(FilesystemError::Option { .. })), "{bad:?}");
        }
    }
}
