//! The memory of a real controller with all its agents connected: the process `hotbay controller` on its own store, and
//! in this process one real connection per agent over the controller's Unix socket, each with a session that has
//! registered its drives, has had them added, and has confirmed every attach.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use hotbay_api::agent::agents_client::AgentsClient;
use hotbay_api::cms::cms_client::CmsClient;
use hotbay_api::cms::{ActRequest, Action, ActionType};
use hotbay_api::convert::{FromAgent, FromRegistry, from_registry, to_registry};
use hotbay_api::{MESSAGE_LIMIT_BYTES, PROTOCOL};
use hyper_util::rt::TokioIo;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use crate::cluster::{DRIVES_PER_NODE, done, node_name, registration};
use crate::registry::resident_kib;

const AGENTS: usize = 5_000;
/// Descriptors of this process that are not connections of agents.
const OTHER_DESCRIPTORS: u64 = 200;
/// Agents that dial and register at the same time: a Unix socket refuses callers beyond its queue.
const DIALLING: usize = 64;
/// All of it ends after this, with as many as are there.
const LIMIT: Duration = Duration::from_secs(150);
/// An agent beats more often than the registry gives it up, which is after 10 s.
const BEAT: Duration = Duration::from_secs(4);
/// What comes after the last attach, such as buffers given back.
const SETTLE: Duration = Duration::from_secs(2);
const END_OF_METRICS: &str = "# EOF";

/// The controller; it ends with this value.
struct Controller {
    child: Child,
    folder: tempfile::TempDir,
}

pub(crate) fn run() -> anyhow::Result<()> {
    let program = std::env::current_exe()?.with_file_name("hotbay");
    if !program.is_file() {
        println!(
            "!! The memory of a controller is NOT MEASURED: {} is not there; run cargo xtask bench registry.\n",
            program.display()
        );
        return Ok(());
    }
    let agents = allowed_agents()?;
    let controller = Controller::start(&program)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let began = Instant::now();
    let attached = runtime.block_on(connect_all(&controller.socket(), agents))?;
    let took = began.elapsed().saturating_sub(SETTLE);
    let pid = controller.child.id().to_string();
    let mib = |what| resident_kib(&pid, what).map(|kib| kib as f64 / 1024.0);
    let (resident, most) = (mib("VmRSS:")?, mib("VmHWM:")?);
    let drives = attached_drives(&controller.folder.path().join("http.sock"))?;
    anyhow::ensure!(
        drives >= attached * DRIVES_PER_NODE,
        "{attached} agents have attached their drives, and the controller knows of {drives}"
    );
    println!(
        "A real controller process with {attached} agents connected over its Unix socket, {DRIVES_PER_NODE} drives \
         each, all attached after {:.0} s: {resident:.0} MiB resident, at most {most:.0} MiB.\n",
        took.as_secs_f64(),
    );
    if attached < AGENTS {
        println!(
            "!! Only {attached} of {AGENTS} agents: descriptors or {LIMIT:?} did not allow more.\n"
        );
    }
    Ok(())
}

/// As many agents as this process may have descriptors for.
fn allowed_agents() -> anyhow::Result<usize> {
    let Some(maximum) = allow_descriptors()? else { return Ok(AGENTS) };
    let allowed = usize::try_from(maximum.saturating_sub(OTHER_DESCRIPTORS))?;
    Ok(AGENTS.min(allowed))
}

/// Asks for as many descriptors as this process can get, and says how many; the controller does the same for itself.
pub(crate) fn allow_descriptors() -> anyhow::Result<Option<u64>> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum)
}

/// How many drives a controller says are attached, by its metrics: agents only know what they have answered.
pub(crate) fn attached_drives(http: &Path) -> anyhow::Result<usize> {
    let mut stream = UnixStream::connect(http)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: registry\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    anyhow::ensure!(answer.contains(END_OF_METRICS), "these are no metrics: {answer}");
    let gauge = "hotbay_drives{state=\"AttachedDevice\"} ";
    // A state that no drive is in is not listed.
    let number = answer.lines().find_map(|line| line.strip_prefix(gauge));
    Ok(number.map_or(Ok(0), str::parse)?)
}

impl Controller {
    fn start(program: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(program);
        command.arg("controller").arg("--data-dir").arg(folder.path().join("registry"));
        command.arg("--listen").arg(folder.path().join("api.sock"));
        command.arg("--http").arg(folder.path().join("http.sock"));
        // Its log has a line per agent and drive, and nobody reads it.
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut this = Self { child, folder };
        let said = this.child.stdout.take().context("its output is a pipe")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        anyhow::ensure!(line.trim() == "ready", "the controller did not start: it said {line:?}");
        Ok(this)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("api.sock")
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().ok();
    }
}

/// Connects them and has every drive attached; says how many agents got there. They stay connected until the figures
/// are read: the tasks end with the runtime.
async fn connect_all(socket: &Path, agents: usize) -> anyhow::Result<usize> {
    let (finished, mut finishing) = mpsc::channel(agents);
    let dialling = Arc::new(Semaphore::new(DIALLING));
    let mut sessions = JoinSet::new();
    let asking = connect(socket.to_owned()).await?;
    for node in 0..agents {
        let (dialling, finished) = (dialling.clone(), finished.clone());
        let (socket, asking) = (socket.to_owned(), asking.clone());
        sessions.spawn(async move {
            let turn = dialling.acquire().await.context("the queue is closed")?;
            let channel = connect(socket).await?;
            let drop_turn = move || drop(turn);
            agent(node, channel, asking, finished, drop_turn).await
        });
    }
    drop(finished);
    let until = tokio::time::Instant::now() + LIMIT;
    let mut attached = 0;
    while attached < agents {
        tokio::select! {
            one = finishing.recv() => match one {
                Some(()) => attached += 1,
                None => break,
            },
            Some(ended) = sessions.join_next() => ended??,
            () = tokio::time::sleep_until(until) => break,
        }
    }
    tokio::time::sleep(SETTLE).await;
    // Whoever was attached must still be connected, or the figure is not what it says.
    while let Some(ended) = sessions.try_join_next() {
        ended??;
    }
    sessions.detach_all();
    Ok(attached)
}

pub(crate) async fn connect(socket: PathBuf) -> anyhow::Result<Channel> {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://registry");
    Ok(endpoint.connect_with_connector(connector).await?)
}

/// One agent: registers, is added, confirms what it is told, and beats for as long as it is let.
async fn agent(
    node: usize,
    channel: Channel,
    asking: Channel,
    finished: mpsc::Sender<()>,
    registered: impl FnOnce(),
) -> anyhow::Result<()> {
    let (says, messages) = mpsc::channel(DRIVES_PER_NODE);
    let mut client = AgentsClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT_BYTES);
    let mut hears = client.session(ReceiverStream::new(messages)).await?.into_inner();
    says.send(to_registry(&FromAgent::Register(registration(node)))).await?;
    let first = hears.message().await?.context("the session ended")?;
    anyhow::ensure!(
        matches!(from_registry(first)?, FromRegistry::Registered(_)),
        "node {node} was not registered"
    );
    let host = node_name(node);
    let action = Action { r#type: ActionType::AddHost.into(), host, ..Action::default() };
    let request = ActRequest { protocol: PROTOCOL, actions: vec![action], dry_run: false };
    CmsClient::new(asking).act(request).await?;
    registered();
    // An order may come twice.
    let mut attached = BTreeSet::new();
    let mut beat = tokio::time::interval(BEAT);
    loop {
        tokio::select! {
            message = hears.message() => {
                let message = message?.with_context(|| format!("the session of {node} ended"))?;
                if let FromRegistry::Order(order) = from_registry(message)? {
                    says.send(to_registry(&FromAgent::Answer(done(&order)))).await?;
                    if attached.insert(order.drive) && attached.len() == DRIVES_PER_NODE {
                        finished.send(()).await.unwrap_or_default();
                    }
                }
            }
            _ = beat.tick() => says.send(to_registry(&FromAgent::Heartbeat)).await?,
        }
    }
}
