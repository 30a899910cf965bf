//! The clients' door of a controller that does not lead: bytes go to the leader's door and back, TLS and all.

use std::io;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::LeaderAt;

/// How many connections are passed on at a time; the next ones wait.
const CONNECTIONS: usize = 256;
/// How long the leader may take to take a connection.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
/// The pause after the kernel could not give us a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Passes connections on for as long as it is polled.
pub(super) async fn pass_on(listener: TcpListener, leader: watch::Receiver<Option<LeaderAt>>) {
    let mut passed = JoinSet::new();
    loop {
        while passed.len() >= CONNECTIONS {
            passed.join_next().await;
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let at = leader.borrow().as_ref().map(|leader| leader.clients.clone());
                    passed.spawn(pass(stream, at.filter(|at| !at.is_empty())));
                }
                Err(error) => {
                    tracing::warn!("cannot take a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = passed.join_next() => {}
        }
    }
}

/// Hangs up when nobody leads: the client says that, and can be asked again.
async fn pass(mut client: TcpStream, at: Option<String>) {
    let Some(at) = at else { return };
    let passed = async {
        let dialled = timeout(DIAL_LIMIT, TcpStream::connect(&at)).await;
        let mut leader = dialled.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        copy_bidirectional(&mut client, &mut leader).await
    };
    if let Err(error) = passed.await {
        tracing::debug!(at, "a connection that was passed on to the leader ended: {error}");
    }
}
