//! Reads what the server sends, however deep it is. The server takes objects far deeper than serde_json reads, and who
//! may write a status may write such a one: it must not hide the whole list that it stands in, or end a watch.
//!
//! A value that is too deep is read as null. Nothing that a controller writes is nearly as deep, so what is lost in it
//! is nobody's decision, and its checksum fails.

use serde_json::{Error, Value};

/// Of lists and events, too, which hold the objects: below the 127 that serde_json reads.
const DEEPEST: usize = 100;

/// The JSON in an answer.
pub(super) fn read(bytes: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(bytes).or_else(|error| match shallow(bytes) {
        Some(shallow) => serde_json::from_slice(&shallow),
        None => Err(error),
    })
}

/// The same JSON with null for each list or object that is too deep; none if there is no such thing.
fn shallow(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut kept = Vec::new();
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_text, mut is_escaped) = (false, false);
    for byte in bytes {
        let was_too_deep = depth > DEEPEST;
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = depth.max(deepest);
        match (was_too_deep, depth > DEEPEST) {
            (false, false) => kept.push(*byte),
            (false, true) => kept.extend_from_slice(b"null"),
            (true, _) => {}
        }
    }
    (deepest > DEEPEST).then_some(kept)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn nested(open: &str, inner: &str, close: &str, depth: usize) -> String {
        format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
    }

    #[test]
    fn what_is_too_deep_is_null_and_the_rest_as_it_was() {
        for depth in [101, 127, 128, 200, 10_000] {
            for (open, close) in [("[", "]"), (r#"{"a\"[":"#, "}"), (r#"["[{\\",{"b":"#, "}]")] {
                let deep = nested(open, "1", close, depth);
                let text = format!(r#"{{"items":[{{"deep":{deep},"b":"]}}\""}},{{"c":1}}]}}"#);
                let read = read(text.as_bytes()).unwrap();
                assert_eq!(read["items"][0]["b"], "]}\"", "{depth} {open}");
                assert_eq!(read["items"][1], json!({ "c": 1 }), "{depth} {open}");
                assert!(!read["items"][0]["deep"].is_null(), "{depth} {open}");
            }
        }
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let cut = nested("[", "", "", 200);
        for text in ["", "{", "[1,]", "]", "\"", cut.as_str()] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        /// Whatever the bytes are, nothing but a depth is changed, and nothing panics.
        #[test]
        fn what_is_not_deep_is_left_alone(bytes in proptest::collection::vec(any::<u8>(), 0..90)) {
            prop_assert_eq!(shallow(&bytes), None);
            drop(read(&bytes));
        }
    }
}
