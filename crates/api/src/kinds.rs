//! The objects that people and programs see: `apiVersion`, `kind`, `metadata`, `spec` (the wish), `status` (what is).
//!
//! The JSON of these types is an interface: fields are added, never renamed. Sizes are bytes, times are Unix
//! milliseconds.

mod volume;

use std::collections::BTreeMap;

use hotbay_core::device::{Denied, Details};
use serde::{Deserialize, Serialize};

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
#[serde(rename_all = "camelCase")]
pub struct DriveSpec {
    pub in_operation: bool,
}

/// What a drive is, and what was decided about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriveStatus {
    pub node: String,
    /// `UnknownDevice`, `AttachingDevice`, `AttachedDevice`, `ClosingDevice` or `DetachedDevice`.
    pub state: String,
    pub goal: DriveGoal,
    pub since_ms: u64,
    /// The device is on its machine.
    pub present: bool,
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bay: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    /// `Block`, `Loop` or `File`.
    pub device_kind: String,
    /// `NVMe`, `SSD`, `HDD`, `File` or `Unknown`.
    pub media: String,
    pub size_bytes: u64,
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
#[serde(rename_all = "camelCase")]
pub struct AutoAddVerdict {
    pub rule: String,
    /// It has added the drive.
    pub took: bool,
    /// Why, or why not, in words.
    pub message: String,
}

/// What is wanted, and how often that has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriveGoal {
    /// `attach` or `detach`.
    pub wish: String,
    pub generation: u64,
    /// The order that says so, as it is in the logs of the registry and of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
}

/// One reason, as a value and in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeniedReason {
    #[serde(flatten)]
    pub denied: Denied,
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
#[serde(rename_all = "camelCase", default)]
pub struct StorageNodeSpec {
    pub labels: BTreeMap<String, String>,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageNodeStatus {
    /// The agent is registered.
    pub ready: bool,
    /// The host was given up.
    #[serde(default)]
    pub purged: bool,
    /// Since when the agent is not connected; none if the registry has not seen it since it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since_ms: Option<u64>,
    pub machine: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    pub drives: usize,
    pub drives_in_operation: usize,
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Something about an object that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Such as `RegistryRewound`, `RecordDamaged` or `FiltersInvalid` of a node, `Shrunk` or `HeldByOtherNode` of a
    /// drive.
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
}
