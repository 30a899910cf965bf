//! How one controller reaches another: through the agents' door, with a certificate that says controller, for CSI's
//! calls alone. Every controller holds the key of the authority, so each makes its own certificate for every dial.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hotbay_api::token::{ALPN_CSI, REGISTRY_NAME};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::body::Body;

use crate::KEEP_ALIVE;
use crate::door::authority::Authority;

/// How long a dial may take.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
/// Only the handshake needs it.
const LIFE: Duration = Duration::from_secs(3_600);

pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A connection to the controller at `address`, for CSI's calls.
pub(super) async fn dial(
    address: &str,
    authority: &Authority,
    now_ms: u64,
) -> Result<SendRequest<Body>, Failure> {
    let config = config(authority, now_ms)?;
    let name = ServerName::try_from(REGISTRY_NAME).expect("it is the name of a host");
    let shaken = timeout(DIAL_LIMIT, async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    });
    let stream = shaken.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("the connection to the leader ended: {error}");
        }
    });
    Ok(sender)
}

fn config(authority: &Authority, now_ms: u64) -> Result<ClientConfig, Failure> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone())?;
    let ours = Ours(Arc::new(authority.certify_controller(now_ms, LIFE)?));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(ours));
    config.alpn_protocols = vec![ALPN_CSI.to_vec()];
    Ok(config)
}

/// The one certificate that is shown.
#[derive(Debug)]
struct Ours(Arc<CertifiedKey>);

impl ResolvesClientCert for Ours {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}
