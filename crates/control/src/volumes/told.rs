//! What people are told of a volume beside its own object: what is not as it should be, and, where it stands in the way
//! of something, which one it is. [`crate::conditions`] and [`crate::actions`] ask for it.

use hotbay_api::cms as wire;
use hotbay_core::cluster::{Cluster, Volume, VolumeState};
use hotbay_core::ids::VolumeId;

use super::platform::condition;
use super::why_pending;
use crate::conditions::Told;

/// What is not as it should be, in words.
pub(crate) fn conditions(cluster: &Cluster, known: &Volume) -> Vec<Told> {
    let told = |kind, reason, message: String| vec![Told { kind, reason, message }];
    match known.record.state {
        VolumeState::Pending => told("Pending", "Pending", why_pending(cluster, known)),
        VolumeState::Deleting => told("Deleting", "Deleting", why_pending(cluster, known)),
        VolumeState::Deleted => told(
            "NotErased",
            "DriveDoesNotAnswer",
            "its drive does not answer: its label is updated, and its place erased, when it does"
                .to_owned(),
        ),
        VolumeState::Lost => told("Lost", "Lost", condition(cluster, known).message),
        VolumeState::Created => {
            let now = condition(cluster, known);
            if now.abnormal { told("Inaccessible", "Unreachable", now.message) } else { Vec::new() }
        }
    }
}

/// Which volume it is, also one that only a label knows; `None`: nobody knows it.
pub(crate) fn brief(cluster: &Cluster, id: VolumeId) -> Option<wire::VolumeBrief> {
    if let Some(known) = cluster.volume(id) {
        let record = &known.record;
        let on = known.attachments.keys().filter_map(|node| cluster.node(*node));
        return Some(wire::VolumeBrief {
            name: record.name.to_string(),
            size_bytes: record.size_bytes,
            claim: record.claim.as_ref().map(ToString::to_string).unwrap_or_default(),
            used_on: on.map(|node| node.record.name.to_string()).collect(),
        });
    }
    let (_, extent) = cluster.orphan(id)?;
    Some(wire::VolumeBrief {
        name: extent.name.to_string(),
        size_bytes: extent.length_bytes,
        claim: extent.claim.as_ref().map(ToString::to_string).unwrap_or_default(),
        used_on: Vec::new(),
    })
}
