//! Tells when something was mounted or unmounted, which no event of a device does. The agent's loop waits on it and
//! reads the table again.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Longest table that is read; at some 150 bytes a mount this is over 400,000 mounts.
const MAX_BYTES: usize = 64 << 20;
/// How much is read at once, at first.
const FIRST_BYTES: usize = 64 << 10;

/// Whose mounts are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountTable {
    /// Those of the machine's first process.
    Machine,
    /// Our own: that of the first process may not be read. In a container, mounts of the machine are not seen.
    Own,
}

#[derive(Debug, Error)]
pub enum MountWatchError {
    #[error("cannot open the mount table {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot wait for changes of the mount table {}", path.display())]
    Wait {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the mount table {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Half a table would hide mounts.
    #[error("the mount table {} is longer than {MAX_BYTES} bytes", path.display())]
    TooLong { path: PathBuf },
}

/// A mount table that is kept open.
#[derive(Debug)]
pub struct MountWatch {
    file: AsyncFd<File>,
    path: PathBuf,
    table: MountTable,
    bytes: Vec<u8>,
}

impl MountWatch {
    /// Opens the machine's table, or our own where that may not be read, and says so. Needs a tokio runtime.
    pub fn open() -> Result<Self, MountWatchError> {
        match Self::of(Path::new("/proc/1/mountinfo"), MountTable::Machine) {
            Ok(watch) => Ok(watch),
            Err(error) => {
                tracing::warn!(
                    "the mounts of this process are watched, not those of the machine: {error} ({})",
                    std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default()
                );
                Self::of(Path::new("/proc/self/mountinfo"), MountTable::Own)
            }
        }
    }

    fn of(path: &Path, table: MountTable) -> Result<Self, MountWatchError> {
        let path = path.to_owned();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(source) => return Err(MountWatchError::Open { path, source }),
        };
        #[expect(unsafe_code, reason = "tokio leaves the life of the descriptor to the caller")]
        // SAFETY: a `File` keeps its one descriptor open until it is dropped, which is after the registration.
        let registered = unsafe { AsyncFd::register_with_interest(file, Interest::PRIORITY) };
        match registered {
            Ok(file) => Ok(Self { file, path, table, bytes: Vec::new() }),
            Err(error) => Err(MountWatchError::Wait { path, source: error.into() }),
        }
    }

    pub fn table(&self) -> MountTable {
        self.table
    }

    /// Waits until the table has changed since the last call. Many changes can be one. Dropping the future loses
    /// nothing.
    pub async fn changed(&self) -> Result<(), MountWatchError> {
        match self.file.ready(Interest::PRIORITY).await {
            Ok(mut ready) => {
                ready.clear_ready();
                Ok(())
            }
            Err(source) => Err(MountWatchError::Wait { path: self.path.clone(), source }),
        }
    }

    /// Reads the table from its start. The place it is read into is kept for the next time.
    pub fn read(&mut self) -> Result<&[u8], MountWatchError> {
        let mut length = 0;
        loop {
            if length == self.bytes.len() {
                if length >= MAX_BYTES {
                    return Err(MountWatchError::TooLong { path: self.path.clone() });
                }
                self.bytes.resize((length * 2).clamp(FIRST_BYTES, MAX_BYTES), 0);
            }
            let file = self.file.get_ref().as_fd();
            match rustix::io::pread(file, &mut self.bytes[length..], length as u64) {
                Ok(0) => return Ok(&self.bytes[..length]),
                Ok(read) => length += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    let path = self.path.clone();
                    return Err(MountWatchError::Read { path, source: error.into() });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_table_is_read_from_its_start_each_time() {
        let mut watch = MountWatch::open().unwrap();
        let first = watch.read().unwrap().to_vec();
        assert!(first.ends_with(b"\n") && first.windows(3).any(|part| part == b" / "));
        assert!(!watch.read().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_table_that_may_not_be_read_is_named() {
        let error = MountWatch::of(Path::new("/proc/1/none"), MountTable::Machine).unwrap_err();
        assert_eq!(error.to_string(), "cannot open the mount table /proc/1/none");
    }
}
