//! `hotbay up`: the registry and this machine's agent, with its real drives.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use hotbay_api::token::check_address;
use hotbay_core::ids::NodeName;
use hotbay_host::RuntimeDir;
use hotbay_node::Place;
use tokio::sync::mpsc;

use super::listen::{self, Listen};
use super::node::MOST_RECEIVE_BUFFER;
use super::supervise::{Happened, Part, Supervisor};
use super::{RunError, demo, ready, stop};
use crate::config::{AtStart, ConfigArgs, Given, Settings};

const READY_LIMIT: Duration = Duration::from_secs(60);

pub(crate) const EXAMPLES: &str = "\
Examples:
  hotbay up                                        this machine, all its drives, none in operation
  hotbay up --data-dir /srv/hotbay --drives '/dev/nvme*n1'
  hotbay up --listen 192.0.2.7:7444                also for people and programs elsewhere
  hotbay up --config ./hotbay.toml                 settings from a file";

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Where registry and agent keep what must survive [default: /var/lib/hotbay, without root ~/.local/share/hotbay]
    #[arg(long, value_name = "DIR", env = "HOTBAY_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// A drive to look at: a path or pattern, may be repeated. All drives of the machine if left out. None is in
    /// operation until it is added
    #[arg(long, value_name = "GLOB")]
    drives: Vec<String>,
    /// The name of this node [default: the machine's host name]
    #[arg(long, value_name = "NAME")]
    name: Option<NodeName>,
    /// Where to listen; may be repeated. PATH: a Unix socket [default: api.sock in /run/hotbay, or in the user's
    /// runtime directory]. HOST:PORT: also for clients on other machines, gRPC and HTTP, over TLS and with a token;
    /// nowhere if left out
    #[arg(long, value_name = "PATH|HOST:PORT")]
    listen: Vec<Listen>,
    /// Where to listen for agents on other machines, over TLS; may be repeated. Nowhere if left out
    #[arg(long, value_name = "HOST:PORT")]
    listen_agents: Vec<String>,
    /// A second Unix socket, for the same API as HTTP and JSON [default: http.sock beside that of --listen]
    #[arg(long, value_name = "PATH")]
    http: Option<PathBuf>,
    /// A Unix socket for CSI's Controller service [default: csi.sock beside that of --listen]
    #[arg(long, value_name = "PATH")]
    csi: Option<PathBuf>,
    /// A Unix socket for CSI's Node service [default: node/csi.sock in the data directory]
    #[arg(long, value_name = "PATH")]
    csi_node: Option<PathBuf>,
    /// Which drives the agent opens when it starts, before the registry has answered [default: record]. The price of
    /// all: a drive that was removed is opened again for a moment at every start of the agent, or for as long as the
    /// registry is away
    #[arg(long, value_name = "WHICH")]
    attach_at_start: Option<AtStart>,
    /// A file with rules that say which drives may be used at all; read again when it changes
    #[arg(long, value_name = "FILE")]
    filters: Option<PathBuf>,
    /// A label of the node when it registers for the first time; may be repeated. Later: hotbay host label
    #[arg(long, value_name = "KEY=VALUE", value_parser = crate::cli::label)]
    labels: Vec<String>,
    /// Room for events of devices; so little that some are lost, for tests
    #[arg(long, value_name = "BYTES", hide = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MOST_RECEIVE_BUFFER))]
    receive_buffer: Option<u32>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn up(args: UpArgs) -> Result<ExitCode, RunError> {
    let UpArgs {
        data_dir,
        drives,
        name,
        listen,
        listen_agents,
        http,
        csi,
        csi_node,
        attach_at_start,
        filters,
        labels,
        ..
    } = args;
    let settings = args.config.settings(Given {
        data_dir,
        drives,
        name,
        listen: listen.iter().map(Listen::to_string).collect(),
        listen_agents,
        http,
        csi,
        node_csi: csi_node,
        attach_at_start,
        filters,
        labels,
        ..Given::default()
    })?;
    let (data_dir, name) = (settings.data_dir()?, settings.name()?);
    Ok(start(&settings, data_dir, &name, args.receive_buffer)?)
}

/// Checks what could keep the parts from starting, and starts them.
fn start(
    settings: &Settings,
    data_dir: &Path,
    name: &NodeName,
    receive_buffer: Option<u32>,
) -> anyhow::Result<ExitCode> {
    let (sockets, clients) = listening(settings)?;
    settings.listen_agents.value.iter().try_for_each(|address| check_address(address))?;
    for text in &settings.drives.value {
        let place: Place = text.parse()?;
        hotbay_host::scan::list(&hotbay_host::scan::Selection::Patterns(vec![place.pattern]))
            .with_context(|| format!("--drives {text:?}"))?;
    }
    std::fs::create_dir_all(data_dir)
        .with_context(|| format!("cannot use {} as the data directory", data_dir.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut agent = agent(settings, data_dir, name, &sockets[0]);
    agent.arguments.extend(receive_buffer.map(|bytes| format!("--receive-buffer={bytes}").into()));
    runtime.block_on(run(settings, data_dir, agent, &sockets[0], &clients))
}

/// The sockets, at least one, and the addresses that the registry listens on. The folder of the usual socket is made if
/// it is missing.
pub(super) fn listening(settings: &Settings) -> anyhow::Result<(Vec<PathBuf>, Vec<String>)> {
    let places = settings.listen.value.iter().map(|place| place.parse());
    let (sockets, clients) = listen::sorted(places.collect::<Result<_, _>>()?);
    let socket = sockets.first().context("there is no socket to listen on")?;
    if !socket.parent().is_some_and(Path::exists) {
        RuntimeDir::of_this_user()?;
    }
    Ok((sockets, clients))
}

async fn run(
    settings: &Settings,
    data_dir: &Path,
    agent: Part,
    api: &Path,
    clients: &[String],
) -> anyhow::Result<ExitCode> {
    let name = agent.name.clone();
    println!("Hotbay on {name}, everything under {}", data_dir.display());
    let (mut supervisor, mut happened) = Supervisor::new();
    supervisor.start(registry(settings, data_dir));
    wait_for_registry(&mut happened).await?;
    println!("  {:<11} ready   unix:{}", "registry", api.display());
    for address in &settings.listen_agents.value {
        println!("  {:<11} agents  {address}", "");
    }
    for address in clients {
        println!("  {:<11} clients https://{address}", "");
    }
    supervisor.start(agent);
    let names = [name.clone()];
    let ready = ready::nodes(api, &names, |node| {
        println!(
            "  {name:<11} ready   {} drives found, {} in operation\n\nLook at them:  hotbay get drives",
            node.status.drives, node.status.drives_in_operation
        );
    });
    let outcome = match demo::until_ready(however_long(&name, ready), &mut happened).await {
        Ok(demo::Phase::Ready) => {
            tokio::select! {
                () = stop::told_to_stop() => {}
                () = demo::report(&mut happened) => {}
            }
            Ok(ExitCode::SUCCESS)
        }
        Ok(demo::Phase::Stop) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
    };
    supervisor.stop(&names).await;
    supervisor.stop(&["registry".to_owned()]).await;
    outcome
}

/// A machine that is slow, or whose drives are, is waited for: ending would only begin it all anew. That it is slow is
/// told.
async fn however_long(
    name: &str,
    ready: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    tokio::pin!(ready);
    if let Ok(ready) = tokio::time::timeout(READY_LIMIT, &mut ready).await {
        return ready;
    }
    let seconds = READY_LIMIT.as_secs();
    println!("  {name:<11} waited for: not ready after {seconds} s; the agent's messages say why");
    ready.await
}

/// The registry's process. It is told everything, and reads no file that may have changed meanwhile.
fn registry(settings: &Settings, data_dir: &Path) -> Part {
    let mut arguments = vec![
        "controller".into(),
        "--no-config".into(),
        "--data-dir".into(),
        data_dir.join("registry").into(),
    ];
    arguments.extend(settings.listen.value.iter().map(|place| format!("--listen={place}").into()));
    if let Some(http) = &settings.http.value {
        arguments.extend(["--http".into(), http.into()]);
    }
    if let Some(csi) = &settings.csi.value {
        arguments.extend(["--csi".into(), csi.into()]);
    }
    let addresses = settings.listen_agents.value.iter();
    arguments.extend(addresses.map(|address| format!("--listen-agents={address}").into()));
    let rules = settings.auto_add.iter();
    arguments.extend(rules.map(|told| format!("--auto-add={}", told.json).into()));
    Part { name: "registry".to_owned(), arguments, log: None }
}

/// The agent's process, told everything likewise.
fn agent(settings: &Settings, data_dir: &Path, name: &NodeName, api: &Path) -> Part {
    let mut arguments = vec![
        "node".into(),
        "--no-config".into(),
        "--join".into(),
        api.into(),
        "--name".into(),
        name.as_str().into(),
        "--data-dir".into(),
        data_dir.join("node").into(),
        "--attach-at-start".into(),
        settings.attach_at_start.value.name().into(),
    ];
    for drive in &settings.drives.value {
        arguments.push("--drives".into());
        arguments.push(drive.into());
    }
    // The one file that a part reads again: it changes while the agent runs.
    if let Some(filters) = &settings.filters.value {
        arguments.extend(["--filters".into(), filters.into()]);
    }
    if let Some(csi) = &settings.node_csi.value {
        arguments.extend(["--csi-node".into(), csi.into()]);
    }
    let labels = settings.labels.value.iter();
    arguments.extend(labels.map(|label| format!("--labels={label}").into()));
    Part { name: name.to_string(), arguments, log: None }
}

async fn wait_for_registry(happened: &mut mpsc::Receiver<Happened>) -> anyhow::Result<()> {
    match tokio::time::timeout(READY_LIMIT, happened.recv()).await {
        Ok(Some(Happened::Ready)) => Ok(()),
        Ok(Some(Happened::Ended { how, .. })) => {
            bail!("the registry does not start ({how}); it says why above")
        }
        Ok(None) | Err(_) => bail!("the registry is not ready after {} s", READY_LIMIT.as_secs()),
    }
}
