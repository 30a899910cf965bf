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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VolumeSpec {
    /// The size that is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The parameters of its class, such as `media`, `drive`, `spread`, `fsType` and `erase`.
    pub parameters: BTreeMap<String, String>,
    /// `namespace/name` of the claim that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
}

/// What a volume is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// `Pending`, `Created`, `Deleting`, `Deleted`, `Lost`, or `Orphan` if only a drive's label knows it.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = super::words::VOLUME_STATES)))]
    pub state: String,
    /// When the state last changed, in Unix milliseconds.
    pub since_ms: u64,
    /// What it has.
    pub size_bytes: u64,
    /// The name of its drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drive: Option<String>,
    /// The name of the node that it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The last use that was granted. A use under a lower number is refused.
    pub epoch: u64,
    /// `OPERATIVE`, or `MISSING` while it cannot be reached and pods have a dummy in its place.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = super::words::OPERATIONAL)))]
    pub operational_status: String,
    /// The nodes that may use it.
    #[serde(default)]
    pub attachments: Vec<VolumeAttachment>,
    /// What is not as it should be.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Who asked for what is wanted now.
    pub asked_by: String,
}

/// A node that may use a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachment {
    /// The name of the node.
    pub node: String,
    /// `Attaching`, `Attached` or `Detaching`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = super::words::ATTACHMENT_STATES)))]
    pub state: String,
    /// The use that is granted.
    pub epoch: u64,
    /// It may only read.
    pub read_only: bool,
    /// What its agent waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// Why the node cannot reach it, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inaccessible: Option<String>,
}
