//! The connection to the registry: dials, registers, beats, and dials again, for as long as the agent lives.
//!
//! It decides nothing: what the registry says goes to the agent's loop, and what that loop says goes out.

use std::time::Duration;

use hotbay_api::agent::agents_client::AgentsClient;
use hotbay_api::convert::{FromAgent, FromRegistry, from_registry, to_registry};
use hotbay_api::token::REVOKED;
use hotbay_api::{MESSAGE_LIMIT_BYTES, agent as wire};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::account;
use crate::dial::{Companion, DialError, RegistryAt};
use crate::joining::in_words;

/// How many messages wait for the registry to read them.
const OUTGOING: usize = 1_024;
const BEAT_EVERY: Duration = Duration::from_secs(2);
/// A registry that does not answer a dial for so long is dialled again.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What the link tells the agent's loop. `connection` numbers the dials, so that news of an old one is known as such.
#[derive(Debug)]
pub(crate) enum News {
    Connected { connection: u64, to_registry: mpsc::Sender<FromAgent> },
    Said { connection: u64, message: Box<FromRegistry> },
    Lost { connection: u64 },
}

/// Keeps a connection to the registry for ever. Ends when nobody listens to its news any more.
pub(crate) async fn keep(registry: RegistryAt, news: mpsc::Sender<News>) {
    let mut pause = FIRST_PAUSE;
    let (mut reached, mut joined) = (SaidOnce::default(), SaidOnce::default());
    // Whoever was named as the leader is dialled once; then the registry's own address is again.
    let mut leader = None;
    for connection in 0.. {
        if let Some(why) = registry.with_account().and_then(account::must_join) {
            join_because(&registry, why, &mut joined).await;
        }
        let sent_on: Option<String> = leader.take();
        let dialled = tokio::time::timeout(DIAL_LIMIT, dial(&registry, sent_on.as_deref())).await;
        let failure = match dialled {
            Ok(Ok(Dialled { revoked: true, .. }))
                if join_because(&registry, "its certificate was revoked", &mut joined).await =>
            {
                String::new()
            }
            Ok(Ok(Dialled { outgoing, incoming, companion: _companion, .. })) => {
                let began = Instant::now();
                if serve(connection, outgoing, incoming, &news).await.is_err() {
                    return;
                }
                // A registry that hangs up at once, because it refuses us, is not pressed.
                if began.elapsed() > LONGEST_PAUSE {
                    pause = FIRST_PAUSE;
                }
                String::new()
            }
            Ok(Err(error)) => {
                leader = error.leader();
                match &leader {
                    Some(there) => {
                        tracing::debug!("{there} leads");
                        if sent_on.is_none() {
                            continue;
                        }
                        format!("each says that another one leads, the last that {there} does")
                    }
                    None => in_words(&error),
                }
            }
            Err(_) => "it does not answer".to_owned(),
        };
        reached.warn("the registry cannot be reached", failure);
        // Nothing tells when a registry is back, so it is asked again and again, more and more slowly.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// What fails again and again in the same way is said once, not with every try.
#[derive(Default)]
struct SaidOnce(String);

impl SaidOnce {
    /// Without a failure there is nothing to say; the next one is new.
    fn warn(&mut self, what: &str, failure: String) {
        if failure != self.0 && !failure.is_empty() {
            tracing::warn!("{what}: {failure}");
        }
        self.0 = failure;
    }
}

/// Gets another certificate with the account; whether it did. What fails is tried again with the next dial, which is
/// made all the same: the stored certificate may still do.
async fn join_because(registry: &RegistryAt, why: &str, said: &mut SaidOnce) -> bool {
    let Some(member) = registry.with_account() else { return false };
    let joined = account::join_again(member).await;
    let failure = joined.as_ref().err().map(|error| in_words(error)).unwrap_or_default();
    said.warn(&format!("this node has to join again, because {why}"), failure);
    joined.is_ok()
}

type Incoming = Streaming<wire::RegistryMessage>;
type Outgoing = mpsc::Sender<wire::AgentMessage>;

/// A session.
struct Dialled {
    outgoing: Outgoing,
    incoming: Incoming,
    companion: Option<Companion>,
    /// The certificate was revoked, and another one is to be had.
    revoked: bool,
}

async fn dial(registry: &RegistryAt, leader: Option<&str>) -> Result<Dialled, DialError> {
    let channel = registry.connect(leader).await?;
    let companion = registry.companion(&channel);
    let mut client = AgentsClient::new(channel)
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
    let (outgoing, messages) = mpsc::channel(OUTGOING);
    let answer = client.session(ReceiverStream::new(messages)).await?;
    let revoked = answer.metadata().contains_key(REVOKED) && registry.with_account().is_some();
    Ok(Dialled { outgoing, incoming: answer.into_inner(), companion, revoked })
}

/// Nobody listens any more.
struct Ended;

async fn serve(
    connection: u64,
    outgoing: Outgoing,
    mut incoming: Incoming,
    news: &mpsc::Sender<News>,
) -> Result<(), Ended> {
    let (to_registry_sender, mut says) = mpsc::channel(OUTGOING);
    let connected = News::Connected { connection, to_registry: to_registry_sender };
    news.send(connected).await.map_err(|_| Ended)?;
    let mut beat = tokio::time::interval_at(Instant::now() + BEAT_EVERY, BEAT_EVERY);
    loop {
        let message = tokio::select! {
            heard = incoming.message() => match heard {
                Ok(Some(message)) => {
                    match from_registry(message) {
                        Ok(message) => {
                            let said = News::Said { connection, message: Box::new(message) };
                            news.send(said).await.map_err(|_| Ended)?;
                        }
                        Err(malformed) => {
                            tracing::error!("the registry cannot be understood: {malformed}");
                            break;
                        }
                    }
                    continue;
                }
                Ok(None) => break,
                Err(status) => {
                    tracing::debug!("the session ended: {}", status.message());
                    break;
                }
            },
            said = says.recv() => match said {
                Some(message) => message,
                // The agent's loop has given this connection up.
                None => break,
            },
            _ = beat.tick() => FromAgent::Heartbeat,
        };
        if outgoing.send(to_registry(&message)).await.is_err() {
            break;
        }
    }
    news.send(News::Lost { connection }).await.map_err(|_| Ended)
}
