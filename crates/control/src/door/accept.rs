//! Takes connections from other machines: each shakes hands in a task of its own, within a deadline, so that one who
//! says nothing, or says it slowly, delays nobody.
//!
//! Whoever has no certificate may only join: its connection counts as a handshake until it ends, which is soon.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hotbay_api::token::NODE_URI;
use hotbay_core::ids::NodeName;
use rustls::pki_types::CertificateDer;
use rustls::{ServerConfig, ServerConnection};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// How long a handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection without a certificate may last: time to join, with patience.
const JOIN_LIMIT: Duration = Duration::from_secs(30);
/// How many handshakes may be under way.
const HANDSHAKES: usize = 256;
/// How many of them may come from one address, so that one machine cannot take them all.
const HANDSHAKES_FROM_ONE: usize = 32;
/// How many connections with a certificate may be open.
const CONNECTIONS: usize = 16_384;
/// The pause after the kernel could not give us a connection, as without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who is at the other end, as the certificate says that it showed.
#[derive(Debug, Clone)]
pub(crate) struct AgentPeer {
    pub(crate) address: SocketAddr,
    /// None: it showed no certificate.
    pub(crate) certified: Option<CertifiedPeer>,
}

/// A node and its key, out of a certificate of our authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertifiedPeer {
    pub(crate) node: NodeName,
    pub(crate) public_key: [u8; 32],
}

/// Why a connection is not taken.
#[derive(Debug, Error)]
enum NotTaken {
    #[error("the handshake took longer than {} s", HANDSHAKE_LIMIT.as_secs())]
    Slow,
    #[error("{0}")]
    Handshake(io::Error),
    #[error("its certificate names no node")]
    Nameless,
    #[error("{CONNECTIONS} connections are open")]
    Full,
}

/// The listeners' shared limits and configuration.
#[derive(Clone)]
pub(crate) struct Reception {
    tls: TlsAcceptor,
    /// How long a connection with a certificate may last.
    longest: Duration,
    handshakes: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    by_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
    taken: mpsc::Sender<io::Result<AgentStream>>,
}

impl Reception {
    pub(crate) fn new(
        config: Arc<ServerConfig>,
        longest: Duration,
        taken: mpsc::Sender<io::Result<AgentStream>>,
    ) -> Self {
        Self {
            tls: TlsAcceptor::from(config),
            longest,
            handshakes: Arc::new(Semaphore::new(HANDSHAKES)),
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
            by_address: Arc::default(),
            taken,
        }
    }

    /// Takes connections for as long as the listener lives.
    pub(crate) async fn run(self, listener: TcpListener) {
        loop {
            let (stream, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!("cannot take a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(room) = self.room_for(address.ip()) else {
                tracing::warn!(%address, "refused: too many handshakes are under way");
                continue;
            };
            let reception = self.clone();
            tokio::spawn(async move {
                match reception.shake_hands(stream, address, room).await {
                    // Nobody serves any more: the process ends.
                    Ok(stream) => drop(reception.taken.send(Ok(stream)).await),
                    Err(why) => tracing::warn!(%address, "refused: {why}"),
                }
            });
        }
    }

    fn room_for(&self, address: IpAddr) -> Option<Room> {
        let permit = Arc::clone(&self.handshakes).try_acquire_owned().ok()?;
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_address.entry(address).or_insert(0);
        if *count >= HANDSHAKES_FROM_ONE {
            return None;
        }
        *count += 1;
        Some(Room { address, by_address: Arc::clone(&self.by_address), _permit: permit })
    }

    async fn shake_hands(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        room: Room,
    ) -> Result<AgentStream, NotTaken> {
        // Orders and answers are small, and each is waited for.
        stream.set_nodelay(true).map_err(NotTaken::Handshake)?;
        let shaken = tokio::time::timeout(HANDSHAKE_LIMIT, self.tls.accept(stream)).await;
        let stream = shaken.map_err(|_| NotTaken::Slow)?.map_err(NotTaken::Handshake)?;
        let certified = certified(stream.get_ref().1)?;
        let (longest, held) = match &certified {
            Some(_) => {
                let permit = Arc::clone(&self.connections).try_acquire_owned();
                (self.longest, Held::Connection(permit.map_err(|_| NotTaken::Full)?))
            }
            None => (JOIN_LIMIT, Held::Handshake(room)),
        };
        let peer = AgentPeer { address, certified };
        Ok(AgentStream { stream, peer, ends: Box::pin(tokio::time::sleep(longest)), _held: held })
    }
}

/// The place of one handshake; free again when dropped.
struct Room {
    address: IpAddr,
    by_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
    }
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
    Some(CertifiedPeer { node: name.parse().ok()?, public_key })
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
        let made = authority.certify_node(&node, [9; 32], 1_800_000_000_000, life).unwrap();
        let certificate = CertificateDer::from_pem_slice(made.pem.as_bytes()).unwrap();
        assert_eq!(named(&certificate), Some(CertifiedPeer { node, public_key: [9; 32] }));
        let registry = authority.certify_registry(&[], 1_800_000_000_000, life).unwrap();
        for nameless in [authority.certificate(), &registry.cert[0]] {
            assert_eq!(named(nameless), None);
        }
        assert_eq!(named(&CertificateDer::from(&b"no certificate"[..])), None);
    }

    #[tokio::test]
    async fn one_address_cannot_take_every_place() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::load_or_make(dir.path()).unwrap();
        let registry = authority.certify_registry(&[], 1_800_000_000_000, JOIN_LIMIT).unwrap();
        let identity = Arc::new(crate::door::identity::Identity::new(registry));
        let config = crate::door::server_config(&authority, identity).unwrap();
        let reception = Reception::new(config, JOIN_LIMIT, mpsc::channel(1).0);
        let (greedy, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let mut rooms: Vec<_> = std::iter::from_fn(|| reception.room_for(greedy)).collect();
        assert_eq!(rooms.len(), HANDSHAKES_FROM_ONE);
        assert!(reception.room_for(other).is_some());
        rooms.pop();
        assert!(reception.room_for(greedy).is_some());
        rooms.clear();
        assert!(reception.by_address.lock().unwrap().is_empty());
        assert_eq!(reception.handshakes.available_permits(), HANDSHAKES);
    }
}
