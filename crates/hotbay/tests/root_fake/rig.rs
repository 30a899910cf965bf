//! A registry and an agent with one drive that can be cut, pulled and plugged in again, and a kubelet's calls. All that
//! was mounted or mapped is taken apart with the value, also when a test fails.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use hotbay_api::PROTOCOL;
use hotbay_api::csi;
use hotbay_api::csi::controller_client::ControllerClient;
use hotbay_api::csi::node_client::NodeClient;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use hotbay_api::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use hotbay_api::volumes::AnnotateRequest;
use hotbay_api::volumes::volumes_client::VolumesClient;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::cluster::{Cluster, TestDrive, eventually};
use crate::machine::Pluggable;

pub(crate) const MIB: u64 = 1 << 20;
/// By which a volume's owner says that its pod is to start although the volume is dead.
pub(crate) const IGNORE: &str = "pv.attach.kubernetes.io/ignore-if-inaccessible";

/// How a pod wants a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum As {
    Filesystem,
    Block,
}

/// A registry, an agent and a drive.
pub(crate) struct Rig {
    pub(crate) cluster: Cluster,
    pub(crate) drive: Pluggable,
    runtime: Runtime,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let mut cluster = Cluster::new(0, true);
        let drive = Pluggable::new(cluster.path(), "bay");
        cluster.drives.push(TestDrive::of(drive.place.clone()));
        cluster.start_registry();
        cluster.start_agent();
        cluster.wait_ready();
        cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        Self { cluster, drive, runtime }
    }

    /// A volume of 16 MiB, attached to the node.
    pub(crate) fn volume(&self, name: &str, how: As, opted_in: bool) -> Volume<'_> {
        let mut parameters = BTreeMap::new();
        if opted_in {
            parameters.insert("ignoreIfInaccessible".to_owned(), "yes".to_owned());
        }
        let request = csi::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes: 16 << 20, limit_bytes: 0 }),
            volume_capabilities: vec![capability(how, &[])],
            parameters,
            ..Default::default()
        };
        let mut controller = self.controller();
        let made = self.runtime.block_on(controller.create_volume(request)).unwrap().into_inner();
        let volume = made.volume.unwrap();
        let path = |what: &str| {
            self.cluster.path().join(format!("{name}-{what}")).to_str().unwrap().to_owned()
        };
        let mut volume = Volume {
            rig: self,
            id: volume.volume_id,
            how,
            staging: path("staging"),
            target: path("target"),
            volume_context: volume.volume_context,
            publish_context: Default::default(),
            flags: Vec::new(),
        };
        volume.attach().unwrap();
        volume
    }

    /// Where the first volume of the drive begins.
    pub(crate) fn first_extent(&self) -> u64 {
        let device = self.drive.device.as_ref().unwrap();
        let text = self.cluster.expect(&["drive", "inspect", device, "-o", "json"], 0);
        let label: Value = serde_json::from_str(&text).unwrap();
        find_number(&label, "startBytes").unwrap_or_else(|| panic!("no volume in {text}"))
    }

    /// Cuts the file under the drive: what is behind cannot be read any more.
    pub(crate) fn cut(&self, at_bytes: u64) {
        self.resize(at_bytes);
    }

    /// It is whole again, with zeroes where it was cut.
    pub(crate) fn mend(&self) {
        self.resize(64 * MIB);
    }

    fn resize(&self, bytes: u64) {
        let file = self.cluster.path().join("bay.img");
        File::options().write(true).open(file).unwrap().set_len(bytes).unwrap();
    }

    /// The agent dies, and starts again while the drive is out.
    pub(crate) fn pull_while_the_agent_is_away(&mut self) {
        self.cluster.agent.take().expect("it runs").kill();
        self.drive.pull();
        self.cluster.start_agent();
        self.cluster.wait_ready();
        eventually("the drive is missed", || {
            let waits = self.cluster.drive(0)["status"].to_string();
            waits.contains("not on the machine").then_some(())
        });
    }

    pub(crate) fn restart_agent(&mut self) {
        self.cluster.agent.take().expect("it runs").kill();
        self.cluster.start_agent();
        self.cluster.wait_ready();
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        let _context = self.runtime.enter();
        ControllerClient::new(dial(self.cluster.path().join("csi.sock")))
    }

    pub(crate) fn node(&self) -> NodeClient<Channel> {
        let _context = self.runtime.enter();
        let socket = self.cluster.path().join("node/csi.sock");
        eventually("CSI is served", || std::os::unix::net::UnixStream::connect(&socket).ok());
        NodeClient::new(dial(socket))
    }

    pub(crate) fn events(&self) -> String {
        self.cluster.expect(&["events"], 0)
    }

    pub(crate) fn fake_attachments(&self) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-s", "--unix-socket"]).arg(self.cluster.http()).arg("http://x/metrics");
        let text = String::from_utf8(curl.output().unwrap().stdout).unwrap();
        let line = text.lines().find(|line| line.starts_with("hotbay_fake_attachments "));
        line.expect("there is such a number").to_owned()
    }

    /// The loop devices over this drive, or over files in this rig's folder, the drive's own not among them.
    fn loops(&self) -> Vec<String> {
        let listed = Command::new("losetup").args(["-n", "-l", "-O", "NAME,BACK-FILE"]).output();
        let text = String::from_utf8(listed.unwrap().stdout).unwrap();
        let node = self.cluster.path().join("node");
        let pairs = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
        let ours = pairs.filter(|(_, backing)| {
            let backing = backing.trim();
            self.drive.device.as_deref() == Some(backing) || Path::new(backing).starts_with(&node)
        });
        ours.map(|(name, _)| name.to_owned()).collect()
    }

    /// Nothing of volumes is left on the machine or in the agent's folder.
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.loops(), [""; 0], "loop devices are left");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.cluster.path().to_str().unwrap()), "{mounts}");
        for folder in ["stagings", "dummies"] {
            let folder = self.cluster.path().join("node").join(folder);
            let left = std::fs::read_dir(&folder).map(Iterator::count).unwrap_or(0);
            assert_eq!(left, 0, "files are left in {}", folder.display());
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.cluster.agent = None;
        let under = self.cluster.path().to_str().unwrap().to_owned();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for line in mounts.lines().filter(|line| line.contains(&under)) {
            if let Some(point) = line.split(' ').nth(4) {
                Command::new("umount").arg(point).status().ok();
            }
        }
        for device in self.loops() {
            Command::new("losetup").args(["-d", &device]).status().ok();
        }
    }
}

fn dial(socket: PathBuf) -> Channel {
    let connect = move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    };
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector_lazy(tower::service_fn(connect))
}

fn capability(how: As, flags: &[String]) -> csi::VolumeCapability {
    let access = match how {
        As::Filesystem => AccessType::Mount(MountVolume {
            fs_type: "ext4".to_owned(),
            mount_flags: flags.to_vec(),
            ..MountVolume::default()
        }),
        As::Block => AccessType::Block(BlockVolume {}),
    };
    csi::VolumeCapability {
        access_type: Some(access),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

/// A volume, as the kubelet deals with it.
pub(crate) struct Volume<'a> {
    rig: &'a Rig,
    pub(crate) id: String,
    how: As,
    staging: String,
    pub(crate) target: String,
    volume_context: BTreeMap<String, String>,
    publish_context: BTreeMap<String, String>,
    pub(crate) flags: Vec<String>,
}

impl Volume<'_> {
    pub(crate) fn attach(&mut self) -> Result<(), Status> {
        let info = self.rig.node().node_get_info_call(&self.rig.runtime);
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: info,
            volume_capability: Some(capability(self.how, &[])),
            ..Default::default()
        };
        let mut controller = self.rig.controller();
        let answer = self.rig.runtime.block_on(controller.controller_publish_volume(request))?;
        self.publish_context = answer.into_inner().publish_context;
        Ok(())
    }

    pub(crate) fn stage(&self) -> Result<(), Status> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.clone(),
            volume_capability: Some(capability(self.how, &self.flags)),
            publish_context: self.publish_context.clone(),
            volume_context: self.volume_context.clone(),
            ..Default::default()
        };
        self.rig.runtime.block_on(self.rig.node().node_stage_volume(request)).map(drop)
    }

    pub(crate) fn publish(&self) -> Result<(), Status> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.clone(),
            target_path: self.target.clone(),
            volume_capability: Some(capability(self.how, &[])),
            publish_context: self.publish_context.clone(),
            volume_context: self.volume_context.clone(),
            ..Default::default()
        };
        self.rig.runtime.block_on(self.rig.node().node_publish_volume(request)).map(drop)
    }

    pub(crate) fn unpublish(&self) -> Result<(), Status> {
        let (volume_id, target_path) = (self.id.clone(), self.target.clone());
        let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
        self.rig.runtime.block_on(self.rig.node().node_unpublish_volume(request)).map(drop)
    }

    pub(crate) fn unstage(&self) -> Result<(), Status> {
        let (volume_id, staging_target_path) = (self.id.clone(), self.staging.clone());
        let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
        self.rig.runtime.block_on(self.rig.node().node_unstage_volume(request)).map(drop)
    }

    /// What a kubelet does for a pod that starts, each call twice.
    pub(crate) fn start_pod(&self) {
        for _ in 0..2 {
            self.stage().unwrap();
        }
        for _ in 0..2 {
            self.publish().unwrap();
        }
    }

    /// What a kubelet does for a pod that ends, each call twice.
    pub(crate) fn end_pod(&self) {
        for _ in 0..2 {
            self.unpublish().unwrap();
        }
        for _ in 0..2 {
            self.unstage().unwrap();
        }
    }

    pub(crate) fn detach(&self) {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            ..Default::default()
        };
        let mut controller = self.rig.controller();
        self.rig.runtime.block_on(controller.controller_unpublish_volume(request)).unwrap();
    }

    /// Until it is done, as the provisioner does.
    pub(crate) fn delete(&self) {
        eventually("it is deleted", || {
            let volume_id = self.id.clone();
            let request = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
            let mut controller = self.rig.controller();
            self.rig.runtime.block_on(controller.delete_volume(request)).ok()
        });
    }

    /// The condition that the kubelet is shown: whether it is abnormal, and its words.
    pub(crate) fn condition(&self) -> (bool, String) {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: self.target.clone(),
            ..Default::default()
        };
        let answer = self.rig.runtime.block_on(self.rig.node().node_get_volume_stats(request));
        let condition = answer.unwrap().into_inner().volume_condition.unwrap();
        (condition.abnormal, condition.message)
    }

    /// Sets an annotation, or none; gives the volume as people see it.
    pub(crate) fn annotate(&self, set: &[(&str, &str)]) -> Value {
        let _context = self.rig.runtime.enter();
        let mut volumes = VolumesClient::new(dial(self.rig.cluster.api()));
        let set = set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let request = AnnotateRequest {
            protocol: PROTOCOL,
            volume: self.id.clone(),
            set: set.collect(),
            remove: Vec::new(),
        };
        let answer = self.rig.runtime.block_on(volumes.annotate(request)).unwrap().into_inner();
        serde_json::from_str(&answer.volume_json).unwrap()
    }

    /// `fake-attach`, `fake-device` and the operational status, as people see them.
    pub(crate) fn shown(&self) -> (Option<String>, Option<String>, String) {
        let volume = self.annotate(&[]);
        let annotations: BTreeMap<String, String> =
            serde_json::from_value(volume["annotations"].clone()).unwrap_or_default();
        let status = volume["status"]["operationalStatus"].as_str().unwrap().to_owned();
        let annotation = |key: &str| annotations.get(key).cloned();
        (annotation("fake-attach"), annotation("fake-device"), status)
    }

    /// Waits until people see this.
    pub(crate) fn wait_shown(&self, fake: bool, status: &str) {
        eventually(&format!("fake-attach {fake}, {status}"), || {
            let (attach, _, now) = self.shown();
            (attach.as_deref() == fake.then_some("yes") && now == status).then_some(())
        });
    }

    /// What is mounted at the target: kind and source of each mount there.
    pub(crate) fn mounts(&self) -> Vec<(String, String)> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let at = |line: &&str| line.split(' ').nth(4) == Some(&self.target);
        let told = table.lines().filter(at).map(|line| {
            let mut words = line.split(" - ").nth(1).unwrap().split(' ');
            (words.next().unwrap().to_owned(), words.next().unwrap().to_owned())
        });
        told.collect()
    }

    pub(crate) fn file(&self) -> PathBuf {
        Path::new(&self.target).join("data")
    }

    /// The size of the block device at the target.
    pub(crate) fn block_bytes(&self) -> u64 {
        use std::io::{Seek, SeekFrom};
        File::open(&self.target).unwrap().seek(SeekFrom::End(0)).unwrap()
    }
}

/// Who the node is, by its own word.
trait Info {
    fn node_get_info_call(self, runtime: &Runtime) -> String;
}

impl Info for NodeClient<Channel> {
    fn node_get_info_call(mut self, runtime: &Runtime) -> String {
        let asked = self.node_get_info(csi::NodeGetInfoRequest {});
        runtime.block_on(asked).unwrap().into_inner().node_id
    }
}

fn find_number(value: &Value, key: &str) -> Option<u64> {
    match value {
        Value::Object(fields) => fields
            .get(key)
            .and_then(Value::as_u64)
            .or_else(|| fields.values().find_map(|value| find_number(value, key))),
        Value::Array(values) => values.iter().find_map(|value| find_number(value, key)),
        _ => None,
    }
}
