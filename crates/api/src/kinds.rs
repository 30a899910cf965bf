//! The objects that people and programs see: `apiVersion`, `kind`, `metadata`, `spec` (the wish), `status` (what is).
//!
//! The JSON of these types is an interface: fields are added, never renamed. Sizes are bytes, times are Unix
//! milliseconds.

mod attachment;
mod registry;
mod volume;
#[cfg(feature = "schema")]
mod words;

use std::collections::BTreeMap;

use hotbay_core::device::{Denied, Details};
use serde::{Deserialize, Serialize};

pub use attachment::{Attachment, AttachmentSpec, AttachmentStatus};
pub use registry::{Registry, RegistrySpec, RegistryStatus};
pub use volume::{Volume, VolumeAttachment, VolumeSpec, VolumeStatus};

/// Group and version of all kinds.
pub const API_VERSION: &str = "hotbay.dev/v1alpha1";

/// What names an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    pub uid: String,
}

/// One physical drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drive {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: DriveSpec,
    pub status: DriveStatus,
}

/// What is wanted of a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DriveSpec {
    /// Whether the drive is wanted in operation: true adds it, false removes it.
    pub in_operation: bool,
}

/// What a drive is, and what was decided about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DriveStatus {
    /// The name of the node that the drive is on.
    pub node: String,
    /// `UnknownDevice`, `AttachingDevice`, `AttachedDevice`, `ClosingDevice` or `DetachedDevice`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = words::DRIVE_STATES)))]
    pub state: String,
    /// What is wanted of the drive. Orders to agents come from this, never from the spec.
    pub goal: DriveGoal,
    /// When the state last changed, in Unix milliseconds.
    pub since_ms: u64,
    /// The device is on its machine.
    pub present: bool,
    /// Where the device is on its machine now, such as `/dev/nvme0n1`. Not identity.
    pub path: String,
    /// The bay that the drive is in, where the machine can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bay: Option<String>,
    /// The model, as the drive says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The serial number, as the drive says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The world wide name of a SCSI or ATA drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    /// `Block`, `Loop` or `File`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = words::DEVICE_KINDS)))]
    pub device_kind: String,
    /// `NVMe`, `SSD`, `HDD`, `File` or `Unknown`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = words::MEDIA)))]
    pub media: String,
    /// The size of the device.
    pub size_bytes: u64,
    /// The smallest unit that the device writes.
    pub block_bytes: u32,
    /// What else is known of the device, beside the other properties: `vendor`, `firmware`, `transport` and so on.
    #[serde(flatten)]
    pub details: Details,
    /// Why it cannot be added; empty when it can.
    #[serde(default)]
    pub denied: Vec<DeniedReason>,
    /// Why it is not as wished, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// What is not as it should be.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// The names of the volumes on it.
    #[serde(default)]
    pub volumes: Vec<String>,
    /// What could be given to volumes; only while its label is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// What deleted volumes had and is not erased yet, and so is not given out; only while its label is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_bytes: Option<u64>,
    /// A removal was asked for and waits for the volumes.
    pub removal_wanted: bool,
    /// Who asked for what is wanted now.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub asked_by: String,
    /// Stands for all that adding it, or taking it over, rests on: identity, size, contents, state. Another one: look
    /// at it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_hash: Option<String>,
    /// What each rule that adds drives makes of it, in the order of the rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub auto_add: Vec<AutoAddVerdict>,
}

/// What one rule that adds drives makes of a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AutoAddVerdict {
    /// The name of the rule.
    pub rule: String,
    /// It has added the drive.
    pub took: bool,
    /// Why, or why not, in words.
    pub message: String,
}

/// What is wanted, and how often that has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DriveGoal {
    /// `attach` or `detach`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = words::WISHES)))]
    pub wish: String,
    /// How often what is wanted has changed. Never goes down.
    pub generation: u64,
    /// The order that says so, as it is in the logs of the registry and of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
}

/// One reason, as a value and in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeniedReason {
    #[serde(flatten)]
    pub denied: Denied,
    /// The reason in words.
    pub message: String,
}

/// One machine with an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageNode {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: StorageNodeSpec,
    pub status: StorageNodeStatus,
}

/// What people say of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct StorageNodeSpec {
    /// What people say about the machine, such as its rack: rules can ask for it.
    pub labels: BTreeMap<String, String>,
    /// Whether the drives of the machine are wanted in operation: true adds the host, false removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_operation: Option<bool>,
    /// Whether new volumes are to be kept off the machine's drives. Those that are there stay in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cordon: Option<bool>,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StorageNodeStatus {
    /// The agent is registered.
    pub ready: bool,
    /// The host was given up.
    #[serde(default)]
    pub purged: bool,
    /// Its drives get no new volumes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// Since when the agent is not connected; none if the registry has not seen it since it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since_ms: Option<u64>,
    /// Stands for the machine behind the name: another machine has another one.
    pub machine: String,
    /// The start of the agent that is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The number of its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// The release of the agent that registered last, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The address that it came from, as the registry saw it; none if it came by the registry's own socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// When the agent was last known to be connected. Written every few minutes, and when that changes; on Kubernetes
    /// alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub last_heartbeat: Option<String>,
    /// The Kubernetes Node that the machine is, if there has been one of its name: when that goes, the machine is
    /// forgotten, as soon as nothing of it is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_node: Option<String>,
    /// How many drives it has.
    pub drives: usize,
    /// How many of them are in operation.
    pub drives_in_operation: usize,
    /// What is not as it should be.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Something about an object that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Such as `RegistryRewound`, `RecordDamaged` or `FiltersInvalid` of a node, `Shrunk` or `HeldByOtherNode` of a
    /// drive.
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
}
