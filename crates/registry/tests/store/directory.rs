//! The data directory as an administrator may leave it: each mistake has its own words, and the
//! check reads without writing.

use std::error::Error;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use hotbay_registry::store::file::{NEW_NAME, STORE_NAME};
use hotbay_registry::store::lock::{LOCK_NAME, LockError};
use hotbay_registry::{
    CheckError, Kind, Problem, RedbStore, Store, StoreError, Write, check, check_with,
};
use redb::{Database, TableDefinition};
use tempfile::TempDir;

use crate::{Records, key, load, put};

fn refused(data_dir: &Path) -> StoreError {
    let error = RedbStore::open(data_dir).map(drop).expect_err("this is not to be opened");
    assert!(error.to_string().contains(data_dir.to_str().unwrap()), "no path in: {error}");
    error
}

/// A closed store with one drive and one volume in it.
fn filled() -> (TempDir, Records) {
    let dir = TempDir::new().unwrap();
    let mut store = RedbStore::open(dir.path()).unwrap();
    store
        .commit(&[put(key(Kind::Drive, 1), r#"{"a":1}"#), put(key(Kind::Volume, 2), "{}")])
        .unwrap();
    let records = load(&mut store);
    (dir, records)
}

#[test]
fn the_directory_and_its_files_are_for_their_owner_alone() {
    let above = TempDir::new().unwrap();
    let dir = above.path().join("data");
    drop(RedbStore::open(&dir).unwrap());
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(mode(&dir.join(STORE_NAME)), 0o600);
    assert_eq!(mode(&dir.join(LOCK_NAME)), 0o600);
    assert!(!dir.join(NEW_NAME).exists());
}

#[test]
fn a_directory_that_cannot_be_is_refused() {
    let above = TempDir::new().unwrap();
    let error = refused(&above.path().join("missing/data"));
    assert!(matches!(error, StoreError::NoDataDirectory { .. }), "{error}");
    let file = above.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(matches!(refused(&file), StoreError::NotADirectory { .. }));
    assert!(matches!(refused(&file.join("data")), StoreError::NotADirectory { .. }));
}

#[test]
fn what_cannot_be_a_store_is_refused_and_left() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(STORE_NAME);

    fs::create_dir(&path).unwrap();
    assert!(matches!(refused(dir.path()), StoreError::NotAFile { .. }));
    fs::remove_dir(&path).unwrap();

    symlink(dir.path().join("gone"), &path).unwrap();
    assert!(matches!(refused(dir.path()), StoreError::NotAFile { .. }));
    fs::remove_file(&path).unwrap();

    fs::write(&path, "").unwrap();
    assert!(matches!(refused(dir.path()), StoreError::Empty { .. }));
    assert_eq!(fs::read(&path).unwrap(), b"");

    let text = "not a store ".repeat(1000);
    fs::write(&path, &text).unwrap();
    assert!(matches!(refused(dir.path()), StoreError::Damaged { .. }));
    assert_eq!(fs::read(&path).unwrap(), text.as_bytes());
}

#[test]
fn a_truncated_file_is_refused_and_left() {
    let (dir, _) = filled();
    let path = dir.path().join(STORE_NAME);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let error = refused(dir.path());
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("hotbay recover"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), &whole[..whole.len() / 2]);
}

#[test]
fn another_format_version_is_refused_with_both_numbers() {
    let (dir, _) = filled();
    let path = dir.path().join(STORE_NAME);
    set_format(&path, Some(7));
    let before = fs::read(&path).unwrap();
    let error = refused(dir.path());
    assert!(matches!(error, StoreError::OtherFormat { found: 7, reads: 1, .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
    set_format(&path, None);
    let error = refused(dir.path()).to_string();
    assert!(error.contains("no format version"), "{error}");
}

fn set_format(path: &Path, format: Option<u64>) {
    let meta: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
    let database = Database::open(path).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut meta = transaction.open_table(meta).unwrap();
        match format {
            Some(format) => drop(meta.insert("format", format).unwrap()),
            None => drop(meta.remove("format").unwrap()),
        }
    }
    transaction.commit().unwrap();
}

#[test]
fn a_record_of_an_unknown_kind_is_refused_and_named() {
    let (dir, _) = filled();
    let table: TableDefinition<'_, &[u8; 17], &[u8]> = TableDefinition::new("records");
    let database = Database::open(dir.path().join(STORE_NAME)).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(table).unwrap().insert(&[9; 17], b"{}".as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = refused(dir.path());
    assert!(error.to_string().contains("unknown kind 9"), "{error}");
    let report = check(dir.path()).unwrap();
    assert!(matches!(report.problems[..], [Problem::UnknownKind { code: 9 }]), "{report}");
}

#[test]
fn a_half_made_store_is_made_anew_and_a_whole_one_never() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join(NEW_NAME), "half").unwrap();
    let mut store = RedbStore::open(dir.path()).unwrap();
    store.commit(&[put(key(Kind::Node, 1), "{}")]).unwrap();
    let records = load(&mut store);
    drop(store);
    assert!(!dir.path().join(NEW_NAME).exists());
    fs::write(dir.path().join(NEW_NAME), "half").unwrap();
    assert_eq!(load(&mut RedbStore::open(dir.path()).unwrap()), records);
}

#[test]
fn one_process_opens_it_once() {
    let (dir, records) = filled();
    let mut store = RedbStore::open(dir.path()).unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    for _ in 0..2 {
        let StoreError::Locked(LockError::Held { holder, .. }) = refused(dir.path()) else {
            panic!("refused for another reason")
        };
        assert_eq!(holder.unwrap().pid, own);
        let CheckError::Locked(LockError::Held { holder, .. }) = check(dir.path()).unwrap_err()
        else {
            panic!("refused for another reason")
        };
        assert_eq!(holder.unwrap().pid, own);
    }
    assert_eq!(load(&mut store), records);
    drop(store);
    assert_eq!(load(&mut RedbStore::open(dir.path()).unwrap()), records);
}

#[test]
fn a_lock_file_that_was_deleted_does_not_let_a_second_one_in() {
    let (dir, _) = filled();
    let _store = RedbStore::open(dir.path()).unwrap();
    fs::remove_file(dir.path().join(LOCK_NAME)).unwrap();
    let error = refused(dir.path());
    assert!(matches!(error, StoreError::Locked(_)), "{error}");
}

#[test]
fn the_check_counts_and_changes_nothing() {
    let (dir, _) = filled();
    let path = dir.path().join(STORE_NAME);
    let before = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().mtime_nsec());
    let report = check(dir.path()).unwrap();
    assert!(report.is_sound() && !report.unclean_stop, "{report}");
    assert_eq!(report.format, Some(1));
    assert_eq!(
        report.records.into_iter().collect::<Vec<_>>(),
        [(Kind::Drive, 1), (Kind::Volume, 1)]
    );
    assert_eq!((fs::read(&path).unwrap(), fs::metadata(&path).unwrap().mtime_nsec()), before);
}

/// A directory copied from under a running registry: no lock file, not closed, read-only.
#[test]
fn the_check_reads_a_copy_left_by_a_crash() {
    let (dir, _) = filled();
    let copy = TempDir::new().unwrap();
    let path = copy.path().join(STORE_NAME);
    let mut store = RedbStore::open(dir.path()).unwrap();
    store.commit(&[put(key(Kind::Node, 3), "{}")]).unwrap();
    fs::copy(dir.path().join(STORE_NAME), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    let before = fs::read(&path).unwrap();
    let report = check(copy.path()).unwrap();
    assert!(report.is_sound() && report.unclean_stop, "{report}");
    assert_eq!(report.records[&Kind::Node], 1);
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(!copy.path().join(LOCK_NAME).exists(), "the check makes no file");
}

#[test]
fn the_check_names_each_bad_record() {
    let (dir, _) = filled();
    let mut store = RedbStore::open(dir.path()).unwrap();
    let (cut, list) = (key(Kind::Drive, 5), key(Kind::Node, 6));
    store.commit(&[put(cut, r#"{"a":"#), put(list, "[]")]).unwrap();
    store.commit(&[Write::Put { key: key(Kind::Volume, 7), value: vec![0xff, 0xfe] }]).unwrap();
    drop(store);
    let report = check(dir.path()).unwrap();
    assert_eq!(report.problems.len(), 3);
    let words = report.to_string();
    assert!(words.contains("drive 00000000000000000000000000000005: not a JSON object"), "{words}");
    assert!(words.ends_with("not sound\n"), "{words}");

    let report = check_with(dir.path(), &mut |key, _| Err(format!("no {} wanted", key.kind)));
    let problems = report.unwrap().problems;
    let judged = problems.iter().filter(|problem| problem.to_string().ends_with("wanted"));
    assert_eq!(judged.count(), 2, "the good ones, by the judge");
}

#[test]
fn the_check_says_what_is_wrong_with_the_file() {
    let (dir, _) = filled();
    let path = dir.path().join(STORE_NAME);
    let whole = fs::read(&path).unwrap();
    for (bytes, words) in [
        (whole[..whole.len() / 2].to_vec(), "is damaged"),
        (vec![b'x'; 5000], "is damaged"),
        (Vec::new(), "is empty"),
    ] {
        fs::write(&path, &bytes).unwrap();
        let report = check(dir.path()).unwrap();
        assert!(!report.is_sound() && report.to_string().contains(words), "{report}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
    fs::remove_file(&path).unwrap();
    let error = check(dir.path()).unwrap_err();
    assert!(matches!(error, CheckError::NoStore { .. }), "{error}");
    assert!(error.source().is_none());
}
