//! What the registry keeps durably: one deciding record per object, nothing that can be derived.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::life::State;
use crate::device::Observed;
use crate::ids::{CertificateNumber, ClusterId, DriveId, MachineId, NodeId, NodeName, VolumeId};
use crate::node_labels::NodeLabels;
use crate::order::{Generation, Term};
use crate::wipe::Wipe;

/// The registry itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistryRecord {
    pub cluster: ClusterId,
    /// Every term that this registry has reigned under, oldest first: how it knows its own past.
    pub terms: Vec<Term>,
    /// The newest certificate that was issued for a node.
    #[serde(default)]
    pub newest_certificate: CertificateNumber,
}

/// One machine with an agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRecord {
    pub id: NodeId,
    pub name: NodeName,
    pub machine: MachineId,
    /// It was given up. The record stays, so that the machine is known when it returns.
    #[serde(default)]
    pub purged: bool,
    /// By the names that it had when it was purged: certificates up to which number do not count any more. Stays when
    /// the machine is back.
    #[serde(default)]
    pub revoked: BTreeMap<NodeName, CertificateNumber>,
    /// What people have said about it.
    #[serde(default)]
    pub labels: NodeLabels,
}

/// One drive.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveRecord {
    pub id: DriveId,
    /// What people call it. Not identity.
    pub name: String,
    pub node: NodeId,
    /// As last reported, without the label: its truth is on the drive. Shared between the copies of a record, because
    /// every decision makes one and hardly any changes this: its many texts would be most of the cost.
    #[serde(with = "shared")]
    pub observed: Arc<Observed>,
    pub generation: Generation,
    pub state: State,
    /// A removal was asked for while volumes were on it.
    pub removal_wanted: bool,
    /// It was removed by itself, not with its host: adding the host leaves it out.
    pub removed_alone: bool,
    /// The next attach may take it although another node's label holds it.
    #[serde(default)]
    pub take_over: bool,
    /// What the attach of that generation may wipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wipe: Option<Box<Wipe>>,
    /// Its size when it was last added.
    #[serde(default)]
    pub added_bytes: u64,
    pub volumes: BTreeSet<VolumeId>,
    /// Wall time of the last change of state, for people; nothing is decided by it.
    pub since_ms: u64,
    /// Who asked for what is wanted now.
    pub asked_by: String,
}

/// A shared value is stored as the value itself.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        value: &Arc<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(to)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(from).map(Arc::new)
    }
}

/// One change of the store. Each names its object and carries all of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Write {
    Registry(RegistryRecord),
    Node(NodeRecord),
    Drive(Box<DriveRecord>),
}

/// Everything that a store holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Records {
    pub registry: Option<RegistryRecord>,
    pub nodes: Vec<NodeRecord>,
    pub drives: Vec<DriveRecord>,
}
