//! Disks that answer with errors, at every operation there is, and then work again.

use hotbay_registry::{Key, Kind, RedbStore, Store, StoreError, Write};

use crate::disk::{Disk, EIO, Outage};
use crate::{Random, Records, apply, key, load, put, seed, some_writes};

const ENOSPC: i32 = 28;
const COMMITS: u64 = 6;

/// Commits as the registry does: after an error it reads back, and commits again until it is
/// durable. Returns how many calls failed.
fn commit_until_durable(
    store: &mut RedbStore<Disk>,
    disk: &Disk,
    before: &Records,
    writes: &[Write],
    place: &str,
) -> u32 {
    let mut after = before.clone();
    apply(&mut after, writes);
    let mut failures = 0;
    // One attempt that fails and one after the disk is well again must do.
    while let Err(error) = store.commit(writes) {
        assert!(error.retryable(), "{place}: {error}");
        failures += 1;
        assert!(failures < 3, "{place}: still failing on a disk that is well: {error}");
        if failures == 2 {
            disk.set_outage(None);
        }
        if let Ok(records) = store.load() {
            let records: Records = records.into_iter().collect();
            assert!(records == *before || records == after, "{place}: half there");
            // What can be read back must be durable, or a retry would be left out wrongly.
            let mut twin = RedbStore::over(Disk::with_image(disk.durable())).expect(place);
            assert!(load(&mut twin) == records, "{place}: read back what no disk holds");
        }
    }
    failures
}

fn run(outage: Option<Outage>) -> (u64, u64) {
    let place = format!("{outage:?}");
    let mut random = Random(seed_once());
    let disk = Disk::formatted();
    let mut store = RedbStore::over(disk.clone()).unwrap();
    let opened = disk.count();
    disk.set_outage(outage.map(|outage| Outage {
        from: opened + outage.from,
        to: opened.saturating_add(outage.to),
        ..outage
    }));
    let mut records = Records::new();
    for note in 0..COMMITS {
        let writes = some_writes(&mut random, note);
        commit_until_durable(&mut store, &disk, &records, &writes, &place);
        apply(&mut records, &writes);
        let mut twin = RedbStore::over(Disk::with_image(disk.durable())).expect(&place);
        assert!(load(&mut twin) == records, "{place}: acknowledged and not durable");
    }
    let operations = disk.count() - opened;
    disk.set_outage(None);
    drop(store);
    let mut store = RedbStore::over(disk.clone()).expect(&place);
    assert!(load(&mut store) == records, "{place}: wrong after the next start");
    (operations, disk.failed())
}

fn seed_once() -> u64 {
    static SEED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SEED.get_or_init(seed)
}

#[test]
fn one_failed_operation_is_survived_wherever_it_is() {
    let (operations, _) = run(None);
    for from in 0..operations {
        let (_, failed) = run(Some(Outage { from, to: from + 1, errno: EIO }));
        assert_eq!(failed, 1, "operation {from} was to fail");
    }
    println!("{operations} operations failed, one at a time");
}

#[test]
fn a_disk_that_fails_for_a_while_is_survived_from_wherever_on() {
    let (operations, _) = run(None);
    for from in (0..operations).step_by(2) {
        let (_, failed) = run(Some(Outage { from, to: u64::MAX, errno: ENOSPC }));
        assert!(failed >= 1, "operation {from} was to fail");
    }
}

#[test]
fn errors_say_what_to_do() {
    let drive = key(Kind::Drive, 1);
    let commit_with = |errno| {
        let disk = Disk::formatted();
        let mut store = RedbStore::over(disk.clone()).unwrap();
        disk.set_outage(Some(Outage { from: 0, to: u64::MAX, errno }));
        store.commit(&[put(drive, "{}")]).unwrap_err()
    };
    assert!(matches!(commit_with(ENOSPC), StoreError::NoSpace { .. }));
    assert!(matches!(commit_with(EIO), StoreError::Io { .. }));
    let read_only = commit_with(30);
    assert!(read_only.to_string().contains("read-only"), "{read_only}");
}

#[test]
fn a_store_that_cannot_be_opened_again_stays_usable_once_it_can() {
    let drive: Key = key(Kind::Drive, 1);
    let disk = Disk::formatted();
    let mut store = RedbStore::over(disk.clone()).unwrap();
    store.commit(&[put(drive, "1")]).unwrap();
    disk.set_outage(Some(Outage { from: 0, to: u64::MAX, errno: EIO }));
    for _ in 0..3 {
        assert!(store.commit(&[put(drive, "2")]).unwrap_err().retryable());
        assert!(store.read(&drive).unwrap_err().retryable());
        assert!(store.load().unwrap_err().retryable());
    }
    disk.set_outage(None);
    assert_eq!(store.read(&drive).unwrap().unwrap(), b"1");
    store.commit(&[put(drive, "2")]).unwrap();
    assert_eq!(store.read(&drive).unwrap().unwrap(), b"2");
}
