//! What a store promises, tried on both stores, on disks that fail and lose power, on damaged
//! files, and with real processes that are killed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cuts;
mod damage;
mod directory;
mod disk;
mod faults;
mod full;
mod processes;
mod suite;

use std::collections::BTreeMap;

use hotbay_registry::{Key, Kind, Store, Write};

/// The records a store should hold.
type Records = BTreeMap<Key, Vec<u8>>;

/// A small generator of repeatable numbers (splitmix64). A failing test prints its seed.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 1
    }
}

/// The seed of this run: `HOTBAY_SEED`, to replay one that failed, or a fixed one.
fn seed() -> u64 {
    let seed = std::env::var("HOTBAY_SEED").map_or(1, |text| text.parse().expect("a number"));
    println!("HOTBAY_SEED={seed}");
    seed
}

fn key(kind: Kind, id: u128) -> Key {
    Key { kind, id }
}

fn put(key: Key, value: &str) -> Write {
    Write::Put { key, value: value.as_bytes().to_vec() }
}

fn apply(records: &mut Records, writes: &[Write]) {
    for write in writes {
        match write {
            Write::Put { key, value } => drop(records.insert(*key, value.clone())),
            Write::Delete { key } => drop(records.remove(key)),
        }
    }
}

fn load(store: &mut impl Store) -> Records {
    let list = store.load().expect("a sound store loads");
    assert!(list.is_sorted_by(|(a, _), (b, _)| a < b), "in key order, each key once");
    list.into_iter().collect()
}

/// A commit of a few changes over few keys, so that they meet; `note` makes each commit different.
/// One in eight carries a long value, so that the file grows.
fn some_writes(random: &mut Random, note: u64) -> Vec<Write> {
    let count = 1 + random.below(5);
    (0..count)
        .map(|_| {
            let kind = Kind::ALL[usize::try_from(random.below(4)).unwrap()];
            let key = key(kind, u128::from(random.below(12)));
            if random.below(4) == 0 {
                return Write::Delete { key };
            }
            let long = if random.below(8) == 0 { 60_000 } else { 40 };
            let filler = "x".repeat(usize::try_from(random.below(long)).unwrap());
            put(key, &format!(r#"{{"note":{note},"filler":"{filler}"}}"#))
        })
        .collect()
}
