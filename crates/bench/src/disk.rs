//! The disk under a measured store: counts the syncs that really happen, and can make each of them take longer.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hotbay_registry::store::file::STORE_NAME;
use hotbay_registry::store::medium::Medium;
use hotbay_registry::{RedbStore, StoreError};
use redb::StorageBackend;
use redb::backends::FileBackend;

/// How many syncs a disk was asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Syncs(Arc<AtomicU64>);

impl Syncs {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A store in this folder, on a disk whose syncs take `longer` than they do.
pub(crate) fn store(
    folder: &Path,
    longer: Duration,
) -> Result<(RedbStore<CountingDisk>, Syncs), StoreError> {
    // Makes the file; a medium is only ever opened.
    drop(RedbStore::open(folder)?);
    let syncs = Syncs::default();
    let disk = CountingDisk { path: folder.join(STORE_NAME), syncs: syncs.clone(), longer };
    Ok((RedbStore::over(disk)?, syncs))
}

#[derive(Debug)]
pub(crate) struct CountingDisk {
    path: PathBuf,
    syncs: Syncs,
    longer: Duration,
}

impl Medium for CountingDisk {
    type Backend = CountingFile;

    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&mut self) -> io::Result<CountingFile> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let file = FileBackend::new(file).map_err(io::Error::other)?;
        Ok(CountingFile { file, syncs: self.syncs.clone(), longer: self.longer })
    }

    fn forget_unwritten(&mut self) -> io::Result<()> {
        Err(io::Error::other("a measurement does not go on after a failure"))
    }
}

#[derive(Debug)]
pub(crate) struct CountingFile {
    file: FileBackend,
    syncs: Syncs,
    longer: Duration,
}

impl StorageBackend for CountingFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.syncs.0.fetch_add(1, Ordering::Relaxed);
        if !self.longer.is_zero() {
            std::thread::sleep(self.longer);
        }
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}
