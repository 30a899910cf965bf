//! `hotbay volume`: makes, deletes, expands and annotates volumes. Each call answers when what it asks for is done.
//!
//! - [`explain`] tells where one would go, [`table`] and [`describe`] how they look.
//! - [`mount`] mounts one on this machine, through the agent's CSI socket.
//! - [`words`] is what is said of one elsewhere: where it stands in the way of a drive's removal.

pub(crate) mod describe;
mod explain;
mod mount;
pub(crate) mod table;
pub(crate) mod words;

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::{Duration, Instant};

use hotbay_api::PROTOCOL;
use hotbay_api::kinds::{StorageNode, Volume};
use hotbay_api::volumes as wire;
use hotbay_core::volume::class::{Asked, NotAllowed, PARAMETERS};
use tokio::time::{MissedTickBehavior, interval};

use super::api::{Api, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::get;
use super::nearest::{did_you_mean, nearest};
use super::screen::{Screen, plain};
use super::suggest;
use super::typed::typed;
use super::words::took;
use crate::cli::{Annotation, GetArgs, VolumeCommand, What, WishArgs};

/// How often the live line counts on.
const TICK: Duration = Duration::from_secs(1);

/// What the registry says at the end of a refusal; here it has a line of its own.
const UNCHANGED: &str = "; nothing was changed";

pub(crate) async fn run(
    api: &Api,
    screen: &mut Screen,
    command: VolumeCommand,
) -> Result<Exit, ClientError> {
    match command {
        VolumeCommand::Create { name, wish } => create(api, screen, &name, &wish).await,
        VolumeCommand::Delete { name, yes } => delete(api, screen, &name, yes).await,
        VolumeCommand::Expand { name, size } => expand(api, screen, &name, size).await,
        VolumeCommand::List { output, watch } => {
            let what = What::Volumes { names: Vec::new() };
            get::run(api, screen, GetArgs { what, output, watch }).await
        }
        VolumeCommand::Mount(args) => mount::mount(api, screen, args).await,
        VolumeCommand::Unmount { name, path, agent } => {
            mount::unmount(api, screen, &name, path, agent).await
        }
        VolumeCommand::Explain { wish, output } => explain::run(api, screen, &wish, output).await,
        VolumeCommand::Annotate { name, changes } => annotate(api, screen, &name, changes).await,
    }
}

/// Refuses what needs no registry to be refused.
pub(crate) fn check(command: &VolumeCommand) -> Result<(), ClientError> {
    match command {
        VolumeCommand::Create { name, wish } => {
            name.parse::<hotbay_core::label::extents::VolumeName>()?;
            parameters(wish).map(drop)
        }
        VolumeCommand::Explain { wish, .. } => parameters(wish).map(drop),
        VolumeCommand::Delete { .. }
        | VolumeCommand::Expand { .. }
        | VolumeCommand::List { .. }
        | VolumeCommand::Mount(_)
        | VolumeCommand::Unmount { .. }
        | VolumeCommand::Annotate { .. } => Ok(()),
    }
}

/// The parameters, if a registry would take them.
fn parameters(wish: &WishArgs) -> Result<BTreeMap<String, String>, ClientError> {
    let parameters = wish.parameters().map_err(|name| ClientError::ParameterTwice { name })?;
    match Asked::parse(&parameters) {
        Ok(_) => Ok(parameters),
        Err(why) => {
            let meant = match &why {
                NotAllowed::Unknown { name } => did_you_mean(&nearest(name, PARAMETERS)),
                _ => None,
            };
            Err(ClientError::Parameters { why, meant })
        }
    }
}

fn wished(wish: &WishArgs) -> Result<wire::Wish, ClientError> {
    let parameters = parameters(wish)?;
    Ok(wire::Wish { size_bytes: wish.size, parameters, nodes: wish.node.clone() })
}

async fn create(
    api: &Api,
    screen: &mut Screen,
    name: &str,
    wish: &WishArgs,
) -> Result<Exit, ClientError> {
    let request = wire::CreateRequest {
        protocol: PROTOCOL,
        name: name.to_owned(),
        wish: Some(wished(wish)?),
    };
    let began = Instant::now();
    // Only for words: whether it is made now, or was before.
    let before = api.objects::<Volume>(Kind::Volume, name).await.unwrap_or_default();
    let call = api.volumes(async move |mut client| client.create(request).await);
    let made = match watched(screen, &format!("making {name}"), call).await? {
        Ok(response) => parsed(&response)?,
        Err(error) => {
            let mut next = vec![
                "see why, drive by drive:  hotbay volume explain, with the same options".into(),
            ];
            if error.exit() == Exit::NotFound {
                next = unknown_node(api, wish).await;
            }
            return turned_down(screen, &format!("volume {name} is not made"), error, next);
        }
    };
    let place = words::place(&made);
    if before.iter().any(|before| before.status.state == "Created") {
        screen.line(&format!("{} is there already: {place}; nothing was changed", plain(name)))?;
    } else {
        screen.line(&format!(
            "{} is made after {}: {place}",
            plain(name),
            took(began.elapsed())
        ))?;
    }
    Ok(Exit::Done)
}

/// What to do about the node that is not there.
async fn unknown_node(api: &Api, wish: &WishArgs) -> Vec<String> {
    let nodes: Vec<StorageNode> = api.objects(Kind::StorageNode, "").await.unwrap_or_default();
    let is_known = |name: &&String| nodes.iter().any(|node| node.metadata.name == **name);
    match wish.node.iter().find(|name| !is_known(name)) {
        Some(name) => suggest::next_steps(api, Kind::StorageNode, name).await,
        None => Vec::new(),
    }
}

async fn delete(
    api: &Api,
    screen: &mut Screen,
    name: &str,
    yes: bool,
) -> Result<Exit, ClientError> {
    let Some(volume) = found(api, screen, name).await? else { return Ok(Exit::NotFound) };
    let name = plain(&volume.metadata.name);
    if let Some(used) = volume.status.attachments.first() {
        let what = format!("volume {name} is not deleted: it is in use on {}", plain(&used.node));
        screen.error(&what, &["nothing was changed".to_owned()])?;
        return Ok(Exit::Refused);
    }
    for line in words::what_is_lost(&volume) {
        screen.line(&line)?;
    }
    if !yes {
        typed(screen, &name, &volume.metadata.name, "--yes")?;
    }
    // What was shown is deleted, and not another one that got its name meanwhile.
    let uid = volume.metadata.uid.clone();
    let request = wire::DeleteRequest { protocol: PROTOCOL, volume: uid };
    let began = Instant::now();
    let call = api.volumes(async move |mut client| client.delete(request).await);
    match watched(screen, &format!("deleting {name}"), call).await? {
        Ok(wire::DeleteResponse { remark, .. }) => {
            screen.line(&format!("{name} is deleted after {}.", took(began.elapsed())))?;
            if !remark.is_empty() {
                screen.line(&format!("  {}", plain(&remark)))?;
            }
            Ok(Exit::Done)
        }
        Err(error) if error.exit() == Exit::NotFound => {
            screen.line(&format!("{name} is deleted already."))?;
            Ok(Exit::Done)
        }
        Err(error) => {
            turned_down(screen, &format!("volume {name} is not deleted"), error, Vec::new())
        }
    }
}

async fn expand(
    api: &Api,
    screen: &mut Screen,
    name: &str,
    size_bytes: u64,
) -> Result<Exit, ClientError> {
    let Some(volume) = found(api, screen, name).await? else { return Ok(Exit::NotFound) };
    let request =
        wire::ExpandRequest { protocol: PROTOCOL, volume: volume.metadata.uid.clone(), size_bytes };
    let name = plain(&volume.metadata.name);
    let call = api.volumes(async move |mut client| client.expand(request).await);
    match watched(screen, &format!("expanding {name}"), call).await? {
        Ok(response) => {
            let now = parsed(&response)?;
            let place = words::place(&now);
            screen.line(&if now.status.size_bytes == volume.status.size_bytes {
                format!("{name} is large enough already: {place}; nothing was changed")
            } else {
                format!("{name} is larger: {place}")
            })?;
            Ok(Exit::Done)
        }
        Err(error) => {
            turned_down(screen, &format!("volume {name} is not expanded"), error, Vec::new())
        }
    }
}

async fn annotate(
    api: &Api,
    screen: &mut Screen,
    name: &str,
    changes: Vec<Annotation>,
) -> Result<Exit, ClientError> {
    let Some(volume) = found(api, screen, name).await? else { return Ok(Exit::NotFound) };
    let name = plain(&volume.metadata.name);
    let (mut set, mut remove) = (BTreeMap::new(), Vec::new());
    let mut said = Vec::new();
    for (key, value) in changes {
        match value {
            Some(value) => {
                said.push(format!("{key}={value} set"));
                set.insert(key, value);
            }
            None => {
                said.push(format!("{key} removed"));
                remove.push(key);
            }
        }
    }
    let volume = volume.metadata.uid;
    let request = wire::AnnotateRequest { protocol: PROTOCOL, volume, set, remove };
    match api.volumes(async move |mut client| client.annotate(request).await).await {
        Ok(_) => {
            screen.line(&format!("{name}: {}", plain(&said.join(", "))))?;
            Ok(Exit::Done)
        }
        Err(error) => {
            turned_down(screen, &format!("volume {name} is not annotated"), error, Vec::new())
        }
    }
}

/// The volume that a name means; if there is none, that has been said.
async fn found(api: &Api, screen: &mut Screen, name: &str) -> Result<Option<Volume>, ClientError> {
    match api.objects::<Volume>(Kind::Volume, name).await {
        Ok(found) => Ok(found.into_iter().next()),
        Err(error) if error.exit() == Exit::NotFound => {
            let mut next = vec!["nothing was changed".to_owned()];
            next.extend(suggest::next_steps(api, Kind::Volume, name).await);
            screen.error(&error.to_string(), &next)?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Says why something was not done, or is not done yet. What is no answer of the registry is handed on.
fn turned_down(
    screen: &mut Screen,
    what: &str,
    error: ClientError,
    next: Vec<String>,
) -> Result<Exit, ClientError> {
    let ClientError::TurnedDown { exit, message } = error else { return Err(error) };
    if exit == Exit::TryAgain {
        screen.error(&format!("{what} yet: {message}"), &[])?;
        return Ok(exit);
    }
    let why = message.strip_suffix(UNCHANGED).unwrap_or(&message);
    let mut lines = vec!["nothing was changed".to_owned()];
    lines.extend(next);
    screen.error(&format!("{what}: {why}"), &lines)?;
    Ok(exit)
}

/// Shows what is waited for, since when, and the way out, if it takes more than a moment.
async fn watched<T>(
    screen: &mut Screen,
    doing: &str,
    call: impl Future<Output = T>,
) -> Result<T, ClientError> {
    let began = Instant::now();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut call = pin!(call);
    loop {
        tokio::select! {
            biased;
            done = &mut call => {
                screen.end_live()?;
                return Ok(done);
            }
            _ = tick.tick() => {
                let waited = began.elapsed();
                if waited >= TICK {
                    let so_far = waited.as_secs();
                    let doing = plain(doing);
                    screen.live(&format!(
                        "{doing}, {so_far} s so far; Ctrl-C stops waiting, and it goes on"
                    ))?;
                }
            }
        }
    }
}

fn parsed(response: &wire::VolumeResponse) -> Result<Volume, ClientError> {
    serde_json::from_str(&response.volume_json).map_err(ClientError::Answer)
}
