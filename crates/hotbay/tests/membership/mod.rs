//! What an agent has stored of its certificate, in the hands of tests: `DATA-DIR/tls/membership`, a line with a
//! checksum and then JSON.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::path::Path;

use serde_json::Value;

pub(crate) fn read(membership: &Path) -> Value {
    let text = fs::read_to_string(membership).unwrap();
    serde_json::from_str(text.split_once('\n').unwrap().1).unwrap()
}

/// Makes an agent believe that it is another node, with the certificate that it has.
pub(crate) fn rename(membership: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(membership).unwrap();
    let (head, json) = text.split_once('\n').unwrap();
    let mut value: Value = serde_json::from_str(json).unwrap();
    assert_eq!(value["node"], from);
    value["node"] = to.into();
    let json = value.to_string();
    let magic = head.rsplit_once(' ').unwrap().0;
    fs::write(membership, format!("{magic} {:08x}\n{json}", crc32c::crc32c(json.as_bytes())))
        .unwrap();
}
