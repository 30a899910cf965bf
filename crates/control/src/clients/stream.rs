//! A connection of a client. Whoever has not shown a good token yet is a stranger: the connection counts as a
//! handshake, and is broken off soon. The first good token gives it a place among the connections, and time.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::transport::server::Connected;

use crate::reception::{Room, STRANGER_LIMIT};

/// How many connections of clients with a token may be open; as many as on the socket for HTTP.
pub(super) const CONNECTIONS: usize = 1_024;

/// The other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct ClientPeer {
    pub(super) address: SocketAddr,
    place: Arc<Mutex<Place>>,
    connections: Arc<Semaphore>,
}

#[derive(Debug)]
enum Place {
    Stranger { _room: Room },
    Known { _connection: OwnedSemaphorePermit },
}

impl ClientPeer {
    /// A good token was shown on this connection.
    pub(super) fn is_known(&self) -> Result<(), Status> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Place::Stranger { .. } = *place {
            let permit = Arc::clone(&self.connections).try_acquire_owned().map_err(|_| {
                Status::unavailable(format!("{CONNECTIONS} clients are connected; try again later"))
            })?;
            *place = Place::Known { _connection: permit };
        }
        Ok(())
    }

    fn is_stranger(&self) -> bool {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*place, Place::Stranger { .. })
    }
}

/// The connection itself.
pub(crate) struct ClientStream {
    stream: TlsStream<TcpStream>,
    peer: ClientPeer,
    /// When a stranger has to go.
    stranger_until: Pin<Box<Sleep>>,
}

impl ClientStream {
    pub(super) fn new(
        stream: TlsStream<TcpStream>,
        address: SocketAddr,
        room: Room,
        connections: Arc<Semaphore>,
    ) -> Self {
        let place = Arc::new(Mutex::new(Place::Stranger { _room: room }));
        let stranger_until = Box::pin(tokio::time::sleep(STRANGER_LIMIT));
        Self { stream, peer: ClientPeer { address, place, connections }, stranger_until }
    }

    pub(super) fn peer(&self) -> ClientPeer {
        self.peer.clone()
    }
}

impl Connected for ClientStream {
    type ConnectInfo = ClientPeer;

    fn connect_info(&self) -> ClientPeer {
        self.peer()
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.peer.is_stranger() && self.stranger_until.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
