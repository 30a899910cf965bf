//! Takes connections from the socket. A connection that cannot be taken, because the process has no descriptor left
//! for it, is tried again after a pause: those that are there go on, and the next free descriptor is for the next one.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::Sleep;
use tokio_stream::{Stream, StreamExt, StreamMap};

/// The pause after a connection that could not be taken. Without it the loop would turn at full speed: the caller
/// that waits at the socket makes every next try fail at once.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of all these sockets.
pub(crate) fn all(listeners: Vec<UnixListener>) -> impl Stream<Item = io::Result<UnixStream>> {
    let each = listeners.into_iter().map(Incoming::new).enumerate();
    StreamMap::from_iter(each).map(|(_, connection)| connection)
}

/// The connections that come in; never ends.
#[derive(Debug)]
pub(crate) struct Incoming {
    listener: UnixListener,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub(crate) fn new(listener: UnixListener) -> Self {
        Self { listener, pause: None }
    }
}

impl Stream for Incoming {
    type Item = io::Result<UnixStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => return Poll::Ready(Some(Ok(stream))),
                Err(error) => {
                    tracing::warn!("a caller has to wait: its connection cannot be taken: {error}");
                    self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
            }
        }
    }
}
