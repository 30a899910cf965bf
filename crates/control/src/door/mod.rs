//! The door for agents on other machines: TCP with TLS 1.3, where every node shows a certificate of this registry's own
//! authority, and one that has none yet may join with a token.
//!
//! - [`authority`]: who certifies, and [`pems`]: as text; [`tokens`]: who may join.
//! - [`identity`]: the registry's own certificate.
//! - [`accept`]: who comes.
//! - [`join`]: the calls about tokens and certificates; [`account`]: joining with an account of the platform.
//!
//! Behind this door are only sessions of agents, joining and renewal. People and programs have another one:
//! [`crate::clients`]. [`crate::doors`] opens both.

pub(crate) mod accept;
mod account;
pub(crate) mod authority;
pub(crate) mod identity;
pub(crate) mod join;
pub(crate) mod pems;
pub(crate) mod tokens;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hotbay_api::token::{ALPN, ALPN_CSI};
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

use crate::accounts::Accounts;
use crate::doors::DoorError;
use crate::reception::Reception;

pub use authority::AuthorityError;
pub use pems::{AuthorityAt, AuthorityPems};

/// How many connections wait to be served; serving takes them at once.
const TAKEN: usize = 64;

/// The open door. Nobody is served before somebody receives.
pub(crate) struct Door {
    pub(crate) office: Arc<Office>,
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) config: Arc<ServerConfig>,
    /// Where other controllers go that pass CSI's calls on; without it they are refused.
    pub(crate) controllers: Option<mpsc::Sender<io::Result<AgentStream>>>,
}

/// What the calls about tokens and certificates share.
pub(crate) struct Office {
    pub(crate) authority: Arc<Authority>,
    pub(crate) tokens: Mutex<Tokens>,
    pub(crate) accounts: Option<Arc<dyn Accounts>>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) node_life: Duration,
    pub(crate) wall_ms: fn() -> u64,
}

impl Door {
    /// The same door, for one who serves it for a while: the listeners stay open when the copy is gone.
    pub(crate) fn copy(&self) -> io::Result<Self> {
        Ok(Self {
            office: Arc::clone(&self.office),
            listeners: copies(&self.listeners)?,
            config: Arc::clone(&self.config),
            controllers: None,
        })
    }

    /// Starts to take connections, for as long as the tasks live.
    pub(crate) fn receive(self) -> (ReceiverStream<io::Result<AgentStream>>, JoinSet<()>) {
        let (taken, streams) = mpsc::channel(TAKEN);
        let mut tasks = JoinSet::new();
        let reception = Reception::new(self.config);
        let entrance = AgentEntrance::new(self.office.node_life, taken, self.controllers);
        for listener in self.listeners {
            let entrance = entrance.clone();
            let take = move |shaken| entrance.clone().take(shaken);
            tasks.spawn(reception.clone().run(listener, take));
        }
        (ReceiverStream::new(streams), tasks)
    }
}

/// More handles on the same sockets.
pub(crate) fn copies(listeners: &[TcpListener]) -> io::Result<Vec<TcpListener>> {
    let copy = |listener: &TcpListener| {
        TcpListener::from_std(listener.as_fd().try_clone_to_owned()?.into())
    };
    listeners.iter().map(copy).collect()
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
    config.alpn_protocols = vec![ALPN.to_vec(), ALPN_CSI.to_vec()];
    without_resumption(&mut config);
    Ok(Arc::new(config))
}

/// Each connection shows its certificate anew: a resumed one would be believed without.
pub(crate) fn without_resumption(config: &mut ServerConfig) {
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
}
