//! `hotbay controller`: the registry on the embedded store, and the socket that everybody talks to.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_registry::{RedbStore, Registry, Surroundings};
use tokio::net::UnixListener;
use uuid::Uuid;

use super::checkpoint::checkpoint;
use super::listen::{self, Listen};
use super::{descriptors, door, logging, stop};

#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    /// Where the registry's store is
    #[arg(long)]
    data_dir: PathBuf,
    /// A Unix socket to listen on, or HOST:PORT for clients on other machines, over TLS; may be repeated
    #[arg(long, value_name = "PATH|HOST:PORT", required = true)]
    listen: Vec<Listen>,
    /// Where to listen for agents on other machines, over TLS; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    listen_agents: Vec<String>,
    /// A second Unix socket, for the same API as HTTP and JSON
    #[arg(long, value_name = "PATH")]
    http: Option<PathBuf>,
}

/// How long calls under way get to end when the controller is told to stop.
const GRACE: Duration = Duration::from_millis(200);
/// What the controller prints, alone on a line, when it listens.
pub(crate) const READY: &str = "ready";

pub(crate) fn controller(args: ControllerArgs) -> anyhow::Result<ExitCode> {
    logging::start();
    stop::with_supervisor()?;
    descriptors::allow_many();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: ControllerArgs) -> anyhow::Result<ExitCode> {
    let ControllerArgs { data_dir, listen: places, listen_agents, http } = args;
    let (sockets, addresses) = listen::sorted(places);
    if sockets.is_empty() {
        bail!("a Unix socket to listen on is needed as well: --listen PATH");
    }
    // The store's lock comes first: whoever has it may take the socket.
    let store = RedbStore::open(&data_dir)?;
    let surroundings = Surroundings {
        cluster: ClusterId::from_bits(fresh()),
        term: TermId::from_bits(fresh()),
        wall_ms,
        checkpoint,
    };
    let (registry, ended) = Registry::start(store, surroundings)?;
    let doors = door::open(&data_dir, listen_agents, addresses).await?;
    let listeners = sockets.iter().map(|path| listen(path)).collect::<Result<_, _>>()?;
    if let Some(http) = http {
        // Ends with this process: whatever was answered is durable.
        tokio::spawn(hotbay_control::serve_http(registry.clone(), listen(&http)?));
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

async fn stopped_for_long() {
    stop::told_to_stop().await;
    tokio::time::sleep(GRACE).await;
}

fn listen(socket: &Path) -> anyhow::Result<UnixListener> {
    bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))
}

fn bind(socket: &Path) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn fresh() -> u128 {
    Uuid::new_v4().as_u128()
}

pub(super) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
