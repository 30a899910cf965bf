//! A registry's process around core's `Cluster`, `Gate` and `Pace`: what the actor does, with a disk that takes time.
//!
//! One batch of writes is under way while the next is collected; what was computed from a batch is let out when the
//! store has it. The process dies between any two of these steps.

use std::collections::BTreeMap;

use hotbay_core::cluster::{
    Cluster, Effects, Event as Happens, FreshIds, Refused, Reply, VolumeRefused, Write,
};
use hotbay_core::gate::Gate;
use hotbay_core::ids::{ClusterId, DriveId, NodeId, SessionNumber, TermId};
use hotbay_core::pace::{Monotonic, Pace};
use hotbay_core::rules::Rules;
use hotbay_core::volume::orders::{LabelOrder, UseOrder, VolumeOrder};

use crate::check::{Invariant, Told};
use crate::fault::Fault;
use crate::log::note;
use crate::network::{ConnectionId, FromAgent, FromRegistry};
use crate::scenario::{Kind, Millis, SECOND};
use crate::store::Store;
use crate::volumes::VolumeTold;
use crate::world::{Event, World};

const FIRST_WRITE_PAUSE: Millis = 100;
const LONGEST_WRITE_PAUSE: Millis = 5 * SECOND;
/// A drive on an untroubled node is as wished after so long.
const CALM_LIMIT: Millis = 20 * SECOND;

/// A place where a registry runs, with its disk.
#[derive(Debug, Default)]
pub(crate) struct Site {
    pub(crate) store: Store,
    pub(crate) process: Option<Process>,
    /// The store cannot be written now.
    pub(crate) failing: bool,
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
    gate: Gate<Held>,
    collecting: Option<Batch>,
    pub(crate) writing: Option<Batch>,
    write_pause: Millis,
    /// The last write failed: nothing is promised now.
    pub(crate) failing: bool,
    pub(crate) sessions: BTreeMap<SessionNumber, ConnectionId>,
    newest_session: SessionNumber,
    pub(crate) pace: Pace,
    pub(crate) started: Millis,
    /// Its term is durable.
    pub(crate) serving: bool,
    pub(crate) timer: Option<Millis>,
}

#[derive(Debug)]
pub(crate) struct Batch {
    number: u64,
    writes: Vec<Write>,
}

/// What waits behind the gate.
#[derive(Debug)]
pub(crate) enum Held {
    ToAgent(SessionNumber, FromRegistry),
    Reply { client: usize, call: u64, reply: Reply, told: Vec<Told>, volume: Option<VolumeTold> },
}

/// Who brought an event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Caller {
    Agent(ConnectionId),
    Client { client: usize, call: u64 },
    Nobody,
}

impl Process {
    fn lead(rules: Rules, store: &Store, ids: (u64, ClusterId, TermId), now: Millis) -> Self {
        let (reign, cluster, term) = ids;
        let (cluster, writes) = Cluster::lead(rules, store.records(), cluster, term);
        let mut gate = Gate::new(rules);
        let number = gate.decide();
        Self {
            reign,
            cluster,
            gate,
            collecting: None,
            writing: Some(Batch { number, writes }),
            write_pause: FIRST_WRITE_PAUSE,
            failing: false,
            sessions: BTreeMap::new(),
            newest_session: SessionNumber::default(),
            pace: Pace::default(),
            started: now,
            serving: false,
            timer: None,
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
        let process = Process::lead(self.rules, &self.sites[site].store, ids, self.now);
        note!(self, "registry {site}: starts, term {}", process.cluster.term());
        self.told_survives(site, &process.cluster);
        let writes = process.writing.as_ref().map(|batch| batch.writes.clone());
        self.sites[site].process = Some(process);
        self.terms_known(site, &writes.unwrap_or_default());
        self.commit_later(site, ids.0);
    }

    fn commit_later(&mut self, site: usize, reign: u64) {
        let most = self.scenario.commit_max;
        let pause = self.rng.between(1, most);
        self.after(pause, Event::Committed { site, reign });
    }

    /// The process of a site, if it is still the one that something was meant for.
    pub(crate) fn process(&mut self, site: usize, reign: u64) -> Option<&mut Process> {
        self.sites[site].process.as_mut().filter(|process| process.reign == reign)
    }

    /// The store is done with a batch.
    pub(crate) fn committed(&mut self, site: usize, reign: u64) {
        if self.process(site, reign).is_none() {
            return;
        }
        let there = &mut self.sites[site];
        let process = there.process.as_mut().expect("looked at above");
        if there.failing {
            process.failing = true;
            let pause = process.write_pause;
            process.write_pause = (pause * 2).min(LONGEST_WRITE_PAUSE);
            let batch = process.writing.as_ref().expect("a write is under way");
            if self.rng.chance(200) {
                there.store.commit(&batch.writes);
                self.fault(Fault::StoreErrorAfterLanding);
            }
            note!(self, "registry {site}: a write fails");
            self.after(pause, Event::Committed { site, reign });
            return;
        }
        let batch = process.writing.take().expect("a write is under way");
        there.store.commit(&batch.writes);
        process.failing = false;
        process.write_pause = FIRST_WRITE_PAUSE;
        let led = !std::mem::replace(&mut process.serving, true);
        let ready = process.gate.durable(batch.number);
        if led {
            note!(self, "registry {site}: serves");
        }
        for held in ready {
            let crash = self.scenario.release_crash;
            if !self.trouble_over && self.may_crash(site) && self.rng.chance(crash) {
                self.fault(Fault::RegistryCrashBetweenReleases);
                self.crash_registry(site);
                return;
            }
            self.let_out(site, held);
        }
        self.turn_ends(site);
    }

    pub(crate) fn may_crash(&self, site: usize) -> bool {
        self.scenario.kind != Kind::Isolation && self.sites[site].process.is_some()
    }

    /// The process dies; what it had under way on disk may have landed.
    pub(crate) fn crash_registry(&mut self, site: usize) {
        let Some(process) = self.sites[site].process.take() else { return };
        let landed = self.rng.chance(500);
        let fault = match &process.writing {
            _ if !process.serving => Fault::RegistryCrashTakingLead,
            None => Fault::RegistryCrash,
            Some(_) if landed => Fault::RegistryCrashWriteLanded,
            Some(_) => Fault::RegistryCrashWriteLost,
        };
        self.fault(fault);
        note!(self, "registry {site}: DIES ({fault:?})");
        if let Some(batch) = process.writing.filter(|_| landed) {
            self.sites[site].store.commit(&batch.writes);
        }
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
            self.apply(site, Happens::SessionClosed(session), Caller::Nobody);
        }
    }

    /// The registry ends every session; agents must register anew.
    fn end_sessions(&mut self, site: usize) {
        let process = self.sites[site].process.as_mut().expect("it decided this");
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
                self.carry_out(site, effects, caller, told);
            }
            Err(refused) => {
                note!(self, "registry {site}: refuses: {refused}");
                self.not_taken(site, &refused, caller);
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

    fn not_taken(&mut self, site: usize, refused: &Refused, caller: Caller) {
        match (refused, caller) {
            (Refused::Registration(why), Caller::Agent(id)) => {
                self.registration_refused(id, why);
                self.refuse(caller);
            }
            (Refused::Volume(VolumeRefused::NoSuchVolume), Caller::Client { client, call }) => {
                // To whoever wants it gone this is good news, and waits for the store as such.
                let (told, volume) = (Vec::new(), Some(VolumeTold::Gone));
                let reply = Reply::Nothing;
                self.hold(site, Held::Reply { client, call, reply, told, volume });
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

    fn carry_out(&mut self, site: usize, effects: Effects, caller: Caller, told: Vec<Told>) {
        let Effects { writes, orders, volume_orders, reply, notices, sessions_end } = effects;
        self.terms_known(site, &writes);
        if sessions_end {
            self.end_sessions(site);
        }
        for notice in notices {
            note!(self, "registry {site}: {}", notice.text);
        }
        let process = self.sites[site].process.as_mut().expect("still there");
        let now = Monotonic(self.now - process.started);
        if !writes.is_empty() {
            let gate = &mut process.gate;
            let batch = process
                .collecting
                .get_or_insert_with(|| Batch { number: gate.decide(), writes: Vec::new() });
            batch.writes.extend(writes);
        }
        if let (Reply::Registered(registered), Caller::Agent(_)) = (&reply, caller) {
            for order in registered.allowed.iter().chain(&registered.unknown) {
                if process.cluster.is_on(order.drive, registered.session) {
                    process.pace.sent(order.drive, now);
                }
            }
            let message = FromRegistry::Registered(registered.clone());
            self.hold(site, Held::ToAgent(registered.session, message));
        }
        for (session, order) in orders {
            let process = self.sites[site].process.as_mut().expect("still there");
            if process.cluster.is_on(order.drive, session) {
                process.pace.sent(order.drive, now);
            }
            self.hold(site, Held::ToAgent(session, FromRegistry::Order(Box::new(order))));
        }
        for (session, order) in volume_orders {
            let process = self.sites[site].process.as_mut().expect("still there");
            match &order {
                VolumeOrder::Label(order) if process.cluster.owed(order.drive).is_none() => {
                    process.pace.sent(order.drive, now);
                }
                VolumeOrder::Label(LabelOrder { drive, .. })
                | VolumeOrder::Use(UseOrder { drive, .. }) => process.pace.keep(*drive, now),
            }
            self.hold(site, Held::ToAgent(session, FromRegistry::Volume(Box::new(order))));
        }
        if let Caller::Client { client, call } = caller {
            let volume = self.told_of_volume(site, &reply);
            self.hold(site, Held::Reply { client, call, reply, told, volume });
        }
    }

    pub(crate) fn hold(&mut self, site: usize, held: Held) {
        let process = self.sites[site].process.as_mut().expect("it decided this");
        if let Some(free) = process.gate.hold(held) {
            self.let_out(site, free);
        }
    }

    fn let_out(&mut self, site: usize, held: Held) {
        match held {
            Held::ToAgent(session, message) => {
                let process = self.sites[site].process.as_ref().expect("it decided this");
                let Some(id) = process.sessions.get(&session).copied() else { return };
                match &message {
                    FromRegistry::Order(order) => self.order_leaves(site, session, order),
                    FromRegistry::Registered(registered) => {
                        for order in registered.allowed.iter().chain(&registered.unknown) {
                            self.order_leaves(site, session, order);
                        }
                    }
                    FromRegistry::Volume(order) => self.volume_order_leaves(site, session, order),
                    FromRegistry::HangUp => {}
                }
                self.send_down(id, message);
            }
            Held::Reply { client, call, reply, told, volume } => {
                if let Some(volume) = &volume {
                    self.volume_told(site, volume);
                }
                for told in &told {
                    self.told(site, told);
                    if self.scenario.kind == Kind::Isolation && told.changed {
                        let Told { drive, generation, .. } = *told;
                        self.after(CALM_LIMIT, Event::Deadline { site, drive, generation });
                    }
                }
                let pause = self.latency();
                self.after(pause, Event::Answered { client, call, reply: Some(reply), volume });
            }
        }
    }

    /// After every event: hands the collected batch to the store, if that is free, and sets the timer.
    pub(crate) fn turn_ends(&mut self, site: usize) {
        let Some(process) = self.sites[site].process.as_mut() else { return };
        let (reign, now) = (process.reign, self.now);
        let mut handed_over = false;
        if process.writing.is_none() {
            process.writing = process.collecting.take();
            handed_over = process.writing.is_some();
        }
        let due = process.pace.next().map(|at| (process.started + at.0).max(now));
        let sooner = due.filter(|due| process.timer.is_none_or(|timer| *due < timer));
        if let Some(at) = sooner {
            process.timer = Some(at);
            self.after(at - now, Event::Repeat { site, reign });
        }
        if handed_over {
            self.commit_later(site, reign);
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
