//! The way out for a machine that is gone: its host is given up, and what comes back of it later is told to close.
//!
//! Nothing is forgotten: node and drives keep their records and ids, with generations above all that the machine could
//! have seen, and its certificates are revoked. If it returns, it gets no order but to detach, until a person says that
//! it is back; from another machine it must have joined anew before that. A drive of it that turns up in another node
//! belongs to that node from then on, and may be taken over there.

use super::records::Write;
use super::{About, Cluster, Contact, Effects, Notice, State};
use crate::cms::{Code, Outcome, Reason};
use crate::device::Observed;
use crate::ids::{DriveId, NodeId};
use crate::order::{Generation, Goal};

impl Cluster {
    pub(super) fn is_purged(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.record.purged)
    }

    /// Gives a host up. The outcome lists the volumes that are lost with it.
    pub(super) fn purge(
        &mut self,
        id: NodeId,
        asked_by: &str,
        now_ms: u64,
        effects: &mut Effects,
    ) -> Outcome {
        let node = &self.nodes[&id];
        let begun = node.record.purged;
        if begun && self.drives_not_given_up(id).is_empty() {
            return Outcome::new(Code::Already);
        }
        if node.session.is_some() {
            return Outcome::because(Code::InvalidState, Reason::AgentRegistered);
        }
        let name = node.record.name.clone();
        let drives: Vec<_> = node.drives.iter().copied().collect();
        let mut outcome = Outcome::new(Code::Ok);
        self.drop_newcomers_on(id);
        // Before the record is written: both are in one.
        self.revoke_certificates(id, now_ms);
        self.mark(id, true, effects);
        for drive in drives {
            outcome.dependent.extend(self.volumes_on(drive));
            self.give_up(drive, asked_by, now_ms, effects);
            outcome.drives.push(Outcome { drive: Some(drive), ..Outcome::new(Code::Ok) });
        }
        let text = format!("Host {name} was purged: its machine is taken for gone.");
        effects.notices.push(Notice::warning("HostPurged", About::Node(id), text));
        self.take_drives_for_gone(id);
        self.settle_newcomers(effects);
        outcome
    }

    fn give_up(&mut self, drive: DriveId, asked_by: &str, now_ms: u64, effects: &mut Effects) {
        self.lose_volumes(drive, now_ms, effects);
        let generation = self.raised(self.drives[&drive].record.generation);
        self.change_drive(drive, effects, |record| {
            record.generation = generation;
            record.removal_wanted = false;
            record.wipe = None;
            record.volumes.clear();
            asked_by.clone_into(&mut record.asked_by);
            match record.state {
                State::Attaching | State::Attached | State::Closing => {
                    record.state = State::Closing;
                    record.since_ms = now_ms;
                }
                State::Unknown | State::Detached => {}
            }
        });
    }

    /// The drives of a purged host that are not as a purge leaves them: a store that keeps each record by itself may
    /// have the host's, which decides, and not yet theirs.
    fn drives_not_given_up(&self, id: NodeId) -> Vec<DriveId> {
        let drives = self.nodes[&id].drives.iter().copied();
        let kept = |drive: &DriveId| {
            let record = &self.drives[drive].record;
            record.state.goal() == Goal::Attach
                || record.removal_wanted
                || record.wipe.is_some()
                || !record.volumes.is_empty()
        };
        drives.filter(kept).collect()
    }

    /// Finishes the purges that a registry before has begun. Before anything is said about those drives, or one of them
    /// is found elsewhere: its generation must be above all that its machine has seen.
    pub(super) fn finish_purges(&mut self, now_ms: u64, effects: &mut Effects) {
        for id in std::mem::take(&mut self.half_purged) {
            // A person may have said meanwhile that it is back.
            if !self.is_purged(id) {
                continue;
            }
            for drive in self.drives_not_given_up(id) {
                let asked_by = self.drives[&drive].record.asked_by.clone();
                self.give_up(drive, &asked_by, now_ms, effects);
            }
        }
    }

    pub(super) fn note_half_purged(&mut self) {
        let purged = self.nodes.values().filter(|node| node.record.purged);
        let purged = purged.map(|node| node.record.id);
        self.half_purged = purged.filter(|id| !self.drives_not_given_up(*id).is_empty()).collect();
    }

    /// What was last reported of a machine does not count any more: a drive of it may be anywhere.
    pub(super) fn take_drives_for_gone(&mut self, id: NodeId) {
        for drive in &self.nodes[&id].drives {
            self.drives.get_mut(drive).expect("nodes list known drives").present = false;
        }
    }

    /// A person says that a purged host is back. It is not, while its agent shows a certificate from before.
    pub(super) fn welcome_back(&mut self, id: NodeId, effects: &mut Effects) -> Result<(), Reason> {
        if self.shows_revoked_certificate(id) {
            return Err(Reason::CertificateRevoked);
        }
        if self.is_purged(id) {
            self.mark(id, false, effects);
        }
        Ok(())
    }

    /// A drive that turns up elsewhere belongs there, if its host was purged, has reported it gone, or never was.
    pub(super) fn bring_over(&mut self, to: NodeId, device: &Observed, effects: &mut Effects) {
        let moved = self.fitting(device).find(|id| {
            let from = self.drives[id].record.node;
            from != to && (self.is_purged(from) || self.has_left(*id) || self.is_nobodys(*id))
        });
        let Some(id) = moved else { return };
        let from = self.drives[&id].record.node;
        let purged = self.is_purged(from);
        if let Some(node) = self.nodes.get_mut(&from) {
            node.drives.remove(&id);
        }
        self.nodes.get_mut(&to).expect("it registers").drives.insert(id);
        self.change_drive(id, effects, |record| {
            record.node = to;
            record.take_over = purged;
            // The new machine has to prove it closed: it may be the old one, come without its past, or have had the
            // drive before and open it by its own record.
            if record.state != State::Unknown {
                record.state = State::Closing;
            }
        });
        // What its old agent said of it does not count any more.
        self.drives.get_mut(&id).expect("found above").contact = Contact::Silent;
        let old = self.name_of(from);
        let was = if purged { ", a host that was given up" } else { ", which has it no more" };
        let text = format!("{} came from {old}{was}.", self.describe(id));
        effects.notices.push(Notice::warning("DriveMoved", About::Drive(id), text));
        effects.orders.extend(self.owed(id));
    }

    /// Nothing was ever wanted of it, and its node has no record: a store that keeps each record by itself may have
    /// been given the node's in vain, so that nobody was told of either.
    fn is_nobodys(&self, id: DriveId) -> bool {
        let record = &self.drives[&id].record;
        record.generation == Generation::ZERO && !self.nodes.contains_key(&record.node)
    }

    fn mark(&mut self, id: NodeId, purged: bool, effects: &mut Effects) {
        let node = self.nodes.get_mut(&id).expect("only known nodes are marked");
        node.record.purged = purged;
        effects.writes.push(Write::Node(node.record.clone()));
        let name = node.record.name.clone();
        if purged {
            self.node_by_name.remove(&name);
        } else {
            self.node_by_name.entry(name).or_insert(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, AttachAtStart, Event as AgentEvent, RecordFound};
    use crate::cluster::testing::{
        DRIVE, act, device, lead, register, registered, says, store, volume_on,
    };
    use crate::cluster::{Event, Records, VolumeState};
    use crate::cms::{Action, Target};
    use crate::ids::{Incarnation, SessionNumber};
    use crate::label::change::{Basis, LabelTold};
    use crate::label::extents::Extent;
    use crate::message::{Answer, AnswerResult, Order};
    use crate::rules::Rules;

    fn agent(serial: &str) -> Agent {
        let devices = vec![device(serial)];
        let start = Incarnation::from_bits(5);
        Agent::start(
            Rules::default(),
            start,
            RecordFound::Absent(None),
            devices,
            AttachAtStart::default(),
        )
        .0
    }

    fn purge_host(cluster: &mut Cluster) -> Outcome {
        act(cluster, Action::PurgeHost { host: "node-a".into() }).1
    }

    fn add_host(returned: bool) -> Action {
        Action::AddHost { host: "node-a".into(), with_removed: false, returned }
    }

    /// The agent has carried an order out.
    fn confirm(cluster: &mut Cluster, session: u64, order: &Order) {
        let Order { drive, ordered, incarnation, .. } = *order;
        let answer = Answer { drive, ordered, incarnation, result: AnswerResult::Done };
        let session = SessionNumber::from_number(session);
        cluster.apply(Event::Answer { session, answer }, 0).expect("it is the order in force");
    }

    /// A cluster with node-a and its drive in operation, the machine gone.
    fn cluster_with_a_lost_node() -> (Cluster, Agent) {
        let (mut cluster, _) = lead(Records::default(), 1);
        let mut agent = agent("S1");
        let effects = register(&mut cluster, 1, says(&agent, "node-a")).unwrap();
        agent.step(AgentEvent::Registered(registered(&effects)));
        let (effects, _) = act(&mut cluster, add_host(false));
        agent.step(AgentEvent::Order(effects.orders[0].1.clone()));
        let living = purge_host(&mut cluster);
        assert_eq!(living.reasons, [Reason::AgentRegistered], "a living host is not purged");
        agent.step(AgentEvent::SessionLost);
        cluster.apply(Event::SessionClosed(SessionNumber::from_number(1)), 0).unwrap();
        (cluster, agent)
    }

    #[test]
    fn a_purged_host_that_returns_is_told_to_close_until_a_person_says_otherwise() {
        let (mut cluster, mut agent) = cluster_with_a_lost_node();
        assert_eq!(purge_host(&mut cluster).code, Code::Ok);
        assert_eq!(purge_host(&mut cluster).code, Code::Already);
        assert_eq!(act(&mut cluster, add_host(false)).1.drives[0].reasons, [Reason::Purged]);
        let effects = register(&mut cluster, 2, says(&agent, "node-a")).unwrap();
        let answer = registered(&effects);
        assert!(answer.allowed.is_empty());
        assert_eq!(answer.unknown[0].ordered.goal, Goal::Detach);
        agent.step(AgentEvent::Registered(answer));
        assert_eq!(agent.in_force(DRIVE).map(|ordered| ordered.goal), Some(Goal::Detach));
        let (effects, outcome) = act(&mut cluster, add_host(true));
        assert_eq!(outcome.code, Code::Ok, "{outcome:?}");
        assert_eq!(effects.orders[0].1.ordered.goal, Goal::Attach);
    }

    /// What a label tells, and how a volume stands then.
    fn told(cluster: &mut Cluster, session: u64, extents: Vec<Extent>) {
        let basis = Basis { sequence: 2, checksum: 0 };
        let told = LabelTold { basis, extents, limit_bytes: 1 << 30 };
        let session = SessionNumber::from_number(session);
        cluster.apply(Event::LabelTold { session, drive: DRIVE, told }, 0).unwrap();
    }

    /// The story: volumes kept the drive of a purged host open for ever, and were made again by its label.
    #[test]
    fn a_purged_drive_is_closed_with_its_volumes_and_has_them_when_its_host_is_taken_back() {
        let (mut cluster, mut agent) = cluster_with_a_lost_node();
        let effects = register(&mut cluster, 2, says(&agent, "node-a")).unwrap();
        let order = registered(&effects).allowed[0].clone();
        assert!(!order.given_up);
        agent.step(AgentEvent::Registered(registered(&effects)));
        confirm(&mut cluster, 2, &order);
        let volume = volume_on(&mut cluster, SessionNumber::from_number(2), DRIVE);
        let space = cluster.drive(DRIVE).unwrap().space.clone().unwrap();
        let state = |cluster: &Cluster| cluster.volume(volume).map(|volume| volume.record.state);
        assert_eq!(state(&cluster), Some(VolumeState::Created));
        agent.step(AgentEvent::SessionLost);
        cluster.apply(Event::SessionClosed(SessionNumber::from_number(2)), 0).unwrap();
        assert_eq!(purge_host(&mut cluster).dependent, [volume]);
        assert_eq!(state(&cluster), Some(VolumeState::Lost));

        let effects = register(&mut cluster, 3, says(&agent, "node-a")).unwrap();
        let order = registered(&effects).unknown[0].clone();
        assert!(order.given_up && order.ordered.goal == Goal::Detach, "{order:?}");
        agent.step(AgentEvent::Registered(registered(&effects)));
        assert!(agent.is_given_up(DRIVE));
        told(&mut cluster, 3, space.extents.clone());
        assert_eq!(state(&cluster), Some(VolumeState::Lost), "nothing is taken back by itself");
        assert!(cluster.volumes_on(DRIVE).is_empty());
        confirm(&mut cluster, 3, &order);
        assert_eq!(cluster.drive(DRIVE).unwrap().record.state, State::Detached);

        let (effects, _) = act(&mut cluster, add_host(true));
        let order = effects.orders[0].1.clone();
        assert!(!order.given_up && order.ordered.goal == Goal::Attach, "{order:?}");
        agent.step(AgentEvent::Order(order.clone()));
        assert!(!agent.is_given_up(DRIVE));
        confirm(&mut cluster, 3, &order);
        told(&mut cluster, 3, space.extents);
        assert_eq!(state(&cluster), Some(VolumeState::Created), "a person said that it is back");
    }

    /// What was durable of a purge when the registry died: the first so many of its records. Gives the next registry.
    fn after_half_a_purge(written: usize) -> (Cluster, Agent) {
        let (mut cluster, writes) = lead(Records::default(), 1);
        let mut records = Records::default();
        store(&mut records, writes);
        let mut agent = agent("S1");
        let effects = register(&mut cluster, 1, says(&agent, "node-a")).unwrap();
        agent.step(AgentEvent::Registered(registered(&effects)));
        store(&mut records, effects.writes);
        let (effects, _) = act(&mut cluster, add_host(false));
        agent.step(AgentEvent::Order(effects.orders[0].1.clone()));
        store(&mut records, effects.writes);
        agent.step(AgentEvent::SessionLost);
        cluster.apply(Event::SessionClosed(SessionNumber::from_number(1)), 0).unwrap();
        let action = Action::PurgeHost { host: "node-a".into() };
        let (effects, _) = act(&mut cluster, action);
        assert_eq!(effects.writes.len(), 2, "the host, and its drive");
        store(&mut records, effects.writes.into_iter().take(written).collect());
        (lead(records, 2).0, agent)
    }

    /// The story: of a purge the host's record was durable and the drive's was not when the registry died. The next one
    /// held the host for purged and its drive for attached, for ever; and a repeated purge was told that it was done.
    #[test]
    fn a_purge_of_which_the_first_record_is_there_is_finished() {
        let (mut cluster, agent) = after_half_a_purge(1);
        let effects = register(&mut cluster, 1, says(&agent, "node-a")).unwrap();
        let order = &registered(&effects).unknown[0];
        assert_eq!((order.ordered.goal, order.given_up), (Goal::Detach, true));
        let generation = cluster.drive(DRIVE).unwrap().record.generation;
        assert_eq!(order.ordered.stamp.generation, generation);
        assert!(agent.in_force(DRIVE).unwrap().stamp.generation < generation);

        let (mut cluster, _) = after_half_a_purge(1);
        assert_eq!(purge_host(&mut cluster).code, Code::Ok, "it was not done");
        assert_eq!(purge_host(&mut cluster).code, Code::Already);
        let (mut cluster, _) = after_half_a_purge(2);
        assert_eq!(purge_host(&mut cluster).code, Code::Already);
    }

    /// The story: such a drive was found in another node, and was to be closed there under the very generation under
    /// which its old node had attached it.
    #[test]
    fn a_drive_of_a_half_purged_host_is_brought_over_under_a_higher_generation() {
        let (mut cluster, agent) = after_half_a_purge(1);
        let seen = agent.in_force(DRIVE).unwrap().stamp.generation;
        let other = self::agent("S1");
        register(&mut cluster, 2, says(&other, "node-b")).unwrap();
        let record = &cluster.drive(DRIVE).unwrap().record;
        assert_eq!((record.state, record.take_over), (State::Closing, true));
        assert!(record.generation > seen);
    }

    /// The story: the record of a new node could not be written, that of its drive could, and the registry died. To the
    /// next one the node was another, and its own drive looked like one of a node that never was: denied for ever.
    #[test]
    fn a_drive_whose_node_was_never_written_is_the_next_ones_who_has_it() {
        let (mut cluster, writes) = lead(Records::default(), 1);
        let mut records = Records::default();
        store(&mut records, writes);
        let agent = agent("S1");
        let effects = register(&mut cluster, 1, says(&agent, "node-a")).unwrap();
        store(&mut records, effects.writes);
        records.nodes.clear();
        let mut cluster = lead(records, 2).0;
        register(&mut cluster, 2, says(&agent, "node-a")).unwrap();
        assert_eq!(cluster.newcomers().count(), 0);
        let record = &cluster.drive(DRIVE).unwrap().record;
        assert_eq!((record.state, record.take_over), (State::Unknown, false));
        assert_eq!(cluster.node(record.node).unwrap().record.name.as_str(), "node-a");
    }

    #[test]
    fn another_machine_may_take_the_name_and_the_drives() {
        let (mut cluster, _) = cluster_with_a_lost_node();
        purge_host(&mut cluster);
        let newcomer = agent("S1");
        let effects = register(&mut cluster, 2, says(&newcomer, "node-b")).unwrap();
        let record = &cluster.drive(DRIVE).unwrap().record;
        assert_eq!((record.state, record.take_over), (State::Closing, true));
        confirm(&mut cluster, 2, &registered(&effects).unknown[0]);
        assert_eq!(cluster.drive(DRIVE).unwrap().record.state, State::Detached);
        let target = Target { host: Some("node-b".into()), device: "S1".into() };
        let (effects, outcome) = act(&mut cluster, Action::AddDevice(target));
        assert_eq!(outcome.code, Code::Ok);
        assert!(effects.orders[0].1.take_over, "a person said so");
        // Removed before it was opened, and added again: its label still has the old node's name.
        let target = || Target { host: Some("node-b".into()), device: "S1".into() };
        let (effects, _) = act(&mut cluster, Action::RemoveDevice(target()));
        confirm(&mut cluster, 2, &effects.orders[0].1);
        let (effects, _) = act(&mut cluster, Action::AddDevice(target()));
        assert!(effects.orders[0].1.take_over, "nobody has taken it over yet");
        confirm(&mut cluster, 2, &effects.orders[0].1);
        assert!(!cluster.drive(DRIVE).unwrap().record.take_over);
        let replacement = agent("S2");
        register(&mut cluster, 3, says(&replacement, "node-a")).expect("the name is free");
    }
}
