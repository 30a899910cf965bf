//! What every store promises, whatever is below it. The stores of other crates run this file too: it knows nothing
//! but the trait.

use std::collections::BTreeMap;

use hotbay_registry::{Key, Kind, Store, StoreError, Write};

/// The records a store should hold.
pub(crate) type Records = BTreeMap<Key, Vec<u8>>;

/// A small generator of repeatable numbers (splitmix64). A failing test prints its seed.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.below(2) == 1
    }
}

/// The seed of this run: `HOTBAY_SEED`, to replay one that failed, or a fixed one.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("HOTBAY_SEED").map_or(1, |text| text.parse().expect("a number"));
    println!("HOTBAY_SEED={seed}");
    seed
}

pub(crate) fn key(kind: Kind, id: u128) -> Key {
    Key { kind, id }
}

pub(crate) fn put(key: Key, value: &str) -> Write {
    Write::Put { key, value: value.as_bytes().to_vec() }
}

pub(crate) fn apply(records: &mut Records, writes: &[Write]) {
    for write in writes {
        match write {
            Write::Put { key, value } => drop(records.insert(*key, value.clone())),
            Write::Delete { key } => drop(records.remove(key)),
        }
    }
}

pub(crate) fn load(store: &mut impl Store) -> Records {
    let list = store.load().expect("a sound store loads");
    assert!(list.is_sorted_by(|(a, _), (b, _)| a < b), "in key order, each key once");
    list.into_iter().collect()
}

/// A commit of a few changes over few keys, so that they meet; `note` makes each commit different.
/// One in eight carries a long value, so that the file grows. Values are JSON objects with their
/// fields in order: a store may keep the value and not the text.
pub(crate) fn some_writes(random: &mut Random, note: u64) -> Vec<Write> {
    let count = 1 + random.below(5);
    (0..count)
        .map(|_| {
            let kind = Kind::ALL[usize::try_from(random.below(4)).unwrap()];
            let id = u128::from(random.below(12));
            // There is one registry.
            let key = key(kind, if kind == Kind::Registry { 0 } else { id });
            if random.below(4) == 0 {
                return Write::Delete { key };
            }
            let long = if random.below(8) == 0 { 60_000 } else { 40 };
            let filler = "x".repeat(usize::try_from(random.below(long)).unwrap());
            put(key, &format!(r#"{{"filler":"{filler}","note":{note}}}"#))
        })
        .collect()
}

/// Where a store lies: it can be opened again after the one before was dropped.
pub(crate) trait Place {
    type S: Store;
    /// The longest value that it takes.
    const VALUE_MAX_BYTES: usize;

    fn open(&self) -> Self::S;
}

pub(crate) fn behaves<P: Place>(new: impl Fn() -> P) {
    begins_empty(&new());
    changes_show_and_stay(&new());
    writes_apply_in_their_order(&new());
    an_empty_commit_is_nothing(&new());
    too_long_is_refused_whole(&new());
    agrees_with_a_map(&new());
}

fn begins_empty(place: &impl Place) {
    let mut store = place.open();
    assert_eq!(load(&mut store), Records::new());
    assert_eq!(store.read(&key(Kind::Drive, 1)).unwrap(), None);
}

fn changes_show_and_stay(place: &impl Place) {
    let (drive, node) = (key(Kind::Drive, 1), key(Kind::Node, u128::MAX));
    let mut store = place.open();
    store.commit(&[put(drive, "{}"), put(node, r#"{"b":[1]}"#), put(drive, r#"{"a":1}"#)]).unwrap();
    assert_eq!(store.read(&drive).unwrap().unwrap(), br#"{"a":1}"#);
    drop(store);

    let mut store = place.open();
    let keys: Vec<Key> = store.load().unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [node, drive]);
    store.commit(&[Write::Delete { key: drive }, put(node, r#"{"b":null}"#)]).unwrap();
    drop(store);

    let mut store = place.open();
    assert_eq!(load(&mut store), Records::from([(node, br#"{"b":null}"#.to_vec())]));
    assert_eq!(store.read(&drive).unwrap(), None);
}

fn writes_apply_in_their_order(place: &impl Place) {
    let (a, b) = (key(Kind::Volume, 1), key(Kind::Volume, 2));
    let mut store = place.open();
    store
        .commit(&[
            put(a, r#"{"a":1}"#),
            Write::Delete { key: a },
            Write::Delete { key: b },
            put(b, r#"{"a":2}"#),
            put(b, r#"{"a":3}"#),
        ])
        .unwrap();
    assert_eq!(load(&mut store), Records::from([(b, br#"{"a":3}"#.to_vec())]));
}

fn an_empty_commit_is_nothing(place: &impl Place) {
    let mut store = place.open();
    store.commit(&[]).unwrap();
    assert_eq!(load(&mut store), Records::new());
}

fn too_long_is_refused_whole<P: Place>(place: &P) {
    let (small, large) = (key(Kind::Node, 1), key(Kind::Node, 2));
    let mut store = place.open();
    let of_length = |bytes: usize| {
        let frame = r#"{"filler":""}"#.len();
        format!(r#"{{"filler":"{}"}}"#, "x".repeat(bytes - frame)).into_bytes()
    };
    let value = of_length(P::VALUE_MAX_BYTES + 1);
    let error = store.commit(&[put(small, "{}"), Write::Put { key: large, value }]).unwrap_err();
    assert!(matches!(error, StoreError::TooLong { key, .. } if key == large), "{error}");
    assert!(!error.retryable());
    assert_eq!(load(&mut store), Records::new());
    let value = of_length(P::VALUE_MAX_BYTES);
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
