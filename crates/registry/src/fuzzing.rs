//! One stored record as bytes, for `hotbay-fuzz-targets` alone: a fuzzer needs the codec without a store around it.

use hotbay_core::cluster::{Records, Write as Change};

use crate::codec;
use crate::store::{Key, Write};

/// Reads a record and writes it again; says why it cannot be read.
pub fn written_again(key: Key, value: &[u8]) -> Result<Vec<u8>, String> {
    codec::judge(&key, value)?;
    let records = codec::decode(vec![(key, value.to_vec())]).map_err(|error| error.to_string())?;
    let Records { registry, nodes, drives, volumes, attachments } = records;
    let registry = registry.into_iter().map(Change::Registry);
    let nodes = nodes.into_iter().map(Change::Node);
    let drives = drives.into_iter().map(|drive| Change::Drive(Box::new(drive)));
    let volumes = volumes.into_iter().map(|volume| Change::Volume(Box::new(volume)));
    let attachments = attachments.into_iter().map(Change::Attachment);
    let mut all = registry.chain(nodes).chain(drives).chain(volumes).chain(attachments);
    let change = all.next().ok_or("no record was read")?;
    match codec::encode(&change) {
        Write::Put { value, .. } => Ok(value),
        Write::Delete { .. } => Err("a record became none".to_owned()),
    }
}
