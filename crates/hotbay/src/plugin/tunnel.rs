//! The way to the controllers' Service: `kubectl port-forward`, on a free port of this machine. It ends with this
//! process, however that ends: the program starts itself once more, to become kubectl with the kernel's word for that.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
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

/// An open way; closed when dropped.
#[derive(Debug)]
pub(super) struct Tunnel {
    child: Child,
    port: Receiver<u16>,
    said: Receiver<String>,
}

impl Tunnel {
    /// Begins to open it.
    pub(super) fn open(kubectl: &Kubectl) -> Result<Self, KubectlError> {
        let (service, port) = (format!("service/{SERVICE}"), format!(":{CLIENTS}"));
        let forward = ["port-forward", "--address", "127.0.0.1", &service, &port];
        let own = std::env::current_exe().map_err(KubectlError::Start)?;
        let mut child = Command::new(own)
            .arg0(CALLED)
            .arg(HELD)
            .arg(std::process::id().to_string())
            .args(kubectl.arguments(&forward))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(not_started)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (ready, port) = channel();
        let (says, said) = channel();
        // Both go on to the end of kubectl: it must not wait for a reader.
        std::thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
            for port in lines.map_while(Result::ok).filter_map(|line| port_in(&line)) {
                // It is said once for every address; nobody waits for the second.
                ready.send(port).unwrap_or_default();
            }
        });
        std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(stderr) = stderr {
                stderr.take(SAID_LIMIT_BYTES).read_to_end(&mut text).unwrap_or_default();
            }
            says.send(String::from_utf8_lossy(&text).into_owned()).unwrap_or_default();
        });
        Ok(Self { child, port, said })
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
        // It may have ended already.
        self.child.kill().unwrap_or_default();
        self.child.wait().ok();
    }
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
