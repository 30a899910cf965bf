//! A real file system that runs full or is read-only, on a small tmpfs. Needs root; says so if it
//! is skipped.

use std::ffi::CStr;
use std::fs;
use std::path::Path;

use hotbay_registry::store::file::STORE_NAME;
use hotbay_registry::{Kind, RedbStore, Store, StoreError, check};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use tempfile::TempDir;

use crate::{Records, apply, key, load, put};

/// A mounted tmpfs of a few MiB, unmounted when dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(options: &CStr) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: mounting a tmpfs needs root");
            return None;
        }
        let dir = TempDir::new().unwrap();
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), options).expect("a tmpfs mounts");
        Some(Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.0.path(), UnmountFlags::DETACH) {
            eprintln!("{} stays mounted: {error}", self.0.path().display());
        }
    }
}

#[test]
fn a_full_disk_is_told_and_once_there_is_room_the_retry_succeeds() {
    let Some(disk) = SmallDisk::mount(c"size=12m") else { return };
    let data_dir = disk.path().join("data");
    let mut store = RedbStore::open(&data_dir).unwrap();
    let mut records = Records::new();
    let filler = disk.path().join("filler");
    fs::write(&filler, vec![1; 7 << 20]).unwrap();

    let value = format!("\"{}\"", "x".repeat(200_000));
    let mut commits = (0..40).map(|id| [put(key(Kind::Volume, id), &value)]);
    let failed = loop {
        let writes = commits.next().expect("12 MiB are full before that");
        match store.commit(&writes) {
            Ok(()) => apply(&mut records, &writes),
            Err(error) => {
                assert!(matches!(error, StoreError::NoSpace { .. }), "{error:?}");
                assert!(error.retryable() && error.to_string().contains("no space left"));
                break writes;
            }
        }
    };
    let again = store.commit(&failed).unwrap_err();
    assert!(matches!(again, StoreError::NoSpace { .. }), "{again:?}");
    let other = key(Kind::Volume, 0);
    assert_eq!(store.read(&other).unwrap().as_ref(), records.get(&other), "reading goes on");

    fs::remove_file(&filler).unwrap();
    store.commit(&failed).expect("there is room again");
    apply(&mut records, &failed);
    assert!(load(&mut store) == records);
    drop(store);
    assert!(load(&mut RedbStore::open(&data_dir).unwrap()) == records);
}

#[test]
fn a_disk_too_full_for_a_new_store_leaves_none_behind() {
    let Some(disk) = SmallDisk::mount(c"size=1m") else { return };
    let filler = disk.path().join("filler");
    fs::write(&filler, vec![1; 1 << 20]).unwrap();
    let error = RedbStore::open(disk.path()).map(drop).unwrap_err();
    assert!(matches!(error, StoreError::NoSpace { .. }), "{error:?}");
    assert!(!disk.path().join(STORE_NAME).exists());
    fs::remove_file(&filler).unwrap();
    let mut store = RedbStore::open(disk.path()).expect("the half-made one is no obstacle");
    assert_eq!(load(&mut store), Records::new());
}

#[test]
fn a_read_only_file_system_is_told_and_can_be_checked() {
    let Some(disk) = SmallDisk::mount(c"size=12m") else { return };
    let mut store = RedbStore::open(disk.path()).unwrap();
    store.commit(&[put(key(Kind::Node, 1), "{}")]).unwrap();
    drop(store);
    mount_remount(disk.path(), MountFlags::RDONLY, "").unwrap();
    let error = RedbStore::open(disk.path()).map(drop).unwrap_err();
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
    assert!(error.to_string().contains("read-only"), "{error}");
    let error = RedbStore::open(&disk.path().join("new")).map(drop).unwrap_err();
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
    let report = check(disk.path()).unwrap();
    assert!(report.is_sound(), "{report}");
}
