//! Where the registry is, and the connection to it: a Unix socket on this machine, or mutual TLS to another one.

use std::path::PathBuf;

use hotbay_api::leader::NotLeading;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

use crate::membership::Member;
use crate::renewal;
use crate::tls::{self, TlsError};

/// Where the registry is.
#[derive(Debug, Clone)]
pub enum RegistryAt {
    /// On this machine, behind this Unix socket.
    Local(PathBuf),
    /// On another machine, whose member this agent is.
    Remote(Member),
}

/// Why a dial failed.
#[derive(Debug, Error)]
pub(crate) enum DialError {
    #[error("this node's certificate has expired; join again with a new token")]
    Expired,
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("no connection")]
    Connect(#[from] tonic::transport::Error),
    #[error("no session")]
    Session(#[from] tonic::Status),
}

impl DialError {
    /// Who leads, if that is what the registry said.
    pub(crate) fn leader(&self) -> Option<String> {
        match self {
            Self::Session(status) => match NotLeading::told(status)? {
                NotLeading::Leader(address) => Some(address),
                NotLeading::Nobody => None,
            },
            Self::Expired | Self::Tls(_) | Self::Connect(_) => None,
        }
    }
}

/// Work that goes on beside a session and ends with it.
#[derive(Debug)]
pub(crate) struct Companion(JoinHandle<()>);

impl Drop for Companion {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RegistryAt {
    /// The member with an account, which can join again by itself.
    pub(crate) fn with_account(&self) -> Option<&Member> {
        match self {
            Self::Remote(member) => Some(member).filter(|member| member.account().is_some()),
            Self::Local(_) => None,
        }
    }

    /// Dials the registry; on another machine at `leader`, if somebody there was named. Whoever answers must be the
    /// same registry.
    pub(crate) async fn connect(&self, leader: Option<&str>) -> Result<Channel, DialError> {
        match self {
            Self::Local(socket) => {
                let socket = socket.clone();
                let connect = tower::service_fn(move |_| {
                    let socket = socket.clone();
                    async move { UnixStream::connect(socket).await.map(TokioIo::new) }
                });
                // A Unix socket has no host; this name only fills the protocol's field.
                let endpoint = Endpoint::from_static("http://registry");
                Ok(endpoint.connect_with_connector(connect).await?)
            }
            Self::Remote(member) if member.has_expired() => Err(DialError::Expired),
            Self::Remote(member) => {
                let address = leader.map_or_else(|| member.address(), ToOwned::to_owned);
                Ok(tls::connect(address, tls::as_member(member)?).await?)
            }
        }
    }

    /// What has to go on beside the session on this connection: on TLS, renewing the certificate.
    pub(crate) fn companion(&self, channel: &Channel) -> Option<Companion> {
        match self {
            Self::Local(_) => None,
            Self::Remote(member) => {
                let renewing = renewal::keep(channel.clone(), member.clone());
                Some(Companion(tokio::spawn(renewing)))
            }
        }
    }
}
