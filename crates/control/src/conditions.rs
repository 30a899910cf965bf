//! What is not as it should be with a node, a drive or a volume, in the words that people see. [`crate::objects`] shows
//! it by the API; on Kubernetes the same words stand in the conditions of the objects.

use hotbay_api::kinds::Condition;
use hotbay_core::cluster::{Cluster, Node, Volume};
use hotbay_core::cms::Reason;
use hotbay_core::ids::{DriveId, NodeId};
use hotbay_core::message::RecordHealth;

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// What it is about, such as `RegistryRewound`.
    pub kind: &'static str,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, in words for people.
    pub message: String,
}

impl From<Told> for Condition {
    fn from(told: Told) -> Self {
        Self { kind: told.kind.to_owned(), message: told.message }
    }
}

/// What a node is called; empty if it is not known.
pub(crate) fn node_name(cluster: &Cluster, node: NodeId) -> String {
    cluster.node(node).map(|node| node.record.name.to_string()).unwrap_or_default()
}

/// What is not as it should be with a node, beside that its agent may not be connected.
pub fn of_node(cluster: &Cluster, known: &Node) -> Vec<Told> {
    let mut told = Vec::new();
    if !known.rewound.is_empty() {
        let message = format!(
            "the node knows newer orders than this registry ({} differences), which seems to be a restored backup or a \
             copy; it gets no orders; hotbay registry adopt shows the differences",
            known.rewound.len()
        );
        told.push(Told { kind: "RegistryRewound", reason: "NodeKnowsMore", message });
    }
    if cluster.shows_revoked_certificate(known.record.id) {
        let message = Reason::CertificateRevoked.to_string();
        told.push(Told { kind: "CertificateRevoked", reason: "Purged", message });
    }
    if let Some(RecordHealth::Damaged { why }) = &known.agent_record {
        let message = format!("the agent found its record damaged: {why}");
        told.push(Told { kind: "RecordDamaged", reason: "Damaged", message });
    }
    told.extend(known.conditions.iter().map(|condition| Told {
        kind: condition.name(),
        reason: "AgentSaysSo",
        message: condition.to_string(),
    }));
    told
}

/// What is not as it should be with a drive, beside what it waits for.
pub fn of_drive(cluster: &Cluster, id: DriveId) -> Vec<Told> {
    let shrunk = cluster.shrunk(id).map(|why| Told {
        kind: "Shrunk",
        reason: "TooSmall",
        message: format!("{why}; it takes no new volumes"),
    });
    shrunk.into_iter().chain(held_by_other_node(cluster, id)).collect()
}

/// Its label says that another node holds it: its agent does not take it, until a person says so.
fn held_by_other_node(cluster: &Cluster, id: DriveId) -> Option<Told> {
    let holder = cluster.held_by_label(id)?;
    let record = &cluster.drive(id)?.record;
    let holder = match node_name(cluster, holder).as_str() {
        "" => format!("a node that is not known ({holder})"),
        name => name.to_owned(),
    };
    let here = format!("{}:{}", node_name(cluster, record.node), record.observed.path);
    let message = format!(
        "its label says that {holder} holds it; if it does not any more:  hotbay drive take-over {here}"
    );
    Some(Told { kind: "HeldByOtherNode", reason: "LabelSaysSo", message })
}

/// What is not as it should be with a volume.
pub fn of_volume(cluster: &Cluster, known: &Volume) -> Vec<Told> {
    crate::volumes::conditions(cluster, known)
}
