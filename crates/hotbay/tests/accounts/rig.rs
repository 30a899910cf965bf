//! A registry in this process that knows accounts as a platform would, and a real agent that has one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hotbay_control::{
    Account, AccountToken, Accounts, Asked, AuthorityAt, AuthorityPems, DoorOptions, Doors, May,
    NotKnown,
};
use hotbay_core::ids::{ClusterId, NodeName, TermId};
use hotbay_registry::{MemoryStore, Registry, Surroundings};
use serde_json::Value;
use tokio::net::UnixListener;

use crate::cluster::{Part, TestDrive, eventually};
use crate::membership;

pub(crate) const LIFE: Duration = Duration::from_secs(3_600);
/// What the agent's first token is.
pub(crate) const TOKEN: &str = "header.the-first-secret.signature";

/// Knows the tokens of nodes that a test tells it.
#[derive(Debug, Default)]
pub(crate) struct Platform(Mutex<BTreeMap<String, NodeName>>);

impl Platform {
    /// From now on this is the only token that is known.
    pub(crate) fn give_out(&self, token: &str, node: &str) {
        *self.0.lock().unwrap() = BTreeMap::from([(token.to_owned(), node.parse().unwrap())]);
    }
}

impl Accounts for Platform {
    fn node_of<'a>(&'a self, token: &'a AccountToken) -> Asked<'a, NodeName> {
        let known = self.0.lock().unwrap().get(token.secret()).cloned();
        let refused = || NotKnown::Refused { why: "the platform does not know it".to_owned() };
        Box::pin(async move { known.ok_or_else(refused) })
    }

    fn rights_of<'a>(&'a self, _: &'a AccountToken) -> Asked<'a, Account> {
        Box::pin(async { Err(NotKnown::Refused { why: "nobody has rights here".to_owned() }) })
    }

    fn advice(&self, _: May) -> String {
        "ask the platform".to_owned()
    }
}

pub(crate) struct Rig {
    pub(crate) name: String,
    pub(crate) platform: Arc<Platform>,
    pub(crate) authority: AuthorityPems,
    pub(crate) agent: Option<Part>,
    /// Where the agent dials.
    pub(crate) address: String,
    drive: TestDrive,
    dir: tempfile::TempDir,
}

impl Rig {
    /// Nothing runs yet.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("test-{}", dir.path().file_name().unwrap().to_string_lossy())
            .to_lowercase()
            .replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let platform = Arc::new(Platform::default());
        platform.give_out(TOKEN, &name);
        let authority = AuthorityPems::fresh().unwrap();
        fs::write(dir.path().join("token"), format!("{TOKEN}\n")).unwrap();
        fs::write(dir.path().join("authority.pem"), &authority.certificate).unwrap();
        let drive = TestDrive::new(dir.path().join("drive.img"), false);
        Self { name, platform, authority, agent: None, address: String::new(), drive, dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a registry at an address; gives where it listens. Its parts end with the test's runtime.
    pub(crate) async fn start_registry(&self, at: &str, node_life: Duration) -> SocketAddr {
        self.lead(at, node_life, MemoryStore::new(), 2).await
    }

    /// The same, over what a registry before may have left there, and under a term of its own.
    pub(crate) async fn lead(
        &self,
        at: &str,
        node_life: Duration,
        store: MemoryStore,
        term: u128,
    ) -> SocketAddr {
        let surroundings = Surroundings {
            cluster: ClusterId::from_bits(1),
            term: TermId::from_bits(term),
            wall_ms,
            checkpoint: |_| {},
            auto_add: Default::default(),
        };
        let (registry, _ended) = Registry::start(store, surroundings).unwrap();
        let doors = Doors::open(DoorOptions {
            agents: vec![at.to_owned()],
            clients: Vec::new(),
            authority: AuthorityAt::Given(self.authority.clone()),
            tls_dir: self.path("tls"),
            accounts: Some(self.platform.clone()),
            node_life,
            registry_life: LIFE,
            wall_ms,
        });
        let doors = doors.await.unwrap();
        let address = doors.agent_addresses()[0];
        let socket = self.path("api.sock");
        // Of one before, if there was any.
        fs::remove_file(&socket).unwrap_or_default();
        let listeners = vec![UnixListener::bind(socket).unwrap()];
        let never = std::future::pending();
        let serving = hotbay_control::serve_with_doors(registry, listeners, doors, fresh, never);
        tokio::spawn(serving);
        address
    }

    /// Starts the agent, which has the account.
    pub(crate) fn start_agent(&mut self, more: &[&str]) {
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
        command.args(["node", "--no-config", "--data-dir"]).arg(self.path("node"));
        command.arg(format!("--drives=0={}", self.drive.path.display()));
        command.arg("--join-account").arg(self.path("token"));
        command.arg("--authority").arg(self.path("authority.pem"));
        command.args(["--address", &self.address]).args(more);
        command.env("HOTBAY_LOG", "info,hotbay_node=debug").env_remove("HOTBAY_JOIN");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agent = Some(Part::of(command.spawn().unwrap()));
    }

    pub(crate) fn kill_agent(&mut self) {
        self.agent.take().unwrap().kill();
        self.wait_ready(false);
    }

    fn log(&self) -> PathBuf {
        self.path("agent.log")
    }

    pub(crate) fn logged(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    pub(crate) fn wait_logged(&self, words: &str) {
        eventually(&format!("the agent logs {words:?}"), || {
            self.logged().contains(words).then_some(())
        });
    }

    /// The agent ends by itself, with these words.
    pub(crate) fn agent_gives_up(&mut self, words: &str) {
        let mut agent = self.agent.take().unwrap();
        eventually(&format!("the agent ends: {words}"), || agent.has_ended().then_some(()));
        let logged = self.logged();
        assert!(logged.contains(words), "{logged}");
        fs::remove_file(self.log()).unwrap();
    }

    pub(crate) fn wait_ready(&self, ready: bool) {
        eventually(&format!("ready: {ready}; {}", self.log().display()), || {
            let output = self.client(&["get", "nodes", "-o", "json"])?;
            let list: Value = serde_json::from_str(&output).unwrap();
            let nodes = list["items"].as_array().unwrap();
            let ours = nodes.iter().find(|node| node["metadata"]["name"] == self.name.as_str())?;
            (nodes.len() == 1 && ours["status"]["ready"] == ready).then_some(())
        });
    }

    /// What the client prints, if it ends well.
    pub(crate) fn client(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new(env!("CARGO_BIN_EXE_hotbay"))
            .args(arguments)
            .env("HOTBAY_API", self.path("api.sock"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// What the agent has stored about its certificate.
    pub(crate) fn membership(&self) -> Value {
        membership::read(&self.path("node/tls/membership"))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the agent's log\n{}", self.logged());
        }
    }
}

/// An address that nobody listens at now.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

fn fresh() -> u128 {
    static NEXT: AtomicU64 = AtomicU64::new(1_000);
    u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) << 64
}

/// Replaces a file as a platform does.
pub(crate) fn exchange(path: &Path, content: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, content).unwrap();
    fs::rename(beside, path).unwrap();
}
