//! Where the registry is, and the connection to it: a Unix socket on this machine, or mutual TLS to another one.

use std::path::PathBuf;

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

/// Work that goes on beside a session and ends with it.
#[derive(Debug)]
pub(crate) struct Companion(JoinHandle<()>);

impl Drop for Companion {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RegistryAt {
    pub(crate) async fn connect(&self) -> Result<Channel, DialError> {
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
                Ok(tls::connect(member.address(), tls::as_member(member)?).await?)
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
