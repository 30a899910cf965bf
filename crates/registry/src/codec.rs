//! Records as bytes: JSON, so that a person can read a store that no program can.

use hotbay_core::cluster::{Records, Write as Change};
use hotbay_core::words::plain;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::store::{Key, Kind, Write};

/// A stored record that this release cannot read.
#[derive(Debug, Error)]
#[error("the record {key} cannot be read by this release")]
pub struct Unreadable {
    pub key: Key,
    #[source]
    pub source: serde_json::Error,
}

/// Encodes one change of the cluster.
pub(crate) fn encode(change: &Change) -> Write {
    match change {
        Change::Registry(record) => put(Kind::Registry, 0, record),
        Change::Node(record) => put(Kind::Node, record.id.to_bits(), record),
        Change::Drive(record) => put(Kind::Drive, record.id.to_bits(), record),
        Change::Volume(record) => put(Kind::Volume, record.id.to_bits(), record),
        Change::VolumeGone(id) => delete(Kind::Volume, id.to_bits()),
        Change::Attachment(record) => put(Kind::Attachment, record.id.to_bits(), record),
        Change::AttachmentGone(id) => delete(Kind::Attachment, id.to_bits()),
    }
}

/// Decodes everything that a store holds.
pub(crate) fn decode(stored: Vec<(Key, Vec<u8>)>) -> Result<Records, Unreadable> {
    let mut records = Records::default();
    for (key, value) in stored {
        match key.kind {
            Kind::Registry => records.registry = Some(read(key, &value)?),
            Kind::Node => records.nodes.push(read(key, &value)?),
            Kind::Drive => records.drives.push(read(key, &value)?),
            Kind::Volume => records.volumes.push(read(key, &value)?),
            Kind::Attachment => records.attachments.push(read(key, &value)?),
        }
    }
    Ok(records)
}

/// Whether one stored value is a record that this release reads. For `store check`.
pub fn judge(key: &Key, value: &[u8]) -> Result<(), String> {
    let one = vec![(*key, value.to_vec())];
    decode(one).map(drop).map_err(|unreadable| plain(&unreadable.source.to_string()))
}

fn delete(kind: Kind, id: u128) -> Write {
    Write::Delete { key: Key { kind, id } }
}

fn put(kind: Kind, id: u128, record: &impl Serialize) -> Write {
    let value = serde_json::to_vec(record).expect("records have text keys and finite numbers");
    Write::Put { key: Key { kind, id }, value }
}

fn read<T: DeserializeOwned>(key: Key, value: &[u8]) -> Result<T, Unreadable> {
    serde_json::from_slice(value).map_err(|source| Unreadable { key, source })
}
