//! The agent's record as bytes, for `hotbay-fuzz-targets` alone: a fuzzer needs the parser without a folder around it.

use hotbay_core::agent::AgentRecord;

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
