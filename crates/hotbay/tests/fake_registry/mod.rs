//! A registry that says only what a test tells it, on a real socket, for a real agent.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use hotbay_api::agent as wire;
use hotbay_api::agent::agents_server::{Agents, AgentsServer};
use hotbay_api::convert::{FromAgent, FromRegistry, from_agent, to_agent};
use hotbay_core::ids::{ClusterId, DriveId, NodeId, SessionNumber, TermId};
use hotbay_core::message::{Order, Registered, Registration};
use hotbay_core::order::{Generation, Goal, Ordered, Stamp, Term};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const TERM: Term = Term { number: 2, id: TermId::from_bits(7) };

/// The registry's end of one session.
pub(crate) struct Session {
    heard: Streaming<wire::AgentMessage>,
    says: mpsc::Sender<Result<wire::RegistryMessage, Status>>,
    pub(crate) registration: Option<Registration>,
}

struct Service(mpsc::Sender<Session>);

#[tonic::async_trait]
impl Agents for Service {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<wire::RegistryMessage, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<wire::AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (says, messages) = mpsc::channel(1_024);
        let session = Session { heard: request.into_inner(), says, registration: None };
        // A test that wants no more sessions leaves the agent alone.
        self.0.send(session).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }
}

/// Listens; each session that an agent opens comes out of the receiver.
pub(crate) fn listen(socket: &Path) -> mpsc::Receiver<Session> {
    let (sender, sessions) = mpsc::channel(64);
    let listener = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    let server = Server::builder().add_service(AgentsServer::new(Service(sender)));
    tokio::spawn(server.serve_with_incoming(listener));
    sessions
}

impl Session {
    /// The next thing but a heartbeat that the agent says; `None` when it has hung up.
    pub(crate) async fn hear(&mut self) -> Option<FromAgent> {
        loop {
            let heard = tokio::time::timeout(LIMIT, self.heard.message()).await;
            let message = heard.expect("the agent says something").ok()??;
            match from_agent(message).unwrap() {
                FromAgent::Heartbeat => {}
                other => return Some(other),
            }
        }
    }

    /// Ends what the registry says; what the agent says goes on.
    pub(crate) fn hang_up(self) -> Streaming<wire::AgentMessage> {
        self.heard
    }

    pub(crate) async fn say(&self, message: FromRegistry) {
        self.say_raw(to_agent(&message)).await;
    }

    pub(crate) async fn say_raw(&self, message: wire::RegistryMessage) {
        self.says.send(Ok(message)).await.unwrap();
    }

    /// Takes the registration, with no orders yet.
    pub(crate) async fn register(&mut self) {
        let Some(FromAgent::Register(registration)) = self.hear().await else {
            panic!("an agent registers first")
        };
        self.registration = Some(registration);
        let registered = Registered {
            session: SessionNumber::from_number(1),
            cluster: ClusterId::from_bits(1),
            node: NodeId::from_bits(2),
            term: TERM,
            allowed: Vec::new(),
            unknown: Vec::new(),
        };
        self.say(FromRegistry::Registered(registered)).await;
    }

    /// An order for the first device of the registration.
    pub(crate) fn order(&self, goal: Goal, generation: u64) -> Order {
        let registration = self.registration.as_ref().expect("registered");
        let stamp = Stamp { term: TERM, generation: Generation::from_number(generation) };
        Order {
            drive: DriveId::from_bits(3),
            ordered: Ordered { goal, stamp },
            incarnation: registration.incarnation,
            evidence: registration.devices[0].evidence.clone(),
            take_over: false,
            wipe: None,
            given_up: false,
        }
    }
}
