//! The agent's side: starts children, hands them requests, keeps a few idle ones.
//!
//! Nothing here waits for a child but the future that a caller may drop. A child that hangs keeps its socket and its
//! task; when the agent ends, the socket closes, and the child ends as soon as it wakes up.

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use thiserror::Error;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::channel::{self, Incoming, Outgoing};
use super::protocol::{FromWorker, Request, Response, ToWorker};
use crate::runtime_dir::RuntimeDir;

/// How many children there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Kept for the next request.
    pub idle: usize,
    /// At work, those that hang included.
    pub busy: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { idle: 4, busy: 512 }
    }
}

/// Starts children and gives them work. Clones share the children. Lives in a tokio runtime.
#[derive(Debug, Clone)]
pub struct Workers {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    program: PathBuf,
    arguments: Vec<OsString>,
    runtime_dir: RuntimeDir,
    limits: Limits,
    idle: Mutex<Vec<Worker>>,
    busy: Arc<Semaphore>,
}

/// A request that a child works on: a future of what comes of it. It may be dropped at any time; the child goes on,
/// and descriptors that nobody takes are closed by a child.
#[derive(Debug)]
#[must_use = "dropping it gives up the answer, not the work"]
pub struct Running {
    pid: u32,
    outcome: oneshot::Receiver<Result<Done, WorkerError>>,
    workers: Workers,
}

/// An answer, and the descriptors that came with it. They may be the last ones of a drive: close them through
/// [`Workers::close`] or a detach.
#[derive(Debug)]
pub struct Done {
    pub response: Response,
    pub descriptors: Vec<OwnedFd>,
    /// What went wrong beside what was asked, and does not change the answer.
    pub warnings: Vec<String>,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum WorkerError {
    #[error("the child process {pid} died ({status}): what it was asked may be done in part")]
    Died { pid: u32, status: ExitStatus },
    #[error("the child process {pid} cannot be understood")]
    Garbled {
        pid: u32,
        #[source]
        source: io::Error,
    },
    #[error("the agent is shutting down")]
    ShuttingDown,
}

/// A request that no child got, with its descriptors.
#[derive(Debug, Error)]
#[error("no child process got the request")]
pub struct NotStarted {
    #[source]
    pub why: StartError,
    pub descriptors: Vec<OwnedFd>,
}

#[derive(Debug, Error)]
pub enum StartError {
    #[error("{limit} child processes are at work or hang already")]
    TooMany { limit: usize },
    #[error("the request is too long")]
    TooLong(#[source] io::Error),
    #[error("cannot start {}", program.display())]
    Spawn {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Workers {
    /// Children are this program, called with `drive-worker`. By `/proc/self/exe` it is the same program even after
    /// an upgrade has put another file in its place.
    pub fn of_this_program(runtime_dir: RuntimeDir, limits: Limits) -> Self {
        Self::new("/proc/self/exe", ["drive-worker"], runtime_dir, limits)
    }

    /// Children are started by exec of `program` with `arguments`, and must end up in [`super::worker_main`].
    ///
    /// Marks every descriptor that this process has beyond standard error as closed on exec, for children must not
    /// inherit any.
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
        runtime_dir: RuntimeDir,
        limits: Limits,
    ) -> Self {
        close_all_on_exec();
        let inner = Inner {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            runtime_dir,
            idle: Mutex::new(Vec::new()),
            busy: Arc::new(Semaphore::new(limits.busy)),
            limits,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Gives a child a request. The descriptors are its own from then on.
    pub fn start(
        &self,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Running, NotStarted> {
        match self.prepare(request) {
            Ok((worker, message, permit)) => {
                let (sender, outcome) = oneshot::channel();
                let pid = worker.pid;
                let workers = self.clone();
                tokio::spawn(async move {
                    workers.converse(worker, message, descriptors, sender).await;
                    drop(permit);
                });
                Ok(Running { pid, outcome, workers: self.clone() })
            }
            Err(why) => Err(NotStarted { why, descriptors }),
        }
    }

    /// Has a child close descriptors, which may be the last ones of a drive.
    pub fn close(&self, descriptors: Vec<OwnedFd>) {
        match self.start(Request::Close, descriptors) {
            // The child closes them whether or not anyone waits.
            Ok(running) => drop(running),
            Err(NotStarted { why, descriptors }) => {
                tracing::warn!(error = %why, "closing {} descriptors without a child", descriptors.len());
            }
        }
    }

    fn prepare(
        &self,
        request: Request,
    ) -> Result<(Worker, Vec<u8>, OwnedSemaphorePermit), StartError> {
        let limit = self.inner.limits.busy;
        let permit = Arc::clone(&self.inner.busy)
            .try_acquire_owned()
            .map_err(|_| StartError::TooMany { limit })?;
        let runtime_dir = self.inner.runtime_dir.path().to_owned();
        let message = channel::encode(&ToWorker::Do { runtime_dir, request: Box::new(request) })
            .map_err(StartError::TooLong)?;
        Ok((self.worker()?, message, permit))
    }

    /// An idle child that lives, or a new one.
    fn worker(&self) -> Result<Worker, StartError> {
        while let Some(mut worker) = self.idle().pop() {
            if matches!(worker.child.try_wait(), Ok(None)) {
                return Ok(worker);
            }
        }
        Worker::spawn(&self.inner.program, &self.inner.arguments)
            .map_err(|source| StartError::Spawn { program: self.inner.program.clone(), source })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Worker>> {
        self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn converse(
        &self,
        mut worker: Worker,
        message: Vec<u8>,
        descriptors: Vec<OwnedFd>,
        sender: oneshot::Sender<Result<Done, WorkerError>>,
    ) {
        let outcome = worker.ask(&message, descriptors).await;
        if outcome.is_ok() {
            let mut idle = self.idle();
            if idle.len() < self.inner.limits.idle {
                idle.push(worker);
            }
        }
        if let Err(Ok(done)) = sender.send(outcome) {
            self.close_if_any(done);
        }
    }

    fn close_if_any(&self, done: Done) {
        if !done.descriptors.is_empty() {
            self.close(done.descriptors);
        }
    }
}

impl Running {
    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl Future for Running {
    type Output = Result<Done, WorkerError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome)
            .poll(context)
            .map(|received| received.unwrap_or(Err(WorkerError::ShuttingDown)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.outcome.close();
        // Without a runtime there is no child to ask, and this process is about to end.
        if let (Ok(Ok(done)), Ok(_)) =
            (self.outcome.try_recv(), tokio::runtime::Handle::try_current())
        {
            self.workers.close_if_any(done);
        }
    }
}

/// One child. Dropping it closes its socket, by which it ends, and leaves reaping it to the runtime.
#[derive(Debug)]
struct Worker {
    pid: u32,
    /// Only as a descriptor to wait for: packets with descriptors are sent and received by [`channel`].
    socket: UnixStream,
    child: Child,
}

impl Worker {
    fn spawn(program: &PathBuf, arguments: &[OsString]) -> io::Result<Self> {
        let (ours, theirs) = channel::pair()?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // A key pressed in the agent's terminal must not stop a child in the middle of a write.
            .process_group(0)
            .spawn()?;
        let pid = child.id().ok_or_else(|| io::Error::other("the child ended at once"))?;
        let ours = std::os::unix::net::UnixStream::from(ours);
        ours.set_nonblocking(true)?;
        Ok(Self { pid, socket: UnixStream::from_std(ours)?, child })
    }

    async fn ask(
        &mut self,
        message: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Done, WorkerError> {
        match self.exchange(message, descriptors).await {
            Ok(Some((response, descriptors))) => match channel::decode(&response) {
                Ok(FromWorker { response, warnings }) => {
                    Ok(Done { response, descriptors, warnings })
                }
                Err(source) => Err(WorkerError::Garbled { pid: self.pid, source }),
            },
            Ok(None) => Err(self.died().await),
            Err(error) => match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                    Err(self.died().await)
                }
                _ => Err(WorkerError::Garbled { pid: self.pid, source: error }),
            },
        }
    }

    /// `None` if the child has closed its end.
    async fn exchange(
        &self,
        message: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        if !descriptors.is_empty() {
            let announcement = channel::encode(&ToWorker::Descriptors)?;
            self.send(&announcement, &descriptors).await?;
            drop(descriptors);
        }
        self.send(message, &[]).await?;
        let mut incoming = Incoming::default();
        let receive = || incoming.receive(&self.socket, false);
        self.socket.async_io(Interest::READABLE, receive).await?;
        Ok(incoming.whole())
    }

    async fn send(&self, message: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut outgoing = Outgoing::new(message, &descriptors);
        self.socket.async_io(Interest::WRITABLE, || outgoing.send(&self.socket, false)).await
    }

    /// The socket of a child closes when it has ended, so this does not take long.
    async fn died(&mut self) -> WorkerError {
        match self.child.wait().await {
            Ok(status) => WorkerError::Died { pid: self.pid, status },
            Err(source) => WorkerError::Garbled { pid: self.pid, source },
        }
    }
}

fn close_all_on_exec() {
    const FIRST: libc::c_uint = 3;
    #[expect(unsafe_code, reason = "no safe wrapper for close_range")]
    // SAFETY: with CLOSE_RANGE_CLOEXEC nothing is closed now, so that no descriptor in use is pulled away.
    let result = unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    // Kernels before 5.11 cannot. What this process opens itself is closed on exec anyway.
    if result != 0 {
        tracing::debug!("descriptors inherited by this process stay open in its children");
    }
}
