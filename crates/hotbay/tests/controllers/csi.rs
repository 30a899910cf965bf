//! What a sidecar asks of a controller: until it is done, or a final code says no.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hotbay_api::csi;
use hotbay_api::csi::controller_client::ControllerClient;
use hotbay_api::csi::identity_client::IdentityClient;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use hotbay_api::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

const MIB: i64 = 1 << 20;
/// A sidecar asks again after a while, for as long as it takes.
const AGAIN: Duration = Duration::from_millis(100);
/// A test does not: longer than another takes to lead and to do it, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(120);

/// A sidecar's connection, dialled again when it breaks.
pub(crate) fn dial(socket: PathBuf) -> ControllerClient<Channel> {
    ControllerClient::new(connection(socket))
}

/// Whether a sidecar that starts goes on, or has to wait.
pub(crate) async fn is_ready(socket: PathBuf) -> bool {
    let probed = IdentityClient::new(connection(socket)).probe(csi::ProbeRequest {}).await;
    probed.unwrap().into_inner().ready.unwrap()
}

fn connection(socket: PathBuf) -> Channel {
    let connect = move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    };
    let endpoint = Endpoint::from_static("http://localhost").timeout(Duration::from_secs(10));
    endpoint.connect_with_connector_lazy(tower::service_fn(connect))
}

fn capability() -> csi::VolumeCapability {
    let filesystem = MountVolume { fs_type: "ext4".to_owned(), ..MountVolume::default() };
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(filesystem)),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

/// Asks for a volume of 16 MiB.
pub(crate) fn request(name: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 16 * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability()],
        ..csi::CreateVolumeRequest::default()
    }
}

/// Asks for as long as it is worth asking again; fails with what was heard last.
async fn insist<T, F: Future<Output = Result<Response<T>, Status>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let goes_on = [
        Code::Unavailable,
        Code::Aborted,
        Code::DeadlineExceeded,
        Code::Cancelled,
        Code::Unknown,
        Code::ResourceExhausted,
    ];
    let give_up = Instant::now() + LIMIT;
    loop {
        match ask().await {
            Ok(answer) => return answer.into_inner(),
            Err(status) => {
                assert!(goes_on.contains(&status.code()), "{what}: {status}");
                assert!(Instant::now() < give_up, "{what}: not within {LIMIT:?}: {status}");
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Makes a volume of 16 MiB; gives its id.
pub(crate) async fn create(client: ControllerClient<Channel>, name: String) -> String {
    let create = || {
        let (mut client, request) = (client.clone(), request(&name));
        async move { client.create_volume(request).await }
    };
    insist(&name, create).await.volume.unwrap().volume_id
}

/// Lets a node use a volume.
pub(crate) async fn publish(client: ControllerClient<Channel>, volume_id: &str, node_id: &str) {
    let request = csi::ControllerPublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        node_id: node_id.to_owned(),
        volume_capability: Some(capability()),
        ..csi::ControllerPublishVolumeRequest::default()
    };
    let publish = || {
        let (mut client, request) = (client.clone(), request.clone());
        async move { client.controller_publish_volume(request).await }
    };
    insist(volume_id, publish).await;
}

/// Ends the use of a volume by a node.
pub(crate) async fn unpublish(client: ControllerClient<Channel>, volume_id: &str, node_id: &str) {
    let request = csi::ControllerUnpublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        node_id: node_id.to_owned(),
        ..csi::ControllerUnpublishVolumeRequest::default()
    };
    let unpublish = || {
        let (mut client, request) = (client.clone(), request.clone());
        async move { client.controller_unpublish_volume(request).await }
    };
    insist(volume_id, unpublish).await;
}

pub(crate) async fn delete(client: ControllerClient<Channel>, volume_id: &str) {
    let volume_id = volume_id.to_owned();
    let delete = || {
        let request =
            csi::DeleteVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
        let mut client = client.clone();
        async move { client.delete_volume(request).await }
    };
    insist(&volume_id, delete).await;
}
