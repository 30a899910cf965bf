//! The agent's record and filters as bytes, for `hotbay-fuzz-targets` alone: a fuzzer needs the parsers without files
//! around them.

use std::path::Path;

use hotbay_core::agent::AgentRecord;
use hotbay_core::filter::Rule;

use crate::filters::{self, FilterError};
use crate::state_dir;

/// Reads the bytes of a record's file.
pub fn read_record(file: &[u8]) -> Result<AgentRecord, String> {
    state_dir::decode(file)
}

/// The bytes of a record's file.
pub fn record_file(record: &AgentRecord) -> Vec<u8> {
    state_dir::encode(record)
}

/// A file with these bytes as its content, whatever they are, and the right checksum.
pub fn sealed(content: &[u8]) -> Vec<u8> {
    state_dir::seal(content.to_vec())
}

/// Reads the bytes of a file with filters.
pub fn read_filters(file: &[u8]) -> Result<Vec<Rule>, FilterError> {
    filters::parse(Path::new("filters.toml"), file)
}
