//! The events of the machine as they come, for the agent's loop: `receive` in its `select`, `drain` before it asks
//! whether a number is missing.
//!
//! Waiting is the only thing that can be cut off here, so that a future that is dropped loses nothing. An overflow is
//! an item like any other: the stream goes on after it.

use std::io;

use hotbay_core::discovery::event::{Action, Event, Origin, Refused, kernel_event, udev_event};
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::batch::Batch;
use super::socket::{Group, RECEIVE_BUFFER_BYTES, RefusedSender, Socket, SocketError};

/// At most so many batches are drained at once: more than the largest buffer holds.
const MAX_BATCHES_DRAINED: usize = 1 << 14;

/// Whose events to listen to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sources {
    /// udev's as well as the kernel's.
    pub udev: bool,
    /// The receive buffer of each socket.
    pub buffer_bytes: usize,
}

impl Default for Sources {
    fn default() -> Self {
        Self { udev: true, buffer_bytes: RECEIVE_BUFFER_BYTES }
    }
}

/// What a socket has to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    Event(Event<'a>),
    /// At least one event is not among the items. What it told can only be found by looking.
    Lost(Loss),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Loss {
    #[error("events came faster than they were taken, and the receive buffer is full")]
    Overflow,
    #[error("an event is longer than any should be")]
    TooLong,
    #[error("an event cannot be read")]
    Unreadable(#[source] Refused),
}

#[derive(Debug, Error)]
pub enum SourceError {
    #[error("cannot listen for events of devices")]
    Socket(#[from] SocketError),
    #[error("cannot wait for events of devices")]
    Wait(#[source] io::Error),
    #[error("cannot receive events of devices")]
    Receive(#[source] io::Error),
}

/// What has come so far, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    pub added: u64,
    pub removed: u64,
    pub changed: u64,
    /// Any other action.
    pub other: u64,
    /// Events that udev repeated.
    pub from_udev: u64,
    pub overflows: u64,
    /// Datagrams of the kernel or of udev that are no event.
    pub unreadable: u64,
    /// Datagrams of anybody else.
    pub foreign: u64,
}

/// The sockets, and the place that datagrams are received into.
#[derive(Debug)]
pub struct Source {
    kernel: AsyncFd<Socket>,
    udev: Option<AsyncFd<Socket>>,
    batch: Batch,
    counters: Counters,
}

impl Source {
    /// Listens from now on. Bind before the first listing of devices, so that nothing falls between the two. Needs a
    /// tokio runtime.
    pub fn open(sources: Sources) -> Result<Self, SourceError> {
        let open = |group| {
            let socket = Socket::open(group, sources.buffer_bytes)?;
            #[expect(unsafe_code, reason = "tokio leaves the life of the descriptor to the caller")]
            // SAFETY: a `Socket` keeps its one descriptor open until it is dropped, which is after the registration.
            let registered = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
            registered.map_err(|error| SourceError::Wait(error.into()))
        };
        let kernel = open(Group::Kernel)?;
        let udev = sources.udev.then(|| open(Group::Udev)).transpose()?;
        if in_user_namespace() {
            tracing::warn!(
                "this process is in a user namespace, and the kernel sends no events of devices to most of these: \
                 what happens to devices may be found by polling alone"
            );
        }
        Ok(Self { kernel, udev, batch: Batch::new(), counters: Counters::default() })
    }

    /// Waits for news, and hands out what has come, at most one batch. Dropping the future loses nothing.
    pub async fn receive(&mut self, mut each: impl FnMut(Item<'_>)) -> Result<(), SourceError> {
        let Self { kernel, udev, batch, counters } = self;
        loop {
            let from_udev = async {
                match &*udev {
                    Some(udev) => udev.readable().await,
                    None => std::future::pending().await,
                }
            };
            let ready = tokio::select! {
                ready = kernel.readable() => ready,
                ready = from_udev => ready,
            };
            let mut ready = ready.map_err(SourceError::Wait)?;
            let group = ready.get_inner().group();
            let received = match ready.try_io(|socket| batch.receive(socket.get_ref())) {
                Ok(received) => received,
                Err(_would_block) => continue,
            };
            drop(ready);
            let socket = match (group, &*udev) {
                (Group::Udev, Some(udev)) => udev.get_ref(),
                (Group::Udev, None) | (Group::Kernel, _) => kernel.get_ref(),
            };
            if hand_out(socket, received, batch, counters, &mut each)? {
                return Ok(());
            }
        }
    }

    /// Hands out everything that has already come, without waiting.
    pub fn drain(&mut self, mut each: impl FnMut(Item<'_>)) -> Result<(), SourceError> {
        let Self { kernel, udev, batch, counters } = self;
        let sockets = [Some(&*kernel), udev.as_ref()].into_iter().flatten();
        for socket in sockets.map(AsyncFd::get_ref) {
            for _ in 0..MAX_BATCHES_DRAINED {
                match batch.receive(socket) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    received => hand_out(socket, received, batch, counters, &mut each)?,
                };
            }
        }
        Ok(())
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How large the receive buffer for the kernel's events became.
    pub fn buffer_bytes(&self) -> usize {
        self.kernel.get_ref().buffer_bytes()
    }

    /// The ports of the sockets, the kernel's events first, for whoever looks for them in `/proc/net/netlink`.
    pub fn ports(&self) -> io::Result<(u32, Option<u32>)> {
        let udev = self.udev.as_ref().map(|udev| udev.get_ref().port()).transpose()?;
        Ok((self.kernel.get_ref().port()?, udev))
    }
}

/// Hands out what one call has received; false if that was nothing at all.
fn hand_out(
    socket: &Socket,
    received: io::Result<()>,
    batch: &Batch,
    counters: &mut Counters,
    each: &mut impl FnMut(Item<'_>),
) -> Result<bool, SourceError> {
    match received {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
            counters.overflows += 1;
            each(Item::Lost(Loss::Overflow));
            return Ok(true);
        }
        Err(error) => return Err(SourceError::Receive(error)),
    }
    for datagram in batch.datagrams() {
        if let Err(refused) = socket.admit(&datagram) {
            note_foreign(counters, refused);
            continue;
        }
        let event = match (datagram.truncated, socket.group()) {
            (true, _) => Err(Loss::TooLong),
            (false, Group::Kernel) => kernel_event(datagram.bytes).map_err(Loss::Unreadable),
            (false, Group::Udev) => udev_event(datagram.bytes).map_err(Loss::Unreadable),
        };
        match event {
            Ok(event) => {
                count(counters, &event);
                each(Item::Event(event));
            }
            Err(loss) => {
                counters.unreadable += 1;
                tracing::debug!("an event is counted as lost: {loss:?}");
                each(Item::Lost(loss));
            }
        }
    }
    Ok(true)
}

fn note_foreign(counters: &mut Counters, refused: RefusedSender) {
    // Said once: whoever sends one can send many.
    if counters.foreign == 0 {
        tracing::warn!("a message that poses as an event of a device is refused: {refused}");
    }
    counters.foreign += 1;
}

fn count(counters: &mut Counters, event: &Event<'_>) {
    let counter = match (event.origin, event.action) {
        (Origin::Udev, _) => &mut counters.from_udev,
        (Origin::Kernel, Action::Add) => &mut counters.added,
        (Origin::Kernel, Action::Remove) => &mut counters.removed,
        (Origin::Kernel, Action::Change) => &mut counters.changed,
        (Origin::Kernel, _) => &mut counters.other,
    };
    *counter += 1;
}

/// Whether the users of this process are not those of the machine. Kernels without user namespaces have no map.
fn in_user_namespace() -> bool {
    let Ok(map) = std::fs::read_to_string("/proc/self/uid_map") else { return false };
    !map.split_whitespace().eq(["0", "0", "4294967295"])
}
