//! A whole cluster: a control plane, a network and nodes; and the end of one by its folder, whoever started it.

use std::fs;
use std::net::Ipv4Addr;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};

use rustix::mount::{UnmountFlags, unmount};

use crate::cgroup::{self, Cgroup};
use crate::control_plane::{ControlPlane, Settings, new_rig};
use crate::error::RigError;
use crate::folder::Folder;
use crate::loops::{self, Loops};
use crate::network::{self, NODES_MAX, Network};
use crate::node::Node;

/// Ends with everything in it when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order.
    nodes: Vec<Node>,
    loops: Loops,
    plane: ControlPlane,
    network: Network,
    cgroup: Cgroup,
}

impl Cluster {
    /// Starts it in this folder, which is made if it is not there, with nodes called node1 and so on. All are ready for
    /// pods when it returns. Needs root.
    pub fn start(folder: &Path, nodes: u8) -> Result<Self, RigError> {
        Self::start_in(Self::folder(folder, false)?, nodes)
    }

    /// The same, to go on until it is ended by `end`, also after this program.
    pub fn leave(folder: &Path, nodes: u8) -> Result<(), RigError> {
        let mut cluster = Self::start_in(Self::folder(folder, true)?, nodes)?;
        cluster.nodes.iter_mut().for_each(Node::keep);
        cluster.loops.keep();
        cluster.plane.keep();
        cluster.network.keep();
        cluster.cgroup.keep();
        Ok(())
    }

    fn folder(folder: &Path, outlives: bool) -> Result<Folder, RigError> {
        if !rustix::process::geteuid().is_root() {
            return Err(RigError::NotRoot);
        }
        new_rig(folder, outlives)
    }

    fn start_in(folder: Folder, nodes: u8) -> Result<Self, RigError> {
        let cgroup = Cgroup::make(&folder)?;
        let network = Network::make(&folder)?;
        let settings = Settings { controllers: true, scheduler: true };
        let plane = ControlPlane::start_at(folder, &settings, network.front())?;
        let loops = Loops::of(plane.folder().path());
        let mut cluster = Self { nodes: Vec::new(), loops, plane, network, cgroup };
        let Self { plane, network, cgroup, .. } = &cluster;
        // Most of it is waiting. Whatever becomes of one, the others are there to be ended.
        let started: Vec<_> = thread::scope(|scope| {
            let start = |number| scope.spawn(move || Node::start(plane, network, cgroup, number));
            let starts: Vec<_> = (1..=nodes.min(NODES_MAX)).map(start).collect();
            let ended = starts.into_iter().map(ScopedJoinHandle::join);
            ended.map(|end| end.unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        cluster.nodes = started.into_iter().collect::<Result<_, _>>()?;
        Ok(cluster)
    }

    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    pub fn plane_mut(&mut self) -> &mut ControlPlane {
        &mut self.plane
    }

    /// An address of services that nothing has: for one whose address must be known before it is made. There is no DNS.
    pub fn service_address(&self) -> Ipv4Addr {
        self.network.service()
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Puts it back to a snapshot. As Kubernetes asks for, all of its parts are started again: they watch from a
    /// version that they have seen, and would hear nothing until there is a newer one.
    pub fn restore_snapshot(&mut self, snapshot: &Path) -> Result<(), RigError> {
        self.plane.restore_snapshot(snapshot)?;
        self.nodes.iter_mut().try_for_each(|node| node.restart(&self.plane))
    }

    pub fn nodes_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }
}

/// A control plane alone, to go on until it is ended by `end`, also after this program.
pub fn leave_control_plane(folder: &Path) -> Result<(), RigError> {
    let settings = Settings { controllers: true, scheduler: true };
    let mut plane = ControlPlane::start_in(new_rig(folder, true)?, &settings)?;
    plane.keep();
    Ok(())
}

/// Ends the rig of this folder, whatever is left of it, and removes the folder.
pub fn end(folder: &Path) -> Result<(), RigError> {
    let rig = Folder::existing(folder)?;
    let mut running = rig.running();
    // First the nodes, which take everything on them along; of the control plane, who asks before who answers.
    running.sort_by_key(|process| match process.name.as_str() {
        "etcd" => 3,
        "kube-apiserver" => 2,
        name if name.starts_with("kube-") => 1,
        _ => 0,
    });
    for process in running {
        process.end()?;
    }
    // Nothing is mounted here from outside of the nodes' namespaces; but somebody may have looked after something.
    for place in mounts_below(folder) {
        unmount(&place, UnmountFlags::DETACH)
            .map_err(|error| RigError::file("unmount", &place)(error.into()))?;
    }
    loops::detach(folder)?;
    network::remove(&rig)?;
    cgroup::remove(&rig)?;
    fs::remove_dir_all(folder).map_err(RigError::file("remove", folder))
}

/// The places below a folder where something is mounted, the innermost first.
fn mounts_below(folder: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let mut below: Vec<_> =
        places.filter(|place| Path::new(place).starts_with(folder)).map(str::to_owned).collect();
    below.reverse();
    below
}
