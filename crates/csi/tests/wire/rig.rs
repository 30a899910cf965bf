//! A controller and a node on sockets of their own, and clients for them.

use std::path::PathBuf;
use std::sync::Arc;

use hotbay_api::csi;
use hotbay_api::csi::controller_client::ControllerClient;
use hotbay_api::csi::identity_client::IdentityClient;
use hotbay_api::csi::node_client::NodeClient;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use hotbay_api::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use hotbay_core::ids::NodeId;
use hotbay_csi::identity::Identity;
use hotbay_csi::serve::{self, Socket};
use hotbay_csi::simulated::Simulated;
use http::Uri;
use hyper::body::Incoming;
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tower::util::BoxCloneService;

pub(crate) const HERE: NodeId = NodeId::from_bits(0xa);
pub(crate) const THERE: NodeId = NodeId::from_bits(0xb);
pub(crate) const MIB: i64 = 1 << 20;

/// What is below a client that does not count by itself.
pub(crate) type Patient =
    BoxCloneService<http::Request<Body>, http::Response<Incoming>, hyper::Error>;

/// Two machines with 100 GiB each; the Node service is that of [`HERE`]. All ends with it.
pub(crate) struct Rig {
    pub(crate) cluster: Simulated,
    dir: TempDir,
}

impl Rig {
    /// Needs to be made within a runtime.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Simulated::default();
        for node in [HERE, THERE] {
            cluster.add_node(node, 100 << 30, Some(1000));
        }
        let identity = || Identity::new("1.2.3", || true);
        let routes = [
            ("c.sock", serve::controller(identity(), Arc::new(cluster.controller()))),
            ("n.sock", serve::node(identity(), Arc::new(cluster.node(HERE)))),
        ];
        for (name, routes) in routes {
            let socket = Socket::bind(&dir.path().join(name)).unwrap();
            tokio::spawn(serve::serve(socket, routes, std::future::pending()));
        }
        Self { cluster, dir }
    }

    /// Each has a connection of its own.
    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(dial(self.dir.path().join("c.sock")))
    }

    pub(crate) fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(dial(self.dir.path().join("n.sock")))
    }

    pub(crate) fn identities(&self) -> [IdentityClient<Channel>; 2] {
        let sockets = ["c.sock", "n.sock"].map(|name| self.dir.path().join(name));
        sockets.map(|socket| IdentityClient::new(dial(socket)))
    }

    /// A client that leaves a deadline in the header to the server alone; the usual one counts by itself as well.
    pub(crate) async fn patient_controller(&self) -> ControllerClient<Patient> {
        let socket = UnixStream::connect(self.dir.path().join("c.sock")).await.unwrap();
        let (sender, connection) =
            handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let send = move |request| {
            let mut sender = sender.clone();
            async move { sender.send_request(request).await }
        };
        let origin = Uri::from_static("http://localhost");
        ControllerClient::with_origin(BoxCloneService::new(tower::service_fn(send)), origin)
    }

    /// A path in the rig's folder; nothing is there yet.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }
}

/// Connects with the first call.
pub(crate) fn dial(socket: PathBuf) -> Channel {
    let connect = move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    };
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector_lazy(tower::service_fn(connect))
}

pub(crate) fn block(mode: Mode) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub(crate) fn mount(mode: Mode) -> csi::VolumeCapability {
    let filesystem = MountVolume { fs_type: "ext4".to_owned(), ..MountVolume::default() };
    csi::VolumeCapability { access_type: Some(AccessType::Mount(filesystem)), ..block(mode) }
}

pub(crate) fn writer() -> csi::VolumeCapability {
    mount(Mode::SingleNodeMultiWriter)
}

/// 64 MiB on [`HERE`].
pub(crate) fn create(name: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 64 * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![writer()],
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![topology(HERE)],
            preferred: vec![],
        }),
        ..csi::CreateVolumeRequest::default()
    }
}

pub(crate) fn topology(node: NodeId) -> csi::Topology {
    csi::Topology { segments: [("hotbay.dev/node".to_owned(), node.to_string())].into() }
}

pub(crate) fn delete(volume: &str) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest { volume_id: volume.to_owned(), ..Default::default() }
}

pub(crate) fn attach(volume: &str, node: NodeId) -> csi::ControllerPublishVolumeRequest {
    csi::ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_string(),
        volume_capability: Some(writer()),
        ..Default::default()
    }
}

pub(crate) fn detach(volume: &str, node: &str) -> csi::ControllerUnpublishVolumeRequest {
    csi::ControllerUnpublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        ..Default::default()
    }
}

pub(crate) fn stage(volume: &str, staging: &str) -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_id: volume.to_owned(),
        staging_target_path: staging.to_owned(),
        volume_capability: Some(writer()),
        ..Default::default()
    }
}

pub(crate) fn unstage(volume: &str, staging: &str) -> csi::NodeUnstageVolumeRequest {
    csi::NodeUnstageVolumeRequest {
        volume_id: volume.to_owned(),
        staging_target_path: staging.to_owned(),
    }
}

pub(crate) fn publish(volume: &str, staging: &str, target: &str) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: volume.to_owned(),
        staging_target_path: staging.to_owned(),
        target_path: target.to_owned(),
        volume_capability: Some(writer()),
        ..Default::default()
    }
}

pub(crate) fn unpublish(volume: &str, target: &str) -> csi::NodeUnpublishVolumeRequest {
    csi::NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path: target.to_owned() }
}

pub(crate) fn expand(volume: &str, bytes: i64) -> csi::ControllerExpandVolumeRequest {
    csi::ControllerExpandVolumeRequest {
        volume_id: volume.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        ..Default::default()
    }
}

pub(crate) fn stats(volume: &str, path: &str) -> csi::NodeGetVolumeStatsRequest {
    csi::NodeGetVolumeStatsRequest {
        volume_id: volume.to_owned(),
        volume_path: path.to_owned(),
        ..Default::default()
    }
}

/// A volume that exists, by its id.
pub(crate) async fn made(controller: &mut ControllerClient<Channel>, name: &str) -> String {
    let answer = controller.create_volume(create(name)).await.unwrap().into_inner();
    answer.volume.unwrap().volume_id
}
