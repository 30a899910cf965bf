//! The same behaviour, asked of both stores.

use std::time::Duration;

use hotbay_registry::store::VALUE_MAX_BYTES;
use hotbay_registry::{Fault, Key, Kind, MemoryStore, RedbStore, Store, StoreError, Write};
use tempfile::TempDir;

use crate::{Random, Records, apply, key, load, put, seed, some_writes};

/// Where a store lies: it can be opened again after the one before was dropped.
trait Place {
    type S: Store;
    fn open(&self) -> Self::S;
}

impl Place for MemoryStore {
    type S = MemoryStore;

    fn open(&self) -> MemoryStore {
        self.clone()
    }
}

impl Place for TempDir {
    type S = RedbStore;

    fn open(&self) -> RedbStore {
        RedbStore::open(self.path()).expect("the directory is ours")
    }
}

fn behaves<P: Place>(new: impl Fn() -> P) {
    begins_empty(&new());
    changes_show_and_stay(&new());
    writes_apply_in_their_order(&new());
    an_empty_commit_is_nothing(&new());
    too_long_is_refused_whole(&new());
    agrees_with_a_map(&new());
}

#[test]
fn memory_store_behaves() {
    behaves(MemoryStore::new);
}

#[test]
fn redb_store_behaves() {
    behaves(|| TempDir::new().unwrap());
}

fn begins_empty(place: &impl Place) {
    let mut store = place.open();
    assert_eq!(load(&mut store), Records::new());
    assert_eq!(store.read(&key(Kind::Drive, 1)).unwrap(), None);
}

fn changes_show_and_stay(place: &impl Place) {
    let (drive, node) = (key(Kind::Drive, 1), key(Kind::Node, u128::MAX));
    let mut store = place.open();
    store.commit(&[put(drive, "{}"), put(node, "[1]"), put(drive, "{\"a\":1}")]).unwrap();
    assert_eq!(store.read(&drive).unwrap().unwrap(), b"{\"a\":1}");
    drop(store);

    let mut store = place.open();
    let keys: Vec<Key> = store.load().unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [node, drive]);
    store.commit(&[Write::Delete { key: drive }, put(node, "")]).unwrap();
    drop(store);

    let mut store = place.open();
    assert_eq!(load(&mut store), Records::from([(node, Vec::new())]));
    assert_eq!(store.read(&drive).unwrap(), None);
}

fn writes_apply_in_their_order(place: &impl Place) {
    let (a, b) = (key(Kind::Volume, 1), key(Kind::Volume, 2));
    let mut store = place.open();
    store
        .commit(&[
            put(a, "1"),
            Write::Delete { key: a },
            Write::Delete { key: b },
            put(b, "2"),
            put(b, "3"),
        ])
        .unwrap();
    assert_eq!(load(&mut store), Records::from([(b, b"3".to_vec())]));
}

fn an_empty_commit_is_nothing(place: &impl Place) {
    let mut store = place.open();
    store.commit(&[]).unwrap();
    assert_eq!(load(&mut store), Records::new());
}

fn too_long_is_refused_whole(place: &impl Place) {
    let (small, large) = (key(Kind::Node, 1), key(Kind::Node, 2));
    let mut store = place.open();
    let value = vec![b' '; VALUE_MAX_BYTES + 1];
    let error = store.commit(&[put(small, "1"), Write::Put { key: large, value }]).unwrap_err();
    assert!(matches!(error, StoreError::TooLong { key, .. } if key == large), "{error}");
    assert!(!error.retryable());
    assert_eq!(load(&mut store), Records::new());
    let value = vec![b' '; VALUE_MAX_BYTES];
    store.commit(&[Write::Put { key: large, value: value.clone() }]).unwrap();
    assert_eq!(store.read(&large).unwrap(), Some(value));
}

fn agrees_with_a_map(place: &impl Place) {
    let mut random = Random(seed());
    let mut records = Records::new();
    let mut store = place.open();
    for note in 0..60 {
        let writes = some_writes(&mut random, note);
        store.commit(&writes).unwrap();
        apply(&mut records, &writes);
        if random.below(10) == 0 {
            drop(store);
            store = place.open();
        }
        assert_eq!(load(&mut store), records);
    }
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
