//! A registry's process around core's `Cluster`, `Gate` and `Pace`: what the actor does, with a disk that takes time.
//!
//! The store takes batches (`batches.rs`) or single records (`records.rs`); what was computed from a write is let out
//! when the store has it. The process dies between any two of these steps.

use std::collections::{BTreeMap, BTreeSet};

use hotbay_core::cluster::{
    Cluster, Effects, Event as Happens, FreshIds, RecordKey, Refused, Reply, VolumeRefused, Write,
};
use hotbay_core::gate::Gate;
use hotbay_core::ids::{ClusterId, DriveId, NodeId, SessionNumber, TermId};
use hotbay_core::pace::{Monotonic, Pace};
use hotbay_core::rules::Rules;

use crate::batches::Batches;
use crate::check::Invariant;
use crate::fault::Fault;
use crate::log::note;
use crate::network::{ConnectionId, FromAgent, FromRegistry};
use crate::records::Records;
use crate::release::Held;
use crate::scenario::{Kind, Millis, SECOND};
use crate::store::Store;
use crate::volumes::VolumeTold;
use crate::world::{Event, World};

pub(crate) const FIRST_WRITE_PAUSE: Millis = 100;
pub(crate) const LONGEST_WRITE_PAUSE: Millis = 5 * SECOND;
/// A drive on an untroubled node is as wished after so long.
pub(crate) const CALM_LIMIT: Millis = 20 * SECOND;

/// A place where a registry runs, with its disk.
#[derive(Debug, Default)]
pub(crate) struct Site {
    pub(crate) store: Store,
    pub(crate) process: Option<Process>,
    /// The store cannot be written now.
    pub(crate) failing: bool,
    /// Records that cannot be written now.
    pub(crate) refused: BTreeSet<RecordKey>,
    /// It has forgotten a part of its past, or has a rival.
    pub(crate) forked: bool,
    pub(crate) wall_offset_ms: u64,
    pub(crate) backup: Option<Store>,
}

/// One reign of a registry.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) reign: u64,
    pub(crate) cluster: Cluster,
    pub(crate) gate: Gate<Held, RecordKey>,
    pub(crate) writer: Writer,
    /// The last write failed: nothing is promised now.
    pub(crate) failing: bool,
    pub(crate) sessions: BTreeMap<SessionNumber, ConnectionId>,
    newest_session: SessionNumber,
    /// Sessions whose registration is not answered yet, with what is free to be said there: it must not come first.
    pub(crate) parked: BTreeMap<SessionNumber, Vec<FromRegistry>>,
    /// Calls whose answers are held back.
    pub(crate) unanswered: BTreeSet<u64>,
    pub(crate) pace: Pace,
    pub(crate) started: Millis,
    /// Its term is durable.
    pub(crate) serving: bool,
    pub(crate) timer: Option<Millis>,
}

/// How it has its decisions written.
#[derive(Debug)]
pub(crate) enum Writer {
    Batches(Batches),
    Records(Records),
}

/// Who brought an event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Caller {
    Agent(ConnectionId),
    Client { client: usize, call: u64 },
    Nobody,
}

impl Process {
    fn lead(
        rules: Rules,
        store: &Store,
        writer: Writer,
        ids: (u64, ClusterId, TermId),
        now: Millis,
    ) -> (Self, Vec<Write>) {
        let (reign, cluster, term) = ids;
        let (cluster, writes) = Cluster::lead(rules, store.records(), cluster, term);
        let process = Self {
            reign,
            cluster,
            gate: Gate::new(rules),
            writer,
            failing: false,
            sessions: BTreeMap::new(),
            newest_session: SessionNumber::default(),
            parked: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            pace: Pace::default(),
            started: now,
            serving: false,
            timer: None,
        };
        (process, writes)
    }

    pub(crate) fn decide(&mut self, writes: Vec<Write>) {
        if writes.is_empty() {
            return;
        }
        match &mut self.writer {
            Writer::Batches(batches) => batches.add(&mut self.gate, writes),
            Writer::Records(records) => records.add(&mut self.gate, writes),
        }
    }
}

impl World {
    pub(crate) fn lead(&mut self, site: usize) {
        if self.sites[site].process.is_some() {
            return;
        }
        let cluster = ClusterId::from_bits(self.rng.id());
        let ids = (self.number(), cluster, TermId::from_bits(self.rng.id()));
        let writer = match self.scenario.records {
            Some(most) => Writer::Records(Records::new(most)),
            None => Writer::Batches(Batches::default()),
        };
        let store = &self.sites[site].store;
        let (mut process, writes) = Process::lead(self.rules, store, writer, ids, self.now);
        note!(self, "registry {site}: starts, term {}", process.cluster.term());
        self.told_survives(site, &process.cluster);
        process.decide(writes.clone());
        self.sites[site].process = Some(process);
        self.terms_known(site, &writes);
        self.turn_ends(site);
    }

    /// The process of a site, if it is still the one that something was meant for.
    pub(crate) fn process(&mut self, site: usize, reign: u64) -> Option<&mut Process> {
        self.sites[site].process.as_mut().filter(|process| process.reign == reign)
    }

    pub(crate) fn may_crash(&self, site: usize) -> bool {
        self.scenario.kind != Kind::Isolation && self.sites[site].process.is_some()
    }

    /// The process dies; what it had under way on disk may have landed.
    pub(crate) fn crash_registry(&mut self, site: usize) {
        let Some(process) = self.sites[site].process.take() else { return };
        // What lands together.
        let under_way: Vec<Vec<Write>> = match process.writer {
            Writer::Batches(batches) => batches.under_way().into_iter().collect(),
            Writer::Records(records) => records.under_way().map(|write| vec![write]).collect(),
        };
        let (mut landed, mut lost) = (0, 0);
        for writes in under_way {
            if self.rng.chance(500) {
                let keys: Vec<_> = writes.iter().map(Write::key).collect();
                note!(self, "registry {site}: landed {keys:?}");
                self.sites[site].store.commit(&writes);
                landed += 1;
            } else {
                lost += 1;
            }
        }
        let fault = match (landed, lost) {
            _ if !process.serving => Fault::RegistryCrashTakingLead,
            (0, 0) => Fault::RegistryCrash,
            (_, 0) => Fault::RegistryCrashWriteLanded,
            (0, _) => Fault::RegistryCrashWriteLost,
            (_, _) => Fault::RegistryCrashSomeLanded,
        };
        self.fault(fault);
        note!(self, "registry {site}: DIES ({fault:?})");
        let of_reign: Vec<_> = process.sessions.values().copied().collect();
        for id in of_reign {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.registry_end = false;
                self.send_down(id, FromRegistry::HangUp);
            }
        }
        let pause = self.rng.between(50, 5 * SECOND);
        self.after(pause, Event::Lead { site });
    }

    /// An agent dials; gives the number of its session.
    pub(crate) fn accept(&mut self, site: usize, reign: u64) -> Option<SessionNumber> {
        let process = self.process(site, reign).filter(|process| process.serving)?;
        process.newest_session = process.newest_session.next();
        Some(process.newest_session)
    }

    pub(crate) fn accepted(&mut self, site: usize, session: SessionNumber, id: ConnectionId) {
        let process = self.sites[site].process.as_mut().expect("it just accepted");
        process.sessions.insert(session, id);
    }

    pub(crate) fn registry_hears(&mut self, id: ConnectionId, message: FromAgent) {
        let connection = &self.connections[&id];
        let (site, session) = (connection.site, connection.session);
        let event = match message {
            FromAgent::Register(registration) => {
                let registration = *registration;
                let drives = self.fresh(registration.devices.len());
                let fresh = FreshIds { node: NodeId::from_bits(self.rng.id()), drives };
                Happens::Register { session, certificate: None, registration, fresh }
            }
            FromAgent::Report(devices) => {
                let fresh = self.fresh(devices.len());
                Happens::Devices { session, devices, conditions: Vec::new(), fresh }
            }
            FromAgent::Answer(answer) => Happens::Answer { session, answer },
            FromAgent::LabelTold(drive, told) => Happens::LabelTold { session, drive, told },
            FromAgent::LabelAnswer(answer) => Happens::LabelAnswer { session, answer },
            FromAgent::UseAnswer(answer) => {
                self.use_is_answered(site, answer.volume);
                Happens::UseAnswer { session, answer }
            }
            FromAgent::HangUp => Happens::SessionClosed(session),
        };
        self.apply(site, event, Caller::Agent(id));
    }

    fn fresh(&mut self, count: usize) -> Vec<DriveId> {
        (0..count).map(|_| DriveId::from_bits(self.rng.id())).collect()
    }

    /// The registry learns that a connection is over.
    pub(crate) fn registry_notices(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id).filter(|there| there.registry_end)
        else {
            return;
        };
        connection.registry_end = false;
        let (site, reign, session) = (connection.site, connection.reign, connection.session);
        self.send_down(id, FromRegistry::HangUp);
        if let Some(process) = self.process(site, reign) {
            process.sessions.remove(&session);
            process.parked.remove(&session);
            self.apply(site, Happens::SessionClosed(session), Caller::Nobody);
        }
    }

    /// The registry ends every session; agents must register anew.
    pub(crate) fn end_sessions(&mut self, site: usize) {
        let process = self.sites[site].process.as_mut().expect("it decided this");
        process.parked.clear();
        for (_, id) in std::mem::take(&mut process.sessions) {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.registry_end = false;
                self.send_down(id, FromRegistry::HangUp);
            }
        }
    }

    /// A person lets the registry learn what it has forgotten, if it has heard of anything.
    pub(crate) fn adopt(&mut self, site: usize) {
        let process = self.sites[site].process.as_ref().filter(|process| process.serving);
        if process.is_some_and(|process| process.cluster.rewound_nodes().next().is_some()) {
            note!(self, "registry {site}: a person has it ADOPT what the nodes know");
            self.fault(Fault::Adopted);
            let term = TermId::from_bits(self.rng.id());
            self.apply(site, Happens::Adopt { term }, Caller::Nobody);
        }
    }

    /// One event at the actor.
    pub(crate) fn apply(&mut self, site: usize, event: Happens, caller: Caller) {
        let wall_ms = self.now + self.sites[site].wall_offset_ms;
        let process = self.sites[site].process.as_mut().expect("only a living registry is asked");
        if process.failing && asks(&event) {
            self.fault(Fault::RequestRefusedByStore);
            self.refuse(caller);
            return;
        }
        let about = match &event {
            Happens::Answer { answer, .. } => Some(answer.drive),
            _ => None,
        };
        let asked = event.clone();
        match process.cluster.apply(event, wall_ms) {
            Ok(effects) => {
                let changes = !effects.writes.is_empty() || !effects.orders.is_empty();
                if changes && matches!(asked, Happens::Act { dry_run: true, .. }) {
                    self.breaks(Invariant::DryRunChanges, format!("{asked:?}"));
                }
                let told = self.applied(site, &asked, caller, &effects);
                self.carry_out(site, &asked, effects, caller, told);
            }
            Err(refused) => {
                note!(self, "registry {site}: refuses: {refused}");
                self.not_taken(site, &asked, &refused, caller);
            }
        }
        if let (Some(drive), Some(process)) = (about, self.sites[site].process.as_mut()) {
            // An order that is repeated may be answered twice, and the second answer may take back the first.
            match process.cluster.owed(drive) {
                Some(_) => process.pace.keep(drive, Monotonic(self.now - process.started)),
                None if process.cluster.owed_volume_orders(drive).is_empty() => {
                    process.pace.forget(drive);
                }
                None => {}
            }
        }
        self.turn_ends(site);
    }

    fn not_taken(&mut self, site: usize, asked: &Happens, refused: &Refused, caller: Caller) {
        match (refused, caller) {
            (Refused::Registration(why), Caller::Agent(id)) => {
                self.registration_refused(id, why);
                self.refuse(caller);
            }
            (Refused::Volume(VolumeRefused::NoSuchVolume), Caller::Client { client, call }) => {
                // To whoever wants it gone this is good news, and waits for the store as such.
                let (told, volume) = (Vec::new(), Some(VolumeTold::Gone));
                let reply = Reply::Nothing;
                let process = self.sites[site].process.as_ref().expect("it refused");
                let ground = process.cluster.ground(&asked.subject(), &Effects::default());
                self.hold(site, &ground, Held::Reply { client, call, reply, told, volume });
            }
            (Refused::OldSession, _) | (_, Caller::Client { .. }) => self.refuse(caller),
            (
                Refused::Registration(_)
                | Refused::CertificateRevoked { .. }
                | Refused::StaleAnswer
                | Refused::NoSuchDrive
                | Refused::Volume(_),
                Caller::Agent(_) | Caller::Nobody,
            ) => {}
        }
    }

    /// Ends the caller's session, or tells the client that it failed.
    fn refuse(&mut self, caller: Caller) {
        match caller {
            Caller::Agent(id) => self.registry_notices(id),
            Caller::Client { client, call } => {
                let pause = self.latency();
                self.after(pause, Event::Answered { client, call, reply: None, volume: None });
            }
            Caller::Nobody => {}
        }
    }

    /// After every event: hands the store what it may take, and sets the timer.
    pub(crate) fn turn_ends(&mut self, site: usize) {
        let Some(process) = self.sites[site].process.as_mut() else { return };
        let (reign, now) = (process.reign, self.now);
        let due = process.pace.next().map(|at| (process.started + at.0).max(now));
        let sooner = due.filter(|due| process.timer.is_none_or(|timer| *due < timer));
        let (batch, records) = match &mut process.writer {
            Writer::Batches(batches) => (batches.hand_over(), Vec::new()),
            Writer::Records(records) => (false, records.begin()),
        };
        if let Some(at) = sooner {
            process.timer = Some(at);
            self.after(at - now, Event::Repeat { site, reign });
        }
        if batch {
            self.commit_later(site, reign);
        }
        for begun in records {
            self.write_record_later(site, reign, begun);
        }
    }
}

/// Whether the event is somebody's request, refused while nothing can be promised. The rest is news.
fn asks(event: &Happens) -> bool {
    match event {
        Happens::Register { .. }
        | Happens::Act { .. }
        | Happens::Adopt { .. }
        | Happens::Certify { .. }
        | Happens::Volume { .. } => true,
        Happens::Devices { .. }
        | Happens::Answer { .. }
        | Happens::LabelTold { .. }
        | Happens::LabelAnswer { .. }
        | Happens::UseAnswer { .. }
        | Happens::VolumeReport { .. }
        | Happens::SessionClosed(_) => false,
    }
}
