//! The single writer: every event goes through one task that owns the [`Cluster`], one at a time.
//!
//! ```text
//!   callers ──commands──▶ actor ──batches──▶ writer thread ──▶ Store
//!                           ▲                     │
//!                           └──── durable ◀───────┘
//! ```
//!
//! The actor applies an event in memory at once, has its writes made, and puts the reply and the orders behind the
//! gate. How they are made depends on the store:
//!
//! - One of its own gets batches. While one batch is being synced the next one is collected, so callers that come at
//!   the same time share one commit; those just answered get a moment to come back. Nothing leaves before its batch is
//!   durable. A batch that fails is tried again until it is durable; meanwhile new requests are refused at the door,
//!   because nothing could be promised.
//! - A shared one gets each record by itself, many at a time. What is said waits for the records that it rests on. A
//!   record that cannot be written is tried again; who asks about it hears so, and everybody else is served.

mod events;
mod gather;
mod records;
mod release;
mod run;
mod writer;

use std::collections::HashSet;
use std::sync::Arc;

use hotbay_core::cluster::{
    AutoAdd, Cluster, Event, FreshIds, Ground, Notice, Refused, RegistryRecord, Reply,
    VolumeRequest,
};
use hotbay_core::cms::{Action, Outcome};
use hotbay_core::device::Observed;
use hotbay_core::ids::{
    CertificateNumber, ClusterId, DriveId, NodeName, SessionNumber, TermId, VolumeId,
};
use hotbay_core::label::change::LabelTold;
use hotbay_core::message::{Answer, NodeCondition, Order, Registered, Registration};
use hotbay_core::rules::Rules;
use hotbay_core::volume::orders::{LabelAnswer, UseAnswer, VolumeOrder, VolumeReport};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

pub use events::{EventLog, Recorded};

use crate::codec::{self, Unreadable};
use crate::mandate::Mandate;
use crate::stats::{Stats, action_kind, answer_kind};
use crate::store::error::StoreError;
use crate::store::{Key, Origin, Store};

/// How many commands wait before callers have to.
const COMMANDS_WAITING: usize = 4_096;

/// What a registry needs from outside: it draws no random numbers and reads no clock.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The id of the cluster, if the store is new.
    pub cluster: ClusterId,
    /// The id of the term that begins.
    pub term: TermId,
    /// Wall time in Unix milliseconds, noted for people.
    pub wall_ms: fn() -> u64,
    /// Called at every step that a crash could fall between; tests die there.
    pub checkpoint: fn(&'static str),
    /// Which new drives are added without anybody asking.
    pub auto_add: AutoAdd,
}

/// What goes to an agent over its session, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToAgent {
    Registered(Box<Registered>),
    Order(Box<Order>),
    Volume(Box<VolumeOrder>),
    ReportTaken { number: u64 },
}

/// Why a registry does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

/// Why a call has no result.
#[derive(Debug, Error)]
pub enum CallError {
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Decisions cannot be made durable now; nothing was changed.
    #[error("nothing was changed: the registry cannot write its store now ({error})")]
    StoreFailing { error: String },
    /// It is decided and stands in memory, but a record that it rests on cannot be made durable now.
    #[error("this counts only when it is written, and that fails now ({error}); ask again")]
    NotDurable { error: String },
    /// The registry stops. Whether the action was taken is unknown: ask again.
    #[error("the registry stopped before it answered; ask again")]
    Stopped,
}

/// What people can know about the registry's store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreHealth {
    Good,
    /// Some records cannot be written; everything that does not rest on them is served.
    Partly(String),
    /// Writes are being tried again; nothing can be promised.
    Failing(String),
}

/// A handle on the running actor; clone it freely.
#[derive(Debug, Clone)]
pub struct Registry {
    commands: mpsc::Sender<Command>,
    changes: watch::Receiver<u64>,
    health: watch::Receiver<StoreHealth>,
    events: EventLog,
    stats: Arc<Stats>,
}

/// Ends when the actor ends: with an error when the store cannot be used any more.
pub type Ended = oneshot::Receiver<StoreError>;

enum Command {
    Accept {
        outbox: mpsc::Sender<ToAgent>,
        reply: oneshot::Sender<SessionNumber>,
    },
    Apply {
        event: Box<Event>,
        report: Option<u64>,
        reply: ReplyTo,
    },
    /// Looks at the state; what it returns is run when all that it saw is durable, or told why that cannot be.
    /// `around`: what cannot be written now need not be.
    Read {
        look: Look,
        around: bool,
    },
    Rewrite {
        keys: Vec<Key>,
        notices: Vec<Notice>,
        reply: ReplyTo,
    },
}

type ReplyTo = oneshot::Sender<Result<Reply, CallError>>;
type Look = Box<dyn FnOnce(&Cluster) -> (Ground, Release) + Send>;
type Release = Box<dyn FnOnce(Result<(), CallError>) + Send>;

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Accept { .. } => "Accept",
            Self::Apply { .. } => "Apply",
            Self::Read { .. } => "Read",
            Self::Rewrite { .. } => "Rewrite",
        })
    }
}

impl Registry {
    /// Loads the store, takes the lead and makes the new term durable; then the actor runs as a task of the current
    /// runtime. Blocks while it loads.
    pub fn start<S: Store>(
        store: S,
        surroundings: Surroundings,
    ) -> Result<(Self, Ended), StartError> {
        Self::start_under(Mandate::without_end(), store, surroundings)
    }

    /// Like [`Registry::start`]; nothing leaves it any more when the mandate is over, and it ends.
    pub fn start_under<S: Store>(
        mandate: Mandate,
        mut store: S,
        surroundings: Surroundings,
    ) -> Result<(Self, Ended), StartError> {
        let mut records = codec::decode(match store.is_shared() {
            // The rest is read when the new term stands: until then others may write it.
            true => store
                .read(&Key::REGISTRY)?
                .map(|value| (Key::REGISTRY, value))
                .into_iter()
                .collect(),
            false => store.load()?,
        })?;
        let mut of = surroundings.cluster;
        if records.registry.is_none() {
            let Origin { cluster, newest_term } = store.origin()?;
            of = cluster.unwrap_or(of);
            records.registry = newest_term.map(|term| RegistryRecord::after(of, term));
        }
        let (mut cluster, writes) = Cluster::lead(Rules::default(), records, of, surroundings.term);
        let writes: Vec<_> = writes.iter().map(codec::encode).collect();
        (surroundings.checkpoint)("registry-term-decided");
        // Loading may have taken longer than the lead lasted: the next leader must not be deposed by a term of ours.
        if !mandate.holds() {
            return Err(StoreError::LeadEnded.into());
        }
        store.commit(&writes)?;
        (surroundings.checkpoint)("registry-term-durable");
        let mut over = Vec::new();
        if store.is_shared() {
            let records = codec::decode(store.load()?)?;
            let (ours, held) = (cluster.term(), records.attachments.clone());
            let by = records.registry.as_ref().and_then(|registry| registry.terms.last().copied());
            cluster = cluster.lead_on(records).ok_or_else(|| {
                let object = "the registry".to_owned();
                StoreError::Deposed { object, by: by.unwrap_or(ours), ours }
            })?;
            over = cluster.uses_over(&held);
        }
        let cluster = cluster.adding_by(surroundings.auto_add.clone());
        let (commands, inbox) = mpsc::channel(COMMANDS_WAITING);
        let (changed, changes) = watch::channel(0);
        let (health_changed, health) = watch::channel(StoreHealth::Good);
        let (ended_with, ended) = oneshot::channel();
        let stats = Arc::new(Stats::new());
        let by_record = store.is_shared();
        let (writer, written) = writer::start(store, surroundings.checkpoint, stats.clone());
        let events = EventLog::new();
        let shown = run::Shown {
            changed,
            health: health_changed,
            events: events.clone(),
            stats: stats.clone(),
        };
        let actor = run::Actor::new(cluster, mandate, surroundings, (writer, by_record), shown);
        tokio::spawn(async move {
            if let Err(error) = actor.run(over, inbox, written).await {
                // Nobody may be left to hear it when the process ends.
                ended_with.send(error).unwrap_or_default();
            }
        });
        Ok((Self { commands, changes, health, events, stats }, ended))
    }

    /// Opens a session with an agent; what it is to be told goes to `outbox`.
    pub async fn accept(&self, outbox: mpsc::Sender<ToAgent>) -> Result<SessionNumber, CallError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Accept { outbox, reply }).await?;
        let number = answer.await.map_err(|_| CallError::Stopped)?;
        self.stats.session();
        Ok(number)
    }

    /// Registers an agent, with the number of the certificate that its connection showed. The answer to it goes to the
    /// session's outbox, before any order.
    pub async fn register(
        &self,
        session: SessionNumber,
        certificate: Option<CertificateNumber>,
        registration: Registration,
        fresh: FreshIds,
    ) -> Result<(), CallError> {
        let event = Event::Register { session, certificate, registration, fresh };
        let registered = self.apply(event, None).await;
        registered.map(drop).inspect_err(|error| self.stats.registration_refused(error))
    }

    /// Takes a report of all devices and conditions; it is acknowledged over the session's outbox.
    pub async fn report(
        &self,
        session: SessionNumber,
        number: u64,
        devices: Vec<Observed>,
        conditions: Vec<NodeCondition>,
        fresh: Vec<DriveId>,
    ) -> Result<(), CallError> {
        let event = Event::Devices { session, devices, conditions, fresh };
        self.apply(event, Some(number)).await.map(drop)
    }

    /// Takes an agent's answer to an order.
    pub async fn answer(&self, session: SessionNumber, answer: Answer) -> Result<(), CallError> {
        let kind = answer_kind(&answer.result);
        let taken = self.apply(Event::Answer { session, answer }, None).await.map(drop);
        self.stats.answer(kind, &taken);
        taken
    }

    /// Takes the label of a drive that an agent has open.
    pub async fn label_told(
        &self,
        session: SessionNumber,
        drive: DriveId,
        told: LabelTold,
    ) -> Result<(), CallError> {
        self.apply(Event::LabelTold { session, drive, told }, None).await.map(drop)
    }

    /// Takes an agent's answer to a label order.
    pub async fn label_answer(
        &self,
        session: SessionNumber,
        answer: LabelAnswer,
    ) -> Result<(), CallError> {
        self.apply(Event::LabelAnswer { session, answer }, None).await.map(drop)
    }

    /// Takes an agent's answer about the use of a volume.
    pub async fn use_answer(
        &self,
        session: SessionNumber,
        answer: UseAnswer,
    ) -> Result<(), CallError> {
        self.apply(Event::UseAnswer { session, answer }, None).await.map(drop)
    }

    /// Takes an agent's word on how a volume is staged.
    pub async fn volume_report(
        &self,
        session: SessionNumber,
        report: VolumeReport,
    ) -> Result<(), CallError> {
        self.apply(Event::VolumeReport { session, report }, None).await.map(drop)
    }

    /// Takes a request about a volume, and tells which one it is about. What it asks for may take longer.
    pub async fn request(
        &self,
        request: VolumeRequest,
        asked_by: String,
    ) -> Result<VolumeId, CallError> {
        match self.apply(Event::Volume { request, asked_by }, None).await? {
            Reply::Volume(id) => Ok(id),
            Reply::Nothing
            | Reply::Registered(_)
            | Reply::Adopted
            | Reply::Acted(_)
            | Reply::Certify(_) => unreachable!("requests about volumes are answered as such"),
        }
    }

    /// A session is over.
    pub async fn close(&self, session: SessionNumber) -> Result<(), CallError> {
        self.apply(Event::SessionClosed(session), None).await.map(drop)
    }

    /// Takes actions, in order, each with its own outcome.
    pub async fn act(
        &self,
        actions: Vec<Action>,
        asked_by: String,
        dry_run: bool,
    ) -> Result<Vec<Outcome>, CallError> {
        let kinds: Vec<_> = actions.iter().map(action_kind).collect();
        match self.apply(Event::Act { actions, asked_by, dry_run }, None).await? {
            Reply::Acted(outcomes) => {
                for (kind, outcome) in kinds.into_iter().zip(&outcomes).filter(|_| !dry_run) {
                    self.stats.action(kind, outcome.code);
                }
                Ok(outcomes)
            }
            Reply::Nothing
            | Reply::Registered(_)
            | Reply::Adopted
            | Reply::Certify(_)
            | Reply::Volume(_) => unreachable!("actions are answered as such"),
        }
    }

    /// The number for a certificate of a node, by the number of the one that it has, or of a token. Durable when it is
    /// returned. Refused if the node was purged since.
    pub async fn certify(
        &self,
        node: NodeName,
        by: CertificateNumber,
    ) -> Result<CertificateNumber, CallError> {
        match self.apply(Event::Certify { node, by }, None).await? {
            Reply::Certify(number) => Ok(number),
            Reply::Nothing
            | Reply::Registered(_)
            | Reply::Adopted
            | Reply::Acted(_)
            | Reply::Volume(_) => unreachable!("certificates are answered as such"),
        }
    }

    /// Takes over what nodes know that this registry has forgotten. Every agent registers anew.
    pub async fn adopt(&self, term: TermId) -> Result<(), CallError> {
        self.apply(Event::Adopt { term }, None).await.map(drop)
    }

    /// Looks at the state. What is seen is durable when it is returned; while a record cannot be written, that is
    /// refused, whichever it is.
    pub async fn read<T, F>(&self, look: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: FnOnce(&Cluster) -> T + Send + 'static,
    {
        self.look(false, |cluster| (look(cluster), Ground::Everything)).await
    }

    /// The same for who looks again after every change, and for whom it does no harm if something that is seen now is
    /// forgotten: it does not wait for records that cannot be written.
    pub async fn read_around<T, F>(&self, look: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: FnOnce(&Cluster) -> T + Send + 'static,
    {
        self.look(true, |cluster| (look(cluster), Ground::Everything)).await
    }

    /// The same for who says what it has looked at: the rest need not be durable.
    pub async fn read_on<T, F>(&self, look: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: FnOnce(&Cluster) -> (T, Ground) + Send + 'static,
    {
        self.look(false, look).await
    }

    async fn look<T, F>(&self, around: bool, look: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: FnOnce(&Cluster) -> (T, Ground) + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let look = Box::new(move |cluster: &Cluster| {
            let (seen, ground) = look(cluster);
            // The caller may have gone meanwhile.
            let release =
                move |released: Result<(), CallError>| drop(reply.send(released.map(|()| seen)));
            (ground, Box::new(release) as Release)
        });
        self.send(Command::Read { look, around }).await?;
        answer.await.map_err(|_| CallError::Stopped)?
    }

    /// Which of these records there are. As with [`Registry::read_around`], what was decided before is durable then,
    /// unless it cannot be written.
    pub async fn present(&self, keys: Vec<Key>) -> Result<HashSet<Key>, CallError> {
        self.read_around(move |cluster| codec::keys_present(cluster, &keys)).await
    }

    /// Writes records again as they are, because the store was found to have lost or changed them; those that do not
    /// exist any more are left out. Durable when it returns; then the notices are told. Decides nothing, so it may be
    /// called twice.
    pub async fn rewrite(&self, keys: Vec<Key>, notices: Vec<Notice>) -> Result<(), CallError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Rewrite { keys, notices, reply }).await?;
        answer.await.map_err(|_| CallError::Stopped)?.map(drop)
    }

    /// A number that grows with every change that is durable; waiting on it is how to follow the state.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// What happened lately.
    pub fn events(&self) -> EventLog {
        self.events.clone()
    }

    /// Whether decisions can be made durable.
    pub fn store_health(&self) -> watch::Receiver<StoreHealth> {
        self.health.clone()
    }

    /// What it has done since it started.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    async fn apply(&self, event: Event, report: Option<u64>) -> Result<Reply, CallError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Apply { event: Box::new(event), report, reply }).await?;
        answer.await.map_err(|_| CallError::Stopped)?
    }

    async fn send(&self, command: Command) -> Result<(), CallError> {
        self.commands.send(command).await.map_err(|_| CallError::Stopped)
    }
}
