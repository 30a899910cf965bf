//! The dummy of a block volume that cannot be reached: a loop device over a plain file in the agent's own folder.
//!
//! It is known by its name in the kernel, which has the volume, and by its file, which is the agent's: another agent's
//! dummy, or anybody else's loop device at the same path, is neither used nor taken apart. Its file is made as large as
//! the volume, and takes only the room of what is written to it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hotbay_core::ids::VolumeId;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::error::failed;
use super::node::node;
use super::{Checkpoint, MappingError};
use crate::kernel_id::{DeviceNumber, KernelId};
use crate::loop_ioctl::{LoopShape, clear, configure, free_loop, loop_status, open};
use crate::proof::{loops::statuses, users_of};
use crate::runtime_dir::RuntimeDir;
use crate::scan::sysfs::Sysfs;

/// `hotbay:fake:<volume>`, which no mapping is called.
const PREFIX: &str = "hotbay:fake:";

const LOOP_MAJOR: u32 = 7;
const BLOCK_BYTES: u32 = 512;
/// How often a free loop device is asked for that someone else then takes first.
const TRIES: u32 = 64;
/// How long others that only look at it may keep it from going.
const CLEAR_PATIENCE: Duration = Duration::from_secs(2);
const CLEAR_PAUSE: Duration = Duration::from_millis(10);
/// Most dummies that one list has: as many as fit in a message.
const MOST_LISTED: usize = 256;

/// What a child is asked to do with dummies. `folder` has one file for each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DummyTask {
    /// Make the dummy of a volume, or find it.
    Make { folder: PathBuf, volume: VolumeId, size_bytes: u64 },
    /// Find it.
    Find { folder: PathBuf, volume: VolumeId },
    /// Take it apart, device and file, if nobody uses it.
    Remove { folder: PathBuf, volume: VolumeId },
    /// List the volumes that have one, or a file of one.
    List { folder: PathBuf },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DummyDone {
    Made(Dummy),
    Found(Option<Dummy>),
    Removed,
    Listed(Vec<VolumeId>),
}

/// A dummy, as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dummy {
    pub path: String,
    pub number: DeviceNumber,
    pub size_bytes: u64,
}

pub(crate) fn carry_out(
    dir: &RuntimeDir,
    task: &DummyTask,
    checkpoint: Checkpoint<'_>,
) -> Result<DummyDone, MappingError> {
    match task {
        DummyTask::Make { folder, volume, size_bytes } => {
            make(dir, folder, *volume, *size_bytes, checkpoint).map(DummyDone::Made)
        }
        DummyTask::Find { folder, volume } => find(dir, folder, *volume).map(DummyDone::Found),
        DummyTask::Remove { folder, volume } => {
            remove(dir, folder, *volume, checkpoint)?;
            Ok(DummyDone::Removed)
        }
        DummyTask::List { folder } => list(folder).map(DummyDone::Listed),
    }
}

fn make(
    dir: &RuntimeDir,
    folder: &Path,
    volume: VolumeId,
    size_bytes: u64,
    checkpoint: Checkpoint<'_>,
) -> Result<Dummy, MappingError> {
    if let Some(found) = find(dir, folder, volume)? {
        return Ok(found);
    }
    let making = failed("make the file of a dummy");
    std::fs::create_dir_all(folder).map_err(&making)?;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let options = options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let file = options.open(file_of(folder, volume)).map_err(&making)?;
    file.set_len(size_bytes).map_err(&making)?;
    checkpoint("dummy-file");
    let shape = LoopShape {
        offset_bytes: 0,
        limit_bytes: 0,
        read_only: false,
        direct: false,
        leaving: false,
        name: format!("{PREFIX}{volume}").into_bytes(),
    };
    for _ in 0..TRIES {
        let minor = free_loop().map_err(failed("find a free loop device"))?;
        let number = DeviceNumber { major: LOOP_MAJOR, minor };
        let path = node(dir, &format!("loop{minor}"), number)
            .map_err(failed("reach a free loop device"))?;
        let device = open(&path, OFlags::RDWR).map_err(failed("open a free loop device"))?;
        match configure(&device, file.as_fd(), &shape, BLOCK_BYTES) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => continue,
            Err(error) => return Err(failed("put a file behind a loop device")(error)),
        }
        checkpoint("dummy-configured");
        drop(device);
        return find(dir, folder, volume)?.ok_or(MappingError::NotMapped { volume });
    }
    Err(MappingError::NoFreeLoop { tries: TRIES })
}

/// The loop device that is called as the dummy of this volume and is over the agent's own file for it.
fn find(dir: &RuntimeDir, folder: &Path, volume: VolumeId) -> Result<Option<Dummy>, MappingError> {
    let file = file_of(folder, volume);
    let behind = KernelId::of_path(&file).ok().flatten();
    let sysfs = Sysfs::of_machine();
    let loops = sysfs.loops().map_err(failed("list loop devices"))?;
    let text = file.display().to_string();
    let deleted = format!("{text} (deleted)");
    // By its path first, so that loop devices over what hangs are not asked.
    let candidates = loops.into_iter().filter(|l| l.backing == text || l.backing == deleted);
    for (device, answer) in statuses(candidates.collect()) {
        let Some(Ok(status)) = answer else {
            return Err(MappingError::Silent { path: format!("/dev/{}", device.name) });
        };
        let named = volume_of(&status.shape.name) == Some(volume);
        let same_file =
            behind.is_none_or(|behind| behind == status.backing.id()) || device.backing == deleted;
        let disk = sysfs.disk(&device.name);
        let Some(number) = disk.number().filter(|_| named && same_file) else { continue };
        let path = node(dir, &device.name, number).map_err(failed("reach a loop device"))?;
        let size_bytes = disk.size_if_known().unwrap_or_default();
        return Ok(Some(Dummy { path: path.display().to_string(), number, size_bytes }));
    }
    Ok(None)
}

fn remove(
    dir: &RuntimeDir,
    folder: &Path,
    volume: VolumeId,
    checkpoint: Checkpoint<'_>,
) -> Result<(), MappingError> {
    if let Some(found) = find(dir, folder, volume)? {
        take_apart(dir, folder, volume, &found)?;
        checkpoint("dummy-cleared");
    }
    match std::fs::remove_file(file_of(folder, volume)) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("remove the file of a dummy")(error)),
    }
}

fn take_apart(
    dir: &RuntimeDir,
    folder: &Path,
    volume: VolumeId,
    found: &Dummy,
) -> Result<(), MappingError> {
    let path = Path::new(&found.path);
    let in_use = |by| MappingError::InUse { path: found.path.clone(), by };
    let users = users_of(path, found.number);
    if !users.is_empty() {
        return Err(in_use(users));
    }
    // Claimed, so that nobody mounts it in between.
    let device = match open(path, OFlags::RDONLY | OFlags::EXCL) {
        Ok(device) => device,
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(in_use(vec![])),
        Err(error) => return Err(failed("open a dummy")(error)),
    };
    // Numbers are given again: it is looked at once more, now that it is open.
    let name = loop_status(&device).map(|status| status.shape.name);
    if name.ok().as_deref().and_then(volume_of) == Some(volume) {
        clear(&device).map_err(failed("take the file from a loop device"))?;
    }
    drop(device);
    let until = Instant::now() + CLEAR_PATIENCE;
    while find(dir, folder, volume)?.is_some() {
        if Instant::now() >= until {
            return Err(in_use(users_of(path, found.number)));
        }
        std::thread::sleep(CLEAR_PAUSE);
    }
    Ok(())
}

fn list(folder: &Path) -> Result<Vec<VolumeId>, MappingError> {
    let listing = failed("list dummies");
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(listing(error)),
    };
    let names = entries.map_while(Result::ok).map(|entry| entry.file_name());
    let volumes = names.filter_map(|name| name.to_str()?.parse().ok());
    Ok(volumes.take(MOST_LISTED).collect())
}

fn file_of(folder: &Path, volume: VolumeId) -> PathBuf {
    folder.join(volume.to_string())
}

fn volume_of(name: &[u8]) -> Option<VolumeId> {
    std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loop_ioctl::MOST_NAME_BYTES;

    #[test]
    fn a_dummy_is_never_taken_for_a_mapping() {
        let volume = VolumeId::from_bits(u128::MAX);
        let name = format!("{PREFIX}{volume}");
        assert!(name.len() <= MOST_NAME_BYTES);
        assert_eq!(volume_of(name.as_bytes()), Some(volume));
        assert_eq!(super::super::name::of_loop(name.as_bytes()), None);
        assert_eq!(volume_of(&super::super::name::loop_name(volume, 1)), None);
    }

    #[test]
    fn a_dummy_is_made_once_is_as_large_as_asked_and_leaves_nothing() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::at(parent.path().join("run")).unwrap();
        let folder = parent.path().join("dummies");
        let (volume, other) = (VolumeId::from_bits(7), VolumeId::from_bits(8));
        let make = || make(&dir, &folder, volume, 3 << 20, &|_| {}).unwrap();
        let made = make();
        assert_eq!((made.size_bytes, make()), (3 << 20, made.clone()));
        assert_eq!(find(&dir, &folder, other).unwrap(), None);
        let elsewhere = parent.path().join("elsewhere");
        assert_eq!(find(&dir, &elsewhere, volume).unwrap(), None, "another agent's");
        assert_eq!(list(&folder).unwrap(), [volume]);
        let held = File::open(&made.path).unwrap();
        let refused = remove(&dir, &folder, volume, &|_| {});
        assert!(matches!(refused, Err(MappingError::InUse { .. })), "{refused:?}");
        drop(held);
        // Somebody has taken the file away: the device is found by its name all the same.
        std::fs::remove_file(file_of(&folder, volume)).unwrap();
        remove(&dir, &folder, volume, &|_| {}).unwrap();
        assert_eq!(find(&dir, &folder, volume).unwrap(), None);
        remove(&dir, &folder, volume, &|_| {}).unwrap();
        assert_eq!(list(&folder).unwrap(), []);
    }
}
