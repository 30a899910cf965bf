//! What the store remembers of each object, and what it makes of one that is not as remembered.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use hotbay_core::order::Term;
use hotbay_registry::{Key, StoreError};
use serde_json::Value;

use crate::object::{self, Checksum, Content};
use crate::resource::{FINALIZER, Resource};

/// What the server numbers the spec of a new object with.
const FIRST_GENERATION: i64 = 1;

/// An object as it was last seen or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: String,
    /// Of the record in it; none if it has none, or if that was changed by hand.
    pub(crate) checksum: Option<Checksum>,
    /// That record came with the object, and there is no status yet.
    pub(crate) is_first: bool,
    /// It was written under the term of this store.
    pub(crate) ours: bool,
    /// How new the newest record was that was ever found in it.
    pub(crate) reached: Age,
    /// The generation of the spec that was taken notice of.
    pub(crate) observed: Option<i64>,
    pub(crate) has_finalizer: bool,
    /// Somebody has deleted it, and its finalizers hold it.
    pub(crate) is_deleted: bool,
    /// Stands for the whole status, as the server has it.
    pub(crate) status: u64,
}

impl Entry {
    /// `None` if it is no object.
    pub(crate) fn of(resource: Resource, object: &Value, ours: Option<Term>) -> Option<Self> {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().map(str::to_owned);
        let (checksum, term, is_first, reached) = match object::content(resource, object) {
            Content::Record { checksum, term, is_first, record, .. } => {
                (Some(checksum), term, is_first, Age::of(resource, term, &record))
            }
            Content::Edited | Content::Nothing => (None, None, false, Age::default()),
        };
        let observed = object["status"]["observedGeneration"].as_i64();
        Some(Self {
            name: text("name")?,
            uid: text("uid")?,
            version: text("resourceVersion")?,
            checksum,
            is_first,
            ours: ours.is_some() && term == ours,
            reached,
            // It was made with a spec of ours.
            observed: observed.or(is_first.then_some(FIRST_GENERATION)),
            // On another kind a person has put it there: it is not ours to take off, and nothing waits for it.
            has_finalizer: resource.has_finalizer()
                && finalizers(object).any(|name| name == FINALIZER),
            is_deleted: !metadata["deletionTimestamp"].is_null(),
            status: hash(&object["status"]),
        })
    }

    /// Whether this one, of the same object, is older than another.
    pub(crate) fn is_older_than(&self, other: &Self) -> bool {
        is_older(&self.version, &other.version)
    }

    /// Its version, which grows with every write to any object.
    pub(crate) fn number(&self) -> u64 {
        // One that is no number is not compared with others.
        self.version.parse().unwrap_or(u64::MAX)
    }
}

/// How new a record is, as far as it tells by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Age {
    /// The number of the term that it was written under.
    term: Option<u64>,
    /// A number in it that never goes down. Not every record has one, and not every change raises it.
    number: Option<u64>,
}

impl Age {
    fn of(resource: Resource, term: Option<Term>, record: &Value) -> Self {
        let number = match resource {
            Resource::Drive => record["generation"].as_u64(),
            Resource::Volume | Resource::Attachment => record["epoch"].as_u64(),
            Resource::Registry | Resource::StorageNode => None,
        };
        Self { term: term.map(|term| term.number), number }
    }

    /// Whether a record is certainly older than another of the same thing.
    fn is_before(self, other: Self) -> bool {
        let is_lower = self.number.zip(other.number).is_some_and(|(own, other)| own < other);
        self.term < other.term || is_lower
    }

    fn and(self, other: Self) -> Self {
        Self { term: self.term.max(other.term), number: self.number.max(other.number) }
    }
}

/// Whether a version comes before another. They are numbers that grow.
pub(crate) fn is_older(version: &str, other: &str) -> bool {
    match (version.parse::<u64>(), other.parse::<u64>()) {
        (Ok(own), Ok(other)) => own < other,
        (Err(_), _) | (_, Err(_)) => false,
    }
}

/// Compared within this process alone.
fn hash(status: &Value) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(status)
}

/// The finalizers of an object.
pub(crate) fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// What an object that is not as remembered means for a write to it.
#[derive(Debug)]
pub(super) enum Judged {
    /// The write is there already: its answer was lost.
    Written(Entry),
    /// Only others' parts changed, or ours by hand: write over it.
    WriteOver(Entry),
    /// The object is another's.
    NotOurs,
    /// This store must not write any more.
    Lost(StoreError),
}

/// Judges an object that was found where `known` was expected. `wanted` is the checksum of what is to be written, none
/// for a delete.
pub(super) fn judge(
    key: Key,
    found: &Value,
    known: Option<&Entry>,
    wanted: Option<Checksum>,
    ours: Option<Term>,
) -> Judged {
    let resource = Resource::of(key.kind);
    let Some(mut entry) = Entry::of(resource, found, ours) else { return Judged::NotOurs };
    // What people write there is no notice of ours. A spec that the record finds when it comes is no wish about it.
    entry.observed = match known {
        Some(known) => known.observed,
        None => entry.observed.or_else(|| found["metadata"]["generation"].as_i64()),
    };
    let found_age = entry.reached;
    if let Some(known) = known {
        entry.reached = found_age.and(known.reached);
    }
    let same_object = known.is_some_and(|known| known.uid == entry.uid);
    if let Some(known) = known.filter(|_| same_object)
        && entry.is_older_than(known)
    {
        let object = format!("{}/{}", resource.plural(), entry.name);
        return Judged::Lost(StoreError::WentBack { object });
    }
    let (found_key, term, checksum) = match object::content(resource, found) {
        // Its status was taken away by hand: what it was made with is past.
        Content::Record { is_first: true, .. }
            if same_object && known.is_some_and(|known| !known.is_first) =>
        {
            return Judged::WriteOver(entry);
        }
        Content::Record { key, term, checksum, .. } => (key, term, checksum),
        // Deleted and made again by somebody: a new wish, and not what is to go.
        Content::Edited | Content::Nothing if wanted.is_none() && !same_object => {
            return Judged::NotOurs;
        }
        // It goes as soon as those who hold it let go, and would take the record with it.
        Content::Edited | Content::Nothing if known.is_none() && entry.is_deleted => {
            return Judged::NotOurs;
        }
        // Nobody's decision is in it.
        Content::Edited | Content::Nothing => return Judged::WriteOver(entry),
    };
    if found_key != key {
        return Judged::NotOurs;
    }
    let object = format!("{}/{}", resource.plural(), entry.name);
    if let (Some(by), Some(ours)) = (term, ours)
        && (by.number > ours.number || (by.number == ours.number && by.id != ours.id))
    {
        return Judged::Lost(StoreError::Deposed { object, by, ours });
    }
    if Some(checksum) == wanted {
        return Judged::Written(entry);
    }
    match known {
        // Before the first write under this term the controller that led before may have written, and what is in
        // memory does not know of it. After it, it cannot: what is there was put back by hand, or is an earlier write
        // of ours whose answer was lost. Nor can it have written what is older than the record that was loaded: it
        // would have replaced that very version, and so have known it.
        Some(known)
            if !known.ours
                && !entry.ours
                && known.checksum != Some(checksum)
                && !found_age.is_before(known.reached) =>
        {
            Judged::Lost(StoreError::Overtaken { object })
        }
        Some(_) => Judged::WriteOver(entry),
        // It was made by a write of ours whose answer was lost, or by a controller before us that was late.
        None if entry.ours || ours.is_none() => Judged::WriteOver(entry),
        None => Judged::Lost(StoreError::Overtaken { object }),
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::ids::TermId;
    use hotbay_registry::Kind;
    use serde_json::{Map, json};

    use super::*;

    const KEY: Key = Key { kind: Kind::Drive, id: 7 };

    fn term(number: u64) -> Term {
        Term { number, id: TermId::from_bits(u128::from(number)) }
    }

    /// The object as a controller of that term wrote it, in a version of its own.
    fn written(by: u64, generation: u64, version: u64) -> Value {
        let record = json!({ "generation": generation });
        let (status, _) = object::status(KEY, Some(term(by)), &record, Map::new());
        let version = version.to_string();
        json!({ "metadata": { "name": "d", "uid": "u", "resourceVersion": version }, "status": status })
    }

    fn entry(object: &Value) -> Entry {
        Entry::of(Resource::Drive, object, Some(term(4))).unwrap()
    }

    fn is_overtaken(found: &Value, known: &Entry) -> bool {
        let judged = judge(KEY, found, Some(known), None, Some(term(4)));
        matches!(judged, Judged::Lost(StoreError::Overtaken { .. }))
    }

    #[test]
    fn a_late_write_is_never_older_than_what_was_loaded() {
        let loaded = entry(&written(3, 5, 10));
        for (by, generation, is_late) in
            [(3, 6, true), (2, 5, false), (2, 9, false), (3, 4, false), (4, 6, false)]
        {
            let found = written(by, generation, 11);
            assert_eq!(is_overtaken(&found, &loaded), is_late, "{generation} of term {by}");
        }
    }

    /// Somebody spoils the status first, and then puts an old one back, before either is written over.
    #[test]
    fn what_was_loaded_is_remembered_whatever_is_found_meanwhile() {
        let loaded = entry(&written(3, 5, 10));
        let mut spoilt = written(3, 5, 11);
        spoilt["status"]["checksum"] = json!("0");
        let mut known = loaded;
        for found in [spoilt, written(2, 4, 12)] {
            let judged = judge(KEY, &found, Some(&known), None, Some(term(4)));
            let Judged::WriteOver(now) = judged else { panic!("{judged:?}") };
            known = now;
        }
        assert!(!is_overtaken(&written(1, 3, 13), &known));
        assert!(is_overtaken(&written(3, 6, 13), &known));
    }
}
