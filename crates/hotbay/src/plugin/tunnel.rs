//! The way to the controllers' Service: `kubectl port-forward`, on a free port of this machine. It ends with this
//! process, however that ends: the program starts itself once more, to become kubectl with the kernel's word for that.
//!
//! kubectl forwards to one pod of the Service, and ends when that pod does. A command that goes on for longer than its
//! pod finds the way open again at the same port: another pod is behind it then.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::CALLED;
use super::kubectl::{Kubectl, KubectlError, SERVICE, in_words, not_started};
use crate::client::bearer::Renewed;
use crate::client::place::Place;

/// The first argument of a process that is to become kubectl; a number follows, that of the process which it ends with.
const HELD: &str = "--end-with";
/// The Service's port for clients.
const CLIENTS: u16 = 7_444;
/// How long kubectl may take to be ready.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// What it prints then, before the port.
const READY: &str = "Forwarding from 127.0.0.1:";
/// What it says when it fails is shorter.
const SAID_LIMIT_BYTES: u64 = 64 << 10;
/// The pause before the way is opened again, for as long as this process runs: who waits has a limit of their own.
const AGAIN: Duration = Duration::from_secs(1);

/// An open way; closed when dropped.
#[derive(Debug)]
pub(super) struct Tunnel {
    forwarding: Arc<Mutex<Forwarding>>,
    port: Receiver<u16>,
    said: Receiver<String>,
}

/// The kubectl that forwards now.
#[derive(Debug)]
struct Forwarding {
    child: Child,
    /// It is not followed by another one.
    is_closed: bool,
}

impl Tunnel {
    /// Begins to open it.
    pub(super) fn open(kubectl: &Kubectl) -> Result<Self, KubectlError> {
        let mut child = forward(kubectl, None)?;
        let output = output_of(&mut child);
        let forwarding = Arc::new(Mutex::new(Forwarding { child, is_closed: false }));
        let (ready, port) = channel();
        let (says, said) = channel();
        let (kubectl, kept) = (kubectl.clone(), Arc::clone(&forwarding));
        thread::spawn(move || keep_open(&kubectl, &kept, output, &ready, &says));
        Ok(Self { forwarding, port, said })
    }

    /// Where the controllers are reached, when the way is open.
    pub(super) fn place(
        &self,
        token: Renewed,
        authority: [u8; 32],
        namespace: &str,
    ) -> Result<Place, KubectlError> {
        let failed = |said: &str| {
            Err(KubectlError::Forward { namespace: namespace.to_owned(), said: said.to_owned() })
        };
        match self.port.recv_timeout(READY_LIMIT) {
            Ok(port) => Ok(Place::Service {
                address: format!("127.0.0.1:{port}"),
                authority,
                token,
                name: format!("{SERVICE} in the namespace {namespace}"),
            }),
            Err(RecvTimeoutError::Timeout) => failed("kubectl does not say that it is ready"),
            // It has ended, and so has what it says.
            Err(RecvTimeoutError::Disconnected) => {
                let said = self.said.recv_timeout(READY_LIMIT).unwrap_or_default();
                if said.contains(NOT_FOUND) {
                    return Err(KubectlError::NoKubectl);
                }
                failed(&in_words(&said))
            }
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let mut forwarding = lock(&self.forwarding);
        forwarding.is_closed = true;
        // It may have ended already.
        forwarding.child.kill().unwrap_or_default();
        forwarding.child.wait().ok();
    }
}

fn lock(forwarding: &Mutex<Forwarding>) -> MutexGuard<'_, Forwarding> {
    forwarding.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts kubectl, at this port or at one that is free.
fn forward(kubectl: &Kubectl, port: Option<u16>) -> Result<Child, KubectlError> {
    let own_port = port.map(|port| port.to_string()).unwrap_or_default();
    let (service, ports) = (format!("service/{SERVICE}"), format!("{own_port}:{CLIENTS}"));
    let forward = ["port-forward", "--address", "127.0.0.1", &service, &ports];
    let own = std::env::current_exe().map_err(KubectlError::Start)?;
    Command::new(own)
        .arg0(CALLED)
        .arg(HELD)
        .arg(std::process::id().to_string())
        .args(kubectl.arguments(&forward))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_started)
}

type Output = (Option<ChildStdout>, Option<ChildStderr>);

fn output_of(child: &mut Child) -> Output {
    (child.stdout.take(), child.stderr.take())
}

/// Tells the port when the way is open for the first time, or what kubectl says if it never is; then opens it again
/// whenever kubectl has ended. kubectl ends with the thread that starts it, which is this one: it goes on for as long
/// as the process.
fn keep_open(
    kubectl: &Kubectl,
    forwarding: &Mutex<Forwarding>,
    output: Output,
    ready: &Sender<u16>,
    says: &Sender<String>,
) {
    let (mut output, mut port) = (output, None);
    loop {
        let (stdout, stderr) = output;
        // Both are read to the end of kubectl: it must not wait for a reader.
        let said = thread::spawn(move || all_of(stderr));
        let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
        for opened in lines.map_while(Result::ok).filter_map(|line| port_in(&line)) {
            // Nobody waits for the second.
            ready.send(opened).unwrap_or_default();
            port = Some(opened);
        }
        let said = said.join().unwrap_or_default();
        let Some(port) = port else {
            says.send(said).unwrap_or_default();
            return;
        };
        output = loop {
            thread::sleep(AGAIN);
            let mut forwarding = lock(forwarding);
            if forwarding.is_closed {
                return;
            }
            forwarding.child.wait().ok();
            if let Ok(mut child) = forward(kubectl, Some(port)) {
                let output = output_of(&mut child);
                forwarding.child = child;
                break output;
            }
        };
    }
}

fn all_of(stderr: Option<ChildStderr>) -> String {
    let mut text = Vec::new();
    if let Some(stderr) = stderr {
        stderr.take(SAID_LIMIT_BYTES).read_to_end(&mut text).unwrap_or_default();
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The port in kubectl's line.
fn port_in(line: &str) -> Option<u16> {
    line.strip_prefix(READY)?.split(' ').next()?.parse().ok()
}

/// What a process says that should have become kubectl, and there is none.
const NOT_FOUND: &str = "kubectl-hotbay: no kubectl";

/// Becomes kubectl, if this process was started for that; comes back only if it was not, or cannot.
pub(super) fn held() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != HELD {
        return None;
    }
    let parent: i32 = arguments.next()?.to_str()?.parse().ok()?;
    let arguments: Vec<OsString> = arguments.collect();
    let held = set_parent_process_death_signal(Some(Signal::TERM)).is_ok();
    // It may have died before the line above.
    if !held || getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Some(ExitCode::FAILURE);
    }
    let error = Command::new("kubectl").args(arguments).exec();
    match not_started(error) {
        KubectlError::NoKubectl => eprintln!("{NOT_FOUND}"),
        KubectlError::Start(source) => eprintln!("error: cannot start kubectl: {source}"),
        other => eprintln!("error: {other}"),
    }
    Some(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_in_kubectl_s_line() {
        assert_eq!(port_in("Forwarding from 127.0.0.1:40123 -> 7444"), Some(40_123));
        assert_eq!(port_in("Forwarding from [::1]:40123 -> 7444"), None);
        assert_eq!(port_in("Handling connection for 40123"), None);
    }
}
