//! Mappings by loop devices: where the kernel has no device-mapper, and on plain files.
//!
//! A loop device is configured in one step or not at all, so a killed child leaves either nothing or a mapping that the
//! next one finds by its name. What the kernel made of the request is read back: it drops direct I/O silently.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::error::failed;
use super::name::{loop_name, of_loop};
use super::node::node;
use super::{Checkpoint, Mapping, MappingError, MappingKind, OpenDrive, Segment, Wanted};
use crate::kernel_id::{DeviceNumber, KernelId};
use crate::loop_ioctl::{
    LoopShape, LoopStatus, clear, configure, free_loop, loop_status, open, reshape,
};
use crate::proof::{loops::statuses, users_of};
use crate::runtime_dir::RuntimeDir;
use crate::scan::sysfs::Sysfs;

/// The major number of loop devices.
const LOOP_MAJOR: u32 = 7;

/// How often a free loop device is asked for that someone else then takes first.
const TRIES: u32 = 64;

/// A size limit that leaves no whole sector: the device has size zero.
const FENCED_BYTES: u64 = 1;

/// How long others that only look at a loop device may keep it from going.
const CLEAR_PATIENCE: Duration = Duration::from_secs(2);
const CLEAR_PAUSE: Duration = Duration::from_millis(10);

/// What a loop device that does not answer is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silent {
    /// Someone else's, if it is over a plain file: a filesystem that hangs somewhere must not stop all mappings. One
    /// over a device may be ours, with a child that waits for its drive.
    ForeignIfOverFile,
    /// Ours: what cannot be seen cannot be called fenced.
    Ours,
}

/// All loop devices that are mappings of ours.
pub(super) fn all(dir: &RuntimeDir, silent: Silent) -> Result<Vec<Mapping>, MappingError> {
    let sysfs = Sysfs::of_machine();
    let loops = sysfs.loops().map_err(failed("list loop devices"))?;
    let mut found = Vec::new();
    for (device, answer) in statuses(loops) {
        let Some(number) = sysfs.disk(&device.name).number() else { continue };
        let status = match answer {
            Some(Ok(status)) => status,
            Some(Err(error)) if is_gone(&error) => continue,
            Some(Err(_)) | None => {
                if silent == Silent::Ours || device.backing.starts_with("/dev/") {
                    return Err(MappingError::Silent { path: format!("/dev/{}", device.name) });
                }
                continue;
            }
        };
        found.extend(mapping(dir, &device.name, number, &status)?);
    }
    Ok(found)
}

fn mapping(
    dir: &RuntimeDir,
    name: &str,
    number: DeviceNumber,
    status: &LoopStatus,
) -> Result<Option<Mapping>, MappingError> {
    let Some((volume, epoch)) = of_loop(&status.shape.name) else { return Ok(None) };
    let node = node(dir, name, number).map_err(failed("reach a loop device"))?;
    let shape = &status.shape;
    let fenced = shape.limit_bytes == FENCED_BYTES;
    let part = Segment { start_bytes: shape.offset_bytes, length_bytes: shape.limit_bytes };
    Ok(Some(Mapping {
        volume,
        epoch,
        kind: MappingKind::Loop,
        path: node.display().to_string(),
        number,
        drive: Some(status.backing.id()),
        parts: if fenced { vec![] } else { vec![part] },
        read_only: shape.read_only,
        fenced,
        direct: shape.direct,
        leaving: shape.leaving,
    }))
}

/// Whether a mapping was made, but not as it must be, and its maker was killed before it undid it.
pub(super) fn is_half_made(found: &Mapping, drive: &OpenDrive) -> bool {
    found.kind == MappingKind::Loop && !found.direct && must_be_direct(drive.id)
}

/// Pages of a volume must not be cached twice, and a write that was acknowledged must have reached the drive. A plain
/// file is no drive for data that matters, and not every filesystem can do direct I/O.
fn must_be_direct(drive: KernelId) -> bool {
    match drive {
        KernelId::Block(_) => true,
        KernelId::File { .. } => false,
    }
}

/// Makes the loop device of a volume that has none.
pub(super) fn map(
    dir: &RuntimeDir,
    wanted: &Wanted,
    drive: &OpenDrive,
    checkpoint: Checkpoint<'_>,
) -> Result<Mapping, MappingError> {
    let &[part] = wanted.parts.as_slice() else {
        let (volume, parts) = (wanted.volume, wanted.parts.len());
        return Err(MappingError::OnePartOnly { volume, parts });
    };
    let shape = LoopShape {
        offset_bytes: part.start_bytes,
        limit_bytes: part.length_bytes,
        read_only: wanted.read_only,
        direct: true,
        leaving: false,
        name: loop_name(wanted.volume, wanted.epoch),
    };
    for _ in 0..TRIES {
        let minor = free_loop().map_err(failed("find a free loop device"))?;
        let number = DeviceNumber { major: LOOP_MAJOR, minor };
        let name = format!("loop{minor}");
        let path = node(dir, &name, number).map_err(failed("reach a free loop device"))?;
        let device = open(&path, access(wanted)).map_err(failed("open a free loop device"))?;
        checkpoint("map-opened");
        match configure(&device, drive.file.as_fd(), &shape, drive.block_bytes) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => continue,
            Err(error) => return Err(failed("put the drive behind a loop device")(error)),
        }
        checkpoint("map-configured");
        let status = loop_status(&device).map_err(failed("read the loop device back"))?;
        let path = path.display().to_string();
        if let Err(error) = verify(&status, &shape, drive, &name, path) {
            clear(&device).map_err(failed("undo a loop device"))?;
            return Err(error);
        }
        checkpoint("map-verified");
        return mapping(dir, &name, number, &status)?
            .ok_or(MappingError::NotMapped { volume: wanted.volume });
    }
    Err(MappingError::NoFreeLoop { tries: TRIES })
}

/// A read-only mapping must not need a drive that can be written to.
fn access(wanted: &Wanted) -> OFlags {
    if wanted.read_only { OFlags::RDONLY } else { OFlags::RDWR }
}

fn verify(
    status: &LoopStatus,
    asked: &LoopShape,
    drive: &OpenDrive,
    name: &str,
    path: String,
) -> Result<(), MappingError> {
    let disk = Sysfs::of_machine().disk(name);
    let what = if status.backing.id() != drive.id {
        "it is over another drive"
    } else if (LoopShape { direct: asked.direct, ..status.shape.clone() }) != *asked {
        "it has another shape"
    } else if disk.size_if_known() != Some(asked.limit_bytes) {
        "it has another size"
    } else if disk.block_bytes() < drive.block_bytes {
        "it has smaller blocks"
    } else if !status.shape.direct && must_be_direct(drive.id) {
        return Err(MappingError::NotDirect { path });
    } else {
        return Ok(());
    };
    Err(MappingError::NotAsAsked { path, what: what.to_owned() })
}

/// Removes a loop device that nobody uses.
pub(super) fn unmap(
    dir: &RuntimeDir,
    found: &Mapping,
    checkpoint: Checkpoint<'_>,
) -> Result<(), MappingError> {
    let path = Path::new(&found.path);
    let in_use = |by| MappingError::InUse { path: found.path.clone(), by };
    let users = users_of(path, found.number);
    if !users.is_empty() {
        return Err(in_use(users));
    }
    // Claimed, so that nobody mounts it in between.
    let device = match open_ours(found, OFlags::RDONLY | OFlags::EXCL) {
        Ok(device) => device,
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(in_use(users_of(path, found.number)));
        }
        Err(error) => return Err(failed("open the mapping")(error)),
    };
    checkpoint("unmap-opened");
    clear(&device).map_err(failed("take the drive from the loop device"))?;
    drop(device);
    checkpoint("unmap-cleared");
    let until = Instant::now() + CLEAR_PATIENCE;
    loop {
        let left = all(dir, Silent::ForeignIfOverFile)?
            .into_iter()
            .any(|mapping| mapping.number == found.number && mapping.volume == found.volume);
        if !left {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(in_use(users_of(path, found.number)));
        }
        std::thread::sleep(CLEAR_PAUSE);
    }
}

/// Cuts a loop device to size zero. The kernel waits for all I/O under way; what was checked against the old size but
/// was not under way yet is waited for by the second call.
pub(super) fn fence(found: &Mapping) -> Result<(), MappingError> {
    let fencing = failed("cut the loop device to size zero");
    let device = match open_ours(found, OFlags::RDONLY) {
        Ok(device) => device,
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(failed("open the mapping")(error)),
    };
    let shape = loop_status(&device).map_err(&fencing)?.shape;
    let fenced = LoopShape { limit_bytes: FENCED_BYTES, ..shape };
    for _ in 0..2 {
        reshape(&device, &fenced).map_err(&fencing)?;
    }
    Ok(())
}

/// Shows more of the drive: the part is longer, and begins where it did.
pub(super) fn grow(found: &Mapping, wanted: &Wanted) -> Result<(), MappingError> {
    let &[part] = wanted.parts.as_slice() else {
        let (volume, parts) = (wanted.volume, wanted.parts.len());
        return Err(MappingError::OnePartOnly { volume, parts });
    };
    let device = open_ours(found, OFlags::RDONLY).map_err(failed("open the mapping"))?;
    let growing = failed("grow the loop device");
    let shape = loop_status(&device).map_err(&growing)?.shape;
    reshape(&device, &LoopShape { limit_bytes: part.length_bytes, ..shape }).map_err(growing)
}

/// Opens a mapping, and makes sure that it still is the one that was found: numbers are given again.
fn open_ours(found: &Mapping, flags: OFlags) -> io::Result<File> {
    let device = open(Path::new(&found.path), flags)?;
    let status = loop_status(&device)?;
    let is_it = of_loop(&status.shape.name) == Some((found.volume, found.epoch))
        && Some(status.backing.id()) == found.drive;
    // As if it had nothing behind it: what was found is gone.
    if is_it { Ok(device) } else { Err(io::Error::from_raw_os_error(libc::ENXIO)) }
}

fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENXIO) || error.kind() == io::ErrorKind::NotFound
}
