//! The invariants that speak of a moment. Each function is called when its moment comes.

use hotbay_core::cluster::{
    Cluster, Effects, Event, RegistrationRefused, Reply, State, VolumeRequest, Write,
};
use hotbay_core::cms::{Action, Code, Outcome};
use hotbay_core::ids::{DriveId, SessionNumber, VolumeId};
use hotbay_core::message::{Answer, AnswerResult, Order, Registration};
use hotbay_core::order::{Generation, Goal, Term};

use super::{Invariant, Told, ToldWhat};
use crate::drive::Work;
use crate::fault::Fault;
use crate::machine::short;
use crate::network::ConnectionId;
use crate::registry::{Caller, Site};
use crate::world::World;

impl World {
    /// An agent begins to attach, relabel or detach: 1, 3, 5 and 7.
    pub(crate) fn carries_out(
        &mut self,
        machine: usize,
        drive: DriveId,
        generation: Generation,
        goal: Goal,
    ) {
        let process = self.machines[machine].process.as_ref().expect("it acts");
        let in_force = process.agent.in_force(drive);
        let by_label = in_force.is_none() && process.by_label.contains(&drive);
        let key = (machine, drive);
        if by_label {
            self.ledger.by_label.insert(key);
        } else {
            self.ledger.by_label.remove(&key);
        }
        let stale = |(acted, by): (Generation, Goal)| {
            generation < acted || (generation == acted && goal != by)
        };
        let before = self.ledger.acted.insert(key, (generation, goal));
        let what = format!("{} is {goal}ed at generation {generation}", short(drive));
        if let Some(before) = before.filter(|before| stale(*before)) {
            let what = format!("{what} after {} at generation {}", before.1, before.0);
            self.breaks(Invariant::StaleOrder, what);
        }
        let stored = self.machines[machine].stored();
        let saved = stored.and_then(|record| record.drives.get(&drive)?.in_force);
        if !by_label && saved != in_force {
            self.breaks(Invariant::ActedBeforeSaved, what.clone());
        }
        let removed = self.ledger.removed.get(&key).copied();
        if goal == Goal::Attach && !by_label && removed.is_some_and(|at| generation <= at) {
            self.breaks(Invariant::ReopenedAfterRemoval, what.clone());
        }
        // An order that was withdrawn before a client was told may still be in force where the newer one has not come.
        let told = self.ledger.volumes.get(&drive).into_iter().flat_map(|told| told.values());
        let volumes = told.into_iter().any(|at| generation >= *at);
        // A registry that forgot a part of its past has forgotten the volumes as well.
        let own = self.holds(machine, drive);
        if goal == Goal::Detach && volumes && own && !self.scenario.forked() {
            self.breaks(Invariant::ClosedUnderVolumes, what);
        }
    }

    /// An agent answers: what it says done is on its disk (7).
    pub(crate) fn answers(&mut self, machine: usize, answer: &Answer) {
        if answer.result != AnswerResult::Done {
            return;
        }
        let stamp = answer.ordered.stamp;
        let saved = self.machines[machine].stored().is_some_and(|record| {
            let seen = record.drives.get(&answer.drive).map(|memory| memory.seen);
            let term = record
                .term
                .is_some_and(|term| term == stamp.term || term.number > stamp.term.number);
            term && seen.is_some_and(|seen| seen.stamp.generation >= stamp.generation)
        });
        if !saved {
            let what = format!("{} under {stamp}", short(answer.drive));
            self.breaks(Invariant::AnsweredBeforeSaved, what);
        }
    }

    /// An order came into force: it is from the reign that the agent registered with last (1).
    pub(crate) fn order_taken(&mut self, machine: usize, id: ConnectionId) {
        let reign = self.connections[&id].reign;
        let accepted = self.agent_of(machine).accepted;
        if accepted != Some(reign) {
            let what = format!(
                "{} takes an order of reign {reign}, and registered last with {accepted:?}",
                self.machines[machine].name
            );
            self.breaks(Invariant::ForeignOrder, what);
        }
    }

    /// An agent accepts a registry: that registry knows the newest term that the agent had accepted (1, 7).
    pub(crate) fn registry_accepted(&mut self, machine: usize, reign: u64, before: Option<Term>) {
        self.ledger.refusals.remove(&machine);
        let known = self.ledger.terms.get(&reign);
        let foreign = |term: &Term| !known.is_some_and(|terms| terms.contains(term));
        if let Some(term) = before.filter(foreign) {
            let name = &self.machines[machine].name;
            let what = format!("{name} has served term {term}, and obeys one that has not");
            self.breaks(Invariant::ForeignRegistry, what);
        }
    }

    /// A registry takes the lead: what clients were told is in its records (7).
    pub(crate) fn told_survives(&mut self, site: usize, cluster: &Cluster) {
        let of_site = self.ledger.told.range((site, DriveId::from_bits(0))..);
        let of_site = of_site.take_while(|((told_by, _), _)| *told_by == site);
        let lost = of_site.map(|((_, drive), told)| (*drive, *told)).find(|(drive, told)| {
            let known = cluster.drive(*drive).map(|drive| &drive.record);
            let known = known.map(|record| (record.generation, record.state.goal()));
            known.is_none_or(|known| known.0 < told.0 || (known.0 == told.0 && known.1 != told.1))
        });
        if let Some((drive, (generation, goal))) = lost {
            let what = format!("{} was told to be at {generation}, {goal}", short(drive));
            self.breaks(Invariant::Forgotten, what);
        }
        let used = |id: &VolumeId| cluster.volume(*id).is_some_and(|it| !it.attachments.is_empty());
        // Who went back in time may learn of a use again from its node.
        let forked = self.sites[site].forked;
        let told = self.ledger.unused.iter().filter(|(told_by, _)| *told_by == site && !forked);
        if let Some((_, volume)) = told.into_iter().find(|(_, volume)| used(volume)) {
            let what = format!("{volume} was told to be used by nobody");
            self.breaks(Invariant::Forgotten, what);
        }
    }

    /// A registry writes; notes the past that it knows of.
    pub(crate) fn terms_known(&mut self, site: usize, writes: &[Write]) {
        let reign = self.sites[site].process.as_ref().expect("it writes").reign;
        for write in writes {
            if let Write::Registry(record) = write {
                self.ledger.terms.insert(reign, record.terms.clone());
            }
        }
    }

    /// A registry's store was replaced: what it told before is not expected of it.
    pub(crate) fn past_is_gone(&mut self, site: usize) {
        self.ledger.told.retain(|(told_by, _), _| *told_by != site);
        self.ledger.unused.retain(|(told_by, _)| *told_by != site);
        // A purge raises generations that no agent hears of; who restores the past may give them out again.
        let machines = &self.machines;
        self.ledger.removed.retain(|(machine, drive), generation| {
            let memory = machines[*machine].stored().and_then(|record| record.drives.get(drive));
            memory.is_some_and(|memory| memory.seen.stamp.generation >= *generation)
        });
    }

    /// An agent's record was lost: what it did before is not expected of it.
    pub(crate) fn record_was_lost(&mut self, machine: usize) {
        self.ledger.acted.retain(|(acted_on, _), _| *acted_on != machine);
    }

    /// A registration was turned away: only for a cause.
    pub(crate) fn registration_refused(&mut self, id: ConnectionId, why: &RegistrationRefused) {
        let machine = self.connections[&id].machine;
        self.ledger.refusals.insert(machine, why.to_string());
        let caused = match why {
            RegistrationRefused::RegistryRewound { .. } => {
                self.fault(Fault::RewoundNoticed);
                self.scenario.forked()
            }
            // Two registries may have given a new node two ids, and so has one that forgot that it purged the first:
            // the host is purged again then.
            RegistrationRefused::DuplicateNode { .. } => {
                let name = self.machines[machine].name.to_string();
                let purge_forgotten = self.scenario.forked() && self.ledger.purged.contains(&name);
                self.machines[machine].directory_lost || self.sites.len() > 1 || purge_forgotten
            }
            RegistrationRefused::ForeignCluster { .. } => false,
        };
        if !caused {
            self.breaks(Invariant::RewoundWithoutCause, why.to_string());
        }
    }

    /// The registry took an event. Says what the client will be told by it.
    pub(crate) fn applied(
        &mut self,
        site: usize,
        event: &Event,
        caller: Caller,
        effects: &Effects,
    ) -> Vec<Told> {
        match (event, caller) {
            (Event::Register { registration, .. }, Caller::Agent(id)) => {
                self.registered_knows_no_newer(site, registration);
                let machine = self.connections[&id].machine;
                self.ledger.by_label.retain(|(opened_on, _)| *opened_on != machine);
                Vec::new()
            }
            (Event::Answer { answer, .. }, Caller::Agent(id)) => {
                if answer.result == AnswerResult::Done {
                    self.confirmation_is_true(site, id, answer);
                }
                Vec::new()
            }
            (Event::Act { actions, dry_run: false, .. }, _) => {
                let Reply::Acted(outcomes) = &effects.reply else { return Vec::new() };
                let pairs = actions.iter().zip(outcomes);
                for (action, outcome) in pairs.clone() {
                    self.given_up(site, action, outcome);
                }
                pairs.flat_map(|(action, outcome)| self.tells(site, action, outcome)).collect()
            }
            (Event::Volume { request: VolumeRequest::Attach { volume, .. }, .. }, _) => {
                self.ledger.unused.remove(&(site, *volume));
                Vec::new()
            }
            (Event::Volume { request: VolumeRequest::Create { id, .. }, .. }, _) => {
                let process = self.sites[site].process.as_ref().expect("it answers");
                // Under another id it was placed before.
                let drive = process.cluster.volume(*id).and_then(|volume| volume.drive);
                if let Some(drive) = drive.filter(|_| !effects.writes.is_empty()) {
                    self.placed_on_open_drive(site, drive);
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// A purged host's volumes are given up with it: its drives may be closed under them (5).
    fn given_up(&mut self, site: usize, action: &Action, outcome: &Outcome) {
        match (action, outcome.code) {
            (Action::PurgeHost { host }, Code::Ok) => {
                self.fault(Fault::HostPurged);
                self.ledger.purged.insert(host.to_string());
                for drive in outcome.drives.iter().filter_map(|outcome| outcome.drive) {
                    self.ledger.volumes.remove(&drive);
                }
            }
            (Action::AddHost { returned: true, .. }, Code::Ok) => self.fault(Fault::HostReturned),
            (Action::TakeOver(_), Code::Ok) => {
                self.fault(Fault::TakeOverAsked);
                self.taken_over(site, outcome);
            }
            _ => {}
        }
    }

    /// The volumes on a drive that is taken over are its new node's: what was ordered before was about another's (5).
    fn taken_over(&mut self, site: usize, outcome: &Outcome) {
        let drives = outcome.drives.iter().chain([outcome]).filter_map(|outcome| outcome.drive);
        for drive in drives {
            let process = self.sites[site].process.as_ref().expect("it answers");
            let Some(known) = process.cluster.drive(drive) else { continue };
            let generation = known.record.generation;
            let told = self.ledger.volumes.get_mut(&drive).into_iter().flatten();
            told.for_each(|(_, at)| *at = generation);
        }
    }

    fn tells(&self, site: usize, action: &Action, outcome: &Outcome) -> Vec<Told> {
        let removes = matches!(action, Action::RemoveDevice(_) | Action::RemoveHost { .. });
        let each = outcome.drives.iter().chain([outcome]);
        each.filter_map(|outcome| {
            let drive = outcome.drive?;
            let what = match outcome.code {
                Code::Ok if removes => ToldWhat::Removed { excused: self.excused(site, drive) },
                Code::Ok | Code::Already | Code::TryAgain => ToldWhat::Wish,
                Code::InvalidState | Code::NotFound | Code::Argument => return None,
            };
            self.told_of(site, drive, what)
        })
        .collect()
    }

    fn told_of(&self, site: usize, drive: DriveId, what: ToldWhat) -> Option<Told> {
        let process = self.sites[site].process.as_ref()?;
        let record = &process.cluster.drive(drive)?.record;
        let (generation, goal) = (record.generation, record.state.goal());
        let before = self.ledger.told.get(&(site, drive));
        let changed = before.is_none_or(|before| before.0 != generation);
        Some(Told { drive, generation, goal, what, changed })
    }

    /// A reply leaves the registry: 3, 5 and 7.
    pub(crate) fn told(&mut self, site: usize, told: &Told) {
        let Told { drive, generation, goal, what, .. } = *told;
        let durable_at = self.sites[site].store.drives.get(&drive).map(|record| record.generation);
        if durable_at.is_none_or(|durable| durable < generation) {
            let what = format!("{} at generation {generation}, {goal}", short(drive));
            self.breaks(Invariant::Forgotten, what);
        }
        let newest = self.ledger.told.entry((site, drive)).or_insert((generation, goal));
        if generation >= newest.0 {
            *newest = (generation, goal);
        }
        match what {
            ToldWhat::Wish => {}
            ToldWhat::Removed { excused } => {
                if excused || self.excused(site, drive) {
                    return;
                }
                if let Some(machine) = self.machine_of(site, drive) {
                    let newest = self.ledger.removed.entry((machine, drive)).or_default();
                    *newest = (*newest).max(generation);
                }
                // The answer for a host waits for all of its records, and on a store of single ones that may take long.
                // What the registry has heard of one drive meanwhile, or was asked, comes after it.
                let process = self.sites[site].process.as_ref().expect("it answers");
                let state = process.cluster.drive(drive).map(|drive| drive.record.state);
                let closed = matches!(state, Some(State::Unknown | State::Detached));
                let heard_since = self.scenario.records.is_some() && !closed;
                if self.is_open(site, drive) && !heard_since {
                    let what = format!("{} at generation {generation}", short(drive));
                    self.breaks(Invariant::RemovedWhileOpen, what);
                }
            }
        }
    }

    /// An order leaves the registry: what it was decided on is durable, or agents would know more than the next (7).
    pub(super) fn order_is_durable(&mut self, site: usize, session: SessionNumber, order: &Order) {
        let Site { store, process, forked, .. } = &self.sites[site];
        let Order { drive, ordered, .. } = order;
        let cluster = process.as_ref().map(|process| &process.cluster);
        // Who has a drive that is another's closes it above all that it has seen, also what a registry has forgotten.
        let own = cluster.is_some_and(|cluster| cluster.is_on(*drive, session));
        let known = cluster.is_some_and(|cluster| cluster.drive(*drive).is_some());
        let known = known && (own || !forked);
        let durable = store.drives.get(drive).map(|record| record.generation);
        let term = store.registry.as_ref().is_some_and(|it| it.terms.contains(&ordered.stamp.term));
        let written = durable.is_some_and(|durable| durable >= ordered.stamp.generation);
        if !term || known && !written {
            let what =
                format!("{} is ordered to {} at {}", short(*drive), ordered.goal, ordered.stamp);
            self.breaks(Invariant::Forgotten, what);
        }
    }

    /// A registration was taken: the agent has seen nothing newer than the registry knows (1).
    fn registered_knows_no_newer(&mut self, site: usize, registration: &Registration) {
        let process = self.sites[site].process.as_ref().expect("it answers");
        let newer = registration.drives.iter().find(|report| {
            let known = process.cluster.drive(report.drive).map(|drive| &drive.record);
            let Some((theirs, goal)) = report.newest() else { return false };
            known.is_some_and(|ours| {
                theirs > ours.generation || (theirs == ours.generation && goal != ours.state.goal())
            })
        });
        if let Some(report) = newer {
            let what =
                format!("{} knows a newer order for {}", registration.name, short(report.drive));
            self.breaks(Invariant::ForeignRegistry, what);
        }
    }

    /// A confirmation counted: it is from the newest registered start, and true (1, 3).
    fn confirmation_is_true(&mut self, site: usize, id: ConnectionId, answer: &Answer) {
        let drive = answer.drive;
        let (machine, start) = (self.connections[&id].machine, self.connections[&id].start);
        let process = self.sites[site].process.as_ref().expect("it counted");
        let record = &process.cluster.drive(drive).expect("it counted").record;
        let session = process.cluster.node(record.node).and_then(|node| node.session);
        let newest = session.and_then(|session| process.sessions.get(&session.number));
        let newest_start = newest.map(|newest| self.connections[newest].start);
        if newest_start.is_some_and(|newest| newest != start) {
            let what = format!("{} from an earlier start of the agent", short(drive));
            return self.breaks(Invariant::StaleConfirmation, what);
        }
        let alive = self.machines[machine].process.as_ref();
        let open = alive.filter(|alive| alive.start == start);
        let open = open.map(|alive| alive.open.contains_key(&drive));
        let closed_again = match answer.ordered.goal {
            Goal::Attach => open == Some(false) && !self.behind(site, machine, drive),
            Goal::Detach => self.is_open(site, drive) && !self.excused(site, drive),
        };
        if closed_again {
            let what = format!("{} says {} done", short(drive), answer.ordered.goal);
            self.breaks(Invariant::StaleConfirmation, what);
        }
    }

    /// A volume was placed: if the agent is there, the drive is open (4).
    fn placed_on_open_drive(&mut self, site: usize, drive: DriveId) {
        let Some(machine) = self.machine_of(site, drive) else { return };
        let process = self.sites[site].process.as_ref().expect("it placed");
        let record = &process.cluster.drive(drive).expect("it placed").record;
        let session = process.cluster.node(record.node).and_then(|node| node.session);
        let over = session.and_then(|session| process.sessions.get(&session.number)).copied();
        let agent = self.machines[machine].process.as_ref();
        let agent = agent.filter(|agent| over.is_some() && agent.connection == over);
        if agent.is_some_and(|agent| !agent.open.contains_key(&drive)) {
            self.breaks(Invariant::PlacedOnClosedDrive, short(drive));
        }
    }

    /// Whether the machine of a drive has it open, or a child of it is about to.
    fn is_open(&self, site: usize, drive: DriveId) -> bool {
        let Some(machine) = self.machine_of(site, drive) else { return false };
        let there = &self.machines[machine];
        let process = there.process.as_ref();
        let open = process.is_some_and(|process| {
            let opening = process.steps.get(&drive);
            process.open.contains_key(&drive)
                || opening.is_some_and(|step| matches!(step.work, Work::Attach { .. }))
        });
        open || there.children.iter().any(|child| child.drive == drive)
    }

    /// Whether the registry cannot know better than its records, before the machine registers again.
    fn excused(&self, site: usize, drive: DriveId) -> bool {
        let Some(machine) = self.machine_of(site, drive) else { return true };
        self.ledger.by_label.contains(&(machine, drive)) || self.behind(site, machine, drive)
    }

    /// The registry went back in time, or has a rival, and the machine knows newer things than it does.
    fn behind(&self, site: usize, machine: usize, drive: DriveId) -> bool {
        if !self.sites[site].forked {
            return false;
        }
        let there = &self.machines[machine];
        let record = there.process.as_ref().map(|process| process.agent.record());
        let Some(record) = record.or(there.stored()) else { return false };
        let known = self.sites[site].process.as_ref();
        let terms = known.and_then(|process| self.ledger.terms.get(&process.reign));
        let foreign =
            record.term.is_some_and(|term| terms.is_none_or(|terms| !terms.contains(&term)));
        let ours = known.and_then(|process| process.cluster.drive(drive));
        // A host that is purged and taken back meanwhile may have a higher generation than the machine knows of.
        let node = known.zip(ours).and_then(|(known, ours)| known.cluster.node(ours.record.node));
        let unheard =
            node.is_some_and(|node| node.session.is_none() && node.silent_since_ms.is_none());
        let ours = ours.map(|ours| (ours.record.generation, ours.record.state.goal()));
        let seen = record.drives.get(&drive).map(|memory| memory.seen);
        let newer = seen.is_some_and(|seen| {
            ours.is_none_or(|(generation, goal)| {
                seen.stamp.generation > generation
                    || (seen.stamp.generation == generation && seen.goal != goal)
            })
        });
        foreign || newer || unheard
    }

    /// Whether a drive is this machine's, as far as is durable. One that was taken over from it is not.
    pub(crate) fn holds(&self, machine: usize, drive: DriveId) -> bool {
        let there = &self.machines[machine];
        let store = &self.sites[there.site].store;
        let node = store.drives.get(&drive).and_then(|record| store.nodes.get(&record.node));
        node.is_none_or(|node| node.name == there.name)
    }

    /// The machine that a registry holds a drive for.
    pub(crate) fn machine_of(&self, site: usize, drive: DriveId) -> Option<usize> {
        let cluster = &self.sites[site].process.as_ref()?.cluster;
        let node = cluster.node(cluster.drive(drive)?.record.node)?;
        self.machines.iter().position(|machine| machine.name == node.record.name)
    }
}
