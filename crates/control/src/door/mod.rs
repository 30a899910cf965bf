//! The door for agents on other machines: TCP with TLS 1.3, where every node shows a certificate of this registry's own
//! authority, and one that has none yet may join with a token.
//!
//! - [`authority`]: who certifies; [`tokens`]: who may join.
//! - [`identity`]: the registry's own certificate.
//! - [`accept`]: who comes.
//! - [`join`]: the calls about tokens and certificates.
//!
//! Behind this door are only sessions of agents, joining and renewal. People and programs have another one:
//! [`crate::clients`]. [`crate::doors`] opens both.

pub(crate) mod accept;
pub(crate) mod authority;
pub(crate) mod identity;
pub(crate) mod join;
pub(crate) mod tokens;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hotbay_api::token::ALPN;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use accept::{AgentEntrance, AgentStream};
use authority::Authority;
use identity::Identity;
use tokens::Tokens;

use crate::doors::DoorError;
use crate::reception::Reception;

pub use authority::AuthorityError;

/// How many connections wait to be served; serving takes them at once.
const TAKEN: usize = 64;

/// The open door. Nobody is served before somebody receives.
pub(crate) struct Door {
    pub(crate) office: Arc<Office>,
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) config: Arc<ServerConfig>,
}

/// What the calls about tokens and certificates share.
pub(crate) struct Office {
    pub(crate) authority: Arc<Authority>,
    pub(crate) tokens: Mutex<Tokens>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) node_life: Duration,
    pub(crate) wall_ms: fn() -> u64,
}

impl Door {
    /// Starts to take connections, for as long as the tasks live.
    pub(crate) fn receive(self) -> (ReceiverStream<io::Result<AgentStream>>, JoinSet<()>) {
        let (taken, streams) = mpsc::channel(TAKEN);
        let mut tasks = JoinSet::new();
        let reception = Reception::new(self.config);
        let entrance = AgentEntrance::new(self.office.node_life, taken);
        for listener in self.listeners {
            let entrance = entrance.clone();
            let take = move |shaken| entrance.clone().take(shaken);
            tasks.spawn(reception.clone().run(listener, take));
        }
        (ReceiverStream::new(streams), tasks)
    }
}

/// TLS 1.3 alone. A certificate may be left out, by those who join; one that is shown must be of our authority.
pub(crate) fn server_config(
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
    without_resumption(&mut config);
    Ok(Arc::new(config))
}

/// Each connection shows its certificate anew: a resumed one would be believed without.
pub(crate) fn without_resumption(config: &mut ServerConfig) {
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
}
