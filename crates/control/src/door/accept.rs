//! Who comes through the agents' door: a node, by the certificate that it showed, or one without, who may only join.
//!
//! A connection without a certificate counts as a handshake until it ends, which is soon.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hotbay_api::token::{ALPN_CSI, CONTROLLER_URI, NODE_URI};
use hotbay_core::ids::{CertificateNumber, NodeName};
use rustls::ServerConnection;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::authority::number_in;
use crate::reception::{NotTaken, Room, STRANGER_LIMIT, Shaken};

/// How many connections with a certificate may be open.
const CONNECTIONS: usize = 16_384;

/// Who is at the other end, as the certificate says that it showed.
#[derive(Debug, Clone)]
pub(crate) struct AgentPeer {
    pub(crate) address: SocketAddr,
    /// None: it showed no certificate.
    pub(crate) certified: Option<CertifiedPeer>,
}

/// What a certificate of our authority says: the node, its key, and which certificate it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertifiedPeer {
    pub(crate) node: NodeName,
    pub(crate) public_key: [u8; 32],
    pub(crate) number: CertificateNumber,
}

/// Sorts those who have shaken hands, and hands them on to be served.
#[derive(Clone)]
pub(crate) struct AgentEntrance {
    /// How long a connection with a certificate may last.
    longest: Duration,
    connections: Arc<Semaphore>,
    taken: mpsc::Sender<io::Result<AgentStream>>,
    /// For other controllers.
    controllers: Option<mpsc::Sender<io::Result<AgentStream>>>,
}

impl AgentEntrance {
    pub(crate) fn new(
        longest: Duration,
        taken: mpsc::Sender<io::Result<AgentStream>>,
        controllers: Option<mpsc::Sender<io::Result<AgentStream>>>,
    ) -> Self {
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        Self { longest, connections, taken, controllers }
    }

    pub(crate) async fn take(self, shaken: Shaken) -> Result<(), NotTaken> {
        let Shaken { stream, address, room } = shaken;
        if stream.get_ref().1.alpn_protocol() == Some(ALPN_CSI) {
            return self.take_controller(stream, address).await;
        }
        let certified = certified(stream.get_ref().1)?;
        let (longest, held) = match &certified {
            Some(_) => {
                let permit = Arc::clone(&self.connections).try_acquire_owned();
                let full = |_| NotTaken::Full { limit: CONNECTIONS };
                (self.longest, Held::Connection(permit.map_err(full)?))
            }
            None => (STRANGER_LIMIT, Held::Handshake(room)),
        };
        let peer = AgentPeer { address, certified };
        let ends = Box::pin(tokio::time::sleep(longest));
        // Nobody serves any more: the process ends.
        drop(self.taken.send(Ok(AgentStream { stream, peer, ends, _held: held })).await);
        Ok(())
    }

    /// One that speaks CSI must be a controller, and comes only where one leads.
    async fn take_controller(
        self,
        stream: TlsStream<TcpStream>,
        address: SocketAddr,
    ) -> Result<(), NotTaken> {
        if !is_controller(stream.get_ref().1) {
            return Err(NotTaken::NoController);
        }
        let controllers = self.controllers.ok_or(NotTaken::NotLeading)?;
        let permit = self.connections.try_acquire_owned();
        let held = Held::Connection(permit.map_err(|_| NotTaken::Full { limit: CONNECTIONS })?);
        let peer = AgentPeer { address, certified: None };
        let ends = Box::pin(tokio::time::sleep(self.longest));
        // Nobody serves any more: the process ends.
        drop(controllers.send(Ok(AgentStream { stream, peer, ends, _held: held })).await);
        Ok(())
    }
}

/// Whether the certificate that the handshake has verified says controller.
fn is_controller(connection: &ServerConnection) -> bool {
    let Some([certificate, ..]) = connection.peer_certificates() else { return false };
    webpki::EndEntityCert::try_from(certificate)
        .is_ok_and(|parsed| parsed.valid_uri_names().any(|uri| uri == CONTROLLER_URI))
}

#[expect(dead_code, reason = "held for what its drop gives back")]
enum Held {
    Handshake(Room),
    Connection(OwnedSemaphorePermit),
}

/// Whom the certificate names that the handshake has verified, if there is one.
fn certified(connection: &ServerConnection) -> Result<Option<CertifiedPeer>, NotTaken> {
    let Some([certificate, ..]) = connection.peer_certificates() else { return Ok(None) };
    named(certificate).map(Some).ok_or(NotTaken::Nameless)
}

/// The node that a certificate names: exactly one.
fn named(certificate: &CertificateDer<'_>) -> Option<CertifiedPeer> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut names = parsed.valid_uri_names().filter_map(|uri| uri.strip_prefix(NODE_URI));
    let (Some(name), None) = (names.next(), names.next()) else { return None };
    let info = parsed.subject_public_key_info();
    // An Ed25519 key is the last 32 bytes of its description.
    let public_key = *info.as_ref().last_chunk()?;
    let number = number_in(parsed.serial());
    Some(CertifiedPeer { node: name.parse().ok()?, public_key, number })
}

/// A connection that was taken. It breaks off when its time is over, because a certificate is looked at only when a
/// connection is made.
pub(crate) struct AgentStream {
    stream: TlsStream<TcpStream>,
    peer: AgentPeer,
    ends: Pin<Box<Sleep>>,
    _held: Held,
}

impl Connected for AgentStream {
    type ConnectInfo = AgentPeer;

    fn connect_info(&self) -> AgentPeer {
        self.peer.clone()
    }
}

impl AsyncRead for AgentStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ends.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for AgentStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::door::authority::Authority;

    #[test]
    fn a_certificate_names_its_node_and_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::load_or_make(dir.path()).unwrap();
        let node: NodeName = "rack1.node-07".parse().unwrap();
        let life = Duration::from_secs(60);
        let number = CertificateNumber::from_number(u64::MAX / 3);
        let made = authority.certify_node(&node, [9; 32], number, 1_800_000_000_000, life).unwrap();
        let certificate = CertificateDer::from_pem_slice(made.pem.as_bytes()).unwrap();
        assert_eq!(named(&certificate), Some(CertifiedPeer { node, public_key: [9; 32], number }));
        let registry = authority.certify_registry(&[], 1_800_000_000_000, life).unwrap();
        for nameless in [authority.certificate(), &registry.cert[0]] {
            assert_eq!(named(nameless), None);
        }
        assert_eq!(named(&CertificateDer::from(&b"no certificate"[..])), None);
    }
}
