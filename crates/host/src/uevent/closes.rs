//! Tells when somebody has closed a drive that he had open for writing: what is on it may be another thing now. Of
//! devices udev tells the same, where it runs; the kernel does not. The agent's discovery waits on it.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::kernel_id::KernelId;

/// Room for so many bytes of notices at once; more of them wait in the kernel.
const BUFFER_BYTES: usize = 4096;

#[derive(Debug, Error)]
pub enum CloseWatchError {
    #[error("cannot watch for writers of devices")]
    Open(#[source] io::Error),
    #[error("cannot wait for writers of devices")]
    Wait(#[source] io::Error),
    #[error("cannot read which device was closed")]
    Read(#[source] io::Error),
}

/// Watches the nodes of devices under `/dev`, and plain files.
#[derive(Debug)]
pub struct CloseWatch {
    inotify: AsyncFd<OwnedFd>,
    by_path: BTreeMap<String, (i32, KernelId)>,
    by_watch: BTreeMap<i32, KernelId>,
}

impl CloseWatch {
    /// Watches nothing yet. Needs a tokio runtime.
    pub fn open() -> Result<Self, CloseWatchError> {
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let inotify = inotify::init(flags).map_err(|error| CloseWatchError::Open(error.into()))?;
        #[expect(unsafe_code, reason = "tokio leaves the life of the descriptor to the caller")]
        // SAFETY: an `OwnedFd` keeps its descriptor open until it is dropped, which is after the registration.
        let registered = unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) };
        let inotify = registered.map_err(|error| CloseWatchError::Wait(error.into()))?;
        Ok(Self { inotify, by_path: BTreeMap::new(), by_watch: BTreeMap::new() })
    }

    /// Watches these paths and no others: plain files, and nodes of devices and of their parts, each with the id of the
    /// whole. One that cannot be watched is left out: what happens to it is then found by other means.
    pub fn only<'a>(&mut self, wanted: impl IntoIterator<Item = (&'a str, KernelId)>) {
        let wanted: BTreeMap<&str, KernelId> = wanted.into_iter().collect();
        let inotify = self.inotify.get_ref().as_fd();
        let by_watch = &mut self.by_watch;
        self.by_path.retain(|path, (watch, id)| {
            let stays = wanted.get(path.as_str()) == Some(id);
            if !stays {
                by_watch.remove(watch);
                // It goes by itself with the node.
                let _ = inotify::remove_watch(inotify, *watch);
            }
            stays
        });
        for (path, id) in wanted {
            if self.by_path.contains_key(path) {
                continue;
            }
            match inotify::add_watch(inotify, path, WatchFlags::CLOSE_WRITE) {
                Ok(watch) => {
                    self.by_path.insert(path.to_owned(), (watch, id));
                    by_watch.insert(watch, id);
                }
                Err(error) => tracing::debug!("writers of {path} are not watched: {error}"),
            }
        }
    }

    /// Waits until a device was closed by a writer, and hands out each that was. Dropping the future loses nothing.
    pub async fn receive(&mut self, mut each: impl FnMut(KernelId)) -> Result<(), CloseWatchError> {
        loop {
            let mut ready = self.inotify.readable().await.map_err(CloseWatchError::Wait)?;
            let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
            let mut reader = Reader::new(ready.get_inner(), &mut buffer);
            let mut heard = false;
            loop {
                let (flags, watch) = match reader.next() {
                    Ok(event) => (event.events(), event.wd()),
                    Err(Errno::AGAIN) => {
                        ready.clear_ready();
                        break;
                    }
                    Err(Errno::INTR) => continue,
                    Err(error) => return Err(CloseWatchError::Read(error.into())),
                };
                heard = true;
                if flags.contains(ReadFlags::IGNORED) {
                    // The node has gone. Another one at its path is watched anew.
                    self.by_watch.remove(&watch);
                    self.by_path.retain(|_, (other, _)| *other != watch);
                } else if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                    self.by_watch.values().copied().for_each(&mut each);
                } else if let Some(id) = self.by_watch.get(&watch) {
                    each(*id);
                }
                if reader.is_buffer_empty() {
                    break;
                }
            }
            if heard {
                return Ok(());
            }
        }
    }

    /// How many nodes are watched.
    pub fn len(&self) -> usize {
        self.by_path.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};

    use hotbay_core::device::DeviceNumber;

    use super::*;

    const ID: KernelId = KernelId::Block(DeviceNumber { major: 8, minor: 16 });

    async fn heard(watch: &mut CloseWatch) -> Vec<KernelId> {
        let mut heard = Vec::new();
        watch.receive(|id| heard.push(id)).await.unwrap();
        heard
    }

    /// Plain files behave as nodes of devices do.
    #[tokio::test]
    async fn a_writer_is_heard_and_a_reader_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node").display().to_string();
        File::create(&path).unwrap();
        let mut watch = CloseWatch::open().unwrap();
        watch.only([(path.as_str(), ID)]);
        drop(File::open(&path).unwrap());
        drop(OpenOptions::new().write(true).open(&path).unwrap());
        assert_eq!(heard(&mut watch).await, [ID], "one writer, and no reader");
    }

    #[tokio::test]
    async fn a_node_that_comes_again_is_watched_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node").display().to_string();
        File::create(&path).unwrap();
        let mut watch = CloseWatch::open().unwrap();
        watch.only([(path.as_str(), ID)]);
        std::fs::remove_file(&path).unwrap();
        heard(&mut watch).await;
        assert!(watch.is_empty());
        File::create(&path).unwrap();
        watch.only([(path.as_str(), ID)]);
        drop(OpenOptions::new().write(true).open(&path).unwrap());
        assert_eq!(heard(&mut watch).await, [ID]);
        watch.only([]);
        assert_eq!((watch.len(), watch.by_watch.len()), (0, 0));
    }
}
