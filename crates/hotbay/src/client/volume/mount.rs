//! `hotbay volume mount` and `unmount`: a volume on this machine, without Kubernetes. The registry grants the use, the
//! agent's CSI socket does the rest; each step can be repeated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hotbay_api::PROTOCOL;
use hotbay_api::csi;
use hotbay_api::csi::node_client::NodeClient;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use hotbay_api::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use hotbay_api::kinds::Volume;
use hotbay_api::volumes as wire;
use hotbay_node::PersistedMount;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::{found, parsed, turned_down, watched};
use crate::cli::{AgentArgs, MountArgs};
use crate::client::api::{Api, to_socket};
use crate::client::error::ClientError;
use crate::client::exit::Exit;
use crate::client::screen::{Screen, plain};
use crate::config;

/// How long the agent may take: it may have to make a filesystem.
const DEADLINE: Duration = Duration::from_secs(300);

/// The agent of this machine.
struct Agent {
    folder: PathBuf,
    client: NodeClient<Channel>,
}

/// What CSI needs to know to show a volume at a path.
struct Shown {
    volume_id: String,
    staging: String,
    target: String,
    capability: csi::VolumeCapability,
    publish_context: BTreeMap<String, String>,
    context: BTreeMap<String, String>,
    read_only: bool,
}

impl Agent {
    async fn connect(args: AgentArgs) -> Result<Self, ClientError> {
        let folder = match args.agent_dir {
            Some(folder) => folder,
            None => config::usual_agent_dir()?,
        };
        let socket = args.csi.unwrap_or_else(|| folder.join("csi.sock"));
        let channel = to_socket(socket.clone()).await;
        let channel = channel.map_err(|_| ClientError::NoAgent { socket })?;
        Ok(Self { folder, client: NodeClient::new(channel) })
    }

    /// The id of this node.
    async fn node(&mut self) -> Result<String, ClientError> {
        let request = timed(csi::NodeGetInfoRequest {});
        let info = self.client.node_get_info(request).await.map_err(turned)?;
        Ok(info.into_inner().node_id)
    }

    /// Stages and publishes.
    async fn show(&mut self, shown: Shown) -> Result<(), Status> {
        let Shown { volume_id, staging, target, capability, publish_context, context, read_only } =
            shown;
        let stage = timed(csi::NodeStageVolumeRequest {
            volume_id: volume_id.clone(),
            staging_target_path: staging.clone(),
            volume_capability: Some(capability.clone()),
            publish_context: publish_context.clone(),
            volume_context: context.clone(),
            ..csi::NodeStageVolumeRequest::default()
        });
        self.client.node_stage_volume(stage).await?;
        let publish = timed(csi::NodePublishVolumeRequest {
            volume_id,
            staging_target_path: staging,
            target_path: target,
            volume_capability: Some(capability),
            readonly: read_only,
            publish_context,
            volume_context: context,
            ..csi::NodePublishVolumeRequest::default()
        });
        self.client.node_publish_volume(publish).await?;
        Ok(())
    }

    fn staging(&self, volume: &Volume) -> PathBuf {
        self.folder.join("staging").join(&volume.metadata.uid)
    }
}

pub(super) async fn mount(
    api: &Api,
    screen: &mut Screen,
    args: MountArgs,
) -> Result<Exit, ClientError> {
    let MountArgs { name, path, filesystem, option, read_only, persist, agent } = args;
    let target = std::path::absolute(path)?;
    let Some(volume) = found(api, screen, &name).await? else { return Ok(Exit::NotFound) };
    let name = plain(&volume.metadata.name);
    let mut agent = Agent::connect(agent).await?;
    let node = agent.node().await?;
    let uid = volume.metadata.uid.clone();
    let request = wire::AttachRequest {
        protocol: PROTOCOL,
        volume: uid.clone(),
        node: node.clone(),
        read_only,
    };
    let call = api.volumes(async move |mut client| client.attach(request).await);
    let attached = match watched(screen, &format!("attaching {name}"), call).await? {
        Ok(response) => parsed(&response)?,
        Err(error) => {
            return turned_down(
                screen,
                &format!("volume {name} is not mounted"),
                error,
                Vec::new(),
            );
        }
    };
    let epoch = attached.status.attachments.first().map(|attachment| attachment.epoch);
    let staging = agent.staging(&volume);
    std::fs::create_dir_all(&staging)?;
    let fs_type = filesystem.map(|filesystem| filesystem.to_string()).unwrap_or_default();
    let context = context(&volume);
    let capability = capability(&fs_type, &option);
    let publish_context: BTreeMap<_, _> =
        epoch.map(|epoch| ("epoch".to_owned(), epoch.to_string())).into_iter().collect();
    let shown = Shown {
        volume_id: uid,
        staging: text(&staging)?,
        target: text(&target)?,
        capability,
        publish_context,
        context: context.clone(),
        read_only,
    };
    watched(screen, &format!("mounting {name}"), agent.show(shown))
        .await?
        .map_err(|status| refused(&name, status))?;
    let mut ending = String::new();
    if persist {
        let mount = PersistedMount {
            volume: volume.metadata.uid.parse().map_err(|_| ClientError::NoVolumeId)?,
            staging_path: staging,
            target_path: target.clone(),
            fs_type,
            flags: option,
            read_only,
            volume_context: context,
        };
        mount.keep(&agent.folder)?;
        ending = ", and comes back after a reboot".to_owned();
    }
    screen.line(&format!("{name} is mounted at {}{ending}", plain(&target.to_string_lossy())))?;
    Ok(Exit::Done)
}

pub(super) async fn unmount(
    api: &Api,
    screen: &mut Screen,
    name: &str,
    path: Option<PathBuf>,
    agent: AgentArgs,
) -> Result<Exit, ClientError> {
    let Some(volume) = found(api, screen, name).await? else { return Ok(Exit::NotFound) };
    let name = plain(&volume.metadata.name);
    let mut agent = Agent::connect(agent).await?;
    let node = agent.node().await?;
    let staging = agent.staging(&volume);
    let beside = hotbay_host::filesystem::mounted_beside(&text(&staging)?)?;
    let targets = match path {
        Some(path) => vec![text(&std::path::absolute(path)?)?],
        None => beside.clone(),
    };
    if let Ok(id) = volume.metadata.uid.parse() {
        PersistedMount::forget(&agent.folder, id)?;
    }
    let uid = volume.metadata.uid.clone();
    for target in &targets {
        let request = timed(csi::NodeUnpublishVolumeRequest {
            volume_id: uid.clone(),
            target_path: target.clone(),
        });
        let call = agent.client.node_unpublish_volume(request);
        watched(screen, &format!("unmounting {name}"), call)
            .await?
            .map_err(|status| refused(&name, status))?;
        screen.line(&format!("{name} is not mounted at {} any more", plain(target)))?;
    }
    if beside.iter().any(|other| !targets.contains(other)) {
        return Ok(Exit::Done);
    }
    let request = timed(csi::NodeUnstageVolumeRequest {
        volume_id: uid.clone(),
        staging_target_path: text(&staging)?,
    });
    let call = agent.client.node_unstage_volume(request);
    watched(screen, &format!("unmounting {name}"), call)
        .await?
        .map_err(|status| refused(&name, status))?;
    // Gone with its mount, or in use by somebody who looks at it; neither matters.
    std::fs::remove_dir(&staging).unwrap_or_default();
    let request = wire::DetachRequest { protocol: PROTOCOL, volume: uid, node };
    let call = api.volumes(async move |mut client| client.detach(request).await);
    match watched(screen, &format!("detaching {name}"), call).await? {
        Ok(_) if targets.is_empty() => {
            screen.line(&format!("{name} is not mounted here"))?;
            Ok(Exit::Done)
        }
        Ok(_) => Ok(Exit::Done),
        Err(error) => {
            turned_down(screen, &format!("volume {name} is not given back"), error, Vec::new())
        }
    }
}

/// What the agent is told of the volume, as CSI tells it.
fn context(volume: &Volume) -> BTreeMap<String, String> {
    let told = |name: &str| {
        let value = volume.spec.parameters.get(name)?;
        Some((name.to_owned(), value.clone()))
    };
    ["fsType", "mkfsOptions"].into_iter().filter_map(told).collect()
}

fn capability(fs_type: &str, flags: &[String]) -> csi::VolumeCapability {
    let mount = MountVolume {
        fs_type: fs_type.to_owned(),
        mount_flags: flags.to_vec(),
        ..MountVolume::default()
    };
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeMultiWriter.into() }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

fn text(path: &Path) -> Result<String, ClientError> {
    let words = || ClientError::PathNotText { path: path.to_owned() };
    path.to_str().map(str::to_owned).ok_or_else(words)
}

fn turned(status: Status) -> ClientError {
    let exit = match status.code() {
        tonic::Code::NotFound => Exit::NotFound,
        tonic::Code::Unavailable | tonic::Code::Aborted | tonic::Code::DeadlineExceeded => {
            Exit::TryAgain
        }
        _ => Exit::Refused,
    };
    ClientError::TurnedDown { exit, message: plain(status.message()) }
}

/// The agent's words, with what they are about.
fn refused(name: &str, status: Status) -> ClientError {
    match turned(status) {
        ClientError::TurnedDown { exit, message } => {
            ClientError::TurnedDown { exit, message: format!("volume {name}: {message}") }
        }
        other => other,
    }
}
