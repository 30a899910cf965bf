//! What a registry has on its disk. What is committed together is there as a whole, or not at all.

use std::collections::BTreeMap;

use hotbay_core::cluster::{
    AttachmentRecord, DriveRecord, NodeRecord, Records, RegistryRecord, VolumeRecord, Write,
};
use hotbay_core::ids::{AttachmentId, DriveId, NodeId, VolumeId};

#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) registry: Option<RegistryRecord>,
    pub(crate) nodes: BTreeMap<NodeId, NodeRecord>,
    pub(crate) drives: BTreeMap<DriveId, DriveRecord>,
    pub(crate) volumes: BTreeMap<VolumeId, VolumeRecord>,
    pub(crate) attachments: BTreeMap<AttachmentId, AttachmentRecord>,
}

impl Store {
    pub(crate) fn commit(&mut self, writes: &[Write]) {
        for write in writes {
            match write.clone() {
                Write::Registry(record) => self.registry = Some(record),
                Write::Node(record) => drop(self.nodes.insert(record.id, record)),
                Write::Drive(record) => drop(self.drives.insert(record.id, *record)),
                Write::NodeGone(id) => drop(self.nodes.remove(&id)),
                Write::DriveGone(id) => drop(self.drives.remove(&id)),
                Write::Volume(record) => drop(self.volumes.insert(record.id, *record)),
                Write::VolumeGone(id) => drop(self.volumes.remove(&id)),
                Write::Attachment(record) => drop(self.attachments.insert(record.id, record)),
                Write::AttachmentGone(id) => drop(self.attachments.remove(&id)),
            }
        }
    }

    pub(crate) fn records(&self) -> Records {
        Records {
            registry: self.registry.clone(),
            nodes: self.nodes.values().cloned().collect(),
            drives: self.drives.values().cloned().collect(),
            volumes: self.volumes.values().cloned().collect(),
            attachments: self.attachments.values().cloned().collect(),
        }
    }
}
