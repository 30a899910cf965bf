//! A platform in memory: a few nodes with room for volumes, both halves of the provisioner over it, latency and faults
//! as one likes. For tests of the services and of whoever calls them, with no drive, no root and no kernel.
//!
//! What a pod would see is a plain directory or file at the target path. Nothing is mounted: csi-sanity looks no
//! further, and what the kernel makes of a volume is for the real platform's own tests.

mod controller;
mod faults;
mod node;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hotbay_core::ids::{NodeId, VolumeId};

pub use controller::SimulatedController;
pub use faults::{Call, Fault, Faults, Hold, When};
pub use node::SimulatedNode;

use crate::platform::{Access, AccessMode, Condition, Failure, FailureKind, Texts};

/// Sizes are whole multiples of this.
pub const EXTENT_BYTES: u64 = 1 << 20;

/// The whole cluster. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Simulated {
    state: Arc<Mutex<State>>,
    faults: Arc<Faults>,
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<NodeId, Machine>,
    volumes: BTreeMap<VolumeId, Record>,
    /// Counts ids.
    made: u128,
}

#[derive(Debug)]
struct Machine {
    capacity_bytes: u64,
    max_volumes: Option<u32>,
    staged: BTreeMap<VolumeId, Staged>,
    published: BTreeMap<PathBuf, Published>,
}

#[derive(Debug)]
struct Record {
    name: String,
    capacity_bytes: u64,
    is_block: bool,
    parameters: Texts,
    /// Whose drive it is on.
    node: NodeId,
    /// Whether it is attached there, and then whether for reading only.
    attached_readonly: Option<bool>,
    condition: Condition,
}

#[derive(Debug, PartialEq, Eq)]
struct Staged {
    path: PathBuf,
    access: Access,
}

#[derive(Debug, PartialEq, Eq)]
struct Published {
    volume: VolumeId,
    access: Access,
    mode: AccessMode,
    readonly: bool,
}

impl Simulated {
    /// Adds a machine with so much room. No limit of volumes: any number.
    pub fn add_node(&self, node: NodeId, capacity_bytes: u64, max_volumes: Option<u32>) {
        let machine = Machine {
            capacity_bytes,
            max_volumes,
            staged: BTreeMap::new(),
            published: BTreeMap::new(),
        };
        self.lock().nodes.insert(node, machine);
    }

    /// What goes wrong.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The half of the controller.
    pub fn controller(&self) -> SimulatedController {
        SimulatedController { cluster: self.clone() }
    }

    /// The half of one node.
    pub fn node(&self, node: NodeId) -> SimulatedNode {
        SimulatedNode { cluster: self.clone(), node }
    }

    /// Tells of a volume that it works or not. One that is not there is passed over.
    pub fn set_condition(&self, volume: VolumeId, condition: Condition) {
        if let Some(record) = self.lock().volumes.get_mut(&volume) {
            record.condition = condition;
        }
    }

    /// How many volumes there are, and on all nodes together how many are staged and at how many targets they are
    /// published.
    pub fn counts(&self) -> (usize, usize, usize) {
        let state = self.lock();
        let staged = state.nodes.values().map(|machine| machine.staged.len()).sum();
        let published = state.nodes.values().map(|machine| machine.published.len()).sum();
        (state.volumes.len(), staged, published)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn record(&mut self, volume: VolumeId) -> Result<&mut Record, Failure> {
        self.volumes.get_mut(&volume).ok_or_else(|| no_volume(volume))
    }

    /// Room on a node that no volume has; none where there is no such node.
    fn free_bytes(&self, node: NodeId) -> u64 {
        let used: u64 = self
            .volumes
            .values()
            .filter(|record| record.node == node)
            .map(|record| record.capacity_bytes)
            .sum();
        self.nodes.get(&node).map_or(0, |machine| machine.capacity_bytes.saturating_sub(used))
    }
}

fn no_volume(volume: VolumeId) -> Failure {
    Failure::new(FailureKind::NotFound, format!("no volume has the id {volume}"))
}

fn refused(kind: FailureKind, message: impl Into<String>) -> Failure {
    Failure::new(kind, message.into())
}
