//! A node's half of the simulated platform.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use hotbay_core::ids::{NodeId, VolumeId};

use super::{Call, Machine, Published, Record, Simulated, Staged, State, no_volume, refused};
use crate::platform::{
    AccessMode, ExpandOnNode, Failure, FailureKind, NodeInfo, NodePlatform, PublishVolume,
    StageVolume, Stats, StatsQuery, Usage,
};

/// What an agent would implement over its machine.
#[derive(Debug, Clone)]
pub struct SimulatedNode {
    pub(super) cluster: Simulated,
    pub(super) node: NodeId,
}

impl SimulatedNode {
    /// With all that is known of the volumes, and this machine.
    async fn perform<T>(
        &self,
        call: Call,
        effect: impl FnOnce(&mut State, NodeId) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        let cluster = &self.cluster;
        cluster.faults.perform(call, || effect(&mut cluster.lock(), self.node)).await
    }
}

impl NodePlatform for SimulatedNode {
    async fn stage(&self, request: StageVolume) -> Result<(), Failure> {
        self.perform(Call::Stage, |state, node| stage(state, node, request)).await
    }

    async fn unstage(&self, volume: VolumeId, staging_path: PathBuf) -> Result<(), Failure> {
        self.perform(Call::Unstage, |state, node| {
            let staged = &mut machine(state, node)?.staged;
            if staged.get(&volume).is_some_and(|staged| staged.path == staging_path) {
                staged.remove(&volume);
            }
            Ok(())
        })
        .await
    }

    async fn publish(&self, request: PublishVolume) -> Result<(), Failure> {
        self.perform(Call::Publish, |state, node| publish(state, node, request)).await
    }

    async fn unpublish(&self, volume: VolumeId, target_path: PathBuf) -> Result<(), Failure> {
        self.perform(Call::Unpublish, |state, node| {
            let published = &mut machine(state, node)?.published;
            let Some(there) = published.get(&target_path).filter(|there| there.volume == volume)
            else {
                return Ok(());
            };
            remove(&target_path, there.access.is_block())
                .map_err(|error| half_way("remove", &target_path, &error))?;
            published.remove(&target_path);
            Ok(())
        })
        .await
    }

    async fn stats(&self, request: StatsQuery) -> Result<Stats, Failure> {
        self.perform(Call::Stats, |state, node| {
            let record = used_at(state, node, request.volume, &request.volume_path)?;
            let total = record.capacity_bytes;
            let bytes = Usage { total, used: 0, available: total };
            let inodes = Usage { total: 1024, used: 1, available: 1023 };
            let inodes = (!record.is_block).then_some(inodes);
            Ok(Stats { bytes, inodes, condition: record.condition.clone() })
        })
        .await
    }

    async fn expand(&self, request: ExpandOnNode) -> Result<u64, Failure> {
        self.perform(Call::ExpandOnNode, |state, node| {
            let record = used_at(state, node, request.volume, &request.volume_path)?;
            if record.capacity_bytes < request.sizes.required_bytes {
                let message = format!(
                    "the volume has {} bytes: expand it with the controller first",
                    record.capacity_bytes
                );
                return Err(refused(FailureKind::OutOfRange, message));
            }
            Ok(record.capacity_bytes)
        })
        .await
    }

    async fn info(&self) -> Result<NodeInfo, Failure> {
        self.perform(Call::Info, |state, node| {
            Ok(NodeInfo { node, max_volumes: machine(state, node)?.max_volumes })
        })
        .await
    }
}

fn machine(state: &mut State, node: NodeId) -> Result<&mut Machine, Failure> {
    state.nodes.get_mut(&node).ok_or_else(|| {
        let message = format!("node {node} is not registered yet: call again");
        refused(FailureKind::Unavailable, message)
    })
}

fn stage(state: &mut State, node: NodeId, request: StageVolume) -> Result<(), Failure> {
    let record = state.record(request.volume)?;
    if record.node != node || record.attached_readonly.is_none() {
        let message = format!("the volume is not attached to node {node}: attach it first");
        return Err(refused(FailureKind::FailedPrecondition, message));
    }
    let wanted = Staged { path: request.staging_path, access: request.access };
    match machine(state, node)?.staged.entry(request.volume) {
        std::collections::btree_map::Entry::Vacant(entry) => {
            entry.insert(wanted);
            Ok(())
        }
        std::collections::btree_map::Entry::Occupied(entry) if *entry.get() == wanted => Ok(()),
        std::collections::btree_map::Entry::Occupied(entry) => {
            let path = entry.get().path.display();
            let message = format!("the volume is staged in another way at {path}: unstage it");
            Err(refused(FailureKind::AlreadyExists, message))
        }
    }
}

fn publish(state: &mut State, node: NodeId, request: PublishVolume) -> Result<(), Failure> {
    let volume = request.volume;
    state.record(volume)?;
    let machine = machine(state, node)?;
    let staged = machine.staged.get(&volume);
    if staged.is_none_or(|staged| staged.path != request.staging_path) {
        let message = "the volume is not staged at staging_target_path: stage it first";
        return Err(refused(FailureKind::FailedPrecondition, message));
    }
    let (access, mode, readonly) = (request.access, request.mode, request.readonly);
    let wanted = Published { volume, access, mode, readonly };
    match machine.published.get(&request.target_path) {
        Some(there) if *there == wanted => return Ok(()),
        Some(_) => {
            let message = "a volume is published there in another way: unpublish it first";
            return Err(refused(FailureKind::AlreadyExists, message));
        }
        None => {}
    }
    let alone = |mode| mode == AccessMode::SingleNodeSingleWriter;
    let others = machine.published.values().filter(|other| other.volume == volume);
    if others.into_iter().any(|other| alone(other.mode) || alone(mode)) {
        let message = "the volume is for one target, and is published at another: unpublish it";
        return Err(refused(FailureKind::FailedPrecondition, message));
    }
    make(&request.target_path, wanted.access.is_block())
        .map_err(|error| half_way("make", &request.target_path, &error))?;
    machine.published.insert(request.target_path, wanted);
    Ok(())
}

/// The volume, if it is staged or published at this path.
fn used_at<'a>(
    state: &'a mut State,
    node: NodeId,
    volume: VolumeId,
    path: &Path,
) -> Result<&'a Record, Failure> {
    let machine = machine(state, node)?;
    let staged = machine.staged.get(&volume).is_some_and(|staged| staged.path == path);
    let published = machine.published.get(path).is_some_and(|there| there.volume == volume);
    if !staged && !published {
        let message = format!("volume {volume} is not at {}", path.display());
        return Err(refused(FailureKind::NotFound, message));
    }
    state.volumes.get(&volume).ok_or_else(|| no_volume(volume))
}

/// Quick enough to be done in place: it is one entry in one directory.
fn make(path: &Path, is_file: bool) -> io::Result<()> {
    let made = if is_file {
        fs::OpenOptions::new().write(true).create_new(true).open(path).map(drop)
    } else {
        fs::create_dir(path)
    };
    match made {
        // The caller may have made it, and an earlier try of ours.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Only what is empty: whatever else is there is somebody's.
fn remove(path: &Path, is_file: bool) -> io::Result<()> {
    let removed = if is_file { fs::remove_file(path) } else { fs::remove_dir(path) };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn half_way(what: &str, path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot {what} {}: {error}", path.display());
    refused(FailureKind::Unavailable, message)
}
