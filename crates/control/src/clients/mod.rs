//! The door for people and programs on other machines: TCP with TLS 1.3, where the registry shows a certificate of
//! its own authority and every request carries a token. One port has both: gRPC for whoever asks for HTTP/2 alone in
//! the handshake, as `hotbay` and gRPC libraries do, and HTTP/1.1 with JSON for everybody else, as curl.
//!
//! - [`rights`]: what a token may, and what each call needs.
//! - [`tokens`]: the tokens; [`mod@file`]: how they are kept; [`access`]: the calls about them.
//! - [`stream`]: a connection, and how long a stranger may have one.
//! - [`guard`]: looks at the token of every request before anything else does; [`lease`]: while a stream goes on.
//!
//! Nothing of the agents' is here; they have [`crate::door`].

pub(crate) mod access;
pub(crate) mod file;
mod guard;
pub(crate) mod lease;
pub(crate) mod rights;
mod stream;
pub(crate) mod tokens;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use hotbay_api::token::ALPN;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tower::layer::layer_fn;

use access::Desk;
use file::FileError;
pub(crate) use guard::Guard;
use guard::GuardedCalls;
pub(crate) use stream::ClientPeer;
use stream::{CONNECTIONS, ClientStream};
use tokens::ClientTokens;

use crate::KEEP_ALIVE;
use crate::accounts::Accounts;
use crate::door::authority::Authority;
use crate::door::identity::Identity;
use crate::door::{self, without_resumption};
use crate::doors::DoorError;
use crate::http;
use crate::reception::{NotTaken, Reception, Shaken};

/// What HTTP/1.1 is called in a handshake.
const ALPN_HTTP: &[u8] = b"http/1.1";
/// The file of the tokens, beside the authority.
const TOKENS_FILE: &str = "client-tokens";
/// How many connections wait to be served; serving takes them at once.
const TAKEN: usize = 64;
/// How many calls one client may have under way; `hotbay` follows up to 100 names at once.
const CALLS_OF_A_CLIENT: u32 = 200;

/// The open door. Nobody is served before [`ClientDoor::serve`].
pub(crate) struct ClientDoor {
    pub(crate) addresses: Vec<SocketAddr>,
    /// What the calls about tokens need.
    pub(crate) desk: Arc<Desk>,
    accounts: Option<Arc<dyn Accounts>>,
    listeners: Vec<TcpListener>,
    config: Arc<ServerConfig>,
}

impl ClientDoor {
    /// `given` are the addresses as they were asked for.
    pub(crate) fn open(
        bound: Vec<(TcpListener, SocketAddr)>,
        given: Vec<String>,
        config: Arc<ServerConfig>,
        authority: &Arc<Authority>,
        tls_dir: &Path,
        accounts: Option<Arc<dyn Accounts>>,
        wall_ms: fn() -> u64,
    ) -> Result<Self, FileError> {
        let tokens = Arc::new(ClientTokens::load(tls_dir.join(TOKENS_FILE), wall_ms)?);
        let (listeners, addresses): (Vec<_>, Vec<SocketAddr>) = bound.into_iter().unzip();
        let desk = Desk::new(tokens, accounts.clone(), Arc::clone(authority), &given, &addresses);
        Ok(Self { addresses, desk: Arc::new(desk), accounts, listeners, config })
    }

    /// More handles on the same sockets.
    pub(crate) fn copies(&self) -> io::Result<Vec<TcpListener>> {
        door::copies(&self.listeners)
    }

    /// Serves for ever: `calls` to those who speak gRPC, `router` to those who speak HTTP.
    pub(crate) async fn serve(
        self,
        calls: Routes,
        router: Router,
    ) -> Result<(), tonic::transport::Error> {
        let Self { desk, accounts, listeners, config, .. } = self;
        let guard = Guard::new(Arc::clone(&desk.tokens), accounts);
        let (taken, streams) = mpsc::channel(TAKEN);
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        let entrance = Entrance { guard: guard.clone(), connections, router, taken };
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&desk.tokens).keep_time());
        let reception = Reception::new(config);
        for listener in listeners {
            let entrance = entrance.clone();
            let take = move |shaken| entrance.clone().take(shaken);
            tasks.spawn(reception.clone().run(listener, take));
        }
        Server::builder()
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(KEEP_ALIVE))
            .max_concurrent_streams(CALLS_OF_A_CLIENT)
            .layer(layer_fn(move |calls| GuardedCalls { guard: guard.clone(), calls }))
            .add_routes(calls)
            .serve_with_incoming(ReceiverStream::new(streams))
            .await
    }
}

/// Sorts those who have shaken hands by what they speak.
#[derive(Clone)]
struct Entrance {
    guard: Guard,
    connections: Arc<Semaphore>,
    router: Router,
    taken: mpsc::Sender<io::Result<ClientStream>>,
}

impl Entrance {
    async fn take(self, shaken: Shaken) -> Result<(), NotTaken> {
        let Shaken { stream, address, room } = shaken;
        let speaks_grpc = stream.get_ref().1.alpn_protocol() == Some(ALPN);
        let stream = ClientStream::new(stream, address, room, self.connections);
        if speaks_grpc {
            // Nobody serves any more: the process ends.
            drop(self.taken.send(Ok(stream)).await);
        } else {
            http::converse_with_client(stream.peer(), stream, self.guard, self.router).await;
        }
        Ok(())
    }
}

/// TLS 1.3 alone. Clients show no certificate: their token says who they are.
pub(crate) fn server_config(identity: Arc<Identity>) -> Result<Arc<ServerConfig>, DoorError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(DoorError::Tls)?
        .with_no_client_auth()
        .with_cert_resolver(identity);
    // In this order: curl and others offer both, and mean HTTP with JSON.
    config.alpn_protocols = vec![ALPN_HTTP.to_vec(), ALPN.to_vec()];
    without_resumption(&mut config);
    Ok(Arc::new(config))
}
