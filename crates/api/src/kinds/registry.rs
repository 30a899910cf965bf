//! The registry itself, as an object. Kubernetes shows it; there is one.

use serde::{Deserialize, Serialize};

use super::{Condition, Metadata};

/// The registry: which cluster it is, and under which terms it was led.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Registry {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: RegistrySpec,
    pub status: RegistryStatus,
}

/// Settings of the registry. There are none yet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RegistrySpec {}

/// What the registry is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RegistryStatus {
    /// The id of the cluster. It stands on every drive that is in operation.
    pub cluster: String,
    /// The format of all records. A controller does not lead on one that is newer than its own.
    #[serde(default)]
    pub format_version: u64,
    /// How often a controller has taken the lead.
    pub terms: u64,
    /// The newest certificate that was issued for a node.
    pub newest_certificate: u64,
    /// What is not as it should be.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
