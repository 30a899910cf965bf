//! One process per data directory, held by the kernel and let go with the process.
//!
//! The lock is a POSIX record lock on `registry.lock`, because such a lock names the process that
//! holds it. It belongs to the process: a second attempt from within would succeed, and closing any
//! descriptor of the file would drop it. So the directories held by this process are listed as
//! well, and the file is opened only after a look at that list.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::FlockOperation;
use rustix::process::{Flock, FlockType, Pid};
use thiserror::Error;

/// Name of the lock file in the data directory.
pub const LOCK_NAME: &str = "registry.lock";

/// Device and inode of each lock file held by this process.
static HELD: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// Why a data directory could not be locked.
#[derive(Debug, Error)]
pub enum LockError {
    #[error(
        "{} is in use by {}; only one may use a data directory: stop it, or name another directory",
        path.display(), Holder::words(holder.as_ref())
    )]
    Held { path: PathBuf, holder: Option<Holder> },

    #[error("cannot lock {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: i32,
    /// Its command name, if it could be read.
    pub command: Option<String>,
}

impl Holder {
    fn of(pid: Pid) -> Self {
        let pid = pid.as_raw_nonzero().get();
        let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        Self { pid, command: command.map(|name| name.trim_end().to_owned()) }
    }

    fn words(holder: Option<&Self>) -> String {
        // The kernel gives no pid for a holder in another pid namespace or on another machine.
        holder.map_or_else(|| "another process (its pid is not known here)".into(), Self::to_string)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.command {
            Some(command) => write!(f, "process {} ({command})", self.pid),
            None => write!(f, "process {}", self.pid),
        }
    }
}

/// A held lock; let go when dropped.
#[derive(Debug)]
pub(super) struct DataLock {
    inode: (u64, u64),
    /// Closing it ends the lock.
    file: Option<File>,
}

impl DataLock {
    /// Takes the lock for a registry, making the lock file if needed.
    pub(super) fn exclusive(data_dir: &Path) -> Result<Self, LockError> {
        let path = data_dir.join(LOCK_NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        Self::take(&path, &options, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| error.at(path))
    }

    /// Keeps a registry from starting while the directory is only read. Makes no file: where no
    /// registry ever ran (a copied directory) there is nothing to keep out, and nothing is locked.
    pub(super) fn shared(data_dir: &Path) -> Result<Option<Self>, LockError> {
        let path = data_dir.join(LOCK_NAME);
        let mut options = OpenOptions::new();
        options.read(true);
        match Self::take(&path, &options, FlockOperation::NonBlockingLockShared) {
            Ok(lock) => Ok(Some(lock)),
            Err(TakeError::Io(source)) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.at(path)),
        }
    }

    fn take(
        path: &Path,
        options: &OpenOptions,
        operation: FlockOperation,
    ) -> Result<Self, TakeError> {
        let mut held = held();
        match std::fs::metadata(path) {
            Ok(found) if held.contains(&(found.dev(), found.ino())) => {
                return Err(TakeError::Held(Some(Holder::of(rustix::process::getpid()))));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let file = options.open(path)?;
        match rustix::fs::fcntl_lock(&file, operation) {
            Ok(()) => {}
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::AGAIN) => {
                let holder =
                    rustix::process::fcntl_getlk(&file, &Flock::from(FlockType::WriteLock))
                        .map_err(io::Error::from)?
                        .and_then(|lock| lock.pid)
                        .map(Holder::of);
                return Err(TakeError::Held(holder));
            }
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let found = file.metadata()?;
        let inode = (found.dev(), found.ino());
        held.insert(inode);
        Ok(Self { inode, file: Some(file) })
    }
}

impl Drop for DataLock {
    fn drop(&mut self) {
        // Under the list's mutex: between closing and unlisting, nobody in this process may lock.
        let mut held = held();
        drop(self.file.take());
        held.remove(&self.inode);
    }
}

fn held() -> MutexGuard<'static, BTreeSet<(u64, u64)>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// [`LockError`] before its path is known.
enum TakeError {
    Held(Option<Holder>),
    Io(io::Error),
}

impl TakeError {
    fn at(self, path: PathBuf) -> LockError {
        match self {
            Self::Held(holder) => LockError::Held { path, holder },
            Self::Io(source) => LockError::Io { path, source },
        }
    }
}

impl From<io::Error> for TakeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
