//! The door for agents on other machines: TCP with TLS 1.3, where every node shows a certificate of this registry's own
//! authority, and one that has none yet may join with a token.
//!
//! - [`authority`]: who certifies; [`tokens`]: who may join.
//! - [`identity`]: the registry's own certificate.
//! - [`accept`]: connections, one task each until it is known who comes.
//! - [`join`]: the calls about tokens and certificates.
//!
//! Behind this door are only sessions of agents, joining and renewal. People and programs use the Unix socket.

pub(crate) mod accept;
pub(crate) mod authority;
mod identity;
pub(crate) mod join;
pub(crate) mod tokens;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hotbay_api::token::ALPN;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use accept::{AgentStream, Reception};
use authority::Authority;
use identity::Identity;
use tokens::Tokens;

pub use authority::AuthorityError;

/// How many connections wait to be served; serving takes them at once.
const TAKEN: usize = 64;

/// Where the door is, and how long what it hands out is good for.
#[derive(Debug, Clone)]
pub struct DoorOptions {
    /// HOST:PORT each.
    pub addresses: Vec<String>,
    /// Where the authority is kept.
    pub tls_dir: PathBuf,
    /// The life of a node's certificate; a connection lasts no longer either.
    pub node_life: Duration,
    /// The life of the registry's own certificate.
    pub registry_life: Duration,
    /// Unix time.
    pub wall_ms: fn() -> u64,
}

/// Why the door stays shut.
#[derive(Debug, Error)]
pub enum DoorError {
    #[error("cannot listen for agents on {address}")]
    Listen {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("cannot set TLS up")]
    Tls(#[source] rustls::Error),
    #[error("cannot verify certificates")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// An open door. Nobody is served before [`crate::serve_with_door`] has it.
pub struct Door {
    pub(crate) office: Arc<Office>,
    listeners: Vec<TcpListener>,
    config: Arc<ServerConfig>,
    identity: Arc<Identity>,
    ips: Vec<IpAddr>,
    registry_life: Duration,
}

/// What the calls about tokens and certificates share.
pub(crate) struct Office {
    pub(crate) authority: Arc<Authority>,
    pub(crate) tokens: Mutex<Tokens>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) node_life: Duration,
    pub(crate) wall_ms: fn() -> u64,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("addresses", &self.office.addresses).finish_non_exhaustive()
    }
}

impl Door {
    /// Listens, and makes the authority if there is none yet.
    pub async fn open(options: DoorOptions) -> Result<Self, DoorError> {
        let DoorOptions { addresses, tls_dir, node_life, registry_life, wall_ms } = options;
        let (mut listeners, mut bound) = (Vec::new(), Vec::new());
        for address in addresses {
            let failed = |source| DoorError::Listen { address: address.clone(), source };
            let listener = TcpListener::bind(&address).await.map_err(failed)?;
            bound.push(listener.local_addr().map_err(failed)?);
            listeners.push(listener);
        }
        let authority = Arc::new(Authority::load_or_make(&tls_dir)?);
        let ips: Vec<_> =
            bound.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified()).collect();
        let first = authority.certify_registry(&ips, wall_ms(), registry_life)?;
        let identity = Arc::new(Identity::new(first));
        let config = server_config(&authority, Arc::clone(&identity))?;
        let office =
            Office { authority, tokens: Mutex::default(), addresses: bound, node_life, wall_ms };
        Ok(Self { office: Arc::new(office), listeners, config, identity, ips, registry_life })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.office.addresses
    }

    /// Starts to take connections, for as long as the tasks live.
    pub(crate) fn receive(self) -> (ReceiverStream<io::Result<AgentStream>>, JoinSet<()>) {
        let (taken, streams) = mpsc::channel(TAKEN);
        let mut tasks = JoinSet::new();
        let reception = Reception::new(self.config, self.office.node_life, taken);
        for listener in self.listeners {
            tasks.spawn(reception.clone().run(listener));
        }
        let Office { authority, wall_ms, .. } = &*self.office;
        let authority = Arc::clone(authority);
        tasks.spawn(identity::keep_fresh(
            self.identity,
            authority,
            self.ips,
            self.registry_life,
            *wall_ms,
        ));
        (ReceiverStream::new(streams), tasks)
    }
}

/// TLS 1.3 alone. A certificate may be left out, by those who join; one that is shown must be of our authority.
fn server_config(
    authority: &Authority,
    identity: Arc<Identity>,
) -> Result<Arc<ServerConfig>, DoorError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone()).map_err(DoorError::Tls)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(DoorError::Verifier)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(DoorError::Tls)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(identity);
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Each connection shows its certificate anew: a resumed one would be believed without.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
