//! The clients' door of a controller that does not lead: bytes go to the leader's door and back, TLS and all.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::LeaderAt;

/// How many connections are passed on at a time; the next ones wait.
const CONNECTIONS: usize = 256;
/// How long the leader may take to take a connection.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
/// How long a client may take to hang up after the leader has.
const LAST_WORDS: Duration = Duration::from_secs(5);
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
async fn pass(client: TcpStream, at: Option<String>) {
    let Some(at) = at else { return };
    let passed = async {
        let dialled = timeout(DIAL_LIMIT, TcpStream::connect(&at)).await;
        let leader = dialled.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        pass_between(client, leader).await
    };
    if let Err(error) = passed.await {
        tracing::debug!(at, "a connection that was passed on to the leader ended: {error}");
    }
}

/// Passes bytes on until both sides have ended, or shortly after the leader has: it hangs up on those who say nothing,
/// and whoever keeps silent here must not keep the place of another.
async fn pass_between(mut client: TcpStream, mut leader: TcpStream) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_leader, mut to_leader) = leader.split();
    let asking = async {
        copy(&mut from_client, &mut to_leader).await?;
        to_leader.shutdown().await
    };
    let answering = async {
        copy(&mut from_leader, &mut to_client).await?;
        to_client.shutdown().await
    };
    tokio::pin!(asking, answering);
    tokio::select! {
        asked = &mut asking => {
            asked?;
            answering.await
        }
        answered = &mut answering => {
            answered?;
            timeout(LAST_WORDS, asking).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// Who connects and says nothing is hung up on by the leader; the place is free again.
    #[tokio::test]
    async fn a_silent_client_keeps_no_place_when_the_leader_hangs_up() {
        let leader = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut silent = TcpStream::connect(door.local_addr().unwrap()).await.unwrap();
        let (client, _) = door.accept().await.unwrap();
        let passed = tokio::spawn(pass(client, Some(leader.local_addr().unwrap().to_string())));
        drop(leader.accept().await.unwrap());
        assert_eq!(silent.read(&mut [0]).await.unwrap(), 0, "it hears that it was hung up on");
        timeout(LAST_WORDS * 4, passed).await.expect("the place is free").unwrap();
    }
}
