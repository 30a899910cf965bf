//! The registry's state and decisions: [`Cluster`].
//!
//! Pure: an event goes in, effects come out, and the actor in `registry` performs them: first the writes, and when
//! they are durable the orders and the reply. All of it is in memory and indexed, so that an operation costs the
//! same with 5 nodes and with 5,000.

mod actions;
mod adopt;
mod auto_add;
mod auto_add_why;
mod certificates;
mod confirm;
mod cordon;
mod find;
mod forget;
mod ground;
mod life;
mod load;
mod make_again;
mod newcomer;
mod node_labels;
mod notice;
mod planned;
mod presence;
mod purge;
mod records;
mod registration;
mod rewound;
mod take_over;
#[cfg(test)]
pub(crate) mod testing;
mod volumes;
mod wipe;

use std::collections::{BTreeMap, BTreeSet};

pub use adopt::Heard;
pub use auto_add::{AsksForNothing, AutoAdd, AutoAddRule};
pub use auto_add_why::RuleVerdict;
pub use find::Unmet;
pub use forget::Kept;
pub use ground::{Ground, RecordKey, Subject};
pub use life::State;
pub use newcomer::Newcomer;
pub use notice::{About, Notice};
pub use planned::{NotAStateHash, StateHash};
pub use presence::Shrunk;
pub use records::{
    Allocation, AttachmentRecord, AttachmentState, DriveRecord, NodeRecord, Records,
    RegistryRecord, VolumeRecord, VolumeState, Write,
};
pub use registration::RegistrationRefused;
pub(crate) use registration::short_name;
pub use rewound::Difference;
pub use take_over::{Holder, NotTakenOver};
pub use volumes::{
    Attachment, Judged, Place, Room, Sought, Space, Unfit, Volume, VolumeRefused, VolumeRequest,
};

use crate::cms::{Action, Outcome};
use crate::device::{LabelSeen, Observed};
use crate::ids::{
    AttachmentId, CertificateNumber, ClusterId, DriveId, Incarnation, NodeId, NodeName,
    SessionNumber, TermId, VolumeId,
};
use crate::label::change::LabelTold;
use crate::label::extents::VolumeName;
use crate::message::{
    AgentProgram, Answer, NodeCondition, Obstacle, Order, RecordHealth, Registered, Registration,
};
use crate::order::{Generation, Goal, OrderId, Ordered, Stamp, Term};
use crate::rules::{Rule, Rules};
use crate::volume::orders::{LabelAnswer, UseAnswer, VolumeOrder, VolumeReport};
use wipe::permitted;

/// What happens to a registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "events are moved, one at a time, and never kept")]
pub enum Event {
    /// An agent registers over a session. `fresh` holds ids for what may be new: one for the node, one per device.
    Register {
        session: SessionNumber,
        /// Of the certificate that the session's connection showed; none on this machine's own socket.
        certificate: Option<CertificateNumber>,
        registration: Registration,
        fresh: FreshIds,
    },
    /// An agent reports its devices, all of them. One fresh id per device.
    Devices {
        session: SessionNumber,
        devices: Vec<Observed>,
        conditions: Vec<NodeCondition>,
        fresh: Vec<DriveId>,
    },
    Answer {
        session: SessionNumber,
        answer: Answer,
    },
    SessionClosed(SessionNumber),
    /// Somebody asks for something. A dry run answers the same and changes nothing.
    Act {
        actions: Vec<Action>,
        asked_by: String,
        dry_run: bool,
    },
    /// A person lets the registry learn from nodes that know more. `term` is freshly drawn.
    Adopt {
        term: TermId,
    },
    /// A node is to get a certificate, by the one that it has, or by a token that noted
    /// [`Cluster::next_certificate`] when it was made.
    Certify {
        node: NodeName,
        by: CertificateNumber,
    },
    /// An agent tells the label of a drive that it has open.
    LabelTold {
        session: SessionNumber,
        drive: DriveId,
        told: LabelTold,
    },
    LabelAnswer {
        session: SessionNumber,
        answer: LabelAnswer,
    },
    UseAnswer {
        session: SessionNumber,
        answer: UseAnswer,
    },
    /// An agent tells how a volume is staged.
    VolumeReport {
        session: SessionNumber,
        report: VolumeReport,
    },
    /// Somebody asks for something about volumes.
    Volume {
        request: VolumeRequest,
        asked_by: String,
    },
}

/// Ids drawn outside, for what an event may make.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FreshIds {
    pub node: NodeId,
    pub drives: Vec<DriveId>,
}

/// What an event leads to, to be carried out in this order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Effects {
    pub writes: Vec<Write>,
    /// Where parts of the writes end that need not wait for each other; the rest is the last one.
    pub(crate) part_ends: Vec<usize>,
    pub orders: Vec<(SessionNumber, Order)>,
    pub volume_orders: Vec<(SessionNumber, VolumeOrder)>,
    pub reply: Reply,
    pub notices: Vec<Notice>,
    /// Every session is over: agents must register anew.
    pub sessions_end: bool,
}

impl Effects {
    /// What is decided from here on is about something else: it need not wait for what was decided before.
    fn end_part(&mut self) {
        self.part_ends.push(self.writes.len());
    }

    /// The writes, as parts that need not wait for each other.
    pub fn parts(&self) -> impl Iterator<Item = &[Write]> {
        let ends = self.part_ends.iter().copied().chain([self.writes.len()]);
        let parts = ends.scan(0, |start, end| {
            let part = &self.writes[*start..end];
            *start = end;
            Some(part)
        });
        parts.filter(|part| !part.is_empty())
    }
}

/// What the one who brought the event hears.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Reply {
    #[default]
    Nothing,
    Registered(Box<Registered>),
    Acted(Vec<Outcome>),
    Adopted,
    /// The number that the certificate carries.
    Certify(CertificateNumber),
    /// The volume that was asked about.
    Volume(VolumeId),
}

/// Why an event is not taken. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Registration(#[from] RegistrationRefused),
    #[error("node {node} was purged; run `hotbay node --join` with a new token on it")]
    CertificateRevoked { node: NodeName },
    #[error("the session is not the node's newest one")]
    OldSession,
    #[error("the confirmation is not for the order in force")]
    StaleAnswer,
    #[error("no such drive")]
    NoSuchDrive,
    #[error(transparent)]
    Volume(#[from] VolumeRefused),
}

/// All that a registry knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cluster {
    rules: Rules,
    auto_add: AutoAdd,
    registry: RegistryRecord,
    nodes: BTreeMap<NodeId, Node>,
    drives: BTreeMap<DriveId, Drive>,
    sessions: BTreeMap<SessionNumber, NodeId>,
    node_by_name: BTreeMap<NodeName, NodeId>,
    /// Of each name that was purged: up to which number certificates do not count.
    revoked: BTreeMap<NodeName, CertificateNumber>,
    /// Every fact of evidence, with each drive that has it. Nearly always that is one: a set for each would take many
    /// times the room.
    drives_by_fact: BTreeSet<(Box<str>, DriveId)>,
    drive_by_name: BTreeMap<String, DriveId>,
    /// Devices that look like a drive that is known, by node and path.
    newcomers: BTreeMap<(NodeId, String), Newcomer>,
    /// What nodes said that know more than this registry; by name, because it may not know them at all.
    heard: BTreeMap<NodeName, Heard>,
    /// Drives under ids that this registry never knew; a person said that they may be closed.
    given_up: BTreeSet<DriveId>,
    volumes: BTreeMap<VolumeId, Volume>,
    volume_by_name: BTreeMap<VolumeName, VolumeId>,
    /// Which node uses which volume. A drive may have gone to another node meanwhile.
    uses: BTreeSet<(NodeId, VolumeId)>,
    /// Records of uses whose volume has none, until it has one again.
    kept_uses: BTreeMap<VolumeId, Vec<AttachmentId>>,
    /// The drives whose labels are known, the least filled first.
    by_fill: BTreeSet<volumes::Rank>,
    /// Volumes that nobody is to finish, from before this registry started.
    left_over: BTreeSet<VolumeId>,
    /// Hosts whose purge a registry before has begun and not finished.
    half_purged: BTreeSet<NodeId>,
}

/// A node: its record, and what is known of it since this registry started.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    pub record: NodeRecord,
    pub drives: BTreeSet<DriveId>,
    /// The session in which the agent is registered.
    pub session: Option<Session>,
    /// What the agent knows and this registry does not: it has gone back in time.
    pub rewound: Vec<Difference>,
    pub agent_record: Option<RecordHealth>,
    /// The agent that registered last, since this registry started.
    pub program: AgentProgram,
    /// What the agent says is not as it should be.
    pub conditions: Vec<NodeCondition>,
    /// Since when the agent is not connected, if this registry has seen it go. For people; nothing is decided by it.
    pub silent_since_ms: Option<u64>,
    /// When another machine was last refused under its name, since this one registered. For people.
    pub duplicate_ms: Option<u64>,
    /// Drives of other nodes that this one was told to close in this session.
    not_its_own: BTreeMap<DriveId, Order>,
    /// The highest session number that has registered.
    newest: SessionNumber,
}

/// A registered session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Session {
    pub number: SessionNumber,
    pub incarnation: Incarnation,
    pub certificate: Option<CertificateNumber>,
    /// The node can make one volume of several pieces of a drive.
    pub device_mapper: bool,
}

/// A drive: its record, and what its agent said of it in this session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Drive {
    pub record: DriveRecord,
    /// The device is on its machine.
    pub present: bool,
    /// It was there since this registry started, and is not any more.
    missing: bool,
    pub label: Option<LabelSeen>,
    /// What is on the label, while the drive is open.
    pub space: Option<Box<Space>>,
    pub contact: Contact,
}

/// What the living agent has said of a drive.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Contact {
    /// Nothing in this session.
    Silent,
    /// At registration.
    Reported {
        open: bool,
    },
    /// It confirmed the drive's current order.
    Confirmed,
    /// It goes on trying.
    Waiting(Obstacle),
    Refused(String),
}

impl Drive {
    /// Changes the record and has it written.
    fn change(&mut self, effects: &mut Effects, change: impl FnOnce(&mut DriveRecord)) {
        change(&mut self.record);
        effects.writes.push(Write::Drive(Box::new(self.record.clone())));
    }
}

impl Cluster {
    /// Takes one event at wall time `now_ms`, which is only noted for people.
    pub fn apply(&mut self, event: Event, now_ms: u64) -> Result<Effects, Refused> {
        match event {
            Event::Register { session, certificate, registration, fresh } => {
                self.register(session, certificate, registration, fresh, now_ms)
            }
            Event::Devices { session, devices, conditions, fresh } => {
                let node = self.speaker(session)?;
                let mut effects = Effects::default();
                self.note_conditions(node, conditions, &mut effects);
                self.take_inventory(node, devices, fresh, now_ms, &mut effects);
                self.close_again(node, &mut effects);
                Ok(effects)
            }
            Event::Answer { session, answer } => self.answer(session, answer, now_ms),
            Event::SessionClosed(session) => Ok(self.close_session(session, now_ms)),
            Event::Act { actions, asked_by, dry_run } => {
                Ok(self.act(&actions, &asked_by, dry_run, now_ms))
            }
            Event::Adopt { term } => Ok(self.adopt(term, now_ms)),
            Event::Certify { node, by } => self.certify(&node, by, now_ms),
            Event::LabelTold { session, drive, told } => {
                self.label_told(session, drive, told, now_ms)
            }
            Event::LabelAnswer { session, answer } => self.label_answer(session, answer, now_ms),
            Event::UseAnswer { session, answer } => self.use_answer(session, answer, now_ms),
            Event::VolumeReport { session, report } => self.volume_report(session, report),
            Event::Volume { request, asked_by } => Ok(self.request(request, &asked_by, now_ms)?),
        }
    }

    /// The order that a drive's agent has not yet carried out, with the session to send it over. Asked at any time,
    /// also after a restart: what is owed follows from the records alone.
    pub fn owed(&self, drive: DriveId) -> Option<(SessionNumber, Order)> {
        let drive = self.drives.get(&drive)?;
        let node = self.nodes.get(&drive.record.node)?;
        let session = node.session.filter(|_| node.rewound.is_empty())?;
        let owed = match drive.record.state {
            State::Attaching | State::Closing => true,
            State::Attached => drive.contact != Contact::Confirmed,
            State::Unknown | State::Detached => drive.contact == Contact::Reported { open: true },
        };
        owed.then(|| (session.number, self.order_for(drive, session.incarnation)))
    }

    /// Whether a session is that of the node which a drive is on. Another node may be told to close it as well, if it
    /// has it; that is not repeated, and must not have repeated sooner what its own node owes.
    pub fn is_on(&self, drive: DriveId, session: SessionNumber) -> bool {
        let node = self.drives.get(&drive).map(|drive| drive.record.node);
        node.is_some() && node == self.sessions.get(&session).copied()
    }

    pub fn id(&self) -> ClusterId {
        self.registry.cluster
    }

    /// The term that this registry speaks under.
    pub fn term(&self) -> Term {
        *self.registry.terms.last().expect("taking the lead begins a term")
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Every node after one, in the order of their ids.
    pub fn nodes_after(&self, after: Option<NodeId>) -> impl Iterator<Item = &Node> {
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.nodes.range((from, std::ops::Bound::Unbounded)).map(|(_, node)| node)
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub fn drives(&self) -> impl Iterator<Item = &Drive> {
        self.drives.values()
    }

    pub fn drive(&self, id: DriveId) -> Option<&Drive> {
        self.drives.get(&id)
    }

    /// The order that says what is wanted of a drive, if anything was asked of it.
    pub fn order_id(&self, drive: DriveId) -> Option<OrderId> {
        let generation = self.drives.get(&drive)?.record.generation;
        let stamp = Stamp { term: self.term(), generation };
        (generation > Generation::ZERO).then(|| OrderId::new(drive, stamp))
    }

    fn order_for(&self, drive: &Drive, incarnation: Incarnation) -> Order {
        let record = &drive.record;
        let stamp = Stamp { term: self.term(), generation: record.generation };
        Order {
            drive: record.id,
            ordered: Ordered { goal: record.state.goal(), stamp },
            incarnation,
            evidence: record.observed.evidence.clone(),
            take_over: record.take_over,
            wipe: permitted(record),
            given_up: record.state.goal() == Goal::Detach && self.is_purged(record.node),
        }
    }

    /// The node that may speak over a session.
    fn speaker(&self, session: SessionNumber) -> Result<NodeId, Refused> {
        let node = *self.sessions.get(&session).ok_or(Refused::OldSession)?;
        let current = self.nodes.get(&node).and_then(|node| node.session);
        let newest = current.is_some_and(|current| current.number == session);
        if newest || !self.rules.hold(Rule::NewestSession) {
            Ok(node)
        } else {
            Err(Refused::OldSession)
        }
    }

    fn close_session(&mut self, session: SessionNumber, now_ms: u64) -> Effects {
        let mut effects = Effects::default();
        let Some(id) = self.sessions.remove(&session) else { return effects };
        let node = self.nodes.get_mut(&id).expect("sessions name known nodes");
        if node.session.is_none_or(|current| current.number != session) {
            return effects;
        }
        node.session = None;
        node.silent_since_ms = Some(now_ms);
        node.not_its_own.clear();
        let text = format!("The agent of {} cannot be reached.", node.record.name);
        effects.notices.push(Notice::warning("AgentSilent", About::Node(id), text));
        for id in node.drives.clone() {
            let drive = self.drives.get_mut(&id).expect("nodes list known drives");
            drive.contact = Contact::Silent;
        }
        self.forget_labels_on(id);
        self.forget_uses_on(id);
        effects
    }

    /// Changes the record of a drive and has it written.
    fn change_drive(
        &mut self,
        id: DriveId,
        effects: &mut Effects,
        change: impl FnOnce(&mut DriveRecord),
    ) {
        self.drives.get_mut(&id).expect("only known drives change").change(effects, change);
    }

    fn raised(&self, generation: Generation) -> Generation {
        if self.rules.hold(Rule::GenerationRises) { generation.next() } else { generation }
    }
}
