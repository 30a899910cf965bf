//! An agent that does only what a test tells it: dials a registry's socket, says anything, in any order, at any time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;
use std::time::Duration;

use hotbay_api::agent as wire;
use hotbay_api::agent::agents_client::AgentsClient;
use hotbay_api::convert::{FromAgent, FromRegistry, from_registry, to_registry};
use hotbay_core::device::{DeviceKind, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{Incarnation, MachineId};
use hotbay_core::message::{
    Answer, AnswerResult, DriveReport, Order, RecordHealth, Registered, Registration,
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

/// Longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

const BEAT: Duration = Duration::from_secs(2);

/// Waits, but not for ever.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// A connection of its own to a registry.
pub(crate) async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://registry").connect_with_connector(connector).await
}

/// One session of an agent.
pub(crate) struct FakeAgent {
    says: mpsc::Sender<wire::AgentMessage>,
    hears: Streaming<wire::RegistryMessage>,
}

impl FakeAgent {
    /// Dials, and says nothing yet.
    pub(crate) async fn dial(socket: &Path) -> Self {
        let channel = in_time("a connection", connect(socket)).await.unwrap();
        let (says, messages) = mpsc::channel(1_024);
        let session = AgentsClient::new(channel).session(ReceiverStream::new(messages)).await;
        Self { says, hears: session.unwrap().into_inner() }
    }

    /// Dials and registers.
    pub(crate) async fn join(socket: &Path, registration: Registration) -> (Self, Registered) {
        let mut agent = Self::dial(socket).await;
        agent.say(FromAgent::Register(registration)).await;
        match agent.hear().await {
            Some(FromRegistry::Registered(registered)) => (agent, registered),
            other => panic!("not registered: {other:?}"),
        }
    }

    pub(crate) async fn say(&self, message: FromAgent) {
        self.say_raw(to_registry(&message)).await;
    }

    pub(crate) async fn say_raw(&self, message: wire::AgentMessage) {
        // The registry may have hung up; what it said last is heard all the same.
        self.says.send(message).await.unwrap_or_default();
    }

    /// Beats from now on, as the real one does, for as long as the registry listens.
    pub(crate) fn beat(&self) {
        let says = self.says.clone();
        tokio::spawn(async move {
            while says.send(to_registry(&FromAgent::Heartbeat)).await.is_ok() {
                tokio::time::sleep(BEAT).await;
            }
        });
    }

    /// What the registry says next; `None` when it has hung up.
    pub(crate) async fn hear(&mut self) -> Option<FromRegistry> {
        let heard = in_time("a word of the registry", self.hears.message()).await;
        heard.ok().flatten().map(|message| from_registry(message).unwrap())
    }

    /// The reason why the registry ends the session.
    pub(crate) async fn hear_refusal(&mut self) -> (String, String) {
        let refusal = match self.hear().await {
            Some(FromRegistry::RegistrationRefused { reason, message }) => (reason, message),
            other => panic!("not refused: {other:?}"),
        };
        assert_eq!(self.hear().await, None, "refused, and yet not hung up");
        refusal
    }

    pub(crate) async fn order(&mut self) -> Order {
        match self.hear().await {
            Some(FromRegistry::Order(order)) => order,
            other => panic!("no order: {other:?}"),
        }
    }

    pub(crate) async fn answer(&self, order: &Order, result: AnswerResult) {
        let Order { drive, ordered, incarnation, .. } = order.clone();
        self.say(FromAgent::Answer(Answer { drive, ordered, incarnation, result })).await;
    }

    /// Beats until the registry has taken everything said before: it answers a report.
    pub(crate) async fn settle(&mut self, devices: Vec<Observed>) {
        self.say(FromAgent::Report { number: 7, devices, conditions: vec![] }).await;
        while self.hear().await != Some(FromRegistry::ReportTaken { number: 7 }) {}
    }
}

/// The first registration of a machine with drives of these serial numbers.
pub(crate) fn registration(name: &str, machine: u128, serials: &[&str]) -> Registration {
    Registration {
        node: None,
        name: name.parse().unwrap(),
        machine: MachineId::from_bits(machine),
        incarnation: Incarnation::from_bits(machine + 1),
        cluster: None,
        newest_term: None,
        record: RecordHealth::Absent,
        drives: Vec::new(),
        devices: serials.iter().enumerate().map(|(bay, serial)| device(bay, serial)).collect(),
        conditions: vec![],
        labels: Default::default(),
        uses: vec![],
        device_mapper: false,
        program: Default::default(),
    }
}

/// A later registration of the same machine: what it accepted, saw and has open.
pub(crate) fn registration_again(
    first: Registration,
    registered: &Registered,
    incarnation: u128,
    drives: Vec<DriveReport>,
) -> Registration {
    Registration {
        node: Some(registered.node),
        cluster: Some(registered.cluster),
        newest_term: Some(registered.term),
        incarnation: Incarnation::from_bits(incarnation),
        record: RecordHealth::Usable,
        drives,
        ..first
    }
}

pub(crate) fn device(bay: usize, serial: &str) -> Observed {
    Observed {
        evidence: Evidence { serial: Some(serial.to_owned()), ..Evidence::default() },
        path: format!("/dev/drive{bay}"),
        bay: Some(bay.to_string()),
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 1 << 30,
        block_bytes: 512,
        details: Default::default(),
        label: None,
        denied: Vec::new(),
    }
}
