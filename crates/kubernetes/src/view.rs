//! What people see of a record in its object: the spec that a new object gets, and the public part of its status.
//!
//! Made from the record, with the names that other records give. What only the memory of the controller knows (an
//! agent is connected, a device is not there) is put beside it by [`crate::living`]; a field that is not known is left
//! out.

use std::collections::HashMap;

use hotbay_api::kinds::{
    AttachmentSpec, AttachmentStatus, DeniedReason, DriveGoal, DriveStatus, RegistryStatus,
    StorageNodeSpec, StorageNodeStatus, VolumeSpec, VolumeStatus,
};
use hotbay_core::cluster::{
    AttachmentRecord, AttachmentState, DriveRecord, NodeRecord, RegistryRecord, State,
    VolumeRecord, VolumeState,
};
use hotbay_core::order::Term;
use hotbay_registry::{Key, Kind, Write};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The format of the records that this release writes. It is raised with a change that a release before it cannot read.
pub(crate) const FORMAT_VERSION: u64 = 1;

/// Types of conditions that follow from records.
pub(crate) const IN_OPERATION: &str = "InOperation";
pub(crate) const REMOVAL_WANTED: &str = "RemovalWanted";
pub(crate) const CREATED: &str = "Created";
pub(crate) const INACCESSIBLE: &str = "Inaccessible";
pub(crate) const ATTACHED: &str = "Attached";
/// The reason of a volume that cannot be reached, as far as its record knows.
pub(crate) const MISSING: &str = "Missing";
/// What was made of the wish in a spec.
pub(crate) const SPEC_APPLIED: &str = "SpecApplied";

/// A stored record as a value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    Registry(RegistryRecord),
    Node(NodeRecord),
    Drive(Box<DriveRecord>),
    Volume(Box<VolumeRecord>),
    Attachment(AttachmentRecord),
}

impl Record {
    /// `None` if it is none that this release knows. It is kept all the same.
    pub(crate) fn read(kind: Kind, value: &[u8]) -> Option<Self> {
        Some(match kind {
            Kind::Registry => Self::Registry(serde_json::from_slice(value).ok()?),
            Kind::Node => Self::Node(serde_json::from_slice(value).ok()?),
            Kind::Drive => Self::Drive(serde_json::from_slice(value).ok()?),
            Kind::Volume => Self::Volume(serde_json::from_slice(value).ok()?),
            Kind::Attachment => Self::Attachment(serde_json::from_slice(value).ok()?),
        })
    }

    /// Whether another one follows as soon as an agent has answered.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Volume(record) => record.state == VolumeState::Pending,
            Self::Attachment(record) => record.state == AttachmentState::Attaching,
            Self::Registry(_) | Self::Node(_) | Self::Drive(_) => false,
        }
    }

    /// The term that a registry's record says it is led under.
    pub(crate) fn term(&self) -> Option<Term> {
        match self {
            Self::Registry(record) => record.terms.last().copied(),
            Self::Node(_) | Self::Drive(_) | Self::Volume(_) | Self::Attachment(_) => None,
        }
    }
}

/// What things are called, and which drive a volume is on.
#[derive(Debug, Default)]
pub(crate) struct Names {
    names: HashMap<Key, String>,
    nodes_of_drives: HashMap<u128, u128>,
    drives_of_volumes: HashMap<u128, u128>,
}

impl Names {
    /// Takes in what a write says.
    pub(crate) fn learn(&mut self, write: &Write) {
        match write {
            Write::Delete { key } => {
                self.names.remove(key);
                match key.kind {
                    Kind::Volume => drop(self.drives_of_volumes.remove(&key.id)),
                    Kind::Drive => drop(self.nodes_of_drives.remove(&key.id)),
                    Kind::Registry | Kind::Node | Kind::Attachment => {}
                }
            }
            Write::Put { key, value } => match Record::read(key.kind, value) {
                Some(Record::Node(node)) => {
                    self.names.insert(*key, node.name.to_string());
                }
                Some(Record::Volume(volume)) => {
                    self.names.insert(*key, volume.name.to_string());
                }
                Some(Record::Drive(drive)) => {
                    self.nodes_of_drives.insert(key.id, drive.node.to_bits());
                    let placed = drive.volumes.keys().map(|volume| (volume.to_bits(), key.id));
                    self.drives_of_volumes.extend(placed);
                    self.names.insert(*key, drive.name);
                }
                Some(Record::Registry(_) | Record::Attachment(_)) | None => {}
            },
        }
    }

    fn name(&self, kind: Kind, id: u128) -> Option<String> {
        self.names.get(&Key { kind, id }).cloned()
    }

    /// What the object of a record is best called.
    pub(crate) fn wanted(&self, record: Option<&Record>) -> Option<String> {
        match record? {
            Record::Registry(_) => None,
            Record::Node(record) => Some(record.name.to_string()),
            Record::Drive(record) => Some(record.name.clone()),
            Record::Volume(record) => Some(record.name.to_string()),
            Record::Attachment(record) => {
                let volume = self.name(Kind::Volume, record.volume.to_bits())?;
                let node = self.name(Kind::Node, record.node.to_bits())?;
                Some(format!("{volume}-{node}"))
            }
        }
    }
}

/// The wish that a new object begins with. From then on it belongs to people.
pub(crate) fn spec(kind: Kind, record: Option<&Record>, names: &Names) -> Value {
    match record {
        // Not known to this release: what the server requires, and no more.
        None => match kind {
            Kind::Registry | Kind::Node | Kind::Drive => json!({}),
            Kind::Volume => json!({ "sizeBytes": 1 }),
            Kind::Attachment => json!({ "volume": "", "node": "" }),
        },
        // Nobody has wished anything by this way yet.
        Some(Record::Registry(_) | Record::Drive(_)) => json!({}),
        Some(Record::Node(record)) => {
            json!(StorageNodeSpec {
                labels: record.labels.to_texts(),
                // What was asked for in another way stands in the wish, or the next edit of it would take it back.
                cordon: record.cordoned.then_some(true),
                in_operation: None,
            })
        }
        Some(Record::Volume(record)) => json!(VolumeSpec {
            size_bytes: Some(record.size_bytes),
            parameters: record.parameters.clone(),
            claim: record.claim.as_ref().map(ToString::to_string),
        }),
        Some(Record::Attachment(record)) => json!(AttachmentSpec {
            volume: names.name(Kind::Volume, record.volume.to_bits()).unwrap_or_default(),
            node: names.name(Kind::Node, record.node.to_bits()).unwrap_or_default(),
            read_only: record.read_only,
        }),
    }
}

/// The public part of the status.
pub(crate) fn view(record: Option<&Record>, names: &Names) -> Map<String, Value> {
    let mut conditions = Vec::new();
    let mut fields = match record {
        None => Map::new(),
        Some(Record::Registry(record)) => fields(&RegistryStatus {
            format_version: FORMAT_VERSION,
            cluster: record.cluster.to_string(),
            terms: u64::try_from(record.terms.len()).unwrap_or(u64::MAX),
            newest_certificate: record.newest_certificate.get(),
            conditions: Vec::new(),
        }),
        Some(Record::Node(record)) => node(record),
        Some(Record::Drive(record)) => {
            conditions = drive_conditions(record);
            drive(record, names)
        }
        Some(Record::Volume(record)) => {
            conditions = volume_conditions(record);
            volume(record, names)
        }
        Some(Record::Attachment(record)) => {
            conditions.push(attached(record));
            attachment(record, names)
        }
    };
    fields.insert("conditions".to_owned(), Value::Array(conditions));
    fields
}

fn fields(status: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => unreachable!("a status is an object with text keys"),
    }
}

fn node(record: &NodeRecord) -> Map<String, Value> {
    let mut fields = fields(&StorageNodeStatus {
        ready: false,
        purged: record.purged,
        cordoned: record.cordoned,
        silent_since_ms: None,
        machine: record.machine.to_string(),
        incarnation: None,
        session: None,
        version: None,
        address: None,
        last_heartbeat: None,
        kubernetes_node: None,
        drives: 0,
        drives_in_operation: 0,
        conditions: Vec::new(),
    });
    for unknown in ["ready", "drives", "drivesInOperation"] {
        fields.remove(unknown);
    }
    fields
}

fn drive(record: &DriveRecord, names: &Names) -> Map<String, Value> {
    let observed = &record.observed;
    let text = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let reason = |denied: &hotbay_core::device::Denied| DeniedReason {
        message: denied.to_string(),
        denied: denied.clone(),
    };
    let volumes = record
        .volumes
        .keys()
        .map(|id| names.name(Kind::Volume, id.to_bits()).unwrap_or_else(|| id.to_string()));
    let mut fields = fields(&DriveStatus {
        node: names.name(Kind::Node, record.node.to_bits()).unwrap_or_default(),
        state: record.state.wire_name().to_owned(),
        goal: DriveGoal {
            wish: record.state.goal().to_string(),
            generation: record.generation.get(),
            order: None,
        },
        since_ms: record.since_ms,
        present: false,
        path: observed.path.clone(),
        bay: observed.bay.clone(),
        model: observed.evidence.model.clone(),
        serial: observed.evidence.serial.clone(),
        wwn: observed.evidence.wwn.clone(),
        device_kind: text(json!(observed.kind)),
        media: text(json!(observed.media)),
        size_bytes: observed.size_bytes,
        block_bytes: observed.block_bytes,
        details: observed.details.as_ref().clone(),
        denied: observed.denied.iter().map(reason).collect(),
        waiting_for: None,
        conditions: Vec::new(),
        volumes: volumes.collect(),
        free_bytes: None,
        dirty_bytes: None,
        removal_wanted: record.removal_wanted,
        asked_by: record.asked_by.clone(),
        state_hash: None,
        auto_add: Vec::new(),
    });
    fields.remove("present");
    fields
}

fn volume(record: &VolumeRecord, names: &Names) -> Map<String, Value> {
    let drive = names.drives_of_volumes.get(&record.id.to_bits());
    let node = drive.and_then(|drive| names.nodes_of_drives.get(drive));
    let mut fields = fields(&VolumeStatus {
        state: record.state.to_string(),
        since_ms: record.since_ms,
        size_bytes: record.size_bytes,
        drive: drive.and_then(|drive| names.name(Kind::Drive, *drive)),
        node: node.and_then(|node| names.name(Kind::Node, *node)),
        epoch: record.epoch.get(),
        operational_status: record.operational.to_string(),
        attachments: Vec::new(),
        conditions: Vec::new(),
        asked_by: record.asked_by.clone(),
    });
    fields.remove("attachments");
    fields
}

fn attachment(record: &AttachmentRecord, names: &Names) -> Map<String, Value> {
    fields(&AttachmentStatus {
        state: record.state.to_string(),
        since_ms: record.since_ms,
        volume: names.name(Kind::Volume, record.volume.to_bits()).unwrap_or_default(),
        node: names.name(Kind::Node, record.node.to_bits()).unwrap_or_default(),
        epoch: record.epoch.get(),
        read_only: record.read_only,
        staged: None,
        conditions: Vec::new(),
    })
}

/// A time as the server writes it, to the second.
pub(crate) fn timestamp(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1_000).ok();
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.unwrap_or_default().to_string()
}

/// One condition of a status.
pub(crate) fn condition(
    kind: &str,
    holds: bool,
    reason: &str,
    message: &str,
    since_ms: u64,
) -> Value {
    json!({
        "type": kind,
        "status": if holds { "True" } else { "False" },
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(since_ms),
    })
}

fn drive_conditions(record: &DriveRecord) -> Vec<Value> {
    let (holds, reason, message) = match record.state {
        State::Unknown => (false, "NeverAdded", "nobody has added it"),
        State::Attaching => (false, "Attaching", "its agent is asked to open it"),
        State::Attached => (true, "Attached", "its agent has it open"),
        State::Closing => (false, "Closing", "its agent is asked to close it"),
        State::Detached => (false, "Detached", "it is closed, and that is proved"),
    };
    let mut conditions = vec![condition(IN_OPERATION, holds, reason, message, record.since_ms)];
    if record.removal_wanted {
        let message = "a removal was asked for, and waits until no volume is on it";
        conditions.push(condition(REMOVAL_WANTED, true, "VolumesLeft", message, record.since_ms));
    }
    conditions
}

fn volume_conditions(record: &VolumeRecord) -> Vec<Value> {
    let (holds, reason, message) = match record.state {
        VolumeState::Pending => (false, "Pending", "it is asked for, and not on a drive yet"),
        VolumeState::Created => (true, "Created", "it is on its drive"),
        VolumeState::Deleting => (false, "Deleting", "it is to be deleted, as was asked for"),
        VolumeState::Deleted => {
            (false, "Deleted", "it is deleted; its drive, which does not answer, still has it")
        }
        VolumeState::Lost => (false, "Lost", "it was made, and its drive does not have it"),
    };
    let mut conditions = vec![condition(CREATED, holds, reason, message, record.since_ms)];
    if !record.operational.is_operative() {
        let message = "it cannot be reached, and pods have a dummy in its place";
        conditions.push(condition(INACCESSIBLE, true, MISSING, message, record.since_ms));
    }
    conditions
}

fn attached(record: &AttachmentRecord) -> Value {
    let (holds, reason, message) = match record.state {
        AttachmentState::Attaching => (false, "Attaching", "the node is granted the use"),
        AttachmentState::Attached => (true, "Attached", "the node may use it"),
        AttachmentState::Detaching => (false, "Detaching", "the node is asked to give it back"),
    };
    condition(ATTACHED, holds, reason, message, record.since_ms)
}

#[cfg(test)]
mod tests;
