//! One HTTP/2 connection over TLS 1.3, shared by all calls of a client. It is dialled at the first call, and again when
//! it breaks or a call gave up on it; keep-alives notice a server that is gone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderValue, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::server::Server;
use super::{Call, Reply, Sending, Transport, TransportError};

/// After so long without a word the server is asked whether it is there, and has as long to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

pub(super) struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    server: Server,
    open: Mutex<Slot<SendRequest<Full<Bytes>>>>,
    /// One dials, the others wait for it.
    dialling: tokio::sync::Mutex<()>,
}

/// The connection in use, if there is one, with its number.
struct Slot<T> {
    open: Option<(u64, T)>,
    /// Only grows: a call that ends late must not take the number of a newer connection for its own.
    dialled: u64,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { open: None, dialled: 0 }
    }
}

impl<T: Clone> Slot<T> {
    fn keep(&mut self, connection: T) -> (u64, T) {
        self.dialled += 1;
        self.open.insert((self.dialled, connection)).clone()
    }

    /// No call begins on this one any more.
    fn doubt(&mut self, number: u64) {
        self.open.take_if(|open| open.0 == number);
    }
}

impl Connection {
    pub(super) fn new(server: Server) -> Self {
        let (open, dialling) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { shared: Arc::new(Shared { server, open, dialling }) }
    }
}

impl Transport for Connection {
    fn send(&self, call: Call) -> Sending {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.send(call).await })
    }
}

impl Shared {
    async fn send(self: Arc<Self>, mut call: Call) -> Result<Reply, TransportError> {
        if let Some(token) = self.server.bearer()? {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
            value.set_sensitive(true);
            call.headers_mut().insert(header::AUTHORIZATION, value);
        }
        let path = call.uri().path_and_query().map_or("/", |path| path.as_str());
        *call.uri_mut() = Uri::builder()
            .scheme("https")
            .authority(self.server.authority())
            .path_and_query(path)
            .build()?;
        let (number, mut sender) = self.opened().await?;
        let mut doubt = Doubt { shared: Arc::clone(&self), number: Some(number) };
        let reply = sender.send_request(call).await?;
        doubt.number = None;
        Ok(reply.map(|body| body.boxed_unsync()))
    }

    async fn opened(self: &Arc<Self>) -> Result<(u64, SendRequest<Full<Bytes>>), TransportError> {
        if let Some(open) = self.usable() {
            return Ok(open);
        }
        let _turn = self.dialling.lock().await;
        if let Some(open) = self.usable() {
            return Ok(open);
        }
        let sender = dial(&self.server).await?;
        Ok(self.kept().keep(sender))
    }

    fn usable(&self) -> Option<(u64, SendRequest<Full<Bytes>>)> {
        self.kept().open.clone().filter(|(_, sender)| !sender.is_closed())
    }

    fn kept(&self) -> MutexGuard<'_, Slot<SendRequest<Full<Bytes>>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that ends without an answer, also one whose caller gave up, casts doubt on its connection: the next call
/// dials. Others that are under way on it go on.
struct Doubt {
    shared: Arc<Shared>,
    number: Option<u64>,
}

impl Drop for Doubt {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        self.shared.kept().doubt(number);
    }
}

async fn dial(server: &Server) -> Result<SendRequest<Full<Bytes>>, TransportError> {
    let (config, name) = server.tls()?;
    let stream = TcpStream::connect(server.authority()).await?;
    stream.set_nodelay(true)?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .adaptive_window(true)
        .handshake(TokioIo::new(stream))
        .await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("the connection to the API server ended: {error}");
        }
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls gave up on a connection one after the other. Numbers began anew with each that was dialled after the
    /// first of them, so that the others threw out what had just been dialled.
    #[test]
    fn who_gives_up_late_throws_no_newer_connection_out() {
        let mut slot = Slot::default();
        let (old, _) = slot.keep("old");
        slot.doubt(old);
        assert!(slot.open.is_none());
        let new = slot.keep("new");
        slot.doubt(old);
        assert_eq!(slot.open, Some(new));
    }
}
