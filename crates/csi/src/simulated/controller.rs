//! The controller's half of the simulated platform.

use std::cmp::Reverse;

use hotbay_core::ids::{NodeId, VolumeId};

use super::{Call, EXTENT_BYTES, Record, Simulated, State, no_volume, refused};
use crate::platform::{
    AttachVolume, Capacity, CapacityQuery, Condition, ControllerPlatform, CreateVolume,
    ExpandVolume, Expanded, Failure, FailureKind, Sizes, Texts, Volume, VolumePage,
};

/// Where nothing is asked for.
const DEFAULT_BYTES: u64 = 1 << 30;

/// What the controller would implement over its registry.
#[derive(Debug, Clone)]
pub struct SimulatedController {
    pub(super) cluster: Simulated,
}

impl SimulatedController {
    async fn perform<T>(
        &self,
        call: Call,
        effect: impl FnOnce(&mut State) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        let cluster = &self.cluster;
        cluster.faults.perform(call, || effect(&mut cluster.lock())).await
    }
}

impl ControllerPlatform for SimulatedController {
    async fn create(&self, request: CreateVolume) -> Result<Volume, Failure> {
        self.perform(Call::Create, |state| create(state, request)).await
    }

    async fn delete(&self, volume: VolumeId) -> Result<(), Failure> {
        self.perform(Call::Delete, |state| delete(state, volume)).await
    }

    async fn expand(&self, request: ExpandVolume) -> Result<Expanded, Failure> {
        self.perform(Call::Expand, |state| expand(state, &request)).await
    }

    async fn attach(&self, request: AttachVolume) -> Result<Texts, Failure> {
        self.perform(Call::Attach, |state| attach(state, &request)).await
    }

    async fn detach(&self, volume: VolumeId, node: Option<NodeId>) -> Result<(), Failure> {
        self.perform(Call::Detach, |state| {
            if let Some(record) = state.volumes.get_mut(&volume)
                && node.is_none_or(|node| node == record.node)
            {
                record.attached_readonly = None;
            }
            Ok(())
        })
        .await
    }

    async fn volume(&self, volume: VolumeId) -> Result<Volume, Failure> {
        self.perform(Call::Volume, |state| Ok(told(volume, state.record(volume)?))).await
    }

    async fn volumes(&self, after: Option<VolumeId>, limit: usize) -> Result<VolumePage, Failure> {
        self.perform(Call::Volumes, |state| {
            let mut rest =
                state.volumes.iter().filter(|(id, _)| after.is_none_or(|after| **id > after));
            let page = rest.by_ref().take(limit).map(|(id, record)| told(*id, record)).collect();
            Ok(VolumePage { volumes: page, more: rest.next().is_some() })
        })
        .await
    }

    async fn capacity(&self, query: CapacityQuery) -> Result<Capacity, Failure> {
        self.perform(Call::Capacity, |state| {
            let wanted = |node: &NodeId| query.node.is_none_or(|only| only == *node);
            let free: Vec<_> = state.nodes.keys().filter(|node| wanted(node)).collect();
            let free: Vec<_> = free.into_iter().map(|node| state.free_bytes(*node)).collect();
            Ok(Capacity {
                available_bytes: free.iter().sum(),
                largest_volume_bytes: Some(free.into_iter().max().unwrap_or_default()),
                smallest_volume_bytes: Some(EXTENT_BYTES),
            })
        })
        .await
    }

    async fn node_exists(&self, node: NodeId) -> Result<bool, Failure> {
        self.perform(Call::NodeExists, |state| Ok(state.nodes.contains_key(&node))).await
    }
}

fn create(state: &mut State, request: CreateVolume) -> Result<Volume, Failure> {
    let same_name = state.volumes.iter().find(|(_, record)| record.name == request.name);
    if let Some((id, record)) = same_name {
        if record.parameters != request.parameters {
            let message = "a volume of this name was made with other parameters";
            return Err(refused(FailureKind::AlreadyExists, message));
        }
        if record.is_block != request.access.is_block() {
            let message = "a volume of this name was made for the other access type";
            return Err(refused(FailureKind::AlreadyExists, message));
        }
        return Ok(told(*id, record));
    }
    let capacity_bytes = size(request.sizes)?;
    let node = place(state, &request, capacity_bytes)?;
    state.made += 1;
    let id = VolumeId::from_bits(state.made);
    let record = Record {
        name: request.name,
        capacity_bytes,
        is_block: request.access.is_block(),
        parameters: request.parameters,
        node,
        attached_readonly: None,
        condition: Condition { abnormal: false, message: "the volume works".to_owned() },
    };
    let volume = told(id, &record);
    state.volumes.insert(id, record);
    Ok(volume)
}

/// A whole number of extents between the bounds.
fn size(sizes: Sizes) -> Result<u64, Failure> {
    let wish = match sizes.required_bytes {
        0 => sizes.limit_bytes.map_or(DEFAULT_BYTES, |limit| limit.min(DEFAULT_BYTES)),
        required => required,
    };
    let up = wish.checked_next_multiple_of(EXTENT_BYTES);
    let down = wish / EXTENT_BYTES * EXTENT_BYTES;
    let fits = |bytes: &u64| *bytes > 0 && sizes.fits(*bytes);
    up.filter(fits).or(Some(down).filter(fits)).ok_or_else(|| {
        let message = format!("no multiple of {EXTENT_BYTES} bytes fits: change the sizes");
        refused(FailureKind::OutOfRange, message)
    })
}

/// The first preferred node with room, else the allowed one with most room.
fn place(state: &State, request: &CreateVolume, bytes: u64) -> Result<NodeId, Failure> {
    let allowed = |node: &&NodeId| request.requisite.is_empty() || request.requisite.contains(node);
    let room = |node: &&NodeId| state.free_bytes(**node) >= bytes;
    let preferred = request.preferred.iter().filter(allowed).find(room);
    let any = || {
        let fitting = state.nodes.keys().filter(allowed).filter(room);
        fitting.max_by_key(|node| (state.free_bytes(**node), Reverse(**node)))
    };
    preferred.or_else(any).copied().ok_or_else(|| {
        let message = format!("no allowed node has {bytes} bytes free: add drives");
        refused(FailureKind::ResourceExhausted, message)
    })
}

fn delete(state: &mut State, volume: VolumeId) -> Result<(), Failure> {
    match state.volumes.get(&volume) {
        Some(record) if record.attached_readonly.is_some() => {
            let message = format!("the volume is attached to node {}: detach it", record.node);
            Err(refused(FailureKind::FailedPrecondition, message))
        }
        Some(_) | None => {
            state.volumes.remove(&volume);
            Ok(())
        }
    }
}

fn expand(state: &mut State, request: &ExpandVolume) -> Result<Expanded, Failure> {
    let (volume, sizes) = (request.volume, request.sizes);
    let record = state.volumes.get(&volume).ok_or_else(|| no_volume(volume))?;
    let (now, node) = (record.capacity_bytes, record.node);
    let capacity_bytes = if now >= sizes.required_bytes { now } else { size(sizes)? };
    if !sizes.fits(capacity_bytes) {
        let message = format!("the volume has {now} bytes and cannot shrink: raise limit_bytes");
        return Err(refused(FailureKind::OutOfRange, message));
    }
    if capacity_bytes - now > state.free_bytes(node) {
        let message = format!("node {node} has no room to grow the volume: add drives");
        return Err(refused(FailureKind::ResourceExhausted, message));
    }
    state.record(volume)?.capacity_bytes = capacity_bytes;
    Ok(Expanded { capacity_bytes, on_node: true })
}

fn attach(state: &mut State, request: &AttachVolume) -> Result<Texts, Failure> {
    let node = request.node;
    let on_node = |record: &&Record| record.node == node && record.attached_readonly.is_some();
    let attached = state.volumes.values().filter(on_node).count();
    let Some(machine) = state.nodes.get(&node) else {
        return Err(refused(FailureKind::NotFound, format!("no node has the id {node}")));
    };
    let max = machine.max_volumes.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(0));
    let record = state.record(request.volume)?;
    if record.node != node {
        let message = format!("the volume is on node {}, and can be used there alone", record.node);
        return Err(refused(FailureKind::FailedPrecondition, message));
    }
    match record.attached_readonly {
        Some(readonly) if readonly != request.readonly => {
            let message = "the volume is attached with another readonly: detach it first";
            Err(refused(FailureKind::AlreadyExists, message))
        }
        None if attached >= max => {
            let message = format!("node {node} has {attached} volumes, which is its limit");
            Err(refused(FailureKind::ResourceExhausted, message))
        }
        Some(_) | None => {
            record.attached_readonly = Some(request.readonly);
            Ok(Texts::new())
        }
    }
}

fn told(id: VolumeId, record: &Record) -> Volume {
    Volume {
        id,
        name: record.name.clone(),
        capacity_bytes: record.capacity_bytes,
        volume_context: Texts::new(),
        accessible_nodes: vec![record.node],
        published_nodes: record.attached_readonly.map(|_| record.node).into_iter().collect(),
        condition: record.condition.clone(),
    }
}
