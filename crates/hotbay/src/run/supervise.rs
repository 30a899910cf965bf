//! Runs the registry and agents as processes of their own, and starts again what ends by itself.
//!
//! They are separate processes so that each can be killed, replaced or hang without the others.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::controller::READY;
use super::stop::SUPERVISOR;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// What has run for so long is started again at once when it ends.
const STEADY: Duration = Duration::from_secs(10);
/// How long a part gets to end before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A part to run.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) arguments: Vec<OsString>,
    /// Where its log lines go; to standard error if there is none.
    pub(crate) log: Option<PathBuf>,
}

/// Something that happened to a part.
#[derive(Debug)]
pub(crate) enum Happened {
    /// It listens. Only the registry says so.
    Ready,
    Ended {
        name: String,
        how: String,
    },
}

/// The running parts.
#[derive(Debug)]
pub(crate) struct Supervisor {
    stops: BTreeMap<String, mpsc::Sender<()>>,
    tasks: BTreeMap<String, tokio::task::JoinHandle<()>>,
    happened: mpsc::Sender<Happened>,
}

impl Supervisor {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Happened>) {
        let (happened, events) = mpsc::channel(64);
        (Self { stops: BTreeMap::new(), tasks: BTreeMap::new(), happened }, events)
    }

    /// Starts a part and keeps it running.
    pub(crate) fn start(&mut self, part: Part) {
        let (stop, stopped) = mpsc::channel(1);
        self.stops.insert(part.name.clone(), stop);
        let name = part.name.clone();
        let task = tokio::spawn(keep_running(part, stopped, self.happened.clone()));
        self.tasks.insert(name, task);
    }

    /// Stops the named parts, at the same time, and waits for their end.
    pub(crate) async fn stop(&mut self, names: &[String]) {
        for name in names {
            drop(self.stops.remove(name));
        }
        for name in names {
            if let Some(task) = self.tasks.remove(name) {
                // A task that panicked has no child left to wait for.
                task.await.unwrap_or_default();
            }
        }
    }
}

async fn keep_running(
    part: Part,
    mut stopped: mpsc::Receiver<()>,
    happened: mpsc::Sender<Happened>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let started = Instant::now();
        let how = match spawn(&part) {
            Ok(mut child) => {
                let output = child.stdout.take().expect("its output is piped");
                let listener = tokio::spawn(listen(output, happened.clone()));
                let ended = tokio::select! {
                    status = child.wait() => status.map_or_else(|error| error.to_string(), in_words),
                    _ = stopped.recv() => {
                        end(&mut child).await;
                        return;
                    }
                };
                listener.abort();
                ended
            }
            Err(error) => format!("{error:#}"),
        };
        let ended = Happened::Ended { name: part.name.clone(), how };
        if happened.send(ended).await.is_err() {
            return;
        }
        if started.elapsed() >= STEADY {
            pause = FIRST_PAUSE;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stopped.recv() => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn spawn(part: &Part) -> anyhow::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(&part.arguments)
        // So that a list of processes shows what it is.
        .arg0("hotbay")
        .env(SUPERVISOR, std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // A key pressed in the terminal is for the supervisor, which then ends its parts in order.
        .process_group(0);
    if let Some(path) = &part.log {
        let log = File::options().create(true).append(true).open(path);
        command.stderr(log.with_context(|| format!("cannot write {}", path.display()))?);
    }
    command.spawn().context("cannot start")
}

async fn listen(output: tokio::process::ChildStdout, happened: mpsc::Sender<Happened>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line == READY && happened.send(Happened::Ready).await.is_err() {
            return;
        }
    }
}

async fn end(child: &mut Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended by itself just now.
        kill_process(pid, Signal::TERM).unwrap_or_default();
    }
    if tokio::time::timeout(STOP_LIMIT, child.wait()).await.is_err() {
        child.start_kill().unwrap_or_default();
        // One that hangs in the kernel goes when the kernel lets it.
        drop(tokio::time::timeout(STOP_LIMIT, child.wait()).await);
    }
}

fn in_words(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    }
}
