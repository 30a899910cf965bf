//! From the schema of a Rust type to one that Kubernetes takes as structural: every value has exactly one type, and
//! nothing is said by reference or by alternatives.
//!
//! Alternatives are widened: an enum whose variants carry data becomes one object with the fields of all of them, of
//! which only those are required that all require. What is written is made from the types, so nothing is lost by
//! that.

use serde_json::{Map, Value, json};

/// What a structural schema may not have, or what would make the server write into objects by itself (`default`).
const DROPPED: [&str; 7] =
    ["$schema", "default", "examples", "nullable", "not", "title", "unevaluatedProperties"];

/// Makes a schema structural, in place. It must not be recursive.
pub(super) fn make_structural(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else {
        // `true`: anything goes.
        *schema = json!({ "x-kubernetes-preserve-unknown-fields": true });
        return;
    };
    for key in DROPPED {
        map.remove(key);
    }
    if map.get("additionalProperties") == Some(&Value::Bool(false)) {
        map.remove("additionalProperties");
    }
    for (keyword, all) in [("allOf", true), ("oneOf", false), ("anyOf", false)] {
        if let Some(Value::Array(parts)) = map.remove(keyword) {
            merge(map, parts, all);
        }
    }
    if let Some(constant) = map.remove("const") {
        map.insert("enum".to_owned(), json!([constant]));
    }
    one_type(map);
    known_format(map);
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(make_structural);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(key) {
            make_structural(inner);
        }
    }
}

/// Takes parts into one schema: what all of them say together, or what any of them may say.
fn merge(into: &mut Map<String, Value>, mut parts: Vec<Value>, all: bool) {
    parts.retain(|part| part.get("type") != Some(&json!("null")));
    parts.iter_mut().for_each(make_structural);
    let mut required: Option<Vec<Value>> = None;
    for part in parts {
        let Value::Object(part) = part else { continue };
        let theirs = part.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        required = Some(match required {
            None => theirs,
            Some(ours) if all => [ours, theirs].concat(),
            Some(ours) => ours.into_iter().filter(|name| theirs.contains(name)).collect(),
        });
        for (key, value) in part {
            match (key.as_str(), into.get_mut(&key)) {
                ("required", _) => {}
                // Of a variant, and its text is not about the whole.
                ("description", Some(_)) => {}
                ("description", None) if !all => {}
                ("properties", Some(Value::Object(ours))) => merge_properties(ours, value),
                ("enum", Some(ours)) => merge_words(ours, value),
                (_, Some(_)) => {}
                (_, None) => drop(into.insert(key, value)),
            }
        }
    }
    let required = required.unwrap_or_default();
    match into.get_mut("required").and_then(Value::as_array_mut) {
        Some(ours) => ours.extend(required),
        None if required.is_empty() => {}
        None => drop(into.insert("required".to_owned(), Value::Array(required))),
    }
}

fn merge_properties(ours: &mut Map<String, Value>, theirs: Value) {
    let Value::Object(theirs) = theirs else { return };
    for (name, schema) in theirs {
        match ours.get_mut(&name).and_then(|known| known.get_mut("enum")) {
            Some(words) => merge_words(words, schema.get("enum").cloned().unwrap_or_default()),
            None => drop(ours.entry(name).or_insert(schema)),
        }
    }
}

fn merge_words(ours: &mut Value, theirs: Value) {
    if let (Value::Array(ours), Value::Array(theirs)) = (ours, theirs) {
        ours.extend(theirs);
    }
}

/// `["string", "null"]` is a string: what is not there is left out and never null.
fn one_type(map: &mut Map<String, Value>) {
    match map.get("type") {
        Some(Value::Array(types)) => {
            let one = types.iter().find(|name| **name != "null").cloned().unwrap_or_default();
            map.insert("type".to_owned(), one);
        }
        Some(_) => {}
        None if map.contains_key("properties") => {
            map.insert("type".to_owned(), json!("object"));
        }
        None if map.contains_key("enum") => {
            map.insert("type".to_owned(), json!("string"));
        }
        None => {
            map.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
        }
    }
}

/// Kubernetes knows `int32` and `int64` alone.
fn known_format(map: &mut Map<String, Value>) {
    let format = map.get("format").and_then(Value::as_str).unwrap_or_default();
    if map.get("type") == Some(&json!("integer")) {
        let unsigned = format.starts_with("uint");
        map.insert("format".to_owned(), json!("int64"));
        map.remove("maximum");
        if unsigned {
            map.insert("minimum".to_owned(), json!(0));
        }
    }
}

/// Why the server would refuse this schema: each place with its fault.
#[cfg(test)]
pub(super) fn faults(at: &str, schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let Some(map) = schema.as_object() else { return vec![format!("{at}: not an object")] };
    for key in ["$ref", "$defs", "allOf", "anyOf", "oneOf", "const", "default", "nullable", "title"]
    {
        if map.contains_key(key) {
            found.push(format!("{at}: {key}"));
        }
    }
    let preserves = map.contains_key("x-kubernetes-preserve-unknown-fields");
    match map.get("type").and_then(Value::as_str) {
        Some("object" | "string" | "boolean") => {}
        Some("integer") if map.get("format") == Some(&json!("int64")) => {}
        Some("array") if map.contains_key("items") => {}
        None if preserves => {}
        other => found.push(format!("{at}: type {other:?}")),
    }
    if map.contains_key("properties") && map.contains_key("additionalProperties") {
        found.push(format!("{at}: properties and additionalProperties"));
    }
    for (name, inner) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
        found.extend(faults(&format!("{at}.{name}"), inner));
    }
    for name in map.get("required").and_then(Value::as_array).into_iter().flatten() {
        if schema["properties"].get(name.as_str().unwrap_or_default()).is_none() {
            found.push(format!("{at}: requires {name}, which it does not have"));
        }
    }
    for key in ["items", "additionalProperties"] {
        found.extend(map.get(key).into_iter().flat_map(|inner| faults(&format!("{at}[]"), inner)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn structural(mut schema: Value) -> Value {
        make_structural(&mut schema);
        assert_eq!(faults("", &schema), Vec::<String>::new());
        schema
    }

    #[test]
    fn optional_values_and_numbers_get_one_type() {
        let schema = structural(json!({ "type": "object", "properties": {
            "bay": { "type": ["string", "null"], "default": null },
            "size": { "type": "integer", "format": "uint64", "minimum": 0 },
            "small": { "type": "integer", "format": "uint8", "maximum": 255 },
            "any": true,
        }, "additionalProperties": false }));
        assert_eq!(
            schema,
            json!({ "type": "object", "properties": {
                "bay": { "type": "string" },
                "size": { "type": "integer", "format": "int64", "minimum": 0 },
                "small": { "type": "integer", "format": "int64", "minimum": 0 },
                "any": { "x-kubernetes-preserve-unknown-fields": true },
            } })
        );
    }

    #[test]
    fn words_with_and_without_a_text_become_one_list() {
        let schema = structural(json!({ "description": "How.", "oneOf": [
            { "type": "string", "enum": ["nvme", "sata"] },
            { "type": "string", "const": "file", "description": "A file." },
        ] }));
        assert_eq!(
            schema,
            json!({ "description": "How.", "type": "string", "enum": ["nvme", "sata", "file"] })
        );
    }

    #[test]
    fn variants_with_data_become_one_object() {
        let variant = |word: &str, field: &str| {
            let properties = json!({ "reason": { "const": word }, field: { "type": "string" } });
            json!({ "type": "object", "properties": properties, "required": ["reason", field] })
        };
        let schema = structural(json!({
            "type": "object",
            "properties": { "message": { "type": "string" } },
            "required": ["message"],
            "oneOf": [variant("Mounted", "at"), variant("Held", "by")],
        }));
        let reason = &schema["properties"]["reason"];
        assert_eq!(*reason, json!({ "type": "string", "enum": ["Mounted", "Held"] }));
        assert_eq!(schema["required"], json!(["message", "reason"]));
        assert_eq!(schema["properties"].as_object().map(Map::len), Some(4));
    }

    #[test]
    fn faults_are_found() {
        for bad in [
            json!({}),
            json!({ "$ref": "#/x" }),
            json!({ "type": "integer", "format": "uint32" }),
            json!({ "type": "array" }),
            json!({ "type": "object", "required": ["a"] }),
            json!({ "type": "object", "properties": { "a": { "oneOf": [] } } }),
        ] {
            assert!(!faults("", &bad).is_empty(), "{bad}");
        }
    }
}
