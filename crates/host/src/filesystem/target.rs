//! The directory or file that something is mounted on: made, freed, removed. Never followed if it is a link, never
//! removed while anything is mounted on it.

use std::io;
use std::os::fd::OwnedFd;

use hotbay_core::words::plain;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::error::failed;
use super::seen::{Place, mounted_at};
use super::{Checkpoint, FilesystemError, Usage};

/// Most mounts on top of each other that are removed from one target.
const MOST_MOUNTS: u32 = 64;

/// What a target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Directory,
    /// A file that a device node, or another file, is bound to.
    File,
}

/// Opens a target, and makes it first if only it is missing.
pub(super) fn ready(path: &str, shape: Shape) -> Result<(Place, OwnedFd), FilesystemError> {
    let place =
        Place::of(path)?.ok_or_else(|| FilesystemError::NoParent { path: path.to_owned() })?;
    let (parent, name) = (&place.parent, place.name.as_str());
    let made = match shape {
        Shape::Directory => rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o750)),
        Shape::File => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600)).map(drop)
        }
    };
    match made {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(failed(format!("make {}", plain(path)))(error)),
    }
    let found = place.open().map_err(failed(format!("open {}", plain(path))))?;
    let found = found.ok_or_else(|| FilesystemError::NoParent { path: path.to_owned() })?;
    if place.mount(&found).map_err(failed(format!("look at {}", plain(path))))?.is_none() {
        check_shape(path, &found, shape)?;
    }
    Ok((place, found))
}

fn check_shape(path: &str, found: &OwnedFd, wanted: Shape) -> Result<(), FilesystemError> {
    let stat = rustix::fs::fstat(found).map_err(failed(format!("look at {}", plain(path))))?;
    let (found, fits) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => return Err(FilesystemError::Link { path: path.to_owned() }),
        FileType::Directory => ("a directory", wanted == Shape::Directory),
        FileType::RegularFile => ("a file", wanted == Shape::File),
        _ => ("neither a file nor a directory", false),
    };
    if fits {
        return Ok(());
    }
    let wanted = match wanted {
        Shape::Directory => "a directory",
        Shape::File => "a file",
    };
    Err(FilesystemError::WrongTarget {
        path: path.to_owned(),
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    })
}

/// Removes all mounts at a target, one after the other; says how many there were.
pub(super) fn unmount(path: &str, checkpoint: Checkpoint<'_>) -> Result<u32, FilesystemError> {
    for mounts in 0..=MOST_MOUNTS {
        if mounted_at(path)?.is_none() {
            return Ok(mounts);
        }
        checkpoint("unmount-found");
        match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
            // Not a mount any more: someone else was faster.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => checkpoint("unmount-done"),
            Err(Errno::BUSY) => return Err(FilesystemError::InUse { path: path.to_owned() }),
            Err(error) => return Err(failed(format!("unmount {}", plain(path)))(error)),
        }
    }
    let error = format!("more than {MOST_MOUNTS} are on top of each other");
    Err(FilesystemError::Failed { step: format!("remove all mounts at {}", plain(path)), error })
}

/// Removes an empty directory or file; false if nothing is there.
pub(super) fn remove(path: &str, checkpoint: Checkpoint<'_>) -> Result<bool, FilesystemError> {
    let Some(place) = Place::of(path)? else { return Ok(false) };
    let looking = || failed(format!("look at {}", plain(path)));
    let Some(found) = place.open().map_err(looking())? else { return Ok(false) };
    if let Some(mount) = place.mount(&found).map_err(looking())? {
        return Err(FilesystemError::OtherMount { path: path.to_owned(), found: Box::new(mount) });
    }
    let stat = rustix::fs::fstat(&found).map_err(io::Error::from).map_err(looking())?;
    let flags = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => AtFlags::REMOVEDIR,
        FileType::RegularFile if stat.st_size == 0 => AtFlags::empty(),
        FileType::RegularFile => return Err(FilesystemError::NotEmpty { path: path.to_owned() }),
        FileType::Symlink => return Err(FilesystemError::Link { path: path.to_owned() }),
        _ => {
            return Err(FilesystemError::WrongTarget {
                path: path.to_owned(),
                found: "neither a file nor a directory".into(),
                wanted: "an empty target of a mount".into(),
            });
        }
    };
    checkpoint("remove-looked");
    match rustix::fs::unlinkat(&place.parent, place.name.as_str(), flags) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {
            Err(FilesystemError::NotEmpty { path: path.to_owned() })
        }
        Err(Errno::BUSY) => Err(FilesystemError::InUse { path: path.to_owned() }),
        Err(error) => Err(failed(format!("remove {}", plain(path)))(error)),
    }
}

/// How full the filesystem is that is mounted at a target. Without a mount the answer would be that of another one.
pub(super) fn usage(path: &str) -> Result<Usage, FilesystemError> {
    let not_mounted = || FilesystemError::NotMounted { path: path.to_owned() };
    let asking = || failed(format!("ask how full {} is", plain(path)));
    let place = Place::of(path)?.ok_or_else(not_mounted)?;
    let found = place.open().map_err(asking())?.ok_or_else(not_mounted)?;
    place.mount(&found).map_err(asking())?.ok_or_else(not_mounted)?;
    let stat = rustix::fs::fstatvfs(&found).map_err(io::Error::from).map_err(asking())?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(Usage {
        total_bytes: bytes(stat.f_blocks),
        available_bytes: bytes(stat.f_bavail),
        used_bytes: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        total_inodes: stat.f_files,
        free_inodes: stat.f_ffree,
    })
}
