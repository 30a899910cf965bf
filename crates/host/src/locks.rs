//! Kernel locks: one writer per drive, one agent per node name.
//!
//! Both are POSIX record locks on a file of the [`RuntimeDir`]. That kind is never inherited over fork or exec, the
//! kernel drops it only when the process is really gone (a killed one that hangs in a write still has it), and it
//! can be asked whose it is. Its trap: closing *any* descriptor of the file drops the process's lock. So each lock
//! file is opened once, here, and a second lock of the same name in one process is refused by a table of our own.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hotbay_core::ids::NodeName;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Flock, FlockOffsetType, FlockType};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::kernel_id::KernelId;
use crate::process::command_of;
use crate::runtime_dir::RuntimeDir;

/// How often a lock is asked for again that was held, but by nobody any more when we asked who.
const ATTEMPTS: u32 = 5;

/// The names of the locks that this process holds.
static HELD: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The right to write to one drive. Whoever may write holds it until the last write has returned, and takes it
/// itself: a write of a killed process can land later.
#[derive(Debug)]
pub struct WriterLock(#[expect(dead_code, reason = "held, not read")] Held);

/// The right to be the agent of one node name on this machine.
#[derive(Debug)]
pub struct AgentLock(#[expect(dead_code, reason = "held, not read")] Held);

/// The right to make, change and remove the mappings of volumes on one drive.
#[derive(Debug)]
pub(crate) struct MappingLock(#[expect(dead_code, reason = "held, not read")] Held);

impl MappingLock {
    /// Takes the lock of a drive, or says at once who has it.
    pub(crate) fn take(dir: &RuntimeDir, drive: KernelId) -> Result<Self, LockError> {
        Held::take(dir.path().join(format!("mapping-{drive}.lock"))).map(Self)
    }
}

impl WriterLock {
    /// Takes the lock of a drive, or says at once who has it.
    pub fn take(dir: &RuntimeDir, drive: KernelId) -> Result<Self, LockError> {
        Held::take(dir.path().join(format!("{drive}.lock"))).map(Self)
    }
}

impl AgentLock {
    /// Takes the lock of a node's name, or says at once which process has it.
    pub fn take(dir: &RuntimeDir, node: &NodeName) -> Result<Self, LockError> {
        Held::take(dir.path().join(format!("agent-{node}.lock"))).map(Self)
    }
}

/// Who has a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    /// Absent if the process is in a pid namespace that we cannot see, or was gone when we asked.
    pub pid: Option<u32>,
    pub command: String,
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid} ({})", self.command),
            None => f.write_str("a process that cannot be seen from here"),
        }
    }
}

/// Why a lock was not taken.
#[derive(Debug, Error)]
pub enum LockError {
    #[error("the lock {} is held by {by}", path.display())]
    LockedBy { path: PathBuf, by: LockHolder },
    #[error("cannot lock {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Debug)]
struct Held {
    path: PathBuf,
    /// Closing it drops the lock; `Option` so that this happens before the name leaves the table.
    file: Option<File>,
}

impl Held {
    fn take(path: PathBuf) -> Result<Self, LockError> {
        // The table stays locked meanwhile: a second opener in this process would drop the first one's lock by
        // closing its descriptor.
        let mut held = held_by_us();
        if held.contains(&path) {
            return Err(LockError::LockedBy { path, by: holder(Some(std::process::id())) });
        }
        match lock(&path) {
            Ok(Ok(file)) => {
                held.insert(path.clone());
                Ok(Self { path, file: Some(file) })
            }
            Ok(Err(by)) => Err(LockError::LockedBy { path, by }),
            Err(source) => Err(LockError::Io { path, source }),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = held_by_us();
        self.file = None;
        held.remove(&self.path);
    }
}

fn held_by_us() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    // Nothing panics while the table is locked, and a set is whole between two calls anyway.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock(path: &Path) -> io::Result<Result<File, LockHolder>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let wanted = Flock {
        start: 0,
        length: 0,
        pid: None,
        typ: FlockType::WriteLock,
        offset_type: FlockOffsetType::Set,
    };
    for _ in 0..ATTEMPTS {
        match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Ok(file)),
            Err(Errno::AGAIN | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(other) = rustix::process::fcntl_getlk(&file, &wanted)? {
            let pid = other.pid.and_then(|pid| u32::try_from(pid.as_raw_pid()).ok());
            return Ok(Err(holder(pid)));
        }
    }
    Ok(Err(holder(None)))
}

fn holder(pid: Option<u32>) -> LockHolder {
    LockHolder { pid, command: pid.map(command_of).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> (tempfile::TempDir, RuntimeDir) {
        let parent = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::at(parent.path().join("locks")).unwrap();
        (parent, dir)
    }

    /// Asks the kernel from outside of this process; true if a lock is on the file.
    fn locked_for_others(path: &Path) -> bool {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
        locks.lines().any(|line| line.contains("POSIX") && line.contains(&format!(":{inode} ")))
    }

    #[test]
    fn a_second_agent_of_the_same_name_is_refused_and_told_by_whom() {
        let (_parent, dir) = dir();
        let name: NodeName = "node-a".parse().unwrap();
        let path = dir.path().join("agent-node-a.lock");
        let first = AgentLock::take(&dir, &name).unwrap();
        let Err(LockError::LockedBy { by, .. }) = AgentLock::take(&dir, &name) else {
            panic!("two agents of one name");
        };
        assert_eq!(by.pid, Some(std::process::id()));
        assert!(locked_for_others(&path), "the refused attempt dropped the lock");
        AgentLock::take(&dir, &"node-b".parse().unwrap()).unwrap();
        drop(first);
        assert!(!locked_for_others(&path));
        AgentLock::take(&dir, &name).unwrap();
    }

    #[test]
    fn a_link_in_place_of_a_lock_file_is_not_followed() {
        let (_parent, dir) = dir();
        let drive = KernelId::Block(crate::kernel_id::DeviceNumber { major: 8, minor: 0 });
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("drive-8:0.lock")).unwrap();
        assert!(matches!(WriterLock::take(&dir, drive), Err(LockError::Io { .. })));
    }
}
