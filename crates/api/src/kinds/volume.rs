//! Volumes as people and programs see them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Condition, Metadata};

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    pub spec: VolumeSpec,
    pub status: VolumeStatus,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSpec {
    pub parameters: BTreeMap<String, String>,
    /// `namespace/name` of the claim that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
}

/// What a volume is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// `Pending`, `Created`, `Deleting`, `Deleted`, `Lost`, or `Orphan` if only a drive's label knows it.
    pub state: String,
    pub since_ms: u64,
    pub size_bytes: u64,
    /// The name of its drive, and the node that it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drive: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub epoch: u64,
    /// `OPERATIVE`, or `MISSING` while it cannot be reached and pods have a dummy in its place.
    #[serde(default)]
    pub operational_status: String,
    #[serde(default)]
    pub attachments: Vec<VolumeAttachment>,
    #[serde(default)]
    pub conditions: Vec<Condition>,
    pub asked_by: String,
}

/// A node that may use a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachment {
    pub node: String,
    /// `Attaching`, `Attached` or `Detaching`.
    pub state: String,
    pub epoch: u64,
    pub read_only: bool,
    /// What its agent waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// Why the node cannot reach it, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inaccessible: Option<String>,
}
