//! An agent registers: who it is, whether this registry may give it orders at all, and which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thiserror::Error;

use super::life::Happening;
use super::records::{DriveRecord, NodeRecord, Write};
use super::rewound::Difference;
use super::{Cluster, Contact, Effects, FreshIds, Newcomer, Refused, Reply, Session, State};
use crate::device::Observed;
use crate::evidence::Comparison;
use crate::ids::{CertificateNumber, ClusterId, DriveId, NodeId, NodeName, SessionNumber};
use crate::message::{DriveReport, Order, RecordHealth, Registered, Registration};
use crate::order::{Generation, Goal, Ordered, Stamp};
use crate::rules::Rule;

/// Why an agent gets no session.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
pub enum RegistrationRefused {
    #[error(
        "RegistryRewound: node {node} knows newer orders than this registry, which seems to be a restored backup or \
         a copy; it gives no order to that node"
    )]
    RegistryRewound { node: NodeName, differences: Vec<Difference> },
    #[error(
        "DuplicateNode: another machine is registered as {node}, or holds drives in operation under that name; give \
         one of the two another name, or, if the other is gone for good, give it up:  hotbay host purge {node}"
    )]
    DuplicateNode { node: NodeName },
    #[error(
        "ForeignCluster: node {node} belongs to cluster {theirs}; if it is to leave that one for good, stop its agent, \
         remove the agent's data directory and start it again; drives stay marked as that cluster's until wiped"
    )]
    ForeignCluster { node: NodeName, theirs: ClusterId },
}

/// What a reported device is to the registry.
pub(super) enum Matched {
    Known(DriveId),
    New,
    /// It has the evidence or the label of another drive, or of one on another node.
    Conflict(DriveId),
}

impl Cluster {
    pub(super) fn register(
        &mut self,
        session: SessionNumber,
        certificate: Option<CertificateNumber>,
        registration: Registration,
        fresh: FreshIds,
        now_ms: u64,
    ) -> Result<Effects, Refused> {
        let known = match self.known_node(session, certificate, &registration) {
            Ok(known) => known,
            Err(refused) => return Err(self.note_duplicate(refused, &registration, now_ms)),
        };
        let differences = self.differences(&registration);
        if let Some(node) = known.and_then(|id| self.nodes.get_mut(&id)) {
            node.rewound.clone_from(&differences);
        }
        if !differences.is_empty() {
            self.remember(known.or(registration.node), &registration, differences.clone());
            let node = registration.name;
            return Err(RegistrationRefused::RegistryRewound { node, differences }.into());
        }
        self.heard.remove(&registration.name);
        let Registration {
            name,
            machine,
            incarnation,
            record,
            drives,
            devices,
            conditions,
            labels,
            device_mapper,
            program,
            ..
        } = registration;
        let mut effects = Effects::default();
        // A node that this registry has forgotten keeps the id that it was told.
        let id = known.or(registration.node).unwrap_or(fresh.node);
        let node_record = match known.map(|id| self.nodes[&id].record.clone()) {
            Some(record) => NodeRecord { name, machine, recovered: false, ..record },
            // What the machine says of itself counts once; then it is for people to say.
            None => NodeRecord { labels, ..NodeRecord::new(id, name, machine) },
        };
        if known.is_none() {
            self.insert_node(node_record.clone());
            effects.writes.push(Write::Node(node_record));
        } else if self.nodes[&id].record != node_record {
            effects.writes.push(Write::Node(node_record.clone()));
            self.renew_node(node_record);
        }
        let node = self.nodes.get_mut(&id).expect("inserted above");
        node.session = Some(Session { number: session, incarnation, certificate, device_mapper });
        (node.silent_since_ms, node.duplicate_ms) = (None, None);
        node.not_its_own.clear();
        node.newest = session;
        (node.agent_record, node.program) = (Some(record), *program);
        // A registration that comes twice in a session forgets nothing: the agent tells each label once in a session.
        if self.sessions.insert(session, id).is_none() {
            self.forget_labels_on(id);
        }
        self.note_conditions(id, conditions, &mut effects);
        let reports: BTreeMap<_, _> =
            drives.into_iter().map(|report| (report.drive, report)).collect();
        self.make_again(id, &reports, &devices, now_ms, &mut effects);
        self.finish_left_over(now_ms, &mut effects);
        self.take_inventory(id, devices, fresh.drives, now_ms, &mut effects);
        let (allowed, unknown) = self.settle(id, &reports, now_ms, &mut effects);
        // The answer has them.
        effects.orders.retain(|(to, _)| *to != session);
        self.order_uses_on(id, &mut effects);
        effects.notices.push(self.registered_notice(id));
        effects.reply = Reply::Registered(Box::new(Registered {
            session,
            cluster: self.id(),
            node: id,
            term: self.term(),
            allowed,
            unknown,
        }));
        Ok(effects)
    }

    /// Keeps for people that another machine would be a node that is known.
    fn note_duplicate(
        &mut self,
        refused: Refused,
        registration: &Registration,
        now_ms: u64,
    ) -> Refused {
        if matches!(refused, Refused::Registration(RegistrationRefused::DuplicateNode { .. })) {
            let named = self.node_by_name.get(&registration.name).copied().or(registration.node);
            if let Some(node) = named.and_then(|id| self.nodes.get_mut(&id)) {
                node.duplicate_ms = Some(now_ms);
            }
        }
        refused
    }

    /// Which node speaks, if it is known; refused if it must not speak under this name.
    fn known_node(
        &self,
        session: SessionNumber,
        certificate: Option<CertificateNumber>,
        registration: &Registration,
    ) -> Result<Option<NodeId>, Refused> {
        let name = &registration.name;
        if let Some(theirs) = registration.cluster.filter(|cluster| *cluster != self.id()) {
            return Err(RegistrationRefused::ForeignCluster { node: name.clone(), theirs }.into());
        }
        let speaks_for = self.sessions.get(&session);
        let returning = match certificate.filter(|number| self.is_revoked(name, *number)) {
            Some(_) => Some(self.purged_node_of(registration)?),
            None => registration.node.filter(|id| self.is_purged(*id)),
        };
        let named = returning.or_else(|| self.node_by_name.get(name).copied());
        if speaks_for.is_some() && speaks_for.copied() != named {
            return Err(Refused::OldSession);
        }
        // One that was purged is known by its id, whoever has its name now.
        if let Some(id) = returning {
            return Ok(Some(id));
        }
        let duplicate = || RegistrationRefused::DuplicateNode { node: name.clone() };
        let Some(node) = self.node_by_name.get(name).map(|id| &self.nodes[id]) else {
            return match registration.node.and_then(|id| self.nodes.get(&id)) {
                None => Ok(None),
                // All that was known of it is its id, from the labels of its drives.
                Some(node) if node.record.recovered => Ok(Some(node.record.id)),
                // A node that was told an id under another name must not take a second one.
                Some(_) => Err(duplicate().into()),
            };
        };
        if self.rules.hold(Rule::NewestSession) && session < node.newest {
            return Err(Refused::OldSession);
        }
        let other_id = registration.node.is_some_and(|id| id != node.record.id);
        let other_machine = node.record.machine != registration.machine
            && !node.record.recovered
            && (node.session.is_some() || !self.shows_its_drives(node.record.id, registration));
        if other_id || other_machine {
            return Err(duplicate().into());
        }
        Ok(Some(node.record.id))
    }

    /// A machine that lost its state directory is the node all the same if it has the node's drives.
    pub(super) fn shows_its_drives(&self, node: NodeId, registration: &Registration) -> bool {
        let mut in_operation = self.nodes[&node].drives.iter().filter_map(|id| {
            let drive = &self.drives[id];
            let used = match drive.record.state {
                State::Attaching | State::Attached | State::Closing => true,
                State::Unknown | State::Detached => false,
            };
            used.then_some(&drive.record.observed.evidence)
        });
        in_operation.all(|evidence| {
            let same = |device: &Observed| device.evidence.compare(evidence) == Comparison::Same;
            registration.devices.iter().any(same)
        })
    }

    /// Compares what a node reports with what is known, and notes what really changed.
    pub(super) fn take_inventory(
        &mut self,
        node: NodeId,
        devices: Vec<Observed>,
        fresh: Vec<DriveId>,
        now_ms: u64,
        effects: &mut Effects,
    ) {
        assert!(fresh.len() >= devices.len(), "one fresh id per device");
        let (mut seen, mut newcomers) = (BTreeSet::new(), Vec::new());
        let mut devices: Vec<_> = devices.into_iter().zip(fresh).collect();
        // A drive is looked for where its label is, then where it was, so that a copy beside it is not taken for it.
        devices.sort_by_key(|(device, _)| {
            (self.labelled_as(device).is_none(), !self.is_where_it_was(node, device))
        });
        for (device, fresh) in devices {
            self.bring_over(node, &device, effects);
            let id = match self.matched(node, &device, &seen) {
                Matched::Known(id) => {
                    let came_back = !self.drives[&id].present;
                    self.note_present(id, device, effects);
                    if came_back && self.says_it_is_in_operation(id) {
                        self.resume_closing(id, now_ms, effects);
                    }
                    id
                }
                Matched::New => {
                    let mut record = new_record(node, fresh, device.clone(), now_ms);
                    record.name = self.free_name(fresh);
                    effects.writes.push(Write::Drive(Box::new(record.clone())));
                    self.insert_drive(record);
                    self.note_present(fresh, device, effects);
                    let drive = self.drives.get_mut(&fresh).expect("inserted above");
                    // What no label of ours was ever on, no agent of ours can have open.
                    if drive.label.is_none() {
                        drive.contact = Contact::Reported { open: false };
                    }
                    fresh
                }
                Matched::Conflict(like) => {
                    newcomers.push(Newcomer { node, device, like, since_ms: now_ms });
                    continue;
                }
            };
            seen.insert(id);
        }
        self.note_newcomers(node, newcomers, effects);
        let missing: Vec<_> = self.nodes[&node].drives.difference(&seen).copied().collect();
        for id in missing {
            self.note_missing(id, effects);
        }
        self.settle_newcomers(effects);
        self.add_by_rule(node, now_ms, effects);
    }

    /// The drive that a device is by its label and by its evidence.
    fn labelled_as(&self, device: &Observed) -> Option<DriveId> {
        let label = device.label.filter(|label| label.cluster == self.id())?;
        self.fitting(device).find(|id| *id == label.drive)
    }

    /// Whether a device is one of the node's drives, in the place where that was last.
    fn is_where_it_was(&self, node: NodeId, device: &Observed) -> bool {
        self.fitting(device).any(|id| {
            let record = &self.drives[&id].record;
            record.node == node && record.observed.path == device.path
        })
    }

    /// The drives that have the same evidence as a device.
    pub(super) fn fitting<'a>(
        &'a self,
        device: &'a Observed,
    ) -> impl Iterator<Item = DriveId> + 'a {
        let facts = device.evidence.facts().into_iter();
        let ids: BTreeSet<DriveId> = facts.flat_map(|fact| self.with_fact(fact)).collect();
        ids.into_iter().filter(|id| {
            let known = &self.drives[id].record.observed.evidence;
            device.evidence.compare(known) == Comparison::Same
        })
    }

    pub(super) fn matched(
        &self,
        node: NodeId,
        device: &Observed,
        seen: &BTreeSet<DriveId>,
    ) -> Matched {
        let label = device.label.filter(|label| label.cluster == self.id());
        let mut fitting = self.fitting(device);
        match (fitting.next(), fitting.next()) {
            (Some(_), Some(second)) => Matched::Conflict(second),
            (Some(id), None) => {
                let elsewhere = self.drives[&id].record.node != node;
                let other_label = label.is_some_and(|label| label.drive != id);
                if elsewhere || other_label || seen.contains(&id) {
                    Matched::Conflict(id)
                } else {
                    Matched::Known(id)
                }
            }
            (None, _) => match label.filter(|label| self.drives.contains_key(&label.drive)) {
                // Our label on another drive: somebody copied it.
                Some(label) => Matched::Conflict(label.drive),
                None => self.nameless_at(node, &device.path).map_or(Matched::New, Matched::Known),
            },
        }
    }

    /// A drive that nothing tells from another is only known by its place; it cannot be added, so no order is bound
    /// to it. Without this every report would make it a drive of its own.
    fn nameless_at(&self, node: NodeId, path: &str) -> Option<DriveId> {
        let nameless = |id: &&DriveId| {
            let observed = &self.drives[id].record.observed;
            observed.evidence.is_empty() && observed.path == path
        };
        self.nodes[&node].drives.iter().find(nameless).copied()
    }

    /// Sets what each drive of the node is known to be, and lists the orders that follow.
    fn settle(
        &mut self,
        node: NodeId,
        reports: &BTreeMap<DriveId, DriveReport>,
        now_ms: u64,
        effects: &mut Effects,
    ) -> (Vec<Order>, Vec<Order>) {
        let (mut allowed, mut unknown) = (Vec::new(), Vec::new());
        self.forget_uses_on(node);
        let ids: Vec<_> = self.nodes[&node].drives.iter().copied().collect();
        for id in ids {
            let report = reports.get(&id);
            let record = &self.drives[&id].record;
            let newest = report.and_then(DriveReport::newest);
            let agreed = (record.generation, Goal::Detach);
            let contradicted = newest.is_some_and(|newest| newest != agreed);
            // Without a record it may have been opened by its label, and be held since by a child of an earlier start.
            let unvouched = self.nodes[&node].agent_record != Some(RecordHealth::Usable)
                && record.state == State::Detached
                && newest != Some(agreed);
            let open = unvouched || report.is_some_and(|report| report.open);
            self.drives.get_mut(&id).expect("listed").contact = Contact::Reported { open };
            if open && self.rules.hold(Rule::ReopenedIsClosing) {
                self.resume_closing(id, now_ms, effects);
            }
            let drive = &self.drives[&id];
            let incarnation = self.nodes[&node].session.expect("just registered").incarnation;
            match drive.record.state {
                State::Attaching | State::Attached => {
                    allowed.push(self.order_for(drive, incarnation));
                }
                State::Closing => unknown.push(self.order_for(drive, incarnation)),
                State::Unknown | State::Detached => {
                    if open || contradicted {
                        unknown.push(self.order_for(drive, incarnation));
                    }
                }
            }
        }
        let forgotten = reports.values().filter(|report| !self.drives.contains_key(&report.drive));
        unknown.extend(forgotten.filter_map(|report| self.close_unknown(node, report)));
        unknown.extend(self.close_what_is_not_its_own(node, reports.values()));
        (allowed, unknown)
    }

    /// Whether a label says that its drive is in operation on the node that has it: an agent that lost its record would
    /// open it.
    fn says_it_is_in_operation(&self, id: DriveId) -> bool {
        let drive = &self.drives[&id];
        drive.label.is_some_and(|label| label.in_operation && label.node == drive.record.node)
    }

    /// A drive that is out of operation has to be closed, and to be proved closed, once more.
    fn resume_closing(&mut self, id: DriveId, now_ms: u64, effects: &mut Effects) {
        let Some(state) = self.drives[&id].record.state.after(Happening::ReportedOpen) else {
            return;
        };
        self.change_drive(id, effects, |record| {
            record.state = state;
            record.since_ms = now_ms;
        });
        effects.orders.extend(self.owed(id));
    }

    /// An order to close a drive that this registry has no record of and cannot make one for. All that is known of it
    /// is what its node says.
    fn close_unknown(&self, node: NodeId, report: &DriveReport) -> Option<Order> {
        let (generation, _) = report.newest()?;
        let session = self.nodes[&node].session?;
        let stamp = Stamp { term: self.term(), generation: generation.next() };
        Some(Order {
            drive: report.drive,
            ordered: Ordered { goal: Goal::Detach, stamp },
            incarnation: session.incarnation,
            evidence: report.evidence.clone(),
            take_over: false,
            wipe: None,
            given_up: false,
        })
    }

    /// A short name that no other drive has.
    pub(super) fn free_name(&self, id: DriveId) -> String {
        short_name("d-", &id.to_string(), |name| self.drive_by_name.contains_key(name))
    }

    /// A node that is known registers with something new about it.
    fn renew_node(&mut self, record: NodeRecord) {
        let node = self.nodes.get_mut(&record.id).expect("only known nodes are renewed");
        if node.record.recovered {
            self.node_by_name.remove(&node.record.name);
            self.node_by_name.insert(record.name.clone(), record.id);
        }
        node.record = record;
    }
}

/// The first digits of an id behind a prefix, as many as tell it from names that are taken.
pub(crate) fn short_name(prefix: &str, digits: &str, taken: impl Fn(&str) -> bool) -> String {
    let names =
        (8..=digits.len()).step_by(4).map(|length| format!("{prefix}{}", &digits[..length]));
    let mut free = names.filter(|name| !taken(name));
    free.next().unwrap_or_else(|| digits.to_owned())
}

pub(super) fn new_record(node: NodeId, id: DriveId, device: Observed, now_ms: u64) -> DriveRecord {
    DriveRecord {
        id,
        name: String::new(),
        node,
        observed: Arc::new(Observed { label: None, ..device }),
        generation: Generation::ZERO,
        state: State::Unknown,
        removal_wanted: false,
        removed_alone: false,
        take_over: false,
        wipe: None,
        added_bytes: 0,
        volumes: BTreeMap::new(),
        since_ms: now_ms,
        asked_by: String::new(),
    }
}

#[cfg(test)]
#[path = "registration_tests.rs"]
mod tests;
