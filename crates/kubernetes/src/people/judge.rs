//! What an object that was seen means. Decided by what the store knows of it, and by what there is in the registry's
//! memory, both asked after the object was seen: a write of our own is known by then, however early its event came.

use std::collections::HashSet;

use hotbay_core::order::Term;
use hotbay_registry::Key;

use super::seen::{Held, Seen};
use crate::store::Objects;

/// What is to be done about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing: it is as we left it, or old news.
    Fine,
    /// The object of a record, as we left it; people may wish something by its spec.
    Ours(Key),
    /// It is gone, and its record is not.
    Deleted(Key),
    /// It is to go and is held by our finalizer; with a record, it is written again after that.
    Release(Option<Key>),
    /// Our finalizer was taken from it.
    Bind(Key),
    /// Its status is not what we wrote.
    Edited(Key),
    /// It holds a record that nobody knows, or a controller ended before it had one: a late write, or half of one.
    Remove,
    /// It holds a record of a controller that leads after us.
    Deposed,
    /// The record in it has another object.
    Copy,
    /// It was never ours, and its status is nobody's.
    Strange,
    /// A wish without a record.
    Wish,
    /// It is gone, and nothing is left of it.
    Forgotten,
}

/// The record that an object is about, if any.
pub(super) fn key(seen: &Seen, objects: &Objects) -> Option<Key> {
    objects.key_of(&seen.entry.uid).or(match seen.held {
        Held::Record { key, .. } => Some(key),
        Held::Edited | Held::Nothing => None,
    })
}

/// Judges an object by which records there are.
pub(super) fn judge(
    seen: &Seen,
    is_gone: bool,
    objects: &Objects,
    present: &HashSet<Key>,
) -> Verdict {
    let key = key(seen, objects).filter(|key| present.contains(key));
    // Another object has taken its place, or has had it all along.
    let is_copy =
        key.and_then(|key| objects.get(key)).is_some_and(|entry| entry.uid != seen.entry.uid);
    match key {
        _ if is_gone && is_copy => Verdict::Forgotten,
        Some(key) if is_gone => Verdict::Deleted(key),
        None if is_gone => Verdict::Forgotten,
        key if seen.entry.is_deleted => match key.filter(|_| !is_copy) {
            Some(key) => Verdict::Release(Some(key)),
            None if seen.entry.has_finalizer => Verdict::Release(None),
            None => Verdict::Fine,
        },
        Some(_) if is_copy => Verdict::Copy,
        Some(key) => ours(key, seen, objects),
        // Its record is gone, and so will it be.
        None if objects.key_of(&seen.entry.uid).is_some() => Verdict::Fine,
        // So are both, and this was seen before.
        None if objects.is_gone(&seen.entry.uid) => Verdict::Fine,
        None => match seen.held {
            Held::Record { term, .. } if is_later(term, objects.term()) => Verdict::Deposed,
            Held::Record { .. } => Verdict::Remove,
            Held::Edited => Verdict::Strange,
            Held::Nothing if is_left_over(seen, objects.term()) => Verdict::Remove,
            Held::Nothing => Verdict::Wish,
        },
    }
}

fn ours(key: Key, seen: &Seen, objects: &Objects) -> Verdict {
    match objects.get(key) {
        // A write of it failed; the next one finds the object.
        None => Verdict::Fine,
        Some(known) if seen.entry.is_older_than(&known) => Verdict::Fine,
        Some(known) if seen.entry.version != known.version && seen.entry.status != known.status => {
            Verdict::Edited(key)
        }
        Some(_) if seen.resource.has_finalizer() && !seen.entry.has_finalizer => Verdict::Bind(key),
        Some(_) => Verdict::Ours(key),
    }
}

/// Whether a controller made it, and not people. One that leads after us may be about to write its record.
fn is_left_over(seen: &Seen, ours: Option<Term>) -> bool {
    match (seen.made_under, ours) {
        (Some(number), Some(ours)) => number <= ours.number,
        (None, _) | (_, None) => false,
    }
}

fn is_later(term: Option<Term>, ours: Option<Term>) -> bool {
    match (term, ours) {
        (Some(term), Some(ours)) => {
            term.number > ours.number || (term.number == ours.number && term.id != ours.id)
        }
        (None, _) | (_, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::ids::TermId;
    use hotbay_registry::Kind;
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::object;
    use crate::resource::{FINALIZER, Resource};

    const KEY: Key = Key { kind: Kind::Volume, id: 7 };

    fn term(number: u64) -> Term {
        Term { number, id: TermId::from_bits(u128::from(number)) }
    }

    /// An object as we wrote it: a record of the second term.
    fn written(record: &Value, by: u64) -> Value {
        let (status, _) = object::status(KEY, Some(term(by)), record, Map::new());
        json!({
            "metadata": { "name": "v", "uid": "u", "resourceVersion": "50", "generation": 1,
                          "finalizers": [FINALIZER] },
            "status": status,
        })
    }

    fn seen(object: &Value) -> Seen {
        Seen::of(Resource::Volume, object.clone()).unwrap()
    }

    /// What the store knows after it wrote that object under its second term.
    fn known(object: &Value) -> Objects {
        let objects = Objects::default();
        objects.lead(Some(term(2)));
        objects.adopt(KEY, seen(object).entry);
        objects
    }

    fn nothing() -> Objects {
        let objects = Objects::default();
        objects.lead(Some(term(2)));
        objects
    }

    fn with(object: &Value, at: &str, value: Value) -> Value {
        let mut object = object.clone();
        let (parent, field) = at.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[field] = value;
        object
    }

    #[test]
    fn each_object_is_judged_by_what_is_known() {
        let ours = written(&json!({ "a": 1 }), 2);
        let later = |object: &Value| with(object, "/metadata/resourceVersion", json!("51"));
        let edited = |object: &Value| with(object, "/status/record/a", json!(2));
        let old = with(&written(&json!({ "a": 0 }), 2), "/metadata/resourceVersion", json!("49"));
        let put_back = later(&written(&json!({ "a": 0 }), 2));
        let deleted =
            with(&later(&ours), "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
        let other_uid = |object: &Value| with(object, "/metadata/uid", json!("other"));
        let wiped = with(&later(&ours), "/status", json!({}));
        let unbound = with(&later(&ours), "/metadata/finalizers", json!([]));
        let half = |by: u64| {
            let made = json!({ "hotbay.dev/made-under-term": by.to_string() });
            with(&wiped, "/metadata/annotations", made)
        };
        let free = |object: &Value| with(object, "/metadata/finalizers", json!([]));
        let (there, gone) = (HashSet::from([KEY]), HashSet::new());
        let table = [
            ("our last write", &ours, true, &there, Verdict::Ours(KEY)),
            ("a late event of an earlier write", &old, true, &there, Verdict::Fine),
            ("people's own part changed", &later(&ours), true, &there, Verdict::Ours(KEY)),
            ("an edit", &edited(&later(&ours)), true, &there, Verdict::Edited(KEY)),
            ("an old state put back", &put_back, true, &there, Verdict::Edited(KEY)),
            ("a wiped status", &wiped, true, &there, Verdict::Edited(KEY)),
            ("no finalizer", &unbound, true, &there, Verdict::Bind(KEY)),
            ("deleted and held", &deleted, true, &there, Verdict::Release(Some(KEY))),
            ("deleted by us", &deleted, true, &gone, Verdict::Release(None)),
            ("deleted, held by others", &free(&deleted), false, &gone, Verdict::Fine),
            ("a record that is gone", &later(&ours), true, &gone, Verdict::Fine),
            ("a copy", &other_uid(&later(&ours)), true, &there, Verdict::Copy),
            ("a copy, deleted", &other_uid(&deleted), true, &there, Verdict::Release(None)),
            ("an unknown record", &ours, false, &gone, Verdict::Remove),
            ("one of an earlier term", &written(&json!({}), 1), false, &gone, Verdict::Remove),
            ("one of a later term", &written(&json!({}), 3), false, &gone, Verdict::Deposed),
            ("nonsense", &edited(&ours), false, &gone, Verdict::Strange),
            ("a wish", &wiped, false, &gone, Verdict::Wish),
            ("half of a late write", &half(2), false, &gone, Verdict::Remove),
            ("half of the next leader's", &half(3), false, &gone, Verdict::Wish),
        ];
        for (what, object, is_known, present, expected) in table {
            let objects = if is_known { known(&ours) } else { nothing() };
            assert_eq!(judge(&seen(object), false, &objects, present), expected, "{what}");
        }
        // Seen before we deleted it, and judged after that.
        let objects = known(&ours);
        objects.forget(KEY);
        assert_eq!(judge(&seen(&ours), false, &objects, &gone), Verdict::Fine);
        // The same, gone for good.
        let gone_for_good = |object: &Value, present: &HashSet<Key>| {
            judge(&seen(object), true, &known(&ours), present)
        };
        assert_eq!(gone_for_good(&deleted, &there), Verdict::Deleted(KEY));
        assert_eq!(gone_for_good(&deleted, &gone), Verdict::Forgotten);
        assert_eq!(gone_for_good(&other_uid(&ours), &there), Verdict::Forgotten);
        // A status that was wiped before it was deleted: only the store knows what it was.
        assert_eq!(gone_for_good(&wiped, &there), Verdict::Deleted(KEY));
    }
}
