//! The life of a volume in the calls of a sidecar and a kubelet, and a client that makes them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use hotbay_api::csi;
use hotbay_api::csi::controller_client::ControllerClient;
use hotbay_api::csi::identity_client::IdentityClient;
use hotbay_api::csi::node_client::NodeClient;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use hotbay_api::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::rig::Rig;

/// A volume that is made a filesystem on.
pub(super) const USUAL_BYTES: u64 = 16 << 20;
/// The smallest that there can be.
const TINY_BYTES: u64 = 1 << 20;
/// How often a call is made that is answered with "ask again".
const TRIES: usize = 20;

/// The steps of a life, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Publish,
    Stage,
    Mount,
    Unmount,
    Unstage,
    Unpublish,
    Delete,
}

impl Step {
    pub(super) const ALL: [Self; 8] = [
        Self::Create,
        Self::Publish,
        Self::Stage,
        Self::Mount,
        Self::Unmount,
        Self::Unstage,
        Self::Unpublish,
        Self::Delete,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Create => "CreateVolume",
            Self::Publish => "ControllerPublishVolume",
            Self::Stage => "NodeStageVolume, with mkfs",
            Self::Mount => "NodePublishVolume",
            Self::Unmount => "NodeUnpublishVolume",
            Self::Unstage => "NodeUnstageVolume",
            Self::Unpublish => "ControllerUnpublishVolume",
            Self::Delete => "DeleteVolume",
        }
    }
}

/// One caller, with connections of its own.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) identity: IdentityClient<Channel>,
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
    node_id: String,
}

impl Client {
    /// Connects to both sockets.
    pub(super) async fn connect(controller: &Path, agent: &Path) -> anyhow::Result<Self> {
        let (controller, agent) = (dial(controller).await?, dial(agent).await?);
        let mut node = NodeClient::new(agent);
        let info = node.node_get_info(csi::NodeGetInfoRequest {}).await?.into_inner();
        Ok(Self {
            identity: IdentityClient::new(controller.clone()),
            controller: ControllerClient::new(controller),
            node,
            node_id: info.node_id,
        })
    }
}

async fn dial(socket: &Path) -> anyhow::Result<Channel> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let connected = Endpoint::from_static("http://hotbay").connect_with_connector(connector).await;
    connected.with_context(|| format!("cannot connect to {}", socket.display()))
}

/// A volume, and what was answered about it so far.
#[derive(Debug)]
pub(super) struct Life {
    name: String,
    bytes: u64,
    id: String,
    staging: String,
    target: String,
    volume_context: BTreeMap<String, String>,
    publish_context: BTreeMap<String, String>,
    /// How often a call had to be made again.
    pub(super) again: usize,
}

impl Life {
    /// A volume that lives its whole life.
    pub(super) fn usual(rig: &Rig, name: &str) -> Self {
        Self::new(rig, name, USUAL_BYTES)
    }

    /// One that is only there.
    pub(super) fn tiny(rig: &Rig, name: &str) -> Self {
        Self::new(rig, name, TINY_BYTES)
    }

    fn new(rig: &Rig, name: &str, bytes: u64) -> Self {
        let path = |what: &str| rig.folder().join(format!("{name}-{what}")).display().to_string();
        Self {
            name: name.to_owned(),
            bytes,
            id: String::new(),
            staging: path("staging"),
            target: path("target"),
            volume_context: BTreeMap::new(),
            publish_context: BTreeMap::new(),
            again: 0,
        }
    }

    /// Takes one step; again, as callers do, while the answer says so.
    pub(super) async fn step(&mut self, client: &Client, step: Step) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            match self.call(client.clone(), step).await {
                Ok(()) => return Ok(()),
                Err(status) if worth_another_try(&status) => self.again += 1,
                Err(status) => anyhow::bail!("{} of {}: {status}", step.name(), self.name),
            }
        }
        anyhow::bail!("{} of {} is not done after {TRIES} calls", step.name(), self.name)
    }

    async fn call(&mut self, client: Client, step: Step) -> Result<(), Status> {
        let Client { mut controller, mut node, node_id, .. } = client;
        let volume_id = self.id.clone();
        match step {
            Step::Create => self.create(controller).await,
            Step::Publish => {
                let volume_capability = Some(capability());
                let request = csi::ControllerPublishVolumeRequest {
                    volume_id,
                    node_id,
                    volume_capability,
                    volume_context: self.volume_context.clone(),
                    ..Default::default()
                };
                let answer = controller.controller_publish_volume(request).await?;
                self.publish_context = answer.into_inner().publish_context;
                Ok(())
            }
            Step::Stage => node.node_stage_volume(self.stage()).await.map(drop),
            Step::Mount => node.node_publish_volume(self.mount()).await.map(drop),
            Step::Unmount => {
                let target_path = self.target.clone();
                let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
                node.node_unpublish_volume(request).await.map(drop)
            }
            Step::Unstage => {
                let staging_target_path = self.staging.clone();
                let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
                node.node_unstage_volume(request).await.map(drop)
            }
            Step::Unpublish => {
                let request = csi::ControllerUnpublishVolumeRequest {
                    volume_id,
                    node_id,
                    ..Default::default()
                };
                controller.controller_unpublish_volume(request).await.map(drop)
            }
            Step::Delete => {
                let request = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
                controller.delete_volume(request).await.map(drop)
            }
        }
    }

    async fn create(&mut self, mut controller: ControllerClient<Channel>) -> Result<(), Status> {
        let required_bytes = i64::try_from(self.bytes).expect("some MiB");
        let request = csi::CreateVolumeRequest {
            name: self.name.clone(),
            capacity_range: Some(csi::CapacityRange { required_bytes, limit_bytes: 0 }),
            volume_capabilities: vec![capability()],
            ..Default::default()
        };
        let answer = controller.create_volume(request).await?.into_inner();
        let made = answer.volume.ok_or_else(|| Status::internal("no volume in the answer"))?;
        (self.id, self.volume_context) = (made.volume_id, made.volume_context);
        Ok(())
    }

    fn stage(&self) -> csi::NodeStageVolumeRequest {
        csi::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.clone(),
            volume_capability: Some(capability()),
            publish_context: self.publish_context.clone(),
            volume_context: self.volume_context.clone(),
            ..Default::default()
        }
    }

    fn mount(&self) -> csi::NodePublishVolumeRequest {
        csi::NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.clone(),
            target_path: self.target.clone(),
            volume_capability: Some(capability()),
            publish_context: self.publish_context.clone(),
            volume_context: self.volume_context.clone(),
            ..Default::default()
        }
    }
}

fn worth_another_try(status: &Status) -> bool {
    matches!(status.code(), Code::Aborted | Code::Unavailable | Code::DeadlineExceeded)
}

fn capability() -> csi::VolumeCapability {
    let mount = MountVolume { fs_type: "ext4".to_owned(), ..MountVolume::default() };
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}
