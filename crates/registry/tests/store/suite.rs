//! The same behaviour, asked of both stores.

use std::time::Duration;

use hotbay_registry::store::VALUE_MAX_BYTES;
use hotbay_registry::{Fault, Kind, MemoryStore, RedbStore, Store, StoreError};
use tempfile::TempDir;

use crate::behaviour::{Place, behaves};
use crate::{key, put};

impl Place for MemoryStore {
    type S = MemoryStore;
    const VALUE_MAX_BYTES: usize = VALUE_MAX_BYTES;

    fn open(&self) -> MemoryStore {
        self.clone()
    }
}

impl Place for TempDir {
    type S = RedbStore;
    const VALUE_MAX_BYTES: usize = VALUE_MAX_BYTES;

    fn open(&self) -> RedbStore {
        RedbStore::open(self.path()).expect("the directory is ours")
    }
}

#[test]
fn memory_store_behaves() {
    behaves(MemoryStore::new);
}

#[test]
fn redb_store_behaves() {
    behaves(|| TempDir::new().unwrap());
}

#[test]
fn memory_store_fails_as_asked() {
    let disk = MemoryStore::new();
    let drive = key(Kind::Drive, 1);
    disk.fail_commit(1, Fault::Before);
    disk.fail_commit(2, Fault::After);
    disk.fail_commit(3, Fault::NoSpace);
    disk.set_commit_delay(Duration::from_nanos(1));
    let mut store = disk.clone();

    assert!(store.commit(&[put(drive, "1")]).unwrap_err().retryable());
    assert_eq!(store.read(&drive).unwrap(), None);
    assert!(store.commit(&[put(drive, "2")]).unwrap_err().retryable());
    assert_eq!(store.read(&drive).unwrap().unwrap(), b"2");
    let no_space = store.commit(&[put(drive, "3")]).unwrap_err();
    assert!(matches!(no_space, StoreError::NoSpace { .. }) && no_space.retryable());

    let mut fork = disk.fork();
    store.commit(&[put(drive, "4")]).unwrap();
    assert_eq!(fork.read(&drive).unwrap().unwrap(), b"2", "a fork lives on its own");
    assert_eq!(disk.durable()[&drive], b"4");
    assert_eq!(disk.commits(), 4);

    disk.fail_reads(1);
    assert!(store.read(&drive).unwrap_err().retryable());
    assert_eq!(store.read(&drive).unwrap().unwrap(), b"4");
}
