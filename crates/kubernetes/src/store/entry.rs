//! What the store remembers of each object, and what it makes of one that is not as remembered.

use hotbay_core::order::Term;
use hotbay_registry::{Key, StoreError};
use serde_json::Value;

use crate::object::{self, Checksum, Content};
use crate::resource::{FINALIZER, Resource};

/// An object as it was last seen or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) version: String,
    /// Of the record in it; none if it has none, or if that was changed by hand.
    pub(super) checksum: Option<Checksum>,
    /// It was written under the term of this store.
    pub(super) ours: bool,
    /// The generation of the spec that was taken notice of.
    pub(super) observed: Option<i64>,
    pub(super) has_finalizer: bool,
    /// Somebody has deleted it, and its finalizers hold it.
    pub(super) is_deleted: bool,
}

impl Entry {
    /// `None` if it is no object.
    pub(super) fn of(resource: Resource, object: &Value, ours: Option<Term>) -> Option<Self> {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().map(str::to_owned);
        let (checksum, term) = match object::content(resource, object) {
            Content::Record { checksum, term, .. } => (Some(checksum), term),
            Content::Edited | Content::Nothing => (None, None),
        };
        Some(Self {
            name: text("name")?,
            uid: text("uid")?,
            version: text("resourceVersion")?,
            checksum,
            ours: ours.is_some() && term == ours,
            observed: object["status"]["observedGeneration"].as_i64(),
            has_finalizer: finalizers(object).any(|name| name == FINALIZER),
            is_deleted: !metadata["deletionTimestamp"].is_null(),
        })
    }
}

/// The finalizers of an object.
pub(super) fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
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
    let Some(entry) = Entry::of(resource, found, ours) else { return Judged::NotOurs };
    let same_object = known.is_some_and(|known| known.uid == entry.uid);
    let (found_key, term, checksum) = match object::content(resource, found) {
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
        // memory does not know of it. After it, it cannot: what is there was put back by hand.
        Some(known) if !known.ours && known.checksum != Some(checksum) => {
            Judged::Lost(StoreError::Overtaken { object })
        }
        Some(_) => Judged::WriteOver(entry),
        // It was made by a write of ours whose answer was lost, or by a controller before us that was late.
        None if entry.ours || ours.is_none() => Judged::WriteOver(entry),
        None => Judged::Lost(StoreError::Overtaken { object }),
    }
}
