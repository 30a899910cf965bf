//! Sessions with agents: the agent dials, registers, and from then on hears orders and sends answers.
//!
//! Each session is one task: it hands what the agent says to the registry's actor, and what the actor put into the
//! session's outbox to the agent. When either side gives up, the session ends and the other side hears of it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hotbay_api::agent as wire;
use hotbay_api::convert::{FromAgent, FromRegistry, from_agent, to_agent};
use hotbay_api::token::REVOKED;
use hotbay_core::cluster::{FreshIds, Refused, RegistrationRefused};
use hotbay_core::ids::{DriveId, NodeId, NodeName, SessionNumber};
use hotbay_core::message::Registration;
use hotbay_core::volume::orders::VolumeOrder;
use hotbay_registry::{CallError, Registry, ToAgent};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

use crate::peer::{AdmittedAgent, admit_agent};
use crate::rewound::Rewound;

/// How many messages wait for an agent that reads slowly, before it loses its session.
const OUTBOX: usize = 1_024;
/// An agent that says nothing for so long is not there; it beats more often than that.
const SILENCE: Duration = Duration::from_secs(10);

/// How long a session may wait for what its certificate is worth.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

type Out = Result<wire::RegistryMessage, Status>;

pub(crate) struct Sessions {
    registry: Registry,
    fresh: fn() -> u128,
    rewound: Arc<Rewound>,
}

impl Sessions {
    pub(crate) fn new(registry: Registry, fresh: fn() -> u128) -> Self {
        Self { registry, fresh, rewound: Arc::default() }
    }
}

#[tonic::async_trait]
impl wire::agents_server::Agents for Sessions {
    type SessionStream = Pin<Box<dyn Stream<Item = Out> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<wire::AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let agent = admit_agent(&request)?;
        let (outbox, told) = mpsc::channel(OUTBOX);
        let (to_wire, stream) = mpsc::channel(1);
        let number = self.registry.accept(outbox).await.map_err(unavailable)?;
        let (registry, rewound) = (self.registry.clone(), Arc::clone(&self.rewound));
        let session = Session { registry, fresh: self.fresh, number, to_wire, agent, rewound };
        let revoked = session.shows_revoked_certificate().await;
        tokio::spawn(session.run(request.into_inner(), told));
        let stream = ReceiverStream::new(stream).map(|message: Box<_>| Ok(*message));
        let mut response = Response::new(Box::pin(stream) as Self::SessionStream);
        if revoked {
            response.metadata_mut().insert(REVOKED, MetadataValue::from_static("1"));
        }
        Ok(response)
    }
}

struct Session {
    registry: Registry,
    fresh: fn() -> u128,
    number: SessionNumber,
    /// Boxed, because a channel keeps room for many: this is memory of every agent that is connected.
    to_wire: mpsc::Sender<Box<wire::RegistryMessage>>,
    agent: AdmittedAgent,
    rewound: Arc<Rewound>,
}

/// Why a session ends.
enum End {
    HungUp,
    Silent,
    /// The registry has given the session up.
    Dropped,
    Refused {
        reason: String,
        message: String,
    },
    Stopped,
}

impl Session {
    /// An agent that has an account joins again then; what others may is decided when they register.
    async fn shows_revoked_certificate(&self) -> bool {
        let AdmittedAgent { speaks_for: Some(node), certificate: Some(number), .. } = &self.agent
        else {
            return false;
        };
        let (node, number) = (node.clone(), *number);
        let look = self.registry.read_around(move |cluster| cluster.is_revoked(&node, number));
        // A store that cannot be written must not keep an agent out that has nothing to write.
        matches!(tokio::time::timeout(LOOK_LIMIT, look).await, Ok(Ok(true)))
    }

    async fn run(self, inbound: Streaming<wire::AgentMessage>, told: mpsc::Receiver<ToAgent>) {
        let session = self.number.get();
        match self.converse(inbound, told).await {
            End::HungUp => tracing::debug!(session, "the agent hung up"),
            End::Silent => tracing::warn!(session, "no word from the agent for {SILENCE:?}"),
            End::Dropped => tracing::info!(session, "the session is given up"),
            End::Refused { reason, message } => {
                tracing::warn!(session, who = self.agent.who, "{message}");
                let refused = FromRegistry::RegistrationRefused { reason, message };
                // The agent may be gone; then nobody needs the words.
                drop(self.to_wire.send_timeout(Box::new(to_agent(&refused)), SILENCE).await);
            }
            End::Stopped => {}
        }
        // Fails only when the registry has stopped, and its sessions with it.
        self.registry.close(self.number).await.unwrap_or_default();
    }

    async fn converse(
        &self,
        mut inbound: Streaming<wire::AgentMessage>,
        mut told: mpsc::Receiver<ToAgent>,
    ) -> End {
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                message = inbound.message() => {
                    let Ok(Some(message)) = message else { return End::HungUp };
                    if let Err(end) = self.listen(message).await {
                        return end;
                    }
                    // From here on: that the registry took its time is not the agent's silence.
                    heard = Instant::now();
                }
                message = told.recv() => {
                    let Some(message) = message else { return End::Dropped };
                    let message = Box::new(to_agent(&said(message)));
                    if self.to_wire.send_timeout(message, SILENCE).await.is_err() {
                        return End::Silent;
                    }
                }
                () = tokio::time::sleep_until(heard + SILENCE) => return End::Silent,
            }
        }
    }

    async fn listen(&self, message: wire::AgentMessage) -> Result<(), End> {
        let message = from_agent(message).map_err(|malformed| End::Refused {
            reason: "Malformed".to_owned(),
            message: malformed.to_string(),
        })?;
        if let FromAgent::Register(registration) = &message {
            self.may_speak_as(&registration.name)?;
        }
        let is_news = !matches!(message, FromAgent::Register(_));
        match self.handle(message).await {
            Ok(()) => Ok(()),
            // It is taken. What follows from it waits for the store.
            Err(CallError::NotDurable { error }) if is_news => {
                tracing::debug!(session = self.number.get(), "not durable yet: {error}");
                Ok(())
            }
            Err(CallError::Stopped) => Err(End::Stopped),
            Err(CallError::Refused(Refused::OldSession)) => Err(End::Refused {
                reason: "OldSession".to_owned(),
                message: "a newer session of this node is registered".to_owned(),
            }),
            Err(
                error @ (CallError::Refused(
                    Refused::Registration(_) | Refused::CertificateRevoked { .. },
                )
                | CallError::StoreFailing { .. }
                | CallError::NotDurable { .. }),
            ) => {
                Err(End::Refused { reason: reason(&error).to_owned(), message: error.to_string() })
            }
            Err(CallError::Refused(refused)) => {
                // A late answer: it was true once, and does not count now.
                tracing::debug!(session = self.number.get(), "not counted: {refused}");
                Ok(())
            }
        }
    }

    /// A certificate names its node, and nobody speaks for another. Comes before the registry hears anything.
    fn may_speak_as(&self, name: &NodeName) -> Result<(), End> {
        match self.agent.speaks_for.as_ref().filter(|own| *own != name) {
            None => Ok(()),
            Some(own) => Err(End::Refused {
                reason: "NotYourName".to_owned(),
                message: format!("the certificate of {own} does not speak for {name}"),
            }),
        }
    }

    async fn handle(&self, message: FromAgent) -> Result<(), CallError> {
        match message {
            FromAgent::Register(mut registration) => {
                registration.program.address = self.agent.address;
                let fresh = self.fresh_ids(&registration);
                let certificate = self.agent.certificate;
                let who = (registration.name.clone(), registration.node);
                let ended =
                    self.registry.register(self.number, certificate, registration, fresh).await;
                self.rewound.registered(&self.registry, who, &ended).await;
                ended
            }
            FromAgent::Heartbeat => Ok(()),
            FromAgent::Report { number, devices, conditions } => {
                let fresh = self.fresh_drives(devices.len());
                self.registry.report(self.number, number, devices, conditions, fresh).await
            }
            FromAgent::Answer(answer) => self.registry.answer(self.number, answer).await,
            FromAgent::LabelTold { drive, told } => {
                self.registry.label_told(self.number, drive, told).await
            }
            FromAgent::LabelAnswer(answer) => self.registry.label_answer(self.number, answer).await,
            FromAgent::UseAnswer(answer) => self.registry.use_answer(self.number, answer).await,
            FromAgent::VolumeReport(report) => {
                self.registry.volume_report(self.number, report).await
            }
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
        ToAgent::Volume(order) => match *order {
            VolumeOrder::Label(order) => FromRegistry::LabelOrder(order),
            VolumeOrder::Use(order) => FromRegistry::UseOrder(order),
        },
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
        CallError::Refused(Refused::CertificateRevoked { .. }) => "CertificateRevoked",
        CallError::Refused(_) => "OldSession",
        CallError::StoreFailing { .. } | CallError::NotDurable { .. } | CallError::Stopped => {
            "Unavailable"
        }
    }
}

fn unavailable(error: CallError) -> Status {
    Status::unavailable(error.to_string())
}
