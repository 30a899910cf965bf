//! Sessions with agents: the agent dials, registers, and from then on hears orders and sends answers.
//!
//! Each session is two tasks around the registry's actor: one that reads what the agent says, one that tonic drives to
//! write what the actor put into the session's outbox. Either ending ends both, and the registry is told.

use std::pin::Pin;
use std::time::Duration;

use hotbay_api::agent as wire;
use hotbay_api::convert::{FromAgent, FromRegistry, from_agent, to_agent};
use hotbay_core::cluster::{FreshIds, Refused, RegistrationRefused};
use hotbay_core::ids::{DriveId, NodeId, SessionNumber};
use hotbay_core::message::Registration;
use hotbay_registry::{CallError, Registry, ToAgent};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use crate::peer::admit;

/// How many messages wait for an agent that reads slowly, before it loses its session.
const OUTBOX: usize = 1_024;
/// An agent that says nothing for so long is not there; it beats more often than that.
const SILENCE: Duration = Duration::from_secs(10);

type Out = Result<wire::RegistryMessage, Status>;

pub(crate) struct Sessions {
    registry: Registry,
    fresh: fn() -> u128,
}

impl Sessions {
    pub(crate) fn new(registry: Registry, fresh: fn() -> u128) -> Self {
        Self { registry, fresh }
    }
}

#[tonic::async_trait]
impl wire::agents_server::Agents for Sessions {
    type SessionStream = Pin<Box<dyn Stream<Item = Out> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<wire::AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let who = admit(&request)?;
        let (outbox, told) = mpsc::channel(OUTBOX);
        let (direct, refusals) = mpsc::channel(1);
        let number = self.registry.accept(outbox).await.map_err(unavailable)?;
        let session =
            Session { registry: self.registry.clone(), fresh: self.fresh, number, direct, who };
        tokio::spawn(session.run(request.into_inner()));
        let told = ReceiverStream::new(told).map(|message| to_agent(&said(message)));
        let all = told.merge(ReceiverStream::new(refusals)).map(Ok);
        Ok(Response::new(Box::pin(all)))
    }
}

struct Session {
    registry: Registry,
    fresh: fn() -> u128,
    number: SessionNumber,
    /// For what the registry's actor does not say itself: that a registration is refused.
    direct: mpsc::Sender<wire::RegistryMessage>,
    who: String,
}

/// Why a session ends.
enum End {
    HungUp,
    Silent,
    Refused { reason: String, message: String },
    Stopped,
}

impl Session {
    async fn run(self, mut inbound: Streaming<wire::AgentMessage>) {
        let end = self.listen(&mut inbound).await;
        match end {
            End::HungUp => tracing::debug!(session = self.number.get(), "the agent hung up"),
            End::Silent => {
                tracing::warn!(
                    session = self.number.get(),
                    "no word from the agent for {SILENCE:?}"
                );
            }
            End::Refused { reason, message } => {
                tracing::warn!(session = self.number.get(), who = self.who, "{message}");
                let refused = FromRegistry::RegistrationRefused { reason, message };
                // The agent may be gone; then nobody needs the words.
                self.direct.send(to_agent(&refused)).await.unwrap_or_default();
            }
            End::Stopped => {}
        }
        // Fails only when the registry has stopped, and its sessions with it.
        self.registry.close(self.number).await.unwrap_or_default();
    }

    async fn listen(&self, inbound: &mut Streaming<wire::AgentMessage>) -> End {
        loop {
            let message = match tokio::time::timeout(SILENCE, inbound.message()).await {
                Err(_) => return End::Silent,
                Ok(Err(_) | Ok(None)) => return End::HungUp,
                Ok(Ok(Some(message))) => message,
            };
            let handled = match from_agent(message) {
                Ok(message) => self.handle(message).await,
                Err(malformed) => {
                    let reason = "Malformed".to_owned();
                    return End::Refused { reason, message: malformed.to_string() };
                }
            };
            match handled {
                Ok(()) => {}
                Err(CallError::Stopped) => return End::Stopped,
                Err(
                    error @ (CallError::Refused(Refused::Registration(_))
                    | CallError::StoreFailing { .. }),
                ) => {
                    return End::Refused {
                        reason: reason(&error).to_owned(),
                        message: error.to_string(),
                    };
                }
                Err(CallError::Refused(Refused::OldSession)) => {
                    let message = "a newer session of this node is registered".to_owned();
                    return End::Refused { reason: "OldSession".to_owned(), message };
                }
                Err(CallError::Refused(refused)) => {
                    // A late answer: it was true once, and does not count now.
                    tracing::debug!(session = self.number.get(), "not counted: {refused}");
                }
            }
        }
    }

    async fn handle(&self, message: FromAgent) -> Result<(), CallError> {
        match message {
            FromAgent::Register(registration) => {
                let fresh = self.fresh_ids(&registration);
                self.registry.register(self.number, registration, fresh).await
            }
            FromAgent::Heartbeat => Ok(()),
            FromAgent::Report { number, devices } => {
                let fresh = self.fresh_drives(devices.len());
                self.registry.report(self.number, number, devices, fresh).await
            }
            FromAgent::Answer(answer) => self.registry.answer(self.number, answer).await,
        }
    }

    fn fresh_ids(&self, registration: &Registration) -> FreshIds {
        FreshIds {
            node: NodeId::from_bits((self.fresh)()),
            drives: self.fresh_drives(registration.devices.len()),
        }
    }

    fn fresh_drives(&self, count: usize) -> Vec<DriveId> {
        (0..count).map(|_| DriveId::from_bits((self.fresh)())).collect()
    }
}

fn said(message: ToAgent) -> FromRegistry {
    match message {
        ToAgent::Registered(registered) => FromRegistry::Registered(*registered),
        ToAgent::Order(order) => FromRegistry::Order(*order),
        ToAgent::ReportTaken { number } => FromRegistry::ReportTaken { number },
    }
}

/// The word that an agent can act upon.
fn reason(error: &CallError) -> &'static str {
    match error {
        CallError::Refused(Refused::Registration(refused)) => match refused {
            RegistrationRefused::RegistryRewound { .. } => "RegistryRewound",
            RegistrationRefused::DuplicateNode { .. } => "DuplicateNode",
            RegistrationRefused::ForeignCluster { .. } => "ForeignCluster",
        },
        CallError::Refused(_) => "OldSession",
        CallError::StoreFailing { .. } | CallError::Stopped => "Unavailable",
    }
}

pub(crate) fn unavailable(error: CallError) -> Status {
    Status::unavailable(error.to_string())
}
