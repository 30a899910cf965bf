//! A registry and an agent over loop devices, callers of both CSI sockets, and a look at what is left.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hotbay_api::csi;
use hotbay_api::csi::controller_client::ControllerClient;
use hotbay_api::csi::node_client::NodeClient;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use hotbay_api::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::cluster::{Cluster, LIMIT, eventually};

pub(crate) const MIB: i64 = 1 << 20;
/// Between two calls of somebody who insists.
const PAUSE: Duration = Duration::from_millis(50);

/// A registry and an agent whose drives, of 64 MiB each, are in operation.
pub(crate) struct Rig {
    pub(crate) cluster: Cluster,
    pub(crate) runtime: Runtime,
    free: Vec<u64>,
}

impl Rig {
    pub(crate) fn new(drives: usize) -> Self {
        Self::of(Cluster::started(drives, true))
    }

    /// Of parts that run; puts their drives into operation.
    pub(crate) fn of(cluster: Cluster) -> Self {
        cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
        let socket = cluster.path().join("node/csi.sock");
        eventually("CSI is served", || std::os::unix::net::UnixStream::connect(&socket).ok());
        let free = free(&cluster);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        Self { cluster, runtime, free }
    }

    /// A caller with connections of its own.
    pub(crate) fn caller(&self) -> Caller {
        let _context = self.runtime.enter();
        Caller {
            controller: ControllerClient::new(dial(self.cluster.path().join("csi.sock"))),
            node: NodeClient::new(dial(self.cluster.path().join("node/csi.sock"))),
        }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.cluster.path().join(name).to_str().unwrap().to_owned()
    }

    /// A volume that is made and may be used on the node.
    pub(crate) fn attached(&self, name: &str, access: As) -> Volume {
        let mut volume = Volume::new(self, name, access);
        let caller = self.caller();
        self.runtime.block_on(async {
            volume.create(&caller).await.unwrap();
            volume.attach(&caller).await.unwrap();
        });
        volume
    }

    /// Gives a volume up, whatever has become of it.
    pub(crate) fn end(&self, volume: &Volume) {
        let caller = self.caller();
        self.runtime.block_on(async {
            volume.unpublish(&caller).await.unwrap();
            volume.unstage(&caller).await.unwrap();
            volume.detach(&caller).await.unwrap();
            volume.delete(&caller).await.unwrap();
        });
    }

    /// The loop devices over this rig's drives.
    pub(crate) fn loops(&self) -> Vec<String> {
        let listed = Command::new("losetup").args(["-n", "-l", "-O", "NAME,BACK-FILE"]).output();
        let text = String::from_utf8(listed.unwrap().stdout).unwrap();
        let pairs = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
        let is_drive = |backing: &str| {
            self.cluster.drives.iter().any(|drive| Path::new(backing) == drive.path)
        };
        let ours = pairs.filter(|(_, backing)| is_drive(backing.trim()));
        ours.map(|(name, _)| name.to_owned()).collect()
    }

    /// What is mounted below this rig's folder, as the kernel writes it.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        let below = points.filter(|point| Path::new(point).starts_with(self.cluster.path()));
        // A small disk of the test itself is none of a volume's.
        let registry = self.path("registry");
        below.filter(|point| *point != registry).map(str::to_owned).collect()
    }

    /// No loop device, mount, record or extent is left, and all room is free again.
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.loops(), [""; 0], "loop devices are left");
        assert_eq!(self.mounts(), [""; 0], "mounts are left");
        for folder in ["stagings", "dummies"] {
            let folder = self.cluster.path().join("node").join(folder);
            let left = std::fs::read_dir(&folder).map(Iterator::count).unwrap_or(0);
            assert_eq!(left, 0, "files are left in {}", folder.display());
        }
        let volumes = self.cluster.expect(&["get", "volumes", "-o", "json"], 0);
        let volumes: Value = serde_json::from_str(&volumes).unwrap();
        assert_eq!(volumes["items"], serde_json::json!([]), "records are left");
        eventually("everything is erased", || (free(&self.cluster) == self.free).then_some(()));
        for drive in &self.cluster.drives {
            let path = drive.path.to_str().unwrap();
            let label = self.cluster.expect(&["drive", "inspect", path, "-o", "json"], 0);
            let label: Value = serde_json::from_str(&label).unwrap();
            assert_eq!(label["extents"], serde_json::json!([]), "extents are left: {label}");
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.cluster.agent = None;
        self.cluster.registry = None;
        for point in self.mounts().iter().rev() {
            // The kernel writes odd characters as octal numbers.
            let point = point.replace("\\040", " ").replace("\\012", "\n");
            Command::new("umount").arg(point).status().ok();
        }
        for device in self.loops() {
            Command::new("losetup").args(["-d", &device]).status().ok();
        }
    }
}

/// What is free on each drive, once all of them are known.
fn free(cluster: &Cluster) -> Vec<u64> {
    eventually("the labels are told", || {
        let drives = cluster.expect(&["get", "drives", "-o", "json"], 0);
        let drives: Value = serde_json::from_str(&drives).unwrap();
        let drives = drives["items"].as_array().unwrap();
        drives.iter().map(|drive| drive["status"]["freeBytes"].as_u64()).collect()
    })
}

fn dial(socket: PathBuf) -> Channel {
    let connect = move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    };
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector_lazy(tower::service_fn(connect))
}

/// Asserts that a call was refused with this code and these words.
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, words: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(words), "no {words:?} in: {}", status.message());
    assert!(!status.message().contains('\n'), "{:?}", status.message());
}

/// How a pod wants a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum As {
    /// ext4.
    Filesystem,
    Xfs,
    Block,
}

pub(crate) fn capability(access: As, mode: Mode) -> csi::VolumeCapability {
    let mount = |kind: &str| {
        AccessType::Mount(MountVolume { fs_type: kind.to_owned(), ..MountVolume::default() })
    };
    let access = match access {
        As::Filesystem => mount("ext4"),
        As::Xfs => mount("xfs"),
        As::Block => AccessType::Block(BlockVolume {}),
    };
    let access_mode = Some(AccessMode { mode: mode.into() });
    csi::VolumeCapability { access_type: Some(access), access_mode }
}

/// Somebody who calls.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) controller: ControllerClient<Channel>,
    pub(crate) node: NodeClient<Channel>,
}

/// A volume, as a sidecar and a kubelet know it.
#[derive(Clone)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) access: As,
    pub(crate) bytes: i64,
    pub(crate) staging: String,
    pub(crate) target: String,
    pub(crate) volume_context: BTreeMap<String, String>,
    pub(crate) publish_context: BTreeMap<String, String>,
}

impl Volume {
    /// One of 4 MiB that is not made yet.
    pub(crate) fn new(rig: &Rig, name: &str, access: As) -> Self {
        Self {
            name: name.to_owned(),
            id: String::new(),
            access,
            bytes: 4 * MIB,
            staging: rig.path(&format!("{name}-staging")),
            target: rig.path(&format!("{name}-target")),
            volume_context: BTreeMap::new(),
            publish_context: BTreeMap::new(),
        }
    }

    fn capability(&self) -> Option<csi::VolumeCapability> {
        Some(capability(self.access, Mode::SingleNodeWriter))
    }

    pub(crate) fn wish(&self) -> csi::CreateVolumeRequest {
        let range = csi::CapacityRange { required_bytes: self.bytes, limit_bytes: 0 };
        csi::CreateVolumeRequest {
            name: self.name.clone(),
            capacity_range: Some(range),
            volume_capabilities: self.capability().into_iter().collect(),
            ..Default::default()
        }
    }

    pub(crate) async fn create(&mut self, caller: &Caller) -> Result<(), Status> {
        let made = caller.controller.clone().create_volume(self.wish()).await?.into_inner();
        let made = made.volume.unwrap();
        (self.id, self.volume_context) = (made.volume_id, made.volume_context);
        Ok(())
    }

    pub(crate) async fn attach(&mut self, caller: &Caller) -> Result<(), Status> {
        let info = caller.node.clone().node_get_info(csi::NodeGetInfoRequest {}).await?;
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: info.into_inner().node_id,
            volume_capability: self.capability(),
            volume_context: self.volume_context.clone(),
            ..Default::default()
        };
        let answer = caller.controller.clone().controller_publish_volume(request).await?;
        self.publish_context = answer.into_inner().publish_context;
        Ok(())
    }

    pub(crate) async fn stage(&self, caller: &Caller) -> Result<(), Status> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.clone(),
            volume_capability: self.capability(),
            publish_context: self.publish_context.clone(),
            volume_context: self.volume_context.clone(),
            ..Default::default()
        };
        caller.node.clone().node_stage_volume(request).await.map(drop)
    }

    pub(crate) async fn publish(&self, caller: &Caller) -> Result<(), Status> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.clone(),
            target_path: self.target.clone(),
            volume_capability: self.capability(),
            publish_context: self.publish_context.clone(),
            volume_context: self.volume_context.clone(),
            ..Default::default()
        };
        caller.node.clone().node_publish_volume(request).await.map(drop)
    }

    /// How large the volume is at its target.
    pub(crate) async fn stats(&self, caller: &Caller) -> Result<i64, Status> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: self.target.clone(),
            ..Default::default()
        };
        let answer = caller.node.clone().node_get_volume_stats(request).await?.into_inner();
        Ok(answer.usage[0].total)
    }

    pub(crate) async fn unpublish(&self, caller: &Caller) -> Result<(), Status> {
        let (volume_id, target_path) = (self.id.clone(), self.target.clone());
        let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
        caller.node.clone().node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn unstage(&self, caller: &Caller) -> Result<(), Status> {
        let (volume_id, staging_target_path) = (self.id.clone(), self.staging.clone());
        let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
        caller.node.clone().node_unstage_volume(request).await.map(drop)
    }

    pub(crate) async fn detach(&self, caller: &Caller) -> Result<(), Status> {
        let volume_id = self.id.clone();
        let request = csi::ControllerUnpublishVolumeRequest { volume_id, ..Default::default() };
        caller.controller.clone().controller_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn delete(&self, caller: &Caller) -> Result<(), Status> {
        let volume_id = self.id.clone();
        let request = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
        caller.controller.clone().delete_volume(request).await.map(drop)
    }
}

/// Calls until it is done, as sidecars and kubelets do: only what may still be under way is asked again.
pub(crate) async fn insist<T>(what: &str, mut call: impl AsyncFnMut() -> Result<T, Status>) -> T {
    let asking = async {
        loop {
            match call().await {
                Ok(done) => return done,
                Err(status) => {
                    let again = [Code::Aborted, Code::Unavailable, Code::DeadlineExceeded];
                    assert!(again.contains(&status.code()), "{what}: {status}");
                    println!("{what} is asked again: {status}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    };
    tokio::time::timeout(LIMIT, asking).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}
