//! The API as HTTP/1.1 and JSON, for curl and any automation that has no gRPC, and what monitoring asks.
//!
//! - [`routes`]: every route with its handler. What is answered is computed where gRPC computes it.
//! - [`body`]: the JSON of actions and their results.
//! - [`refusal`]: the one shape that every error has.
//! - [`openapi`]: the description of all of it, for programs.
//! - [`metrics`]: the numbers, for Prometheus.
//!
//! Here are the connections: who may speak is decided once for each, by the rule of [`crate::peer`], and each is a task
//! of its own, so that a client that is slow, silent or talks nonsense keeps nobody else waiting.

mod body;
pub mod fuzzing;
mod metrics;
mod openapi;
mod refusal;
mod routes;

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use hotbay_registry::Registry;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tower::ServiceExt;

use crate::incoming::Incoming;
use crate::peer::admit_peer;
use refusal::Refusal;

/// How many connections are served at a time; the next ones wait at the socket.
const CONNECTIONS: usize = 1_024;
/// A client that has not sent a whole head after so long is hung up on, also one that is idle between requests.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// Largest head of a request: a drive's name in the path may be long.
const HEAD_LIMIT_BYTES: usize = 64 << 10;

/// Who sent a request, for the record.
#[derive(Debug, Clone)]
struct Caller(String);

/// Serves connections for ever.
pub(crate) async fn serve(registry: Registry, listener: UnixListener) {
    let router = routes::router(registry);
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
    let caller = admit_peer(stream.peer_cred().ok()).map(Caller);
    let service = service_fn(move |mut request: Request<hyper::body::Incoming>| {
        let (caller, router) = (caller.clone(), router.clone());
        async move {
            let caller = match caller {
                Ok(caller) => caller,
                Err(status) => return Ok(Refusal::from(status).into_response()),
            };
            request.extensions_mut().insert(caller);
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
