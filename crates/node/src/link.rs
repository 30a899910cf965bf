//! The connection to the registry: dials, registers, beats, and dials again, for as long as the agent lives.
//!
//! It decides nothing: what the registry says goes to the agent's loop, and what that loop says goes out.

use std::time::Duration;

use hotbay_api::agent::agents_client::AgentsClient;
use hotbay_api::convert::{FromAgent, FromRegistry, from_registry, to_registry};
use hotbay_api::{MESSAGE_LIMIT_BYTES, agent as wire};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

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
    let mut last_failure = String::new();
    for connection in 0.. {
        let failure = match tokio::time::timeout(DIAL_LIMIT, dial(&registry)).await {
            Ok(Ok((outgoing, incoming, _companion))) => {
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
            Ok(Err(error)) => in_words(&error),
            Err(_) => "it does not answer".to_owned(),
        };
        // Said once, not with every try.
        if failure != last_failure && !failure.is_empty() {
            tracing::warn!("the registry cannot be reached: {failure}");
        }
        last_failure = failure;
        // Nothing tells when a registry is back, so it is asked again and again, more and more slowly.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

type Incoming = Streaming<wire::RegistryMessage>;
type Outgoing = mpsc::Sender<wire::AgentMessage>;

async fn dial(registry: &RegistryAt) -> Result<(Outgoing, Incoming, Option<Companion>), DialError> {
    let channel = registry.connect().await?;
    let companion = registry.companion(&channel);
    let mut client = AgentsClient::new(channel)
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
    let (outgoing, messages) = mpsc::channel(OUTGOING);
    let incoming = client.session(ReceiverStream::new(messages)).await?.into_inner();
    Ok((outgoing, incoming, companion))
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
