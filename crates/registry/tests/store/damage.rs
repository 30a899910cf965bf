//! Damaged files: opened with exactly what was acknowledged, or refused with words and left as they
//! are.

use hotbay_registry::store::embedded::make_empty;
use hotbay_registry::{RedbStore, Store, StoreError};

use crate::disk::Disk;
use crate::{Random, Records, apply, load, seed, some_writes};

const PAGE: usize = 4096;
/// redb's first page: header and both commit slots lie in the first 320 bytes.
const HEADER: usize = 320;
/// The byte of the header that says which commit slot counts and how the file was left.
const CHOICE: usize = 9;
/// Not a divisor of the page, so that the places differ from page to page.
const STEP: usize = 331;

/// A store after ten commits: its file as closed, as left by a crash, and the last two states.
struct Sample {
    closed: Vec<u8>,
    crashed: Vec<u8>,
    before_last: Records,
    last: Records,
}

fn sample() -> Sample {
    let mut random = Random(seed());
    let disk = Disk::formatted();
    let mut store = RedbStore::over(disk.clone()).unwrap();
    let (mut before_last, mut last) = (Records::new(), Records::new());
    for note in 0..10 {
        let writes = some_writes(&mut random, note);
        store.commit(&writes).unwrap();
        before_last.clone_from(&last);
        apply(&mut last, &writes);
    }
    assert_ne!(before_last, last);
    let crashed = disk.durable();
    drop(store);
    Sample { closed: disk.durable(), crashed, before_last, last }
}

/// Opens a damaged image. A panic fails the test by itself; a refusal must leave the image as it
/// was.
fn open(image: Vec<u8>) -> Result<Records, StoreError> {
    let disk = Disk::with_image(image.clone());
    match RedbStore::over(disk.clone()) {
        Ok(mut store) => Ok(load(&mut store)),
        Err(error) => {
            assert!(disk.image() == image, "refused, and yet changed: {error}");
            assert!(!error.retryable(), "{error}");
            Err(error)
        }
    }
}

/// Every byte of the header, each bit of the byte that chooses the commit slot, then a byte in each
/// `STEP` of the pages with content and one byte of each other page.
fn flips(image: &[u8]) -> impl Iterator<Item = (usize, u8)> {
    let header = (0..HEADER).map(|at| (at, 0xff));
    let choice = (0..8).map(|bit| (CHOICE, 1 << bit));
    let pages = image.chunks(PAGE).enumerate().flat_map(|(page, bytes)| {
        let step = if bytes.iter().all(|&byte| byte == 0) { PAGE } else { STEP };
        (0..bytes.len()).step_by(step).map(move |at| (page * PAGE + at, 0xff))
    });
    header.chain(choice).chain(pages.filter(|&(at, _)| at >= HEADER))
}

#[test]
fn a_flipped_byte_of_a_closed_file_changes_no_record() {
    let sample = sample();
    let (mut refused, mut harmless) = (0, 0);
    for (at, mask) in flips(&sample.closed) {
        let mut image = sample.closed.clone();
        image[at] ^= mask;
        match open(image) {
            Ok(records) => {
                harmless += 1;
                assert!(records == sample.last, "byte {at} ^ {mask:#x}: other records, unnoticed");
            }
            Err(_) => refused += 1,
        }
    }
    println!("{refused} flips refused, {harmless} without effect");
    assert!(refused > 100, "too few flips met something");
}

/// After a crash the slot that counts is told by one bit, and a flip of it looks like a crash
/// between the two syncs of the last commit: that is left out, as a whole. Nothing else goes
/// unnoticed.
#[test]
fn a_flipped_byte_after_a_crash_changes_no_record_but_for_one_bit() {
    let sample = sample();
    let (mut refused, mut harmless) = (0, 0);
    for (at, mask) in flips(&sample.crashed) {
        let mut image = sample.crashed.clone();
        image[at] ^= mask;
        match open(image) {
            Ok(records) if records == sample.last => harmless += 1,
            Ok(records) => {
                assert!(records == sample.before_last, "byte {at} ^ {mask:#x}: neither state");
                assert_eq!((at, mask), (CHOICE, 1), "lost the last commit, unnoticed");
            }
            Err(_) => refused += 1,
        }
    }
    println!("{refused} flips refused, {harmless} without effect");
    assert!(refused > 100, "too few flips met something");
}

#[test]
fn another_length_is_refused_or_changes_no_record() {
    let sample = sample();
    for image in [&sample.closed, &sample.crashed] {
        let mut lengths: Vec<usize> = (0..image.len()).step_by(PAGE).collect();
        lengths.extend([1, 9, HEADER - 1, HEADER, image.len() - 1]);
        for len in lengths {
            match open(image[..len].to_vec()) {
                Ok(records) => assert!(records == sample.last, "cut to {len} bytes"),
                Err(StoreError::Empty { .. }) => assert_eq!(len, 0),
                Err(error) => assert!(matches!(error, StoreError::Damaged { .. }), "{error}"),
            }
        }
        for more in [1, 512, PAGE, 100 * PAGE] {
            let mut longer = image.clone();
            longer.resize(image.len() + more, 0xa5);
            if let Ok(records) = open(longer) {
                assert!(records == sample.last, "longer by {more} bytes");
            }
        }
    }
}

#[test]
fn pages_from_an_older_time_are_noticed() {
    let sample = sample();
    let empty = Disk::default();
    make_empty("(disk)".as_ref(), empty.clone()).unwrap();
    let older = empty.image();
    let mut refused = 0;
    for page in 1..sample.closed.len().min(older.len()) / PAGE {
        let mut image = sample.closed.clone();
        let range = page * PAGE..(page + 1) * PAGE;
        image[range.clone()].copy_from_slice(&older[range]);
        match open(image) {
            Ok(records) => assert!(records == sample.last, "page {page} of an older file"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0);
}
