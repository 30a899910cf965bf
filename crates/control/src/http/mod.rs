//! The API as HTTP/1.1 and JSON, for curl and any automation that has no gRPC, and what monitoring asks.
//!
//! - [`routes`]: every route with its handler. What is answered is computed where gRPC computes it.
//! - [`events`], [`adopt`] and [`volumes`]: the handlers of those.
//! - [`query`]: what stands behind the question mark.
//! - [`body`]: the JSON of actions and their results.
//! - [`refusal`]: the one shape that every error has.
//! - [`openapi`], [`schemas`] and [`volume_schemas`]: the description of all of it, for programs.
//! - [`metrics`]: the numbers, for Prometheus.
//!
//! Here are the connections. Who may speak is decided on the Unix socket once for each, by the rule of
//! [`crate::peer`], and on TCP for every request, by its token ([`crate::clients`]). Each connection is a task of its
//! own, so that a client that is slow, silent or talks nonsense keeps nobody else waiting.

mod adopt;
mod body;
mod events;
pub mod fuzzing;
mod metrics;
mod openapi;
mod query;
mod refusal;
mod routes;
mod schemas;
mod volume_schemas;
mod volumes;

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, Request};
use axum::response::Response;
use hotbay_registry::Registry;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::Status;
use tower::ServiceExt;

use crate::caller::Caller;
use crate::clients::rights::Right;
use crate::clients::{ClientPeer, Guard};
use crate::incoming::Incoming;
use crate::peer::admit_peer;
use refusal::Refusal;
pub(crate) use routes::router;

/// How many connections are served at a time; the next ones wait at the socket.
const CONNECTIONS: usize = 1_024;
/// A client that has not sent a whole head after so long is hung up on, also one that is idle between requests.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// Largest head of a request: a drive's name in the path may be long.
const HEAD_LIMIT_BYTES: usize = 64 << 10;

/// Who sent a request, or why that is not known; some routes answer all the same.
#[derive(Debug, Clone)]
struct Admission(Result<Caller, Status>);

impl Admission {
    /// The caller, if it is known and has the right.
    fn caller_with(self, right: Right) -> Result<Caller, Refusal> {
        let caller = self.0?;
        caller.must_have(right)?;
        Ok(caller)
    }
}

/// Draws ids.
#[derive(Debug, Clone, Copy)]
struct Fresh(fn() -> u128);

/// Serves connections for ever.
pub(crate) async fn serve(registry: Registry, listener: UnixListener, fresh: fn() -> u128) {
    let router = routes::router(registry, fresh);
    let mut incoming = Incoming::new(listener);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(taken) = incoming.next(), if connections.len() < CONNECTIONS => match taken {
                Ok(stream) => drop(connections.spawn(converse(stream, router.clone()))),
                Err(error) => tracing::warn!("a connection cannot be taken: {error}"),
            },
            // One that panicked has ended like the others, and has said so.
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn converse(stream: UnixStream, router: Router) {
    match admit_peer(stream.peer_cred().ok()) {
        Ok(caller) => talk(stream, router, move |_| ready(Admission(Ok(caller.clone())))).await,
        Err(status) => {
            let refusal = Refusal::from(status.clone());
            let nothing = Router::new().fallback(async move || refusal);
            talk(stream, nothing, move |_| ready(Admission(Err(status.clone())))).await;
        }
    }
}

/// Serves one connection of a client on another machine, whose every request shows a token.
pub(crate) async fn converse_with_client(
    peer: ClientPeer,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    guard: Guard,
    router: Router,
) {
    let admit = move |head: HeaderMap| {
        let (guard, peer) = (guard.clone(), peer.clone());
        async move { Admission(guard.admit(&head, &peer).await) }
    };
    talk(stream, router, admit).await;
}

async fn talk<Admitting: Future<Output = Admission>>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    admit: impl Fn(HeaderMap) -> Admitting,
) {
    let service = service_fn(move |mut request: Request<hyper::body::Incoming>| {
        let (admitting, router) = (admit(request.headers().clone()), router.clone());
        async move {
            request.extensions_mut().insert(admitting.await);
            router.oneshot(request).await as Result<Response, Infallible>
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_LIMIT_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!("a connection ended early: {error}");
    }
}
