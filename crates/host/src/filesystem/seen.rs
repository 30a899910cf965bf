//! What is mounted at a path, by the kernel's mount table.
//!
//! A path is looked up without asking the filesystem behind it (one that has shut itself down answers no question),
//! and its mount is found in the table by its id. No texts of paths are compared, so names with spaces, links among the
//! parents and mounts on top of each other make no difference.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use hotbay_core::ids::VolumeId;
use hotbay_core::words::plain;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::FilesystemError;
use super::error::failed;
use crate::kernel_id::DeviceNumber;
use crate::mapping::Mapping;
use crate::scan::mountinfo::{device_at, read_bounded, unescape};

/// What the kernel calls a filesystem in memory.
pub(super) const TMPFS: &str = "tmpfs";

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSeen {
    /// The block device that it is from, if it is from one.
    pub device: Option<DeviceNumber>,
    /// Which directory or file of the filesystem it shows; `/` is all of it.
    pub root: String,
    /// The kind of filesystem, such as `ext4`.
    pub kind: String,
    /// What its maker called the source.
    pub source: String,
    pub read_only: bool,
}

impl MountSeen {
    /// Whether it is the filesystem on a volume, or its device node.
    pub fn shows(&self, mapping: &Mapping) -> bool {
        self.is_filesystem_of(mapping) || self.is_node_of(mapping)
    }

    /// Whether it is the filesystem on a volume.
    pub fn is_filesystem_of(&self, mapping: &Mapping) -> bool {
        self.device == Some(mapping.number)
    }

    /// Whether it is the device node of a volume.
    pub fn is_node_of(&self, mapping: &Mapping) -> bool {
        self.is_node(&mapping.path)
    }

    /// Whether it is a device node: a single file, named as the node is.
    pub fn is_node(&self, path: &str) -> bool {
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        self.root != "/" && name(&self.root) == name(path)
    }

    /// Whether it is the dummy in memory that stands for a volume.
    pub fn is_dummy_of(&self, volume: VolumeId) -> bool {
        self.kind == TMPFS && self.device.is_none() && self.source == volume.to_string()
    }
}

impl fmt::Display for MountSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", plain(&self.kind), plain(&self.source))?;
        if self.root != "/" {
            write!(f, " ({})", plain(&self.root))?;
        }
        if self.read_only { f.write_str(", read-only") } else { Ok(()) }
    }
}

/// The last name of a path, and its parent directory, opened. `None` if there is no such parent.
pub(super) struct Place {
    pub(super) parent: OwnedFd,
    pub(super) name: String,
}

impl Place {
    pub(super) fn of(path: &str) -> Result<Option<Self>, FilesystemError> {
        let wrong = || FilesystemError::Path { path: path.to_owned() };
        let at = Path::new(path);
        let name = at.file_name().and_then(|name| name.to_str()).ok_or_else(wrong)?;
        let parent = at.parent().filter(|_| at.is_absolute()).ok_or_else(wrong)?;
        if path.contains('\0') || path.ends_with('/') || path.ends_with("/.") {
            return Err(wrong());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(CWD, parent, flags, Mode::empty()) {
            Ok(parent) => Ok(Some(Self { parent, name: name.to_owned() })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => {
                Err(failed(format!("look at {}", plain(&parent.display().to_string())))(error))
            }
        }
    }

    /// What is there: on top, if something is mounted. A link is opened itself.
    pub(super) fn open(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.parent, &self.name, flags, Mode::empty()) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What is mounted on what was found here.
    pub(super) fn mount(&self, found: &OwnedFd) -> io::Result<Option<MountSeen>> {
        let id = mount_id(found)?;
        if id == mount_id(&self.parent)? {
            return Ok(None);
        }
        let table = read_bounded(Path::new("/proc/self/mountinfo"))?;
        let mut lines = table.split(|byte| *byte == b'\n');
        let line = lines.find_map(|line| parse(line, id));
        line.map(Some).ok_or_else(|| io::Error::other("the mount went away meanwhile"))
    }
}

/// What is mounted at a path, on top. `None` also if there is no such path.
pub(super) fn mounted_at(path: &str) -> Result<Option<MountSeen>, FilesystemError> {
    let Some(place) = Place::of(path)? else { return Ok(None) };
    let looking = || failed(format!("see what is mounted at {}", plain(path)));
    match place.open().map_err(looking())? {
        Some(found) => place.mount(&found).map_err(looking()),
        None => Ok(None),
    }
}

/// Where else the filesystem is mounted that is mounted at a path. Reads the mount table alone.
pub fn mounted_beside(path: &str) -> io::Result<Vec<String>> {
    let table = read_bounded(Path::new("/proc/self/mountinfo"))?;
    let mounts: Vec<(String, DeviceNumber)> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let fields: Vec<_> = line.split(|byte| *byte == b' ').collect();
            let number = std::str::from_utf8(fields.get(2)?).ok()?;
            Some((unescape(fields.get(4)?), DeviceNumber::parse(number)?))
        })
        .collect();
    let here = mounts.iter().rev().find(|(point, _)| point == path).map(|(_, number)| *number);
    let same = |(point, number): &&(String, DeviceNumber)| Some(*number) == here && point != path;
    Ok(mounts.iter().filter(same).map(|(point, _)| point.clone()).collect())
}

/// Everywhere that a volume, or its device node, is shown on this machine. Reads the mount table alone.
pub fn shown_at(mapping: &Mapping) -> io::Result<Vec<String>> {
    mounts_with(|seen| seen.shows(mapping))
}

/// Where there are mounts of some sort.
pub(super) fn mounts_with(is_it: impl Fn(&MountSeen) -> bool) -> io::Result<Vec<String>> {
    let table = read_bounded(Path::new("/proc/self/mountinfo"))?;
    let lines = table.split(|byte| *byte == b'\n');
    let shown = lines.filter_map(|line| {
        let (id, _) = line.split_at_checked(line.iter().position(|byte| *byte == b' ')?)?;
        let id = std::str::from_utf8(id).ok()?.parse().ok()?;
        let seen = parse(line, id)?;
        let point = line.split(|byte| *byte == b' ').nth(4)?;
        is_it(&seen).then(|| unescape(point))
    });
    Ok(shown.collect())
}

/// The mount that a descriptor is on. The kernel answers, not the filesystem.
fn mount_id(descriptor: &OwnedFd) -> io::Result<u64> {
    use io::Read;
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_fd().as_raw_fd());
    let mut text = String::new();
    File::open(path)?.take(4096).read_to_string(&mut text)?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("the kernel tells no mount id"))
}

/// One line of the table, if it is the mount with this id.
fn parse(line: &[u8], id: u64) -> Option<MountSeen> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| std::str::from_utf8(field).ok().map(str::to_owned);
    if text(fields.next()?)?.parse() != Ok(id) {
        return None;
    }
    let number = DeviceNumber::parse(&text(fields.nth(1)?)?)?;
    let root = unescape(fields.next()?);
    let options = text(fields.nth(1)?)?;
    fields.find(|field| *field == b"-")?;
    let kind = unescape(fields.next()?);
    let source = unescape(fields.next()?);
    // btrfs shows a number of its own making.
    let device = if number.major == 0 { device_at(&source) } else { Some(number) };
    let read_only = options.split(',').any(|option| option == "ro");
    Some(MountSeen { device, root, kind, source, read_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_by_its_id() {
        let line =
            b"36 35 8:1 /a\\040b /mnt\\012x rw,noatime shared:1 - ext4 /dev/sda1 ro,errors=x";
        let seen = parse(line, 36).unwrap();
        assert_eq!(seen.device, Some(DeviceNumber { major: 8, minor: 1 }));
        assert_eq!((seen.root.as_str(), seen.kind.as_str()), ("/a b", "ext4"));
        assert_eq!((seen.source.as_str(), seen.read_only), ("/dev/sda1", false));
        assert_eq!(seen.to_string(), "ext4 of /dev/sda1 (/a b)");
        assert_eq!(parse(line, 35), None);
        let tmpfs = b"40 1 0:44 / /tmp ro - tmpfs tmpfs rw";
        let seen = parse(tmpfs, 40).unwrap();
        assert_eq!((seen.device, seen.read_only), (None, true));
        assert_eq!(seen.to_string(), "tmpfs of tmpfs, read-only");
        for bad in [&b""[..], b"40", b"40 1 x / /tmp ro - tmpfs tmpfs", b"40 1 0:4 / /tmp ro"] {
            assert_eq!(parse(bad, 40), None);
        }
    }

    #[test]
    fn what_is_mounted_is_seen_and_what_is_not_is_not() {
        assert_eq!(mounted_at("/proc").unwrap().unwrap().kind, "proc");
        assert_eq!(mounted_at("/proc/self").unwrap(), None);
        assert_eq!(mounted_at("/nonexistent/parent/x").unwrap(), None);
        assert_eq!(mounted_at("/nonexistent").unwrap(), None);
        for bad in ["", "/", "relative", "/a/..", "/a/", "/a/.", "/a\0b"] {
            assert!(matches!(mounted_at(bad), Err(FilesystemError::Path { .. })), "{bad:?}");
        }
    }
}
