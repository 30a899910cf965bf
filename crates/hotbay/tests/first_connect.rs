//! Commands that wait, started before the registry that they ask: real processes on both sides.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cluster::Cluster;

/// A command whose words on standard error are read until it says that it waits.
struct Waiting {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
}

impl Waiting {
    fn start(socket: &Path, arguments: &[&str]) -> Self {
        let mut child = command(socket, arguments).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let expected = format!("waiting for the registry at {}: ", socket.display());
        assert!(line.starts_with(&expected), "{line}");
        Self { child, said }
    }

    /// The exit code, and what it printed.
    fn finish(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut said) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.said.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), out, said)
    }

    /// The first line that it prints.
    fn first_line(mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        line
    }
}

fn command(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
    command.args(arguments).env("HOTBAY_API", socket).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs to the end: exit code, and what it said on standard error.
fn run(socket: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(socket, arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_wait_and_a_watch_begin_before_the_registry() {
    let mut cluster = Cluster::started(1, false);
    let target = cluster.target(0);
    cluster.expect(&["drive", "add", &target, "--wait"], 0);
    cluster.registry.take().unwrap().kill();

    // The socket of a killed registry is still there, and nobody listens on it.
    let remove = Waiting::start(&cluster.api(), &["drive", "remove", &target, "--wait"]);
    let watch = Waiting::start(&cluster.api(), &["get", "drives", "--watch", "-o", "name"]);
    let events = Waiting::start(&cluster.api(), &["events", "--follow"]);
    cluster.start_registry();
    let (code, out, said) = remove.finish();
    assert_eq!(code, Some(0), "{out}{said}");
    assert!(out.contains("closed, and that is proved"), "{out}{said}");
    assert!(watch.first_line().starts_with("d-"));
    assert!(events.first_line().contains(" ago "));
}

#[test]
fn the_wait_for_a_registry_ends_with_the_limit_and_says_that_nothing_was_asked() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("api.sock");
    let waiting = ["host", "remove", "node-a", "--wait", "--timeout", "300ms"];
    let (code, out, said) = Waiting::start(&socket, &waiting).finish();
    assert_eq!((code, &*out), (Some(3), ""), "{said}");
    assert!(said.contains("error: no registry has answered at"), "{said}");
    assert!(said.contains("nothing was asked for"), "{said}");
}

#[test]
fn without_wait_there_is_no_wait() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("api.sock");
    let (code, said) = run(&socket, &["drive", "remove", "d-1"]);
    assert_eq!(code, Some(3));
    assert!(said.starts_with("error: no registry answers at "), "{said}");
}

#[test]
fn a_path_that_can_never_work_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let wait = ["drive", "remove", "d-1", "--wait", "--timeout", "0"];
    let (code, said) = run(dir.path(), &wait);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is not a socket: it is a directory"), "{said}");
    let (code, said) = run(&file, &wait);
    assert_eq!(code, Some(2), "{said}");
    // A path through a file.
    let (code, said) = run(&file.join("api.sock"), &wait);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("Not a directory"), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), b"");
}

#[test]
fn ctrl_c_ends_the_wait_and_nothing_was_asked() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("api.sock");
    let waiting = Waiting::start(&socket, &["drive", "add", "d-1", "--wait", "--timeout", "0"]);
    cluster::signal(waiting.child.id(), "INT");
    let (code, _, said) = waiting.finish();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("Stopped waiting. Nothing was asked for."), "{said}");
}

/// Root may do everything, so another user is needed: `nobody`, by `setpriv`.
#[test]
fn a_socket_that_is_closed_to_the_caller_is_not_waited_for() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("!! NOT RUN: a socket closed to the caller; needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("hotbay");
    std::fs::copy(env!("CARGO_BIN_EXE_hotbay"), &program).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = dir.path().join("api.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    command.args(["drive", "remove", "d-1", "--wait", "--timeout", "0", "--api"]).arg(&socket);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("permission denied"), "{said}");
    assert!(said.contains("as the user that the registry runs as"), "{said}");
}
