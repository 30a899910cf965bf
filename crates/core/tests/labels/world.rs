//! The world: a registry, an agent with its record, a drive with its label and bytes, and messages under way. Ghosts
//! note what really happened, and the first rule that was broken.

use std::collections::BTreeSet;

use hotbay_core::agent::{
    Agent, AgentRecord, AttachAtStart, Effect, Event as Happens, RecordFound,
};
use hotbay_core::cluster::{
    Cluster, Effects, Event, FreshIds, Records, Reply, VolumeRequest, VolumeState, Write,
};
use hotbay_core::cms::Action;
use hotbay_core::device::LabelSeen;
use hotbay_core::ids::{
    AttachmentId, ClusterId, DriveId, Incarnation, MachineId, NodeId, SessionNumber, TermId,
    VolumeId,
};
use hotbay_core::label::Header;
use hotbay_core::label::change::{Basis, Change, LabelTold, changed_by};
use hotbay_core::label::extents::{
    ALIGNMENT_BYTES, Digest, Extent, FIRST_EXTENT_BYTES, Use, encode,
};
use hotbay_core::rules::Rules;
use hotbay_core::volume::class::Class;
use hotbay_core::volume::orders::{
    LabelAnswer, LabelOrder, LabelResult, UseAnswer, UseResult, VolumeOrder,
};
use hotbay_core::volume::{Epoch, Size, Wish};

use crate::device;

pub(crate) const CLUSTER: ClusterId = ClusterId::from_bits(1);
pub(crate) const NODE: NodeId = NodeId::from_bits(2);
pub(crate) const DRIVE: DriveId = DriveId::from_bits(3);
pub(crate) const A: VolumeId = VolumeId::from_bits(0xa);
pub(crate) const B: VolumeId = VolumeId::from_bits(0xb);
/// Room for one volume.
pub(crate) const LIMIT_BYTES: u64 = FIRST_EXTENT_BYTES + ALIGNMENT_BYTES;
/// How often each thing may happen, in a history that begins with the drive in operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Limits {
    pub(crate) asks: u8,
    pub(crate) doubled: u8,
    pub(crate) connections: u8,
    pub(crate) agent_restarts: u8,
    pub(crate) registry_restarts: u8,
    pub(crate) restores: u8,
    pub(crate) failures: u8,
}

/// One configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) name: &'static str,
    pub(crate) limits: Limits,
    /// Volume A is made before the history begins, and a backup of that is kept.
    pub(crate) made: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Ask {
    Create(VolumeId),
    Delete(VolumeId),
    Attach,
    Detach,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    Order(VolumeOrder),
    Told(u64, LabelTold),
    Label(u64, LabelAnswer),
    Use(u64, UseAnswer),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Ask(Ask),
    Deliver { at: usize, keep: bool },
    Resend,
    Saved,
    ChangeEnds { done: bool, told: bool },
    UseEnds,
    UserWrites,
    Connect,
    RestartAgent,
    RestartRegistry,
    Restore,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) left: Limits,
    pub(crate) cluster: Cluster,
    pub(crate) durable: Records,
    pub(crate) backup: Option<Records>,
    pub(crate) terms: u128,
    pub(crate) sessions: u64,
    pub(crate) agent: Agent,
    pub(crate) starts: u128,
    pub(crate) saving: Option<AgentRecord>,
    pub(crate) record: Option<AgentRecord>,
    pub(crate) header: Option<Header>,
    pub(crate) extents: Vec<Extent>,
    /// Whose bytes are in the one place there is.
    pub(crate) bytes: Option<VolumeId>,
    pub(crate) work: Option<LabelOrder>,
    pub(crate) ending: Option<(VolumeId, Epoch)>,
    pub(crate) mapped: Option<Epoch>,
    pub(crate) network: Vec<Message>,
    /// Ghosts: volumes that a client was told are gone, and epochs that were said to be over.
    pub(crate) gone: BTreeSet<VolumeId>,
    pub(crate) deleted: BTreeSet<VolumeId>,
    pub(crate) over: Option<Epoch>,
    pub(crate) broken: Option<&'static str>,
}

impl World {
    pub(crate) fn new(rules: Rules, bounds: Bounds) -> Self {
        let term = TermId::from_bits(1);
        let (cluster, writes) = Cluster::lead(rules, Records::default(), CLUSTER, term);
        let found = RecordFound::Absent(None);
        let start = Incarnation::from_bits(1);
        let (agent, _) =
            Agent::start(rules, start, found, vec![device(None)], AttachAtStart::default());
        let mut world = Self {
            rules,
            left: bounds.limits,
            cluster,
            durable: Records::default(),
            backup: None,
            terms: 1,
            sessions: 0,
            agent,
            starts: 1,
            saving: None,
            record: None,
            header: None,
            extents: Vec::new(),
            bytes: None,
            work: None,
            ending: None,
            mapped: None,
            network: Vec::new(),
            gone: BTreeSet::new(),
            deleted: BTreeSet::new(),
            over: None,
            broken: None,
        };
        world.store(writes);
        world.connect();
        let add = Action::AddHost { host: "n".to_owned(), with_removed: false, returned: false };
        let add = Event::Act { actions: vec![add], asked_by: String::new(), dry_run: false };
        world.decide(add);
        world.run_to_the_end();
        if bounds.made {
            world.ask(&Ask::Create(A));
            world.run_to_the_end();
            assert_eq!(
                world.cluster.volume(A).expect("just made").record.state,
                VolumeState::Created
            );
            world.backup = Some(world.durable.clone());
        }
        world
    }

    /// Everything arrives, ends well and is written, until nothing is left.
    pub(crate) fn run_to_the_end(&mut self) {
        loop {
            if self.saving.is_some() {
                self.saved();
            } else if self.work.is_some() {
                self.change_ends(true, true);
            } else if !self.network.is_empty() {
                let message = self.network.remove(0);
                self.arrives(message);
            } else {
                return;
            }
        }
    }

    fn store(&mut self, writes: Vec<Write>) {
        let durable = &mut self.durable;
        for write in writes {
            match write {
                Write::Registry(record) => durable.registry = Some(record),
                Write::Node(record) => durable.nodes = vec![record],
                Write::Drive(record) => durable.drives = vec![*record],
                Write::Volume(record) => {
                    durable.volumes.retain(|other| other.id != record.id);
                    durable.volumes.push(*record);
                    durable.volumes.sort_by_key(|record| record.id);
                }
                Write::NodeGone(_) => durable.nodes.clear(),
                Write::DriveGone(_) => durable.drives.clear(),
                Write::VolumeGone(id) => durable.volumes.retain(|other| other.id != id),
                Write::Attachment(record) => durable.attachments = vec![record],
                Write::AttachmentGone(_) => durable.attachments.clear(),
            }
        }
    }

    /// The registry takes an event. That nothing leaves before it is durable has a model of its own.
    fn decide(&mut self, event: Event) -> Option<Reply> {
        let effects = self.cluster.apply(event, 0).ok()?;
        let Effects { writes, orders, volume_orders, reply, .. } = effects;
        self.store(writes);
        for (_, order) in volume_orders {
            self.send(Message::Order(order));
        }
        for (_, order) in orders {
            self.step(Happens::Order(order));
        }
        Some(reply)
    }

    fn send(&mut self, message: Message) {
        if !self.network.contains(&message) {
            self.network.push(message);
        }
    }

    fn step(&mut self, event: Happens) {
        let effects = self.agent.step(event);
        self.perform(effects);
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Save(record) => self.saving = Some(record),
                Effect::Attach(work) | Effect::Relabel(work) => {
                    let old = self.header.map_or(0, |header| header.sequence);
                    let header = Header {
                        cluster: CLUSTER,
                        drive: DRIVE,
                        node: NODE,
                        generation: work.generation,
                        in_operation: true,
                        sequence: old.max(1),
                        extents: Digest::of(&encode(&self.extents)),
                    };
                    self.header = Some(header);
                    self.step(Happens::Attached { drive: DRIVE, result: Ok(header.into()) });
                }
                Effect::Send(answer) => {
                    let session = SessionNumber::from_number(self.sessions);
                    self.decide(Event::Answer { session, answer });
                }
                Effect::ChangeLabel { order, .. } => self.work = Some(order),
                Effect::TellLabel(_) => self.send(Message::Told(self.sessions, self.told())),
                Effect::SendLabel(answer) => self.send(Message::Label(self.sessions, answer)),
                Effect::SendUse(answer) => {
                    self.answers_use(&answer);
                    self.send(Message::Use(self.sessions, answer));
                }
                Effect::EndUse { volume, epoch } => self.ending = Some((volume, epoch)),
                Effect::RetryLater(_) | Effect::RefuseSession(_) | Effect::Alarm { .. } => {}
                Effect::Detach { .. } | Effect::Prove { .. } => unreachable!("nobody removes it"),
            }
        }
    }

    fn told(&self) -> LabelTold {
        let basis = Basis::of(self.header.as_ref().expect("it was attached"));
        LabelTold { basis, extents: self.extents.clone(), limit_bytes: LIMIT_BYTES }
    }

    fn saved(&mut self) {
        self.record = self.saving.take();
        self.step(Happens::Saved);
    }

    pub(crate) fn ask(&mut self, ask: &Ask) {
        let request = match ask {
            Ask::Create(id) => VolumeRequest::Create {
                id: *id,
                wish: Box::new(Wish {
                    name: format!("v{}", id.to_bits()).parse().expect("a plain name"),
                    size: Size::of(ALIGNMENT_BYTES).expect("whole MiB"),
                    class: Class { max_shares: 1, ..Class::default() },
                    parameters: Default::default(),
                    nodes: BTreeSet::new(),
                    preferred: Vec::new(),
                    claim: None,
                }),
            },
            Ask::Delete(volume) => VolumeRequest::Delete { volume: *volume },
            Ask::Attach => {
                let id = AttachmentId::from_bits(9);
                VolumeRequest::Attach { id, volume: A, node: NODE, read_only: false }
            }
            Ask::Detach => VolumeRequest::Detach { volume: A, node: None },
        };
        if self.decide(Event::Volume { request, asked_by: String::new() }).is_some()
            && let Ask::Delete(volume) = ask
        {
            self.deleted.insert(*volume);
        }
        self.note_gone();
    }

    /// A client that asks now is told that these are gone.
    fn note_gone(&mut self) {
        for volume in self.deleted.clone() {
            if self.cluster.volume(volume).is_none() {
                self.gone.insert(volume);
            }
        }
    }

    fn connect(&mut self) {
        self.sessions += 1;
        self.step(Happens::SessionLost);
        let session = SessionNumber::from_number(self.sessions);
        let mut registration =
            self.agent.registration("n".parse().expect("a name"), MachineId::from_bits(1));
        // Told of them, a registry that has forgotten uses would ask a person first. It does no harm even so.
        registration.uses.clear();
        let fresh = FreshIds { node: NODE, drives: vec![DRIVE] };
        let event = Event::Register { session, certificate: None, registration, fresh };
        if let Some(Reply::Registered(registered)) = self.decide(event) {
            self.step(Happens::Registered(*registered));
            while self.saving.is_some() {
                self.saved();
            }
        }
    }

    fn arrives(&mut self, message: Message) {
        let of = SessionNumber::from_number;
        match message {
            Message::Order(VolumeOrder::Label(order)) => self.step(Happens::LabelOrder(order)),
            Message::Order(VolumeOrder::Use(order)) => self.step(Happens::UseOrder(order)),
            Message::Told(session, told) => {
                self.decide(Event::LabelTold { session: of(session), drive: DRIVE, told });
            }
            Message::Label(session, answer) => {
                self.decide(Event::LabelAnswer { session: of(session), answer });
            }
            Message::Use(session, answer) => {
                self.decide(Event::UseAnswer { session: of(session), answer });
            }
        }
        self.note_gone();
    }

    fn change_ends(&mut self, done: bool, told: bool) {
        let order = self.work.take().expect("only while it runs");
        let header = self.header.expect("it was attached");
        let by = (order.basis, &order.changes[..]);
        let result = match changed_by(self.rules, &header, &self.extents, by, LIMIT_BYTES) {
            _ if !done => LabelResult::Failed { error: "I/O".to_owned() },
            Err(why) => LabelResult::Refused { why: why.to_string(), told: self.told() },
            Ok(made) => {
                self.check_changes(&order.changes);
                if made.erase.is_some() {
                    self.bytes = None;
                }
                self.extents = made.extents;
                let digest = Digest::of(&encode(&self.extents));
                let sequence = header.sequence + 1;
                self.header = Some(Header { sequence, extents: digest, ..header });
                if told {
                    LabelResult::Done { now: self.told().basis }
                } else {
                    LabelResult::Failed { error: "I/O".to_owned() }
                }
            }
        };
        self.step(Happens::LabelChanged { drive: DRIVE, result });
    }

    fn check_changes(&mut self, changes: &[Change]) {
        for change in changes {
            let broken = match change {
                Change::Place(extent) if self.gone.contains(&extent.volume) => {
                    Some("a volume that is gone comes back")
                }
                Change::Place(_) if self.bytes.is_some() => Some("old data is given out"),
                Change::Erase { volume, .. }
                    if self.bytes.is_some_and(|owner| owner != *volume) =>
                {
                    Some("another volume is erased")
                }
                Change::Free { volume } | Change::Withdraw { volume }
                    if *volume == A && self.mapped.is_some() =>
                {
                    Some("a volume in use is freed")
                }
                Change::Free { volume } if !self.deleted.contains(volume) => {
                    Some("a volume is freed that nobody deleted")
                }
                _ => None,
            };
            self.broken = self.broken.or(broken);
        }
    }

    pub(crate) fn granted(&self) -> Option<Epoch> {
        let known = self.agent.record().volumes.get(&A);
        let stored = self.record.as_ref().and_then(|record| record.volumes.get(&A));
        let stored = stored.filter(|stored| Some(*stored) == known && stored.grant.granted);
        stored.map(|stored| stored.grant.epoch)
    }

    pub(crate) fn user_writes(&mut self) {
        let Some(epoch) = self.granted() else { return };
        if !self.extents.iter().any(|extent| extent.volume == A && extent.usage == Use::Used) {
            return;
        }
        if self.over.is_some_and(|over| epoch <= over) {
            self.broken = self.broken.or(Some("a use that was over is granted again"));
        }
        if self.bytes.is_some_and(|owner| owner != A) {
            self.broken = self.broken.or(Some("a volume shows another one's data"));
        }
        self.mapped = Some(epoch);
        self.bytes = Some(A);
    }

    fn answers_use(&mut self, answer: &UseAnswer) {
        if answer.result != UseResult::Done {
            return;
        }
        if !answer.granted {
            self.over = self.over.max(Some(answer.epoch));
            return;
        }
        let stored = self.record.as_ref().and_then(|record| record.volumes.get(&answer.volume));
        if stored.is_none_or(|stored| stored.grant.epoch < answer.epoch) {
            self.broken = self.broken.or(Some("a grant is answered and not on disk"));
        }
    }

    fn restart_agent(&mut self) {
        self.starts += 1;
        (self.saving, self.work, self.ending) = (None, None, None);
        let found = match &self.record {
            Some(record) => RecordFound::Usable(record.clone()),
            None => RecordFound::Absent(None),
        };
        let devices = vec![device(self.header.map(LabelSeen::from))];
        let start = Incarnation::from_bits(self.starts);
        let (agent, effects) =
            Agent::start(self.rules, start, found, devices, AttachAtStart::default());
        self.agent = agent;
        self.perform(effects);
    }

    fn restart_registry(&mut self, records: Records) {
        self.terms += 1;
        self.durable = records.clone();
        let term = TermId::from_bits(self.terms);
        let (cluster, writes) = Cluster::lead(self.rules, records, CLUSTER, term);
        self.cluster = cluster;
        self.store(writes);
        self.step(Happens::SessionLost);
    }

    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Ask(ask) => self.ask(&ask),
            Step::Deliver { at, keep } => {
                let message = self.network[at].clone();
                if !keep {
                    self.network.remove(at);
                }
                self.arrives(message);
            }
            Step::Resend => {
                for (_, order) in self.cluster.owed_volume_orders(DRIVE) {
                    self.send(Message::Order(order));
                }
            }
            Step::Saved => self.saved(),
            Step::ChangeEnds { done, told } => self.change_ends(done, told),
            Step::UseEnds => {
                let (volume, epoch) = self.ending.take().expect("only while it runs");
                self.mapped = None;
                self.step(Happens::UseEnded { volume, epoch, result: Ok(()) });
            }
            Step::UserWrites => self.user_writes(),
            Step::Connect => self.connect(),
            Step::RestartAgent => self.restart_agent(),
            Step::RestartRegistry => self.restart_registry(self.durable.clone()),
            Step::Restore => {
                let backup = self.backup.take().expect("only with a backup");
                // Deleted is what was asked for; what was told before is lost by the hand of whoever restores.
                self.restart_registry(backup);
            }
        }
    }
}
