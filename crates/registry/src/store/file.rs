//! The store's file in the data directory: how it comes to be there, and how it is opened.
//!
//! ```text
//! absent ── make `registry.redb.new`, sync ── rename to `registry.redb`, sync directory ── there
//! ```
//!
//! A file under the final name was therefore complete once, whatever it looks like now, and is
//! never made anew. One under the other name never held a record, and is removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;

use super::error::StoreError;
use super::medium::Medium;

/// Name of the store in the data directory.
pub const STORE_NAME: &str = "registry.redb";
/// Name it has while it is made.
pub const NEW_NAME: &str = "registry.redb.new";

/// The store's file, as [`RedbStore`](super::embedded::RedbStore) opens it.
#[derive(Debug)]
pub struct FileMedium {
    path: PathBuf,
}

impl FileMedium {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }
}

impl Medium for FileMedium {
    type Backend = FileBackend;

    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&mut self) -> io::Result<FileBackend> {
        backend(OpenOptions::new().read(true).write(true).open(&self.path)?)
    }

    fn forget_unwritten(&mut self) -> io::Result<()> {
        // After a failed sync Linux calls the unwritten pages clean and goes on showing them:
        // reading them back would take for durable what no disk holds. Dropped, they are read from
        // the disk.
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        file.sync_data()?;
        Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
    }
}

/// Opens the file for reading alone.
pub(super) fn open_to_read(path: &Path) -> io::Result<FileBackend> {
    backend(File::open(path)?)
}

fn backend(file: File) -> io::Result<FileBackend> {
    FileBackend::new(file).map_err(io::Error::other)
}

/// Makes sure that the data directory is one. Makes it, for its owner alone, if only the last part
/// of its path is missing.
pub(super) fn prepare_directory(data_dir: &Path) -> Result<(), StoreError> {
    match fs::metadata(data_dir) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => return Err(StoreError::NotADirectory { path: data_dir.to_path_buf() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(StoreError::from_io(data_dir, "look at", error)),
    }
    match DirBuilder::new().mode(0o700).create(data_dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::NoDataDirectory { path: data_dir.to_path_buf() });
        }
        Err(error) => return Err(StoreError::from_io(data_dir, "make", error)),
    }
    match data_dir.parent() {
        Some(above) if !above.as_os_str().is_empty() => sync_directory(above),
        Some(_) => sync_directory(Path::new(".")),
        None => Ok(()),
    }
}

/// Whether the store's file is there. What stands at its path and cannot be a store is an error.
pub(super) fn is_there(path: &Path) -> Result<bool, StoreError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(StoreError::NotAFile { path: path.to_path_buf() }),
        Ok(found) if found.len() == 0 => Err(StoreError::Empty { path: path.to_path_buf() }),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A link whose target is gone is not a first start: the records are elsewhere.
            if path.is_symlink() {
                return Err(StoreError::NotAFile { path: path.to_path_buf() });
            }
            Ok(false)
        }
        Err(error) => Err(StoreError::from_io(path, "look at", error)),
    }
}

/// Makes the store's file. `fill` writes an empty store into it; only then does it get its name.
pub(super) fn make(
    data_dir: &Path,
    fill: impl FnOnce(&Path, FileBackend) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let new = data_dir.join(NEW_NAME);
    match fs::remove_file(&new) {
        Ok(()) => tracing::info!(path = %new.display(), "removed a half-made store"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(StoreError::from_io(&new, "remove", error)),
    }
    let failed = |error| StoreError::from_io(&new, "make", error);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .map_err(failed)?;
    let to_sync = file.try_clone().map_err(failed)?;
    fill(&new, backend(file).map_err(failed)?)?;
    to_sync.sync_all().map_err(failed)?;
    fs::rename(&new, data_dir.join(STORE_NAME)).map_err(failed)?;
    sync_directory(data_dir)
}

fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| StoreError::from_io(path, "sync", error))
}
