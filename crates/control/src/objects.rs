//! The kinds of `hotbay-api`, made from the cluster in memory. [`crate::view`] asks for them.

use hotbay_api::kinds::{
    API_VERSION, AutoAddVerdict, Condition, DeniedReason, Drive, DriveGoal, DriveSpec, DriveStatus,
    Metadata, StorageNode, StorageNodeSpec, StorageNodeStatus, Volume, VolumeAttachment,
    VolumeSpec, VolumeStatus,
};
use hotbay_core::cluster::{self, Cluster, Newcomer, State};
use hotbay_core::device::{Denied, Observed};
use hotbay_core::ids::DriveId;
use hotbay_core::label::extents::Extent;
use hotbay_core::volume::Operational;

use crate::conditions::{self, Told, node_name};

fn shown(told: Vec<Told>) -> Vec<Condition> {
    told.into_iter().map(Condition::from).collect()
}

fn reason(denied: Denied) -> DeniedReason {
    DeniedReason { message: denied.to_string(), denied }
}

/// What a device says by itself. Nothing is wanted of it.
fn of_device(observed: &Observed) -> DriveStatus {
    let text = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    DriveStatus {
        node: String::new(),
        state: State::Unknown.wire_name().to_owned(),
        goal: DriveGoal { wish: State::Unknown.goal().to_string(), generation: 0, order: None },
        since_ms: 0,
        present: true,
        path: observed.path.clone(),
        bay: observed.bay.clone(),
        model: observed.evidence.model.clone(),
        serial: observed.evidence.serial.clone(),
        wwn: observed.evidence.wwn.clone(),
        device_kind: text(serde_json::json!(observed.kind)),
        media: text(serde_json::json!(observed.media)),
        size_bytes: observed.size_bytes,
        block_bytes: observed.block_bytes,
        details: observed.details.as_ref().clone(),
        denied: observed.denied.iter().cloned().map(reason).collect(),
        waiting_for: None,
        conditions: Vec::new(),
        volumes: Vec::new(),
        free_bytes: None,
        dirty_bytes: None,
        removal_wanted: false,
        asked_by: String::new(),
        state_hash: None,
        auto_add: Vec::new(),
    }
}

/// A device that is no drive of a registry. It has no id, and is named by its place.
pub fn device(node: &str, observed: &Observed) -> Drive {
    let status = DriveStatus { node: node.to_owned(), ..of_device(observed) };
    Drive {
        api_version: API_VERSION.to_owned(),
        kind: "Drive".to_owned(),
        metadata: Metadata { name: format!("{node}:{}", status.path), uid: String::new() },
        spec: DriveSpec { in_operation: false },
        status,
    }
}

/// A device that looks like a drive that is known.
pub(crate) fn newcomer(cluster: &Cluster, newcomer: &Newcomer) -> Drive {
    let mut drive = device(&node_name(cluster, newcomer.node), &newcomer.device);
    drive.status.since_ms = newcomer.since_ms;
    drive.status.denied.insert(0, reason(cluster.conflict(newcomer)));
    drive.status.state_hash = Some(cluster.newcomer_state(newcomer).to_string());
    drive
}

/// A drive that is known.
pub(crate) fn drive(cluster: &Cluster, known: &cluster::Drive) -> Drive {
    let record = &known.record;
    let observed = &record.observed;
    Drive {
        api_version: API_VERSION.to_owned(),
        kind: "Drive".to_owned(),
        metadata: Metadata { name: record.name.clone(), uid: record.id.to_string() },
        spec: DriveSpec { in_operation: cluster.in_operation(record.id) },
        status: DriveStatus {
            node: node_name(cluster, record.node),
            state: record.state.wire_name().to_owned(),
            goal: DriveGoal {
                wish: record.state.goal().to_string(),
                generation: record.generation.get(),
                order: cluster.order_id(record.id).map(|order| order.to_string()),
            },
            since_ms: record.since_ms,
            present: known.present,
            waiting_for: cluster.waiting_for(record.id).map(|reason| reason.to_string()),
            volumes: cluster
                .volumes_on(record.id)
                .into_iter()
                .map(|volume| cluster.volume_name(volume))
                .collect(),
            free_bytes: known.space.as_ref().map(|_| known.free_bytes()),
            dirty_bytes: known.space.as_ref().map(|space| space.dirty_bytes()),
            removal_wanted: record.removal_wanted,
            asked_by: record.asked_by.clone(),
            conditions: shown(conditions::of_drive(cluster, record.id)),
            state_hash: cluster.state_hash(record.id).map(|state| state.to_string()),
            denied: cluster.denied(record.id).map(reason).collect(),
            auto_add: cluster.rules_on(record.id).into_iter().map(verdict).collect(),
            ..of_device(observed)
        },
    }
}

/// A volume that is known.
pub(crate) fn volume(cluster: &Cluster, known: &cluster::Volume) -> Volume {
    let record = &known.record;
    let drive = known.drive.and_then(|id| cluster.drive(id)).map(|drive| &drive.record);
    let attachments = known.attachments.values().map(|attachment| VolumeAttachment {
        node: node_name(cluster, attachment.record.node),
        state: attachment.record.state.to_string(),
        epoch: attachment.record.epoch.get(),
        read_only: attachment.record.read_only,
        waiting_for: attachment.waits.clone(),
        inaccessible: cluster.inaccessible(known, attachment.record.node),
    });
    Volume {
        api_version: API_VERSION.to_owned(),
        kind: "Volume".to_owned(),
        metadata: Metadata { name: record.name.to_string(), uid: record.id.to_string() },
        annotations: record.annotations.clone(),
        spec: VolumeSpec {
            size_bytes: None,
            parameters: record.parameters.clone(),
            claim: record.claim.as_ref().map(ToString::to_string),
        },
        status: VolumeStatus {
            state: record.state.to_string(),
            since_ms: record.since_ms,
            size_bytes: record.size_bytes,
            drive: drive.map(|drive| drive.name.clone()),
            node: drive.map(|drive| node_name(cluster, drive.node)),
            epoch: record.epoch.get(),
            operational_status: record.operational.to_string(),
            attachments: attachments.collect(),
            conditions: shown(conditions::of_volume(cluster, known)),
            asked_by: record.asked_by.clone(),
        },
    }
}

/// A volume that only the label of a drive knows.
pub(crate) fn orphan(cluster: &Cluster, drive: DriveId, extent: &Extent) -> Volume {
    let on = cluster.drive(drive).map(|drive| &drive.record);
    Volume {
        api_version: API_VERSION.to_owned(),
        kind: "Volume".to_owned(),
        metadata: Metadata { name: extent.name.to_string(), uid: extent.volume.to_string() },
        annotations: Default::default(),
        spec: VolumeSpec {
            size_bytes: None,
            parameters: Default::default(),
            claim: extent.claim.as_ref().map(ToString::to_string),
        },
        status: VolumeStatus {
            state: "Orphan".to_owned(),
            since_ms: 0,
            size_bytes: extent.length_bytes,
            drive: on.map(|drive| drive.name.clone()),
            node: on.map(|drive| node_name(cluster, drive.node)),
            epoch: 0,
            operational_status: Operational::default().to_string(),
            attachments: Vec::new(),
            conditions: vec![Condition {
                kind: "Orphan".to_owned(),
                message: "only the label of its drive knows it".to_owned(),
            }],
            asked_by: String::new(),
        },
    }
}

fn verdict(verdict: cluster::RuleVerdict) -> AutoAddVerdict {
    let cluster::RuleVerdict { rule, took, why } = verdict;
    AutoAddVerdict { rule: rule.to_string(), took, message: why }
}

/// A node.
pub(crate) fn node(cluster: &Cluster, known: &cluster::Node) -> StorageNode {
    let in_operation = known.drives.iter().filter(|id| cluster.in_operation(**id)).count();
    StorageNode {
        api_version: API_VERSION.to_owned(),
        kind: "StorageNode".to_owned(),
        metadata: Metadata {
            name: known.record.name.to_string(),
            uid: known.record.id.to_string(),
        },
        spec: StorageNodeSpec {
            labels: known.record.labels.to_texts(),
            ..StorageNodeSpec::default()
        },
        status: StorageNodeStatus {
            ready: known.session.is_some(),
            purged: known.record.purged,
            cordoned: known.record.cordoned,
            silent_since_ms: known.silent_since_ms,
            machine: known.record.machine.to_string(),
            incarnation: known.session.map(|session| session.incarnation.to_string()),
            session: known.session.map(|session| session.number.get()),
            version: known.program.version.as_ref().map(ToString::to_string),
            address: known.program.address.map(|address| address.to_string()),
            drives: known.drives.len(),
            drives_in_operation: in_operation,
            last_heartbeat: None,
            kubernetes_node: None,
            conditions: shown(conditions::of_node(cluster, known)),
        },
    }
}
