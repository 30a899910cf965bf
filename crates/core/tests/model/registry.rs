//! The registry's side of the world: what the actor around `Cluster` does, and what can befall it.
//!
//! Decisions become batches; a batch becomes durable later, in order; what follows from it is let out by core's gate.
//! A crash loses every batch that is not durable yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hotbay_core::cluster::{
    Cluster, Effects, Event, FreshIds, Records, Refused, RegistrationRefused, Reply, VolumeRequest,
    Write,
};
use hotbay_core::cms::{Action, Code, Outcome, Target};
use hotbay_core::gate::Gate;
use hotbay_core::ids::{DriveId, SessionNumber, TermId, VolumeId};
use hotbay_core::label::change::applied;
use hotbay_core::label::extents::ALIGNMENT_BYTES;
use hotbay_core::message::{Answer, Registration};
use hotbay_core::order::Goal;
use hotbay_core::volume::class::Class;
use hotbay_core::volume::orders::{LabelAnswer, LabelOrder, LabelResult, VolumeOrder};
use hotbay_core::volume::{Size, Wish};

use crate::invariants;
use crate::world::{
    Backup, Body, CLUSTER, ClientReply, Connection, Message, Output, Reigns, Site, World,
    machine_of, start_of,
};

/// The id of the first volume that is asked for; each has one of its own.
const FIRST_VOLUME: u128 = 0x70;

impl World {
    /// Starts a registry on what a store holds.
    pub(crate) fn lead(&mut self, durable: Records, lineage: Reigns) -> Site {
        let reign = self.lineages.len();
        self.lineages.push(lineage | 1 << reign);
        let term = TermId::from_bits(reign as u128 + 1);
        let (cluster, writes) = Cluster::lead(self.rules, durable.clone(), CLUSTER, term);
        let mut gate = Gate::new(self.rules);
        let pending = vec![(gate.decide(), writes)];
        Site {
            reign,
            cluster,
            gate,
            pending,
            sessions: 0,
            durable,
            lineage,
            forked: false,
            told: BTreeMap::new(),
            newest_start: BTreeMap::new(),
            rewound_for: BTreeSet::new(),
        }
    }

    /// The process is killed and started again.
    pub(crate) fn restart_registry(&mut self, site: usize) {
        let before = self.sites[site].clone();
        let mut after = self.lead(before.durable.clone(), before.lineage);
        after.told.clone_from(&before.told);
        after.forked = before.forked;
        self.sites[site] = Arc::new(after);
    }

    pub(crate) fn make_backup(&mut self) {
        let Site { durable, lineage, .. } = &*self.sites[0];
        let backup = Backup { durable: durable.clone(), lineage: *lineage };
        self.backup = Some(Arc::new(backup));
    }

    /// Somebody puts the backup in the place of the store. What clients were told since is lost by their own hand.
    pub(crate) fn restore_backup(&mut self) {
        let backup = self.backup.clone().expect("only with a backup");
        let after = self.lead(backup.durable.clone(), backup.lineage);
        self.sites[0] = Arc::new(Site { forked: true, ..after });
    }

    /// Somebody copies the data directory and starts a second registry on it.
    pub(crate) fn start_copy(&mut self) {
        let Site { durable, lineage, .. } = (*self.sites[0]).clone();
        let copy = self.lead(durable, lineage);
        self.sites.push(Arc::new(Site { forked: true, ..copy }));
        self.site(0).forked = true;
    }

    /// The store has the oldest batch that it was given.
    pub(crate) fn batch_durable(&mut self, site: usize) {
        let here = self.site(site);
        let (number, writes) = here.pending.remove(0);
        for write in writes {
            store(here, write);
        }
        for output in here.gate.durable(number) {
            self.release(site, output);
        }
    }

    /// The client asks for a drive to be added or removed. Says whether that changed anything.
    pub(crate) fn client(&mut self, site: usize, drive: DriveId, wish: Goal) -> bool {
        let target = Target { host: None, device: drive.to_string() };
        let action = match wish {
            Goal::Attach => Action::AddDevice(target),
            Goal::Detach => Action::RemoveDevice(target),
        };
        let event = Event::Act { actions: vec![action], asked_by: String::new(), dry_run: false };
        let effects = self.decide(site, event).expect("an action is always answered");
        let changed = !effects.writes.is_empty();
        let Reply::Acted(outcomes) = &effects.reply else { panic!("no answer to an action") };
        let [Outcome { code, .. }] = outcomes[..] else { panic!("one answer to one action") };
        let generation = self.sites[site].cluster.drive(drive).map(|drive| drive.record.generation);
        let generation = generation.unwrap_or_default();
        if changed {
            self.wishes.insert(drive, wish);
        }
        self.emit_orders(site, &effects);
        self.emit(site, Output::Reply(ClientReply { drive, wish, code, generation }));
        changed
    }

    /// A volume is asked for on a machine, and made if a drive there takes it. Says whether the registry took it.
    pub(crate) fn place(&mut self, site: usize, machine: usize) -> bool {
        let cluster = &self.sites[site].cluster;
        let before: BTreeMap<_, _> =
            cluster.drives().map(|drive| (drive.record.id, drive.clone())).collect();
        // A label may still have one that the registry has forgotten. In the product no two have one id.
        let id = VolumeId::from_bits(FIRST_VOLUME + u128::from(self.volumes));
        self.volumes += 1;
        let wish = Wish {
            name: "v".parse().expect("a plain name"),
            size: Size::of(ALIGNMENT_BYTES).expect("whole MiB"),
            class: Class { max_shares: 1, ..Class::default() },
            parameters: BTreeMap::new(),
            nodes: [self.machines[machine].node_id()].into(),
            preferred: Vec::new(),
            claim: None,
        };
        let request = VolumeRequest::Create { id, wish: Box::new(wish) };
        let taken = self.ask_for_volumes(site, vec![request]);
        // None if there was one of that name: then that is the answer.
        if let Some(on) = self.sites[site].cluster.volume(id).and_then(|made| made.drive) {
            invariants::placed(self, &before[&on]);
        }
        taken
    }

    /// Every volume of a drive is asked to be deleted, and is gone if the agent of the drive is there.
    pub(crate) fn free(&mut self, site: usize, drive: DriveId) {
        let volumes = self.sites[site].cluster.volumes_on(drive).into_iter();
        let requests = volumes.map(|volume| VolumeRequest::Delete { volume }).collect();
        self.ask_for_volumes(site, requests);
    }

    /// All that is said about labels follows at once: orders about labels late, lost and doubled have a model of their
    /// own (`labels`). Says whether every request was taken.
    fn ask_for_volumes(&mut self, site: usize, requests: Vec<VolumeRequest>) -> bool {
        let (mut writes, mut taken) = (Vec::new(), true);
        for request in requests {
            let asked = Event::Volume { request, asked_by: String::new() };
            match self.site(site).cluster.apply(asked, 0) {
                Ok(effects) => writes.extend(effects.writes),
                Err(_) => taken = false,
            }
        }
        for drive in self.drive_ids().collect::<Vec<_>>() {
            while self.change_label(site, drive, &mut writes) {}
        }
        let here = self.site(site);
        if !writes.is_empty() {
            here.pending.push((here.gate.decide(), writes));
        }
        taken
    }

    /// The session of a drive's agent, if it is registered and has the drive open.
    fn at_drive(&self, site: usize, drive: DriveId) -> Option<SessionNumber> {
        let machine = machine_of(drive);
        let there = invariants::registered(self, site, machine)
            && invariants::is_open(self, drive)
            && !self.machines[machine].steps.contains_key(&drive);
        let number = self.machines[machine].connection?.number;
        there.then(|| SessionNumber::from_number(number))
    }

    /// An agent tells the label of a drive that it has open, to the registry that it is connected to.
    pub(crate) fn label_told(&mut self, machine: usize, drive: DriveId) {
        let Some(Connection { site, reign, number }) = self.machines[machine].connection else {
            return;
        };
        if self.sites[site].reign != reign {
            return;
        }
        let session = SessionNumber::from_number(number);
        let told = self.machine(machine).disk(drive).told();
        let here = self.site(site);
        if let Ok(effects) = here.cluster.apply(Event::LabelTold { session, drive, told }, 0)
            && !effects.writes.is_empty()
        {
            here.pending.push((here.gate.decide(), effects.writes));
        }
    }

    /// Carries out what is ordered about the label. Says whether there was anything.
    fn change_label(&mut self, site: usize, drive: DriveId, writes: &mut Vec<Write>) -> bool {
        let Some(session) = self.at_drive(site, drive) else { return false };
        let owed = self.sites[site].cluster.owed_volume_orders(drive).into_iter().next();
        let Some((_, VolumeOrder::Label(order))) = owed else { return false };
        let disk = self.machine(machine_of(drive)).disk(drive);
        let told = disk.told();
        let changed = applied(&told.extents, &order.changes, told.limit_bytes);
        let result = match changed {
            Ok(changed) => {
                disk.extents = changed.extents;
                LabelResult::Done { now: disk.told().basis }
            }
            Err(why) => LabelResult::Refused { why: why.to_string(), told },
        };
        let LabelOrder { incarnation, basis: on, changes, .. } = order;
        let answer = LabelAnswer { drive, incarnation, on, changes, result };
        let effects = self.site(site).cluster.apply(Event::LabelAnswer { session, answer }, 0);
        writes.extend(effects.map(|effects| effects.writes).unwrap_or_default());
        true
    }

    /// The registry sends again what it still waits for. Says whether there was anything.
    pub(crate) fn resend(&mut self, site: usize, drive: DriveId) -> bool {
        let Some((session, order)) = self.sites[site].cluster.owed(drive) else { return false };
        let message = self.message(site, session, machine_of(drive), Body::Order(order));
        if self.network.iter().any(|under_way| **under_way == message) {
            return false;
        }
        self.emit(site, Output::ToAgent(Box::new(message)));
        true
    }

    /// A registration arrives. It travels at the head of its connection, so it reaches no other process.
    pub(crate) fn registration_arrives(
        &mut self,
        connection: Connection,
        machine: usize,
        registration: Registration,
    ) {
        let Connection { site, number, .. } = connection;
        let start = start_of(registration.incarnation);
        let session = SessionNumber::from_number(number);
        let drives = self.machines[machine].disks.iter().map(|disk| disk.id).collect();
        let fresh = FreshIds { node: self.machines[machine].node_id(), drives };
        let body = match self
            .decide(site, Event::Register { session, certificate: None, registration, fresh })
        {
            Ok(Effects { reply: Reply::Registered(registered), .. }) => {
                let newest = self.site(site).newest_start.entry(machine).or_default();
                *newest = start.max(*newest);
                self.site(site).rewound_for.remove(&machine);
                Body::Registered(registered)
            }
            Ok(other) => panic!("no answer to a registration: {other:?}"),
            Err(Refused::OldSession) => return,
            Err(Refused::Registration(RegistrationRefused::RegistryRewound { .. })) => {
                self.site(site).rewound_for.insert(machine);
                Body::TurnedAway
            }
            Err(_) => Body::TurnedAway,
        };
        let message = self.message(site, session, machine, body);
        self.emit(site, Output::ToAgent(Box::new(message)));
    }

    /// An answer arrives, maybe late, maybe at a later process than it was meant for.
    pub(crate) fn answer_arrives(&mut self, connection: Connection, answer: Answer) {
        let session = SessionNumber::from_number(connection.number);
        let event = Event::Answer { session, answer: answer.clone() };
        if self.decide(connection.site, event).is_ok() {
            invariants::counted(self, connection.site, &answer);
        }
    }

    /// The registry notices that the session of a machine is over.
    pub(crate) fn session_closed(&mut self, site: usize, session: SessionNumber) {
        self.decide(site, Event::SessionClosed(session)).expect("a session can always end");
    }

    /// The session in which a machine is registered, if its connection is no more.
    pub(crate) fn closed_session(&self, site: usize, machine: usize) -> Option<SessionNumber> {
        let here = &self.sites[site];
        let node = here.cluster.node(self.machines[machine].node_id())?;
        let number = node.session?.number;
        let current = Connection { site, reign: here.reign, number: number.get() };
        (self.machines[machine].connection != Some(current)).then_some(number)
    }

    /// Takes a decision and hands its writes to the store.
    fn decide(&mut self, site: usize, event: Event) -> Result<Effects, Refused> {
        let here = self.site(site);
        let mut effects = here.cluster.apply(event, 0)?;
        if !effects.writes.is_empty() {
            here.pending.push((here.gate.decide(), effects.writes.clone()));
        }
        // Sentences for people.
        effects.notices.clear();
        Ok(effects)
    }

    fn emit_orders(&mut self, site: usize, effects: &Effects) {
        for (session, order) in &effects.orders {
            let machine = machine_of(order.drive);
            let message = self.message(site, *session, machine, Body::Order(order.clone()));
            self.emit(site, Output::ToAgent(Box::new(message)));
        }
    }

    fn emit(&mut self, site: usize, output: Output) {
        if let Some(output) = self.site(site).gate.hold(output) {
            self.release(site, output);
        }
    }

    fn release(&mut self, site: usize, output: Output) {
        match output {
            Output::ToAgent(message) => self.send(*message),
            Output::Reply(reply) => {
                invariants::replied(self, site, &reply);
                if matches!(reply.code, Code::Ok | Code::Already | Code::TryAgain) {
                    let told = self.site(site).told.entry(reply.drive).or_default();
                    *told = (*told).max(reply.generation);
                }
            }
        }
    }

    fn message(&self, site: usize, session: SessionNumber, machine: usize, body: Body) -> Message {
        let reign = self.sites[site].reign;
        let connection = Connection { site, reign, number: session.get() };
        Message { connection, machine, body }
    }
}

/// What the store does with one write.
fn store(site: &mut Site, write: Write) {
    match write {
        Write::Registry(record) => {
            site.durable.registry = Some(record);
            site.lineage |= 1 << site.reign;
        }
        Write::Node(record) => {
            site.durable.nodes.retain(|other| other.id != record.id);
            site.durable.nodes.push(record);
            site.durable.nodes.sort_by_key(|record| record.id);
        }
        Write::Drive(record) => {
            site.durable.drives.retain(|other| other.id != record.id);
            site.durable.drives.push(*record);
            site.durable.drives.sort_by_key(|record| record.id);
        }
        Write::Volume(record) => {
            site.durable.volumes.retain(|other| other.id != record.id);
            site.durable.volumes.push(*record);
        }
        Write::NodeGone(id) => site.durable.nodes.retain(|other| other.id != id),
        Write::DriveGone(id) => site.durable.drives.retain(|other| other.id != id),
        Write::VolumeGone(id) => site.durable.volumes.retain(|other| other.id != id),
        Write::Attachment(_) | Write::AttachmentGone(_) => {
            unreachable!("nobody uses a volume here")
        }
    }
}
