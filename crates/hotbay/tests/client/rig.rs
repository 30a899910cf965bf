//! A registry in this process, an agent that does as it is told, and the real program against both.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use hotbay_api::agent::agents_client::AgentsClient;
use hotbay_api::convert::{FromAgent, FromRegistry, from_registry, to_registry};
use hotbay_core::cluster::AutoAdd;
use hotbay_core::cms::{Action, Code, Target};
use hotbay_core::device::{Denied, DeviceKind, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, Incarnation, MachineId, TermId};
use hotbay_core::message::{Answer, AnswerResult, Obstacle, Order, RecordHealth, Registration};
use hotbay_registry::{MemoryStore, Registry, Surroundings};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

/// Nothing here takes long; a test that hangs is to fail.
const PATIENCE: Duration = Duration::from_secs(60);
/// The registry gives up an agent that is silent for ten seconds.
const HEARTBEAT: Duration = Duration::from_secs(2);
pub(crate) const BLOCKER: &str = "qemu (pid 33)";

/// What the agent does with orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Carries them out at once, those that it holds as well.
    Obey,
    /// Answers that something is in the way, and keeps them.
    Hold,
}

pub(crate) struct Rig {
    folder: TempDir,
    machine: MachineId,
    manner: watch::Sender<Manner>,
    registry: Registry,
    /// The server with all its connections; a runtime of its own, so that it can be cut off as a crash would.
    server: Option<Runtime>,
}

impl Rig {
    /// A registry with one registered agent, `node-a`: two drives in bays, and the system drive.
    pub(crate) async fn start() -> Self {
        Self::adding_by(AutoAdd::default()).await
    }

    /// The same, with rules that add drives.
    pub(crate) async fn adding_by(auto_add: AutoAdd) -> Self {
        let surroundings = Surroundings {
            cluster: ClusterId::from_bits(fresh()),
            term: TermId::from_bits(fresh()),
            wall_ms: || 1_700_000_000_000,
            checkpoint: |_| (),
            auto_add,
        };
        let (registry, _ended) = Registry::start(MemoryStore::new(), surroundings).unwrap();
        let mut rig = Self {
            folder: tempfile::tempdir().unwrap(),
            machine: MachineId::from_bits(fresh()),
            manner: watch::channel(Manner::Obey).0,
            registry,
            server: None,
        };
        rig.serve().await;
        rig
    }

    /// Listens, with an agent that has just started.
    pub(crate) async fn serve(&mut self) {
        let server = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = {
            let _in_server = server.enter();
            UnixListener::bind(self.socket()).unwrap()
        };
        let never = std::future::pending();
        server.spawn(hotbay_control::serve(self.registry.clone(), listener, fresh, never));
        self.server = Some(server);
        let (registered, ready) = oneshot::channel();
        let registration = registration(self.machine);
        tokio::spawn(agent(self.socket(), registration, self.manner.subscribe(), registered));
        tokio::time::timeout(PATIENCE, ready).await.expect("in time").expect("registered");
    }

    /// Cuts off every connection. What the registry knows stays.
    pub(crate) fn cut(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
        std::fs::remove_file(self.socket()).unwrap();
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("api.sock")
    }

    /// Where files of a test may stand; the program runs there.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub(crate) fn agent(&self, manner: Manner) {
        self.manner.send_replace(manner);
    }

    /// Somebody else adds a drive, even while nobody is served.
    pub(crate) async fn add_behind_the_scenes(&self, name: &str) {
        let add = Action::AddDevice(Target { host: None, device: name.to_owned() });
        let outcomes = self.registry.act(vec![add], "somebody else".to_owned(), false).await;
        assert_eq!(outcomes.unwrap()[0].code, Code::Ok);
    }

    /// The program, against this registry, ready to be started.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = hotbay(args);
        command.env("HOTBAY_API", self.socket()).current_dir(self.folder.path());
        command
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Ran {
        finish(self.command(args).spawn().unwrap()).await
    }

    /// A drive as the API has it.
    pub(crate) async fn drive(&self, name: &str) -> Value {
        let ran = self.run(&["get", "drives", name, "-o", "json"]).await;
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// The short name of the drive with this serial number.
    pub(crate) async fn name(&self, serial: &str) -> String {
        self.drive(serial).await["metadata"]["name"].as_str().unwrap().to_owned()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
    }
}

/// The program with nothing of the environment that could change what it does.
pub(crate) fn hotbay(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
    command.args(args).env_remove("HOTBAY_API").kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) async fn finish(child: Child) -> Ran {
    let ended = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    let Output { status, stdout, stderr } = ended.expect("in time").unwrap();
    Ran {
        code: status.code(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

fn fresh() -> u128 {
    uuid::Uuid::new_v4().as_u128()
}

fn device(path: &str, bay: Option<&str>, serial: &str, denied: Vec<Denied>) -> Observed {
    Observed {
        evidence: Evidence {
            serial: Some(serial.to_owned()),
            model: Some("ACME NV-2000".to_owned()),
            ..Evidence::default()
        },
        path: path.to_owned(),
        bay: bay.map(str::to_owned),
        kind: DeviceKind::Block,
        media: Media::Nvme,
        size_bytes: 2_000_398_934_016,
        block_bytes: 512,
        details: Default::default(),
        label: None,
        denied,
    }
}

fn registration(machine: MachineId) -> Registration {
    let system = Denied::SystemDrive { mounts: vec!["/".to_owned(), "/boot".to_owned()] };
    Registration {
        node: None,
        name: "node-a".parse().unwrap(),
        machine,
        incarnation: Incarnation::from_bits(fresh()),
        cluster: None,
        newest_term: None,
        record: RecordHealth::Usable,
        drives: Vec::new(),
        conditions: Vec::new(),
        labels: Default::default(),
        uses: vec![],
        device_mapper: false,
        program: Default::default(),
        devices: vec![
            device("/dev/nvme0n1", Some("0"), "S3X1A9", Vec::new()),
            device("/dev/nvme1n1", Some("1"), "S3X1B2", Vec::new()),
            device("/dev/sda", None, "A77Q", vec![system]),
        ],
    }
}

async fn agent(
    socket: PathBuf,
    registration: Registration,
    mut manner: watch::Receiver<Manner>,
    ready: oneshot::Sender<()>,
) {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://registry");
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    let incarnation = registration.incarnation;
    let (out, said) = mpsc::channel(64);
    let say = async |message: FromAgent| out.send(to_registry(&message)).await.unwrap();
    say(FromAgent::Register(registration)).await;
    let session = AgentsClient::new(channel).session(ReceiverStream::new(said)).await;
    let mut heard = session.unwrap().into_inner();
    let mut ready = Some(ready);
    let mut held: Vec<Order> = Vec::new();
    let mut beat = tokio::time::interval(HEARTBEAT);
    loop {
        let orders = tokio::select! {
            message = heard.message() => match message.unwrap_or_default().map(from_registry) {
                None => return,
                Some(Ok(FromRegistry::Order(order))) => vec![order],
                Some(Ok(FromRegistry::Registered(_))) => {
                    ready.take().expect("registered once").send(()).unwrap();
                    Vec::new()
                }
                Some(other) => panic!("{other:?}"),
            },
            _ = manner.changed() => std::mem::take(&mut held),
            _ = beat.tick() => {
                say(FromAgent::Heartbeat).await;
                Vec::new()
            }
        };
        for order in orders {
            let result = match *manner.borrow() {
                Manner::Obey => AnswerResult::Done,
                Manner::Hold => {
                    AnswerResult::Waiting(Obstacle::Blocked { by: vec![BLOCKER.into()] })
                }
            };
            if result != AnswerResult::Done {
                held.push(order.clone());
            }
            let Order { drive, ordered, .. } = order;
            say(FromAgent::Answer(Answer { drive, ordered, incarnation, result })).await;
        }
    }
}
