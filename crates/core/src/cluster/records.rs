//! What the registry keeps durably: one deciding record per object, nothing that can be derived.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::life::State;
use crate::device::Observed;
use crate::ids::{
    AttachmentId, CertificateNumber, ClusterId, DriveId, MachineId, NodeId, NodeName, VolumeId,
};
use crate::label::extents::{Claim, Extent, VolumeName};
use crate::node_labels::NodeLabels;
use crate::order::{Generation, Term};
use crate::volume::class::Class;
use crate::volume::{Epoch, Operational, Segment};
use crate::wipe::Wipe;

/// The registry itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistryRecord {
    pub cluster: ClusterId,
    /// The terms that this registry has reigned under, oldest first: how it knows its own past.
    pub terms: Vec<Term>,
    /// The newest certificate that was issued for a node.
    #[serde(default)]
    pub newest_certificate: CertificateNumber,
}

/// How many terms a registry remembers. A controller that fails again and again takes one each time, and a record that
/// only grows would one day be too long for its store.
const TERMS_MAX: usize = 1_024;

impl RegistryRecord {
    /// Made again where it was lost, and the newest term is known from other records. What came before that counts as
    /// its past.
    pub fn after(cluster: ClusterId, newest: Term) -> Self {
        Self { cluster, terms: vec![newest], newest_certificate: CertificateNumber::default() }
    }

    /// Whether a term is of this registry's past. What came before the oldest that it remembers is taken for that: of
    /// another past nobody would tell only now.
    pub fn has_reigned_under(&self, term: &Term) -> bool {
        let forgotten = |oldest: &Term| term.number < oldest.number;
        self.terms.contains(term) || self.terms.first().is_some_and(forgotten)
    }

    /// Adds a term to its past.
    pub(super) fn note_term(&mut self, term: Term) {
        self.terms.push(term);
        let too_many = self.terms.len().saturating_sub(TERMS_MAX);
        self.terms.drain(..too_many);
    }
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
    /// Its drives get no new volumes, because somebody asked for that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// Made from the labels of its drives: its name and machine are not known until its agent registers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovered: bool,
}

impl NodeRecord {
    /// Of a machine about which nobody has said anything.
    pub fn new(id: NodeId, name: NodeName, machine: MachineId) -> Self {
        Self {
            id,
            name,
            machine,
            purged: false,
            revoked: BTreeMap::new(),
            labels: NodeLabels::default(),
            cordoned: false,
            recovered: false,
        }
    }
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
    /// Which volumes were placed on it, and where. Decides together with the rest of this record, so that a placement
    /// and a removal never miss each other.
    #[serde(with = "allocations")]
    pub volumes: BTreeMap<VolumeId, Allocation>,
    /// Wall time of the last change of state, for people; nothing is decided by it.
    pub since_ms: u64,
    /// Who asked for what is wanted now.
    pub asked_by: String,
}

/// The place of a volume on a drive.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    /// One piece for each part of the volume.
    pub parts: Vec<Segment>,
    /// No other volume may be beside it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
}

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRecord {
    pub id: VolumeId,
    /// Unique, and what it is asked for by.
    pub name: VolumeName,
    /// What it has. One that grows has what it had until the growth is on the drive's label.
    pub size_bytes: u64,
    pub state: VolumeState,
    /// Of the last use that was granted.
    pub epoch: Epoch,
    pub class: Class,
    /// The parameters as they were given.
    pub parameters: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Operational::is_operative")]
    pub operational: Operational,
    /// Wall time of the last change of state, for people.
    pub since_ms: u64,
    /// Who asked for what is wanted now.
    pub asked_by: String,
}

impl VolumeRecord {
    /// Of a volume that is on a label: all that the label says of it, and for the rest what nobody has asked for.
    pub(crate) fn of_label(extent: &Extent, parts: &[Segment], now_ms: u64) -> Self {
        Self {
            id: extent.volume,
            name: extent.name.clone(),
            size_bytes: parts.iter().fold(0, |sum, part| sum.saturating_add(part.length_bytes)),
            state: VolumeState::Created,
            epoch: Epoch::default(),
            class: Class { max_shares: 1, ..Class::default() },
            parameters: BTreeMap::new(),
            claim: extent.claim.clone(),
            annotations: BTreeMap::new(),
            operational: Operational::default(),
            since_ms: now_ms,
            asked_by: String::new(),
        }
    }
}

/// Where a volume is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum VolumeState {
    /// Placed, and not on the drive's label yet.
    Pending,
    /// On the drive's label, durably.
    Created,
    /// To be deleted: a person or a program asked for it, and that is on record.
    Deleting,
    /// Deleted for all who use it; the label of its drive, which does not answer, still has it.
    Deleted,
    /// It was made, and its drive's label does not have it. Never made again by itself.
    Lost,
}

impl std::fmt::Display for VolumeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pending => "Pending",
            Self::Created => "Created",
            Self::Deleting => "Deleting",
            Self::Deleted => "Deleted",
            Self::Lost => "Lost",
        })
    }
}

/// A volume on a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachmentRecord {
    pub id: AttachmentId,
    pub volume: VolumeId,
    pub node: NodeId,
    /// The use that the node is granted.
    pub epoch: Epoch,
    pub state: AttachmentState,
    #[serde(default)]
    pub read_only: bool,
    pub since_ms: u64,
}

/// Whether a node may use a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AttachmentState {
    /// Granted; the agent has not said that it keeps the grant.
    Attaching,
    Attached,
    /// To be given back; the agent has not said that nothing uses the volume any more.
    Detaching,
}

impl std::fmt::Display for AttachmentState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Attaching => "Attaching",
            Self::Attached => "Attached",
            Self::Detaching => "Detaching",
        })
    }
}

/// Allocations are stored as a list.
mod allocations {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Allocation;
    use crate::ids::VolumeId;

    #[derive(Serialize)]
    struct Shown<'a> {
        volume: VolumeId,
        at: &'a Allocation,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Stored {
        volume: VolumeId,
        at: Allocation,
    }

    pub(super) fn serialize<S: Serializer>(
        volumes: &BTreeMap<VolumeId, Allocation>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(volumes.iter().map(|(volume, at)| Shown { volume: *volume, at }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<VolumeId, Allocation>, D::Error> {
        let stored = Vec::<Stored>::deserialize(from)?;
        Ok(stored.into_iter().map(|Stored { volume, at }| (volume, at)).collect())
    }
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
    NodeGone(NodeId),
    Drive(Box<DriveRecord>),
    DriveGone(DriveId),
    Volume(Box<VolumeRecord>),
    VolumeGone(VolumeId),
    Attachment(AttachmentRecord),
    AttachmentGone(AttachmentId),
}

/// Everything that a store holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Records {
    pub registry: Option<RegistryRecord>,
    pub nodes: Vec<NodeRecord>,
    pub drives: Vec<DriveRecord>,
    pub volumes: Vec<VolumeRecord>,
    pub attachments: Vec<AttachmentRecord>,
}
