//! Takes connections from other machines: each shakes hands in a task of its own, within a deadline, so that one who
//! says nothing, or says it slowly, delays nobody. The doors for agents and for clients have one each, so that neither
//! can fill the other's.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ServerConfig;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may last whose other end has not shown that it may be here.
pub(crate) const STRANGER_LIMIT: Duration = Duration::from_secs(30);
/// How many handshakes may be under way.
const HANDSHAKES: usize = 256;
/// How many of them may come from one address, so that one machine cannot take them all.
const HANDSHAKES_FROM_ONE: usize = 32;
/// The pause after the kernel could not give us a connection, as without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a connection is not taken.
#[derive(Debug, Error)]
pub(crate) enum NotTaken {
    #[error("the handshake took longer than {} s", HANDSHAKE_LIMIT.as_secs())]
    Slow,
    #[error("{0}")]
    Handshake(io::Error),
    #[error("its certificate names no node")]
    Nameless,
    #[error("it wants to pass CSI's calls on, and its certificate is no controller's")]
    NoController,
    #[error("another controller passes CSI's calls on, and this one does not lead")]
    NotLeading,
    #[error("{limit} connections are open")]
    Full { limit: usize },
}

/// A connection whose handshake is done.
pub(crate) struct Shaken {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) address: SocketAddr,
    /// Held for as long as the other end is a stranger.
    pub(crate) room: Room,
}

/// The limits and the configuration that the listeners of one door share.
#[derive(Clone)]
pub(crate) struct Reception {
    tls: TlsAcceptor,
    handshakes: Arc<Semaphore>,
    by_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Reception {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Self {
        Self {
            tls: TlsAcceptor::from(config),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES)),
            by_address: Arc::default(),
        }
    }

    /// Takes connections for as long as the listener lives; what becomes of each is `take`'s.
    pub(crate) async fn run<Take, Taken>(self, listener: TcpListener, take: Take)
    where
        Take: Fn(Shaken) -> Taken + Clone + Send + 'static,
        Taken: Future<Output = Result<(), NotTaken>> + Send,
    {
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
            let (reception, take) = (self.clone(), take.clone());
            tokio::spawn(async move {
                let taken = match reception.shake_hands(stream).await {
                    Ok(stream) => take(Shaken { stream, address, room }).await,
                    Err(why) => Err(why),
                };
                if let Err(why) = taken {
                    tracing::warn!(%address, "refused: {why}");
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

    async fn shake_hands(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, NotTaken> {
        // What is said is small, and each answer is waited for.
        stream.set_nodelay(true).map_err(NotTaken::Handshake)?;
        let shaken = tokio::time::timeout(HANDSHAKE_LIMIT, self.tls.accept(stream)).await;
        shaken.map_err(|_| NotTaken::Slow)?.map_err(NotTaken::Handshake)
    }
}

/// The place of one handshake; free again when dropped.
#[derive(Debug)]
pub(crate) struct Room {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::authority::Authority;

    #[tokio::test]
    async fn one_address_cannot_take_every_place() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::load_or_make(dir.path()).unwrap();
        let registry = authority.certify_registry(&[], 1_800_000_000_000, STRANGER_LIMIT).unwrap();
        let identity = Arc::new(crate::door::identity::Identity::new(registry));
        let config = crate::door::server_config(&authority, identity).unwrap();
        let reception = Reception::new(config);
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
