//! `hotbay up`: the registry and this machine's agent, with its real drives.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use hotbay_core::ids::NodeName;
use hotbay_host::RuntimeDir;
use hotbay_node::Place;
use tokio::sync::mpsc;

use super::listen::{self, Listen};
use super::supervise::{Happened, Part, Supervisor};
use super::{demo, ready, stop};

const READY_LIMIT: Duration = Duration::from_secs(60);

pub(crate) const EXAMPLES: &str = "\
Examples:
  hotbay up                                        this machine, all its drives, none in operation
  hotbay up --data-dir /srv/hotbay --drives '/dev/nvme*n1'
  hotbay up --listen 192.0.2.7:7444                also for clients on other machines: hotbay token create --client";

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
    /// Where to listen; may be repeated. PATH: a Unix socket; http.sock beside the first has the same API as HTTP and
    /// JSON [default: api.sock in /run/hotbay, or in the user's runtime directory]. HOST:PORT: also for clients on
    /// other machines, gRPC and HTTP, over TLS and with a token; nowhere if left out
    #[arg(long, value_name = "PATH|HOST:PORT")]
    listen: Vec<Listen>,
    /// Where to listen for agents on other machines, over TLS; may be repeated. Nowhere if left out
    #[arg(long, value_name = "HOST:PORT")]
    listen_agents: Vec<String>,
}

pub(crate) fn up(args: UpArgs) -> anyhow::Result<ExitCode> {
    let UpArgs { data_dir, drives, name, listen, listen_agents } = args;
    let data_dir = data_dir.map_or_else(default_data_dir, Ok)?;
    let name = name.map_or_else(host_name, Ok)?;
    let mut listen = listen;
    if !listen.iter().any(|place| matches!(place, Listen::Socket(_))) {
        listen.push(Listen::Socket(RuntimeDir::of_this_user()?.path().join("api.sock")));
    }
    for text in &drives {
        let place: Place = text.parse()?;
        hotbay_host::scan::list(&hotbay_host::scan::Selection::Patterns(vec![place.pattern]))
            .with_context(|| format!("--drives {text:?}"))?;
    }
    std::fs::create_dir_all(&data_dir)
        .with_context(|| format!("cannot use {} as the data directory", data_dir.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(&data_dir, &name, listen, &listen_agents, &drives))
}

async fn run(
    data_dir: &std::path::Path,
    name: &NodeName,
    listen: Vec<Listen>,
    listen_agents: &[String],
    drives: &[String],
) -> anyhow::Result<ExitCode> {
    println!("Hotbay on {name}, everything under {}", data_dir.display());
    let places: Vec<_> = listen.iter().map(Listen::argument).collect();
    let (sockets, clients) = listen::sorted(listen);
    let api = sockets[0].as_path();
    let (mut supervisor, mut happened) = Supervisor::new();
    let mut arguments = vec![
        "controller".into(),
        "--data-dir".into(),
        data_dir.join("registry").into(),
        "--http".into(),
        api.with_file_name("http.sock").into(),
    ];
    arguments.extend(places);
    arguments
        .extend(listen_agents.iter().map(|address| format!("--listen-agents={address}").into()));
    supervisor.start(Part { name: "registry".to_owned(), arguments, log: None });
    wait_for_registry(&mut happened).await?;
    println!("  {:<11} ready   unix:{}", "registry", api.display());
    for address in listen_agents {
        println!("  {:<11} agents  {address}", "");
    }
    for address in clients {
        println!("  {:<11} clients https://{address}", "");
    }
    let mut arguments = vec![
        "node".into(),
        "--join".into(),
        api.into(),
        "--name".into(),
        name.as_str().into(),
        "--data-dir".into(),
        data_dir.join("node").into(),
    ];
    for drive in drives {
        arguments.push("--drives".into());
        arguments.push(drive.into());
    }
    supervisor.start(Part { name: name.to_string(), arguments, log: None });
    let names = [name.to_string()];
    let ready = ready::nodes(api, &names, |node| {
        println!(
            "  {name:<11} ready   {} drives found, {} in operation\n\nLook at them:  hotbay get drives",
            node.status.drives, node.status.drives_in_operation
        );
    });
    let outcome = match demo::until_ready(ready, &mut happened).await {
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

async fn wait_for_registry(happened: &mut mpsc::Receiver<Happened>) -> anyhow::Result<()> {
    match tokio::time::timeout(READY_LIMIT, happened.recv()).await {
        Ok(Some(Happened::Ready)) => Ok(()),
        Ok(Some(Happened::Ended { how, .. })) => {
            bail!("the registry does not start ({how}); it says why above")
        }
        Ok(None) | Err(_) => bail!("the registry is not ready after {} s", READY_LIMIT.as_secs()),
    }
}

fn default_data_dir() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/hotbay"));
    }
    let home = std::env::var_os("HOME").context("HOME is not set; give --data-dir")?;
    Ok(PathBuf::from(home).join(".local/share/hotbay"))
}

fn host_name() -> anyhow::Result<NodeName> {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    name.parse().with_context(|| "give the node a name with --name".to_owned())
}
