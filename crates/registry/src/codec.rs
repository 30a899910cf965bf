//! Records as bytes: JSON, so that a person can read a store that no program can.

use std::collections::HashSet;

use hotbay_core::cluster::{Cluster, Records, Write as Change};
use hotbay_core::ids::{DriveId, NodeId, VolumeId};
use hotbay_core::words::plain;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::store::{Key, Kind, Write};

/// A stored record that this release cannot read.
#[derive(Debug, Error)]
#[error(
    "the record {key} cannot be read by this release; if a newer one has written it, start that one"
)]
pub struct Unreadable {
    pub key: Key,
    #[source]
    pub source: serde_json::Error,
}

/// Encodes one change of the cluster.
pub(crate) fn encode(change: &Change) -> Write {
    let key = change.key().into();
    match change {
        Change::Registry(record) => put(key, record),
        Change::Node(record) => put(key, record),
        Change::Drive(record) => put(key, record),
        Change::Volume(record) => put(key, record),
        Change::Attachment(record) => put(key, record),
        Change::NodeGone(_)
        | Change::DriveGone(_)
        | Change::VolumeGone(_)
        | Change::AttachmentGone(_) => Write::Delete { key },
    }
}

/// The records under some keys, as they are; those that there are not are left out.
pub(crate) fn present(cluster: &Cluster, keys: &[Key]) -> Vec<Change> {
    let mut attachments: HashSet<_> = of_kind(keys, Kind::Attachment).collect();
    let mut records = Vec::with_capacity(keys.len());
    for key in keys {
        records.extend(match key.kind {
            Kind::Registry => Some(Change::Registry(cluster.registry_record().clone())),
            Kind::Node => cluster
                .node(NodeId::from_bits(key.id))
                .map(|node| Change::Node(node.record.clone())),
            Kind::Drive => cluster
                .drive(DriveId::from_bits(key.id))
                .map(|drive| Change::Drive(Box::new(drive.record.clone()))),
            Kind::Volume => cluster
                .volume(VolumeId::from_bits(key.id))
                .map(|volume| Change::Volume(Box::new(volume.record.clone()))),
            // Found through their volumes, all at once.
            Kind::Attachment => None,
        });
    }
    if !attachments.is_empty() {
        let all = cluster.volumes_after(None).flat_map(|volume| volume.attachments.values());
        let meant = all.filter(|known| attachments.remove(&known.record.id.to_bits()));
        records.extend(meant.map(|known| Change::Attachment(known.record.clone())));
    }
    records
}

/// Which of these keys have records. Copies none of them: this is asked many times a second.
pub(crate) fn keys_present(cluster: &Cluster, keys: &[Key]) -> HashSet<Key> {
    let is_there = |key: &&Key| match key.kind {
        Kind::Registry => true,
        Kind::Node => cluster.node(NodeId::from_bits(key.id)).is_some(),
        Kind::Drive => cluster.drive(DriveId::from_bits(key.id)).is_some(),
        Kind::Volume => cluster.volume(VolumeId::from_bits(key.id)).is_some(),
        // Found through their volumes, all at once.
        Kind::Attachment => false,
    };
    let mut there: HashSet<Key> = keys.iter().filter(is_there).copied().collect();
    let attachments: HashSet<_> = of_kind(keys, Kind::Attachment).collect();
    if !attachments.is_empty() {
        let all = cluster.volumes_after(None).flat_map(|volume| volume.attachments.values());
        let ids = all.map(|known| known.record.id.to_bits()).filter(|id| attachments.contains(id));
        // The rest of the volumes need no look once all are found.
        there.extend(ids.take(attachments.len()).map(|id| Key { kind: Kind::Attachment, id }));
    }
    there
}

fn of_kind(keys: &[Key], kind: Kind) -> impl Iterator<Item = u128> {
    keys.iter().filter(move |key| key.kind == kind).map(|key| key.id)
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

fn put(key: Key, record: &impl Serialize) -> Write {
    let value = serde_json::to_vec(record).expect("records have text keys and finite numbers");
    Write::Put { key, value }
}

fn read<T: DeserializeOwned>(key: Key, value: &[u8]) -> Result<T, Unreadable> {
    serde_json::from_slice(value).map_err(|source| Unreadable { key, source })
}
