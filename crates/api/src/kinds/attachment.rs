//! The use of a volume by a node, as an object of its own. Kubernetes shows it; elsewhere it is part of its volume.

use serde::{Deserialize, Serialize};

use super::{Condition, Metadata};

/// A volume on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: AttachmentSpec,
    pub status: AttachmentStatus,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttachmentSpec {
    /// The name of the volume.
    pub volume: String,
    /// The name of the node.
    pub node: String,
    /// The node may only read.
    #[serde(default)]
    pub read_only: bool,
}

/// Whether the node may use the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttachmentStatus {
    /// `Attaching`, `Attached` or `Detaching`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = super::words::ATTACHMENT_STATES)))]
    pub state: String,
    /// When the state last changed, in Unix milliseconds.
    pub since_ms: u64,
    /// The name of the volume.
    pub volume: String,
    /// The name of the node.
    pub node: String,
    /// The use that is granted. A use under a lower number is refused.
    pub epoch: u64,
    /// The node may only read.
    pub read_only: bool,
    /// `Fake` while pods on the node have a dummy in the place of the volume. That they have the volume itself is not
    /// said: a pod that starts would cost a write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = super::words::STAGED)))]
    pub staged: Option<String>,
    /// What is not as it should be.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
