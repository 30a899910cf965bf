//! Mounts a filesystem, and shows it or a device node at a second place.
//!
//! A mount is made apart from the tree, with all its options, and then put on its target in one step: it is never seen
//! half done, and never on another target than the one that was looked at.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use hotbay_core::words::plain;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use super::error::failed;
use super::option::Options;
use super::seen::{MountSeen, Place};
use super::target::{Shape, ready};
use super::{Checkpoint, FilesystemError, FilesystemKind, VolumeDevice};
use crate::kernel_id::device_number;

/// Most messages of the kernel that go into an error.
const MOST_MESSAGES: usize = 8;

/// With what the kernel refuses a filesystem that is damaged, or a drive that does not answer. Not only those: an
/// option that is wrong is `INVAL` too.
const SUSPECT: [Errno; 6] =
    [Errno::IO, Errno::NXIO, Errno::INVAL, Errno::UCLEAN, Errno::BADMSG, Errno::NODATA];

/// Mounts the filesystem of a volume, or finds it mounted there just so.
pub(super) fn mount(
    device: &VolumeDevice,
    path: &str,
    kind: FilesystemKind,
    options: &Options,
    checkpoint: Checkpoint<'_>,
) -> Result<MountSeen, FilesystemError> {
    device.prove()?;
    let (place, target) = ready(path, Shape::Directory)?;
    let is_it = |found: &MountSeen| {
        found.device == Some(device.number)
            && found.root == "/"
            && found.kind == kind.name()
            && found.read_only == options.read_only
    };
    if let Some(found) = seen(&place, &target, path)? {
        return same(found, is_it, path);
    }
    checkpoint("mount-looked");
    let made = make(device, kind, options).map_err(|failure| failure.told(device, path, kind))?;
    checkpoint("mount-made");
    put(&made, &target, path)?;
    checkpoint("mount-put");
    found_at(&place, path, is_it)
}

/// Shows a directory, a file or a device node at a second place, or finds it there just so.
pub(super) fn bind(
    source: &str,
    path: &str,
    read_only: bool,
    checkpoint: Checkpoint<'_>,
) -> Result<MountSeen, FilesystemError> {
    let opening = || failed(format!("open {}", plain(source)));
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let shown = rustix::fs::openat(CWD, source, flags, Mode::empty()).map_err(opening())?;
    let stat = rustix::fs::fstat(&shown).map_err(opening())?;
    let shape = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Shape::Directory,
        FileType::BlockDevice | FileType::RegularFile => Shape::File,
        FileType::Symlink => return Err(FilesystemError::Link { path: source.to_owned() }),
        _ => {
            return Err(FilesystemError::WrongTarget {
                path: source.to_owned(),
                found: "something else".into(),
                wanted: "a directory or a block device".into(),
            });
        }
    };
    let (place, target) = ready(path, shape)?;
    // The same file, by what tells files apart, is shown there.
    let is_shown = |target: &OwnedFd, found: &MountSeen| {
        let there = rustix::fs::fstat(target);
        there.is_ok_and(|there| {
            (there.st_dev, there.st_ino, there.st_rdev) == (stat.st_dev, stat.st_ino, stat.st_rdev)
        }) && found.read_only == read_only
    };
    if let Some(found) = seen(&place, &target, path)? {
        return same(found, |found| is_shown(&target, found), path);
    }
    checkpoint("bind-looked");
    let binding = || failed(format!("show {} at {}", plain(source), plain(path)));
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let made = open_tree(&shown, "", flags).map_err(io::Error::from).map_err(binding())?;
    if read_only {
        set_read_only(&made).map_err(binding())?;
    }
    checkpoint("bind-made");
    put(&made, &target, path)?;
    checkpoint("bind-put");
    let target = place.open().map_err(binding())?;
    let target = target.ok_or_else(|| FilesystemError::NotMounted { path: path.to_owned() })?;
    found_at(&place, path, |found| is_shown(&target, found))
}

pub(super) fn seen(
    place: &Place,
    target: &OwnedFd,
    path: &str,
) -> Result<Option<MountSeen>, FilesystemError> {
    place.mount(target).map_err(failed(format!("see what is mounted at {}", plain(path))))
}

pub(super) fn same(
    found: MountSeen,
    is_it: impl Fn(&MountSeen) -> bool,
    path: &str,
) -> Result<MountSeen, FilesystemError> {
    if is_it(&found) {
        return Ok(found);
    }
    Err(FilesystemError::OtherMount { path: path.to_owned(), found: Box::new(found) })
}

/// Reads back what is at a target now.
pub(super) fn found_at(
    place: &Place,
    path: &str,
    is_it: impl Fn(&MountSeen) -> bool,
) -> Result<MountSeen, FilesystemError> {
    let not_mounted = || FilesystemError::NotMounted { path: path.to_owned() };
    let target = place.open().map_err(failed(format!("open {}", plain(path))))?;
    let found = seen(place, &target.ok_or_else(not_mounted)?, path)?.ok_or_else(not_mounted)?;
    same(found, is_it, path)
}

pub(super) fn put(made: &OwnedFd, target: &OwnedFd, path: &str) -> Result<(), FilesystemError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(made, "", target, "", flags).map_err(failed(format!("mount on {}", plain(path))))
}

/// Why the kernel made no mount.
struct Failure {
    error: Errno,
    log: String,
}

impl Failure {
    fn told(self, device: &VolumeDevice, path: &str, kind: FilesystemKind) -> FilesystemError {
        match self.error {
            Errno::NODEV => FilesystemError::NotInKernel { kind },
            Errno::XDEV => FilesystemError::OtherDevice { path: device.path.clone() },
            error => FilesystemError::Mount {
                source_path: device.path.clone(),
                path: plain(path),
                error: io::Error::from(error).to_string(),
                log: self.log,
                suspect: SUSPECT.contains(&error),
            },
        }
    }
}

/// A mount that is nowhere in the tree yet.
fn make(
    device: &VolumeDevice,
    kind: FilesystemKind,
    options: &Options,
) -> Result<OwnedFd, Failure> {
    let context = fsopen(kind.name(), FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(|error| Failure { error, log: String::new() })?;
    let made = configure(&context, device, options)
        .and_then(|()| fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, options.attributes));
    let made = made.map_err(|error| Failure { error, log: messages(&context) })?;
    // btrfs has a number of its own; the path was proved, and the kernel has opened what it led to.
    let is_it = kind == FilesystemKind::Btrfs
        || rustix::fs::fstat(&made).is_ok_and(|stat| device_number(stat.st_dev) == device.number);
    if is_it { Ok(made) } else { Err(Failure { error: Errno::XDEV, log: String::new() }) }
}

fn configure(context: &OwnedFd, device: &VolumeDevice, options: &Options) -> Result<(), Errno> {
    fsconfig_set_string(context, "source", device.path.as_str())?;
    for (name, value) in &options.filesystem {
        match value {
            Some(value) => fsconfig_set_string(context, name.as_str(), value.as_str())?,
            None => fsconfig_set_flag(context, name.as_str())?,
        }
    }
    fsconfig_create(context)
}

/// What the kernel has to say about a mount that it did not make.
pub(super) fn messages(context: &OwnedFd) -> String {
    let mut told = Vec::new();
    let mut buffer = [0; 1024];
    while let (Ok(length), true) =
        (rustix::io::read(context, &mut buffer), told.len() < MOST_MESSAGES)
    {
        // `e ` is an error, `w ` a warning, `i ` news.
        let text = String::from_utf8_lossy(&buffer[..length]);
        told.push(plain(text.trim().trim_start_matches(['e', 'w', 'i']).trim()));
    }
    told.join("; ")
}

/// The kernel's `struct mount_attr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn set_read_only(mount: &OwnedFd) -> io::Result<()> {
    let set = u64::from(MountAttrFlags::MOUNT_ATTR_RDONLY.bits());
    let attributes = MountAttributes { set, clear: 0, propagation: 0, user_namespace: 0 };
    #[expect(unsafe_code, reason = "no safe wrapper for mount_setattr")]
    // SAFETY: the path is an empty C string, the attributes have the kernel's layout and the length that is given, and
    // both live until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
