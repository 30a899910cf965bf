//! `hotbay controller`: the registry on the embedded store, and the socket that everybody talks to. On Kubernetes it is
//! another: [`super::kubernetes`].

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Args;
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_csi::serve::Socket;
use hotbay_registry::{RedbStore, Registry, Surroundings};
use uuid::Uuid;

use super::checkpoint::checkpoint;
use super::kubernetes::KubernetesArgs;
use super::listen::Listen;
use super::{RunError, csi, descriptors, door, logging, stop, up};
use crate::config::{ConfigArgs, Given, Settings, ToldRule};

#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    /// Where the registry's store is [default: the folder registry in the data directory of hotbay up]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// A Unix socket to listen on, or HOST:PORT for clients on other machines, over TLS; may be repeated [default: as
    /// for hotbay up]
    #[arg(long, value_name = "PATH|HOST:PORT")]
    listen: Vec<Listen>,
    /// Where to listen for agents on other machines, over TLS; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    listen_agents: Vec<String>,
    /// A second Unix socket, for the same API as HTTP and JSON [default: http.sock beside that of --listen]
    #[arg(long, value_name = "PATH")]
    http: Option<PathBuf>,
    /// A Unix socket for CSI's Controller service [default: csi.sock beside that of --listen]
    #[arg(long, value_name = "PATH")]
    csi: Option<PathBuf>,
    /// One rule of the file, for a registry that reads none
    #[arg(long, value_name = "JSON", hide = true)]
    auto_add: Vec<ToldRule>,
    #[command(flatten)]
    kubernetes: KubernetesArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// How long calls under way get to end when the controller is told to stop.
const GRACE: Duration = Duration::from_millis(200);
/// What the controller prints, alone on a line, when it listens.
pub(crate) const READY: &str = "ready";

pub(crate) fn controller(args: ControllerArgs) -> Result<ExitCode, RunError> {
    let ControllerArgs { data_dir, listen, listen_agents, http, csi, auto_add, kubernetes, config } =
        args;
    let listen = listen.iter().map(Listen::to_string).collect();
    let given = Given { listen, listen_agents, http, csi, auto_add, ..Given::default() };
    let settings = config.settings(given)?;
    if data_dir.is_none() {
        let all = settings.data_dir()?;
        std::fs::create_dir_all(all)
            .with_context(|| format!("cannot use {} as the data directory", all.display()))?;
    }
    let data_dir = settings.folder("registry", data_dir)?;
    Ok(start(settings, data_dir, kubernetes)?)
}

fn start(
    settings: Settings,
    data_dir: PathBuf,
    kubernetes: KubernetesArgs,
) -> anyhow::Result<ExitCode> {
    logging::start();
    stop::with_supervisor()?;
    descriptors::allow_many();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if kubernetes.is_wanted() {
        let served = runtime.block_on(super::kubernetes::serve(settings, data_dir, kubernetes));
        // Records may still be read. Nobody needs them any more.
        runtime.shutdown_background();
        return served;
    }
    runtime.block_on(serve(settings, data_dir))
}

async fn serve(settings: Settings, data_dir: PathBuf) -> anyhow::Result<ExitCode> {
    let (sockets, addresses) = up::listening(&settings)?;
    let store = RedbStore::open(&data_dir)?;
    let surroundings = Surroundings {
        cluster: ClusterId::from_bits(fresh()),
        term: TermId::from_bits(fresh()),
        wall_ms,
        checkpoint,
        auto_add: settings.auto_add.iter().map(|told| told.rule.clone()).collect(),
    };
    let (registry, ended) = Registry::start(store, surroundings)?;
    let doors = door::open(&data_dir, settings.listen_agents.value, addresses).await?;
    // Their files go with these values, at the end of this function.
    let bound = sockets.iter().map(|path| Socket::bind(path)).collect::<Result<Vec<_>, _>>()?;
    let listeners = bound.iter().map(Socket::listener).collect::<Result<_, _>>()?;
    let http = settings.http.value.map(|path| Socket::bind(&path)).transpose()?;
    if let Some(http) = &http {
        // Ends with this process: whatever was answered is durable.
        let serving = hotbay_control::serve_http(registry.clone(), http.listener()?, fresh);
        tokio::spawn(serving);
    }
    if let Some(path) = settings.csi.value {
        csi::serve_controller(&path, registry.clone(), fresh)?;
    }
    println!("{READY}");
    // Nobody may read it; then nobody waits for it.
    std::io::stdout().flush().unwrap_or_default();
    tracing::info!(api = %sockets[0].display(), "the registry is ready");
    let stop = stop::told_to_stop();
    let serving = hotbay_control::serve_with_doors(registry, listeners, doors, fresh, stop);
    let code = tokio::select! {
        served = serving => {
            served?;
            ExitCode::SUCCESS
        }
        // Sessions of agents never end by themselves. Whatever was answered is durable, so they can be cut.
        () = stopped_for_long() => ExitCode::SUCCESS,
        ended = ended => {
            // What was decided and is not durable is lost with this process; the next start knows nothing of it.
            match ended {
                Ok(error) => tracing::error!("the store cannot be used any more: {error}"),
                Err(_) => tracing::error!("the registry ended without a word"),
            }
            ExitCode::FAILURE
        }
    };
    Ok(code)
}

pub(super) async fn stopped_for_long() {
    stop::told_to_stop().await;
    tokio::time::sleep(GRACE).await;
}

pub(super) fn fresh() -> u128 {
    Uuid::new_v4().as_u128()
}

pub(super) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
