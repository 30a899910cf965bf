//! The first record of an object, in the call that makes it. The server takes no status with a new object, and a call
//! of its own for that would cost every volume and every attachment one write more, soon followed by the next.
//!
//! ```text
//! metadata:
//!   annotations: { hotbay.dev/record: '{"id":..,"term":..,"record":..,"checksum":..}' }
//!   managedFields: [ { manager: hotbay-controller, ... owns that annotation } ]
//! status:            there is none yet
//! ```
//!
//! The annotation stays on the object, as a write of the status touches nothing else. So it counts only while there is
//! no status, and only in the object that was made with it: whoever makes an object from a copy is named by the server
//! as the one who set it.

use hotbay_core::order::Term;
use hotbay_registry::{Key, Kind};
use serde_json::{Value, json};

use crate::object::{Checksum, Content};
use crate::resource::{MANAGER, RECORD, Resource};

/// A longer record goes by the status: the server takes 256 KiB of annotations, and people want some of that.
const LONGEST_BYTES: usize = 16 << 10;

/// The annotation of a new object; none if the record is too long for one.
pub(crate) fn annotation(
    key: Key,
    term: Option<Term>,
    record: &Value,
    name: &str,
) -> Option<String> {
    let checksum = Checksum::of_first(key.id, term, record, name);
    let text = json!({
        "id": format!("{:032x}", key.id),
        "term": term,
        "record": record,
        "checksum": checksum.to_string(),
    });
    Some(text.to_string()).filter(|text| text.len() <= LONGEST_BYTES)
}

/// The record that an object was made with, if it has no status yet.
pub(crate) fn read(resource: Resource, object: &Value) -> Option<Content> {
    let metadata = &object["metadata"];
    let may_have = match resource.records() {
        Kind::Volume | Kind::Attachment => true,
        Kind::Registry | Kind::Node | Kind::Drive => false,
    };
    if !may_have || !object["status"].is_null() || !is_made_by_us(metadata) {
        return None;
    }
    let text = metadata["annotations"][RECORD].as_str()?;
    let mut first: Value = serde_json::from_str(text).ok()?;
    let id = first["id"].as_str().filter(|text| text.len() == 32)?;
    let id = u128::from_str_radix(id, 16).ok()?;
    let term: Option<Term> = serde_json::from_value(first["term"].take()).ok()?;
    let record = first["record"].take();
    let expected = Checksum::of_first(id, term, &record, metadata["name"].as_str()?);
    if first["checksum"] != json!(expected.to_string()) {
        return None;
    }
    let checksum = Checksum::of(id, term, &record);
    let key = Key { kind: resource.records(), id };
    Some(Content::Record { key, record, term, checksum, is_first: true })
}

/// The server notes who set each field, and nobody can set that for another without meaning it.
fn is_made_by_us(metadata: &Value) -> bool {
    let mut entries = metadata["managedFields"].as_array().into_iter().flatten();
    entries.any(|entry| {
        let set = &entry["fieldsV1"]["f:metadata"]["f:annotations"];
        entry["manager"] == MANAGER && !set[format!("f:{RECORD}")].is_null()
    })
}

#[cfg(test)]
mod tests {
    use hotbay_core::ids::TermId;

    use super::*;
    use crate::object;

    const KEY: Key = Key { kind: Kind::Volume, id: 7 };

    fn term() -> Option<Term> {
        Some(Term { number: 3, id: TermId::from_bits(9) })
    }

    /// As the server answers.
    fn made() -> Value {
        let record = json!({ "state": "Pending" });
        let first = annotation(KEY, term(), &record, "pvc-1");
        let mut object = object::new(Resource::Volume, "pvc-1", term(), &json!({}), first);
        object["metadata"]["managedFields"] = json!([{
            "manager": MANAGER,
            "operation": "Update",
            "fieldsV1": { "f:metadata": { "f:annotations": { ".": {}, "f:hotbay.dev/record": {} } } },
        }]);
        object
    }

    #[test]
    fn what_an_object_was_made_with_is_its_record_until_it_has_a_status() {
        let Content::Record { key, record, term: by, is_first, checksum } =
            object::content(Resource::Volume, &made())
        else {
            panic!("no record")
        };
        assert_eq!((key, record, by, is_first), (KEY, json!({ "state": "Pending" }), term(), true));
        // The same record in the status is the same record.
        let (status, expected) =
            object::status(KEY, term(), &json!({ "state": "Pending" }), serde_json::Map::new());
        assert_eq!(checksum, expected);
        let mut later = made();
        later["status"] = status;
        let held = object::content(Resource::Volume, &later);
        assert!(matches!(held, Content::Record { is_first: false, .. }));
    }

    #[test]
    fn what_is_not_as_it_was_made_is_no_record() {
        type Change = fn(&mut Value);
        let changes: [(&str, Change); 7] = [
            ("a status that was wiped", |object| object["status"] = json!({})),
            ("a copy of another name", |object| object["metadata"]["name"] = json!("pvc-2")),
            ("made by nobody", |object| object["metadata"]["managedFields"] = json!([])),
            ("made by a person", |object| {
                object["metadata"]["managedFields"][0]["manager"] = json!("kubectl");
            }),
            ("ours, but not the annotation", |object| {
                object["metadata"]["managedFields"][0]["fieldsV1"] =
                    json!({ "f:metadata": { "f:finalizers": {} } });
            }),
            ("an edited one", |object| {
                let text = object["metadata"]["annotations"][RECORD].as_str().unwrap();
                let text = text.replace("Pending", "Deleting");
                object["metadata"]["annotations"][RECORD] = json!(text);
            }),
            ("nonsense", |object| object["metadata"]["annotations"][RECORD] = json!("{")),
        ];
        for (what, change) in changes {
            let mut object = made();
            change(&mut object);
            assert_eq!(object::content(Resource::Volume, &object), Content::Nothing, "{what}");
        }
        // Other kinds have none: they may stay for days as they were made.
        assert_eq!(object::content(Resource::Drive, &made()), Content::Nothing);
    }

    #[test]
    fn a_long_record_goes_by_the_status() {
        let record = json!({ "text": "x".repeat(LONGEST_BYTES) });
        assert_eq!(annotation(KEY, None, &record, "pvc-1"), None);
    }
}
