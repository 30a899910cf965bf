//! Power cuts at every write, change of length and sync: nothing acknowledged is lost, nothing is
//! half there (invariant 7).

use hotbay_registry::{Kind, RedbStore, Store};

use crate::disk::{Disk, Op, Unsynced, image_after_cut};
use crate::{Random, Records, apply, key, load, put, seed, some_writes};

/// A run on a disk that kept its log: the states it went through, and when each was acknowledged.
struct History {
    start: Vec<u8>,
    log: Vec<Op>,
    /// State `n` is after `n` commits; it was begun when the log was `begun[n]` long, and
    /// acknowledged when it was `acknowledged[n]` long.
    states: Vec<Records>,
    begun: Vec<usize>,
    acknowledged: Vec<usize>,
}

impl History {
    /// Commits 16 times, closing and opening once in between, and closes at the end.
    fn record(mut random: Random) -> Self {
        let disk = Disk::formatted();
        let mut history = Self {
            start: disk.image(),
            log: Vec::new(),
            states: vec![Records::new()],
            begun: vec![0],
            acknowledged: vec![0],
        };
        let mut store = RedbStore::over(disk.clone()).unwrap();
        for note in 1..=16 {
            if note == 9 {
                drop(store);
                store = RedbStore::over(disk.clone()).unwrap();
            }
            let writes = some_writes(&mut random, note);
            let mut records = history.states.last().unwrap().clone();
            apply(&mut records, &writes);
            history.states.push(records);
            history.begun.push(disk.log_len());
            store.commit(&writes).unwrap();
            history.acknowledged.push(disk.log_len());
        }
        drop(store);
        history.log = disk.log();
        history
    }

    /// The states allowed after a cut at this place of the log: the last acknowledged one, and
    /// later ones that were begun.
    fn allowed(&self, done: usize) -> &[Records] {
        let acknowledged = self.acknowledged.partition_point(|&at| at <= done) - 1;
        let begun = self.begun.partition_point(|&at| at <= done);
        &self.states[acknowledged..begun.max(acknowledged + 1)]
    }
}

/// Opens the disk as it is after a cut, and says in which of the allowed states it is.
fn recovered(image: Vec<u8>, allowed: &[Records], place: &str) -> (Disk, RedbStore<Disk>, Records) {
    let disk = Disk::with_image(image);
    let mut store = RedbStore::over(disk.clone())
        .unwrap_or_else(|error| panic!("{place}: does not open: {error}"));
    let records = load(&mut store);
    assert!(allowed.contains(&records), "{place}: lost or half there");
    (disk, store, records)
}

#[test]
fn a_cut_anywhere_loses_nothing_acknowledged() {
    let mut random = Random(seed());
    let history = History::record(random.clone());
    let grew = history.log.iter().any(|op| matches!(op, Op::SetLen(_)));
    assert!(grew, "the run must make the file grow, or growing is not tried");
    let mut cuts = 0;
    for done in 0..=history.log.len() {
        let ways = [
            Unsynced::Lost,
            Unsynced::Kept,
            Unsynced::Pieces { sectors: 1, seed: random.next() },
            Unsynced::Pieces { sectors: 8, seed: random.next() },
        ];
        for unsynced in ways {
            let place = format!("cut after operation {done}, {unsynced:?}");
            let image = image_after_cut(&history.start, &history.log, done, unsynced);
            recovered(image, history.allowed(done), &place);
            cuts += 1;
        }
    }
    println!("{cuts} cuts over {} operations", history.log.len());
}

/// Recovery writes, too: the power goes again while it does, and the store is then used on.
#[test]
fn a_second_cut_during_recovery_loses_nothing() {
    let mut random = Random(seed());
    let history = History::record(random.clone());
    let added = key(Kind::Node, 99);
    for done in (0..history.log.len()).step_by(13) {
        let first = Unsynced::Pieces { sectors: 1, seed: random.next() };
        let image = image_after_cut(&history.start, &history.log, done, first);
        let place = format!("cut after operation {done}, {first:?}");
        let (disk, mut store, records) = recovered(image.clone(), history.allowed(done), &place);
        let before = [records.clone()];
        let opened = disk.log_len();
        store.commit(&[put(added, "{}")]).unwrap();
        drop(store);
        let log = disk.log();
        for again in 0..=opened {
            let second = Unsynced::Pieces { sectors: 1, seed: random.next() };
            let place = format!("{place}, then after operation {again}, {second:?}");
            recovered(image_after_cut(&image, &log, again, second), &before, &place);
        }
        let mut after = records;
        apply(&mut after, &[put(added, "{}")]);
        recovered(disk.durable(), &[after], &format!("{place}, used on and closed"));
    }
}
