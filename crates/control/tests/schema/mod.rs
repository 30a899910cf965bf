//! Holds values to the schemas of an OpenAPI document: the few keywords that the document uses, and no other, so that
//! nothing is overlooked. Stricter than the standard in one point: a property that is not described is a fault.

use serde_json::Value;

/// Fails with the place where the value is not what the schema says.
pub(crate) fn check(
    document: &Value,
    schema: &Value,
    value: &Value,
    at: &str,
) -> Result<(), String> {
    let keywords = schema.as_object().ok_or_else(|| format!("{at}: {schema} is no schema"))?;
    for (keyword, wanted) in keywords {
        let holds = match keyword.as_str() {
            "$ref" => {
                let pointer = wanted.as_str().and_then(|text| text.strip_prefix('#'));
                let found = pointer.and_then(|pointer| document.pointer(pointer));
                let found = found.ok_or_else(|| format!("{at}: there is no {wanted}"))?;
                check(document, found, value, at)?;
                true
            }
            "type" => has_type(value, wanted),
            "enum" => wanted.as_array().is_some_and(|words| words.contains(value)),
            "const" => wanted == value,
            "minimum" => value.as_i64() >= wanted.as_i64(),
            "maxItems" => value.as_array().map(|items| items.len() as u64) <= wanted.as_u64(),
            "required" => strings(wanted).all(|name| value.get(name).is_some()),
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(document, wanted, item, &format!("{at}[{index}]"))?;
                }
                true
            }
            "properties" => {
                let open = schema.get("additionalProperties") == Some(&Value::Bool(true));
                for (name, inner) in value.as_object().into_iter().flatten() {
                    match wanted.get(name) {
                        Some(described) => {
                            check(document, described, inner, &format!("{at}.{name}"))?;
                        }
                        None if open => {}
                        None => return Err(format!("{at}.{name} is not described")),
                    }
                }
                true
            }
            "additionalProperties" | "description" | "default" => true,
            _ => return Err(format!("{at}: the keyword {keyword:?} is not understood here")),
        };
        if !holds {
            return Err(format!("{at} is {value}, which does not fit {keyword}: {wanted}"));
        }
    }
    Ok(())
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn has_type(value: &Value, name: &Value) -> bool {
    match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        _ => false,
    }
}

#[test]
fn the_check_can_fail() {
    use serde_json::json;
    let document = json!({ "schemas": { "Name": { "type": "string" } } });
    let schema = json!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": { "$ref": "#/schemas/Name" },
            "sizes": { "type": "array", "items": { "type": "integer", "minimum": 0 } },
        },
    });
    let fits = |value| check(&document, &schema, &value, "it");
    assert_eq!(fits(json!({ "name": "a", "sizes": [1] })), Ok(()));
    for bad in [
        json!([]),
        json!({}),
        json!({ "name": 1 }),
        json!({ "name": "a", "sizes": [-1] }),
        json!({ "name": "a", "sizes": ["1"] }),
        json!({ "name": "a", "other": 1 }),
    ] {
        assert!(fits(bad.clone()).is_err(), "{bad} was taken");
    }
    assert!(check(&document, &json!({ "pattern": "x" }), &json!("x"), "it").is_err());
}
