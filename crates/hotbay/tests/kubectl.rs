//! `kubectl hotbay`, with a kubectl that is a script: what it asks kubectl for, that it speaks to the registry behind
//! that, and what it says when something is missing.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cluster::{Part, eventually};
use hotbay_control::{
    Account, AccountToken, Accounts, Asked, AuthorityAt, AuthorityPems, DoorOptions, Doors, May,
    NotKnown,
};
use hotbay_core::ids::{ClusterId, NodeName, TermId};
use hotbay_registry::{MemoryStore, Registry, Surroundings};
use tokio::net::UnixListener;

/// Answers as kubectl does. What it is asked for is in `asked`; a file `fails-WORD` has what it says instead.
const KUBECTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
echo "$*" >> asked
if [ -e "fails-$1" ]; then cat "fails-$1" >&2; exit 1; fi
case "$1" in
  create) echo "token-of-$3" ;;
  get) cat authority.pem ;;
  port-forward)
    echo "Forwarding from 127.0.0.1:$(cat port) -> 7444"
    echo $$ > forwarding
    exec sleep 1000 ;;
esac
"#;

#[derive(Debug)]
struct Platform;

impl Accounts for Platform {
    fn node_of<'a>(&'a self, _: &'a AccountToken) -> Asked<'a, NodeName> {
        Box::pin(async { Err(NotKnown::Refused { why: "no nodes here".to_owned() }) })
    }

    fn rights_of<'a>(&'a self, token: &'a AccountToken) -> Asked<'a, Account> {
        let account = |may| Ok(Account { who: token.secret().to_owned(), may });
        let said = match token.secret() {
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
        let life = Duration::from_secs(3_600);
        let doors = Doors::open(DoorOptions {
            agents: Vec::new(),
            clients: vec!["127.0.0.1:0".to_owned()],
            authority: AuthorityAt::Given(authority.clone()),
            tls_dir: dir.path().join("tls"),
            accounts: Some(Arc::new(Platform)),
            node_life: life,
            registry_life: life,
            wall_ms,
        });
        let doors = doors.await.unwrap();
        let port = doors.client_addresses()[0].port();
        let listeners = vec![UnixListener::bind(dir.path().join("api.sock")).unwrap()];
        let never = std::future::pending();
        tokio::spawn(hotbay_control::serve_with_doors(registry, listeners, doors, || 1, never));
        let rig = Self { dir };
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
        "create token hotbay-viewer --audience hotbay.dev --duration 10m",
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
    let (code, _) = rig.run("drive add d-1 --dry-run");
    assert_eq!(code, Some(4));
    assert!(!rig.asked().contains("admin"));
    rig.expect_closed();

    // However it ends, the way ends with it.
    let following = rig.command("events --follow").stdout(Stdio::null()).spawn().unwrap();
    let following = Part::of(following);
    eventually("a way", || rig.path("forwarding").exists().then_some(()));
    following.kill();
    rig.expect_closed();
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
