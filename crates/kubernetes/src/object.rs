//! How a record is an object: the spec is the wish, the status what was decided, with the record as it is under
//! `status.record`.
//!
//! ```text
//! status:
//!   id, term, record, checksum    what a controller loads (until there is a status: `first`); the checksum is of these
//!   state, goal, conditions, ...  what people see; made from the record by `view`, and read by no controller
//! ```
//!
//! People can change both. The checksum tells: a status that fails it is nobody's decision, and is written again.

use std::fmt;

use aws_lc_rs::digest;
use hotbay_api::kinds::API_VERSION;
use hotbay_core::order::Term;
use hotbay_registry::Key;
use serde_json::{Map, Value, json};

use crate::first;
use crate::resource::{FINALIZER, MADE_UNDER_TERM, RECORD, Resource};

/// Stands for id, term and record of a status.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Checksum([u8; 16]);

impl Checksum {
    /// The record is taken with its keys in order, as [`serde_json::Value`] keeps them: the server does not keep
    /// theirs.
    pub(crate) fn of(id: u128, term: Option<Term>, record: &Value) -> Self {
        Self::of_text(&text(id, term, record))
    }

    /// The same for the object of that name alone.
    pub(crate) fn of_first(id: u128, term: Option<Term>, record: &Value, name: &str) -> Self {
        Self::of_text(&format!("{name} {}", text(id, term, record)))
    }

    fn of_text(text: &str) -> Self {
        let hash = digest::digest(&digest::SHA256, text.as_bytes());
        let first = hash.as_ref().first_chunk().expect("a SHA-256 hash has 32 bytes");
        Self(*first)
    }
}

fn text(id: u128, term: Option<Term>, record: &Value) -> String {
    let term = term.map(|term| format!("{}.{}", term.number, term.id)).unwrap_or_default();
    format!("{id:032x} {term} {record}")
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a status says, for a controller.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    /// What a controller wrote; the first one came with the object itself.
    Record { key: Key, record: Value, term: Option<Term>, checksum: Checksum, is_first: bool },
    /// Somebody else changed it.
    Edited,
    /// Nothing was decided about it yet: a wish.
    Nothing,
}

/// A status that holds a record, beside what people see of it.
pub(crate) fn status(
    key: Key,
    term: Option<Term>,
    record: &Value,
    view: Map<String, Value>,
) -> (Value, Checksum) {
    let checksum = Checksum::of(key.id, term, record);
    let mut status = view;
    status.insert("id".to_owned(), json!(format!("{:032x}", key.id)));
    if let Some(term) = term {
        status.insert("term".to_owned(), json!(term));
    }
    status.insert("record".to_owned(), record.clone());
    status.insert("checksum".to_owned(), json!(checksum.to_string()));
    (Value::Object(status), checksum)
}

/// Reads the status of an object.
pub(crate) fn content(resource: Resource, object: &Value) -> Content {
    let status = &object["status"];
    if status["record"].is_null() && status["checksum"].is_null() {
        return first::read(resource, object).unwrap_or(Content::Nothing);
    }
    let id = status["id"].as_str().filter(|text| text.len() == 32);
    let Some(id) = id.and_then(|text| u128::from_str_radix(text, 16).ok()) else {
        return Content::Edited;
    };
    let term = match status.get("term") {
        None => None,
        Some(term) => match serde_json::from_value(term.clone()) {
            Ok(term) => Some(term),
            Err(_) => return Content::Edited,
        },
    };
    let record = status["record"].clone();
    let checksum = Checksum::of(id, term, &record);
    if status["checksum"] != json!(checksum.to_string()) {
        return Content::Edited;
    }
    let key = Key { kind: resource.records(), id };
    Content::Record { key, record, term, checksum, is_first: false }
}

/// A new object, without the status: the server takes that in a second call. Until then an annotation holds the first
/// record, or at least tells it from a wish of people.
pub(crate) fn new(
    resource: Resource,
    name: &str,
    term: Option<Term>,
    spec: &Value,
    first: Option<String>,
) -> Value {
    let mut object = json!({
        "apiVersion": API_VERSION,
        "kind": resource.kind(),
        "metadata": { "name": name },
        "spec": spec,
    });
    if resource.has_finalizer() {
        object["metadata"]["finalizers"] = json!([FINALIZER]);
    }
    if let Some(term) = term {
        object["metadata"]["annotations"][MADE_UNDER_TERM] = json!(term.number.to_string());
    }
    if let Some(first) = first {
        object["metadata"]["annotations"][RECORD] = json!(first);
    }
    object
}

/// The number of the term of the controller that made an object; nothing if people did.
pub(crate) fn made_under_term(object: &Value) -> Option<u64> {
    object["metadata"]["annotations"][MADE_UNDER_TERM].as_str()?.parse().ok()
}

/// An object that replaces the status of one, if that is still the same.
pub(crate) fn with_status(
    resource: Resource,
    name: &str,
    uid: &str,
    version: &str,
    status: &Value,
) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": resource.kind(),
        "metadata": { "name": name, "uid": uid, "resourceVersion": version },
        "status": status,
    })
}

/// Why the server would not give a record back as it is: it takes other numbers for floating-point ones.
pub(crate) fn unfit(record: &Value) -> Option<String> {
    match record {
        Value::Number(number) if !number.is_i64() => {
            Some(format!("{number} is no whole number below 2^63"))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        Value::Array(values) => values.iter().find_map(unfit),
        Value::Object(fields) => fields.values().find_map(unfit),
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::ids::TermId;
    use hotbay_registry::Kind;
    use proptest::prelude::*;

    use super::*;

    const KEY: Key = Key { kind: Kind::Drive, id: 7 };

    fn object(term: Option<Term>, record: &Value) -> Value {
        let (status, _) = status(KEY, term, record, Map::new());
        json!({ "status": status })
    }

    fn any_term() -> impl Strategy<Value = Option<Term>> {
        let term = |(number, id)| Term { number, id: TermId::from_bits(id) };
        proptest::option::of((1..u64::MAX / 2, any::<u128>()).prop_map(term))
    }

    fn any_record() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|fields| fields.into_iter().collect::<Map<_, _>>().into()),
            ]
        })
        .prop_map(|value| json!({ "value": value }))
    }

    proptest! {
        #[test]
        fn what_was_written_reads_back(term in any_term(), record in any_record(), id: u128) {
            let key = Key { kind: Kind::Volume, id };
            let (status, checksum) = status(key, term, &record, Map::new());
            // As it goes over the wire.
            let text = json!({ "status": status }).to_string();
            let object: Value = serde_json::from_str(&text).unwrap();
            let record_of = record.clone();
            let expected =
                Content::Record { key, record: record_of, term, checksum, is_first: false };
            prop_assert_eq!(content(Resource::Volume, &object), expected);
            prop_assert_eq!(unfit(&record), None);
        }
    }

    #[test]
    fn any_change_by_hand_is_noticed() {
        let term = Term { number: 3, id: TermId::from_bits(9) };
        let good = object(Some(term), &json!({ "state": "Attached", "generation": 4 }));
        assert!(matches!(content(Resource::Drive, &good), Content::Record { .. }));
        let changes: [(&str, Value); 8] = [
            ("/status/record/state", json!("Detached")),
            ("/status/record/generation", json!(5)),
            ("/status/record", json!({})),
            ("/status/record", Value::Null),
            ("/status/term/number", json!(2)),
            ("/status/term/id", json!("x")),
            ("/status/id", json!(format!("{:032x}", 8))),
            ("/status/checksum", Value::Null),
        ];
        for (at, value) in changes {
            let mut edited = good.clone();
            *edited.pointer_mut(at).unwrap() = value;
            assert_eq!(content(Resource::Drive, &edited), Content::Edited, "{at}");
        }
        let mut forgotten = good.clone();
        forgotten["status"].as_object_mut().unwrap().remove("term");
        assert_eq!(content(Resource::Drive, &forgotten), Content::Edited);
        assert_eq!(content(Resource::Drive, &json!({ "spec": {} })), Content::Nothing);
        assert_eq!(content(Resource::Drive, &json!({ "status": {} })), Content::Nothing);
        // What is said of a wish that cannot be met names its term too.
        let wish = json!({ "status": { "term": term, "conditions": [], "observedGeneration": 1 } });
        assert_eq!(content(Resource::Volume, &wish), Content::Nothing);
    }

    #[test]
    fn numbers_that_the_server_does_not_keep_are_unfit() {
        for (value, fits) in [
            (json!({ "a": [1, -1, { "b": i64::MAX }] }), true),
            (json!({ "a": [1, { "b": u64::MAX }] }), false),
            (json!({ "a": 0.5 }), false),
        ] {
            assert_eq!(unfit(&value).is_none(), fits, "{value}");
        }
    }
}
