//! `kubectl hotbay`, with a kubectl that is a script: what it asks kubectl for, that it speaks to the registry behind
//! that, for longer than a token is good, and what it says when something is missing.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cluster::{Part, eventually};
use hotbay_control::{
    Account, AccountToken, Accounts, Asked, AuthorityAt, AuthorityPems, DoorOptions, Doors, May,
    NotKnown,
};
use hotbay_core::cluster::{About, Notice};
use hotbay_core::ids::{ClusterId, NodeName, TermId};
use hotbay_registry::{MemoryStore, Registry, Surroundings};
use tokio::net::UnixListener;

/// Answers as kubectl does; the tokens that it makes are numbered from 1. What it is asked for is in `asked`; a file
/// `fails-WORD` has what it says instead.
const KUBECTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
echo "$*" >> asked
if [ -e "fails-$1" ]; then cat "fails-$1" >&2; exit 1; fi
case "$1" in
  create) echo >> made; echo "token-of-$3-$(wc -l < made)" ;;
  get) cat authority.pem ;;
  port-forward)
    echo $$ > forwarding
    echo "Forwarding from 127.0.0.1:$(cat port) -> 7444"
    exec sleep 1000 ;;
esac
"#;

/// Seconds that a token is taken to be good for: another one is made every two.
const LIFE: (&str, &str) = ("HOTBAY_TEST_TOKEN_LIFE", "3");

#[derive(Debug, Default)]
struct Platform {
    /// The newest token that was shown.
    shown: AtomicU64,
    /// The tokens up to this one are good no more.
    ended: AtomicU64,
}

impl Accounts for Platform {
    fn node_of<'a>(&'a self, _: &'a AccountToken) -> Asked<'a, NodeName> {
        Box::pin(async { Err(NotKnown::Refused { why: "no nodes here".to_owned() }) })
    }

    fn rights_of<'a>(&'a self, token: &'a AccountToken) -> Asked<'a, Account> {
        let (who, number) = token.secret().rsplit_once('-').unwrap();
        let number = number.parse().unwrap();
        self.shown.fetch_max(number, Ordering::Relaxed);
        let account = |may| Ok(Account { who: who.to_owned(), may });
        let said = match who {
            _ if number <= self.ended.load(Ordering::Relaxed) => {
                Err(NotKnown::Refused { why: "it has expired".to_owned() })
            }
            "token-of-hotbay-admin" => account(May::Write),
            "token-of-hotbay-viewer" => account(May::Read),
            _ => Err(NotKnown::Refused { why: "it is not known".to_owned() }),
        };
        Box::pin(async { said })
    }

    fn advice(&self, may: May) -> String {
        format!("there is one that may {may:?}")
    }
}

struct Rig {
    dir: tempfile::TempDir,
    registry: Registry,
    platform: Arc<Platform>,
}

fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

impl Rig {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let surroundings = Surroundings {
            cluster: ClusterId::from_bits(1),
            term: TermId::from_bits(2),
            wall_ms,
            checkpoint: |_| {},
            auto_add: Default::default(),
        };
        let (registry, _ended) = Registry::start(MemoryStore::new(), surroundings).unwrap();
        let authority = AuthorityPems::fresh().unwrap();
        let platform = Arc::new(Platform::default());
        let life = Duration::from_secs(3_600);
        let doors = Doors::open(DoorOptions {
            agents: Vec::new(),
            clients: vec!["127.0.0.1:0".to_owned()],
            authority: AuthorityAt::Given(authority.clone()),
            tls_dir: dir.path().join("tls"),
            accounts: Some(Arc::clone(&platform) as Arc<dyn Accounts>),
            node_life: life,
            registry_life: life,
            wall_ms,
        });
        let doors = doors.await.unwrap();
        let port = doors.client_addresses()[0].port();
        let listeners = vec![UnixListener::bind(dir.path().join("api.sock")).unwrap()];
        let never = std::future::pending();
        let served = registry.clone();
        tokio::spawn(hotbay_control::serve_with_doors(served, listeners, doors, || 1, never));
        let rig = Self { dir, registry, platform };
        rig.write("port", &port.to_string());
        rig.write("authority.pem", &authority.certificate);
        rig.write("kubectl", KUBECTL);
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(rig.path("kubectl"), open).unwrap();
        symlink(env!("CARGO_BIN_EXE_hotbay"), rig.path("kubectl-hotbay")).unwrap();
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(self.path("kubectl-hotbay"));
        command.args(arguments.split_whitespace()).stdin(Stdio::null());
        let path = format!("{}:/usr/bin:/bin", self.dir.path().display());
        command.env("PATH", path).env("HOTBAY_API", "/nowhere");
        command
    }

    /// Runs it; gives its exit code, and all that it printed.
    fn run(&self, arguments: &str) -> (Option<i32>, String) {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let said = [stdout, stderr].concat();
        (status.code(), String::from_utf8(said).unwrap())
    }

    fn asked(&self) -> String {
        let asked = fs::read_to_string(self.path("asked")).unwrap_or_default();
        fs::remove_file(self.path("asked")).ok();
        asked
    }

    /// Starts it, with tokens that are good for a moment; what it prints goes to the file `heard`.
    fn begin(&self, arguments: &str) -> Part {
        let heard = fs::File::create(self.path("heard")).unwrap();
        let mut command = self.command(arguments);
        command.env(LIFE.0, LIFE.1).stderr(heard.try_clone().unwrap()).stdout(heard);
        Part::of(command.spawn().unwrap())
    }

    fn heard(&self) -> String {
        fs::read_to_string(self.path("heard")).unwrap()
    }

    fn until_heard(&self, words: &str) {
        eventually(words, || self.heard().contains(words).then_some(()));
    }

    fn until_shown(&self, number: u64) {
        let shown = || self.platform.shown.load(Ordering::Relaxed) >= number;
        eventually("another token is shown", || shown().then_some(()));
    }

    async fn tell(&self, text: &str) {
        let (about, text) = (About::Registry, text.to_owned());
        let notice = Notice { warning: false, reason: "Test", about, text, order: None };
        self.registry.rewrite(Vec::new(), vec![notice]).await.unwrap();
    }

    /// The first token of something that was begun ends, after another one was made. By the time that some more were
    /// shown, the registry has asked about each again that something was begun with.
    fn outlive_first_token(&self) {
        self.until_shown(2);
        self.platform.ended.store(1, Ordering::Relaxed);
        self.until_shown(5);
    }

    /// The process that forwards is gone.
    fn expect_closed(&self) {
        let pid = fs::read_to_string(self.path("forwarding")).unwrap();
        let process = PathBuf::from(format!("/proc/{}/exe", pid.trim()));
        eventually("the way is closed", || (!process.exists()).then_some(()));
        fs::remove_file(self.path("forwarding")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_speaks_to_the_registry_with_the_rights_that_it_needs() {
    let rig = Rig::start().await;
    let (code, said) = rig.run("get nodes --context c -n storage --kubeconfig /k");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("There are no nodes"), "{said}");
    let asked = rig.asked();
    let which = "--namespace storage --context c --kubeconfig /k";
    for expected in [
        "create token hotbay-viewer --audience hotbay.dev --duration 600s",
        "get configmap hotbay-authority",
        "port-forward --address 127.0.0.1 service/hotbay-controller :7444",
    ] {
        let line = asked.lines().find(|line| line.starts_with(expected));
        assert!(line.is_some_and(|line| line.ends_with(which)), "{asked}");
    }
    rig.expect_closed();

    // What changes something needs more, unless it is not to be had.
    let (code, said) = rig.run("volume delete db --yes");
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("kubectl hotbay get volumes"), "{said}");
    assert!(rig.asked().contains("create token hotbay-admin"));
    let (code, said) = rig.run("host add a --as-viewer");
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("token-of-hotbay-viewer may only read"), "{said}");
    for only_asks in ["drive add d-1 --dry-run", "host label a rack=b --dry-run"] {
        let (code, said) = rig.run(only_asks);
        assert_eq!(code, Some(4), "{said}");
        assert!(!rig.asked().contains("admin"), "{only_asks}");
    }
    rig.expect_closed();

    // However it ends, the way ends with it.
    let following = rig.command("events --follow").stdout(Stdio::null()).spawn().unwrap();
    let following = Part::of(following);
    eventually("a way", || rig.path("forwarding").exists().then_some(()));
    following.kill();
    rig.expect_closed();
}

/// What went on for longer than its token, ten minutes, ended with UNAUTHENTICATED: also a removal that waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_outlives_its_token() {
    let rig = Rig::start().await;
    let mut watching = rig.begin("get nodes --watch -o name");
    rig.outlive_first_token();
    let agent = Command::new(env!("CARGO_BIN_EXE_hotbay"))
        .args(["node", "--no-config", "--name", "node-a", "--join"])
        .arg(rig.path("api.sock"))
        .arg("--data-dir")
        .arg(rig.path("node"))
        .arg("--drives")
        .arg(rig.path("no-drive-*"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _agent = Part::of(agent.unwrap());
    rig.until_heard("node-a");
    assert!(!watching.has_ended(), "{}", rig.heard());
    assert!(!rig.heard().contains("trying again"), "{}", rig.heard());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_followed_for_longer_than_a_token_is_good_and_each_is_told_once() {
    let rig = Rig::start().await;
    rig.tell("the first").await;
    let mut following = rig.begin("events --follow");
    rig.until_heard("the first");
    rig.outlive_first_token();
    rig.tell("the second").await;
    rig.until_heard("the second");
    rig.until_shown(7);
    assert!(!following.has_ended(), "{}", rig.heard());
    let heard = rig.heard();
    let times = |words: &str| heard.matches(words).count();
    assert_eq!((times("the first"), times("the second")), (1, 1), "{heard}");
}

/// kubectl forwards to one pod, and ends with it. Whoever waited longer than that heard nothing any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_that_ends_is_opened_again_at_the_same_port() {
    let rig = Rig::start().await;
    let following = rig.begin("events --follow");
    rig.tell("the first").await;
    rig.until_heard("the first");
    let forwards = || fs::read_to_string(rig.path("forwarding")).unwrap_or_default();
    let first = forwards();
    let pid = rustix::process::Pid::from_raw(first.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("another kubectl", || (!forwards().is_empty() && forwards() != first).then_some(()));
    let again = format!("service/hotbay-controller {}:7444", rig.read("port"));
    assert!(rig.asked().contains(&again));
    rig.tell("the second").await;
    rig.until_heard("the second");
    following.kill();
    rig.expect_closed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_a_token_is_not_renewed_is_told_when_it_has_ended() {
    let rig = Rig::start().await;
    let mut watching = rig.begin("get nodes --watch");
    rig.until_shown(1);
    rig.write("fails-create", "Error from server (Forbidden): no right to do so\n");
    // It goes on while its token is good. A second failure means that the first is known.
    let asked = || fs::read_to_string(rig.path("asked")).unwrap();
    eventually("another token is asked for", || {
        (asked().matches("create token").count() >= 3).then_some(())
    });
    assert!(!watching.has_ended(), "{}", rig.heard());
    rig.platform.ended.store(u64::MAX, Ordering::Relaxed);
    eventually("it ends", || watching.has_ended().then_some(()));
    let heard = rig.heard();
    assert!(heard.contains("the token has ended, and there is no other"), "{heard}");
    assert!(heard.contains("create serviceaccounts/token, for the name hotbay-viewer"), "{heard}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_told_with_what_to_do() {
    let rig = Rig::start().await;
    let forbidden = "Error from server (Forbidden): no right to do so\n";
    for (command, fails, said_by_kubectl, code, words) in [
        (
            "host add a",
            "create",
            forbidden,
            5,
            "create serviceaccounts/token, for the name hotbay-admin",
        ),
        ("host add a", "create", forbidden, 5, "--as-viewer"),
        (
            "status",
            "create",
            "error: failed to create token: serviceaccounts \"hotbay-viewer\" not found",
            4,
            "-n NAMESPACE",
        ),
        ("status", "get", forbidden, 5, "get configmaps, for the name hotbay-authority"),
        (
            "status",
            "get",
            "Error from server (NotFound): configmaps",
            4,
            "kubectl get pods -n hotbay",
        ),
        ("status", "port-forward", forbidden, 5, "create pods/portforward"),
        (
            "status",
            "port-forward",
            "Error from server (NotFound): services \"hotbay-controller\" not found",
            4,
            "kubectl get deployments -A",
        ),
        ("status", "port-forward", "Unable to connect to the server", 3, "Unable to connect"),
    ] {
        rig.write(&format!("fails-{fails}"), said_by_kubectl);
        let (answered, said) = rig.run(command);
        assert_eq!(answered, Some(code), "{said}");
        assert!(said.starts_with("error: ") && said.contains(words), "{said}");
        fs::remove_file(rig.path(&format!("fails-{fails}"))).unwrap();
    }
    rig.write("authority.pem", "none");
    let (code, said) = rig.run("status");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("holds no certificate"), "{said}");

    // Another registry than the one whose certificate is told hears no token.
    rig.write("authority.pem", &AuthorityPems::fresh().unwrap().certificate);
    let (code, said) = rig.run("status");
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("the token was not sent"), "{said}");
    fs::remove_file(rig.path("kubectl")).unwrap();
    let mut alone = rig.command("status");
    let output = alone.env("PATH", rig.path("tls")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("there is no program kubectl"), "{said}");

    // What is wrong by itself needs no cluster.
    let (code, said) = rig.run("volume create db --size 0");
    assert_eq!(code, Some(2), "{said}");
    let (code, said) = rig.run("get --help");
    assert_eq!(code, Some(0));
    assert!(said.contains("kubectl hotbay get drives"), "{said}");
    assert!(said.contains("Usage: kubectl hotbay get"), "{said}");
}
