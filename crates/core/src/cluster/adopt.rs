//! The way out of `RegistryRewound`: a person lets the registry learn from the nodes what it has forgotten.
//!
//! Goals are taken from the agents' records, generations start above all that was heard, and so does the term that
//! begins: the nodes' foreign terms are added to the registry's past, and from then on its orders are the newest.

use super::records::Write;
use super::rewound::Difference;
use super::{About, Cluster, Contact, Effects, Notice, Reply, State};
use crate::ids::{AttachmentId, DriveId, NodeId, NodeName, TermId};
use crate::message::UseReport;
use crate::order::{Generation, Goal, Term};

/// What a node said that knows more than this registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Heard {
    pub differences: Vec<Difference>,
    /// Which node it is, where that is known.
    pub(super) node: Option<NodeId>,
    pub(super) newest_term: Option<Term>,
    pub(super) drives: Vec<(DriveId, Generation, Goal)>,
    pub(super) uses: Vec<UseReport>,
}

impl Cluster {
    /// Every node that knows more than this registry, with what it knows.
    pub fn rewound_nodes(&self) -> impl Iterator<Item = (&NodeName, &[Difference])> {
        self.heard.iter().map(|(name, heard)| (name, heard.differences.as_slice()))
    }

    /// Takes over what the rewound nodes know. Every session ends, because a new term begins.
    pub(super) fn adopt(&mut self, term: TermId, now_ms: u64) -> Effects {
        let mut effects = Effects { reply: Reply::Adopted, ..Effects::default() };
        let heard = std::mem::take(&mut self.heard);
        if heard.is_empty() {
            return effects;
        }
        let foreign = heard.values().filter_map(|heard| heard.newest_term);
        for foreign in foreign {
            if !self.registry.has_reigned_under(&foreign) {
                self.registry.note_term(foreign);
            }
        }
        let highest = self.registry.terms.iter().max_by_key(|term| term.number);
        let next = highest.map_or(Term::first(term), |highest| highest.succeeded_by(term));
        self.registry.note_term(next);
        effects.writes.push(Write::Registry(self.registry.clone()));
        for (name, heard) in &heard {
            let node = self.node_by_name.get(name).copied();
            let node = node.or_else(|| heard.node.filter(|id| self.is_recovered(*id)));
            for (drive, generation, goal) in &heard.drives {
                self.adopt_drive(node, (*drive, *generation, *goal), now_ms, &mut effects);
            }
        }
        // When it is decided which node has which drive.
        for (node, seen) in heard.values().flat_map(|heard| {
            heard.node.into_iter().flat_map(|node| heard.uses.iter().map(move |seen| (node, seen)))
        }) {
            // A volume has one attachment, so that this is as good as freshly drawn.
            let id = AttachmentId::from_bits(seen.volume.to_bits() ^ term.to_bits());
            self.adopt_use(id, node, seen, now_ms, &mut effects);
        }
        for name in heard.keys() {
            let text = format!("What {name} knows was adopted; the registry goes on above it.");
            effects.notices.push(Notice::warning("RegistryAdopted", About::Registry, text));
        }
        self.end_all_sessions();
        effects.sessions_end = true;
        effects
    }

    fn adopt_drive(
        &mut self,
        by: Option<NodeId>,
        (id, theirs, goal): (DriveId, Generation, Goal),
        now_ms: u64,
        effects: &mut Effects,
    ) {
        // One that is not known here is made again when its node registers, or closed if it cannot be.
        let Some(drive) = self.drives.get(&id) else {
            self.given_up.insert(id);
            return;
        };
        let ours = drive.record.generation;
        let known = ours > theirs || (ours == theirs && drive.record.state.goal() == goal);
        if known {
            return;
        }
        // Whoever was told last to attach it has it: it was taken over since.
        if let Some(node) = by.filter(|_| goal == Goal::Attach) {
            self.give_to(node, id, effects);
        }
        // A host that was given up gets no order but to close, whatever its machine remembers.
        let goal = if self.is_purged(self.drives[&id].record.node) { Goal::Detach } else { goal };
        if goal == Goal::Detach {
            // It was closed on an order, so nothing that is known here was on it then. Whatever turns up on its label
            // after all is found again.
            self.lose_volumes(id, now_ms, effects);
        }
        self.change_drive(id, effects, |record| {
            record.generation = theirs.next();
            record.removal_wanted = false;
            record.since_ms = now_ms;
            record.state = match goal {
                Goal::Attach => State::Attaching,
                Goal::Detach => {
                    record.volumes.clear();
                    State::Closing
                }
            };
        });
    }

    /// Known by the labels of its drives alone, and not yet by a name of its own.
    fn is_recovered(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.record.recovered)
    }

    fn end_all_sessions(&mut self) {
        self.sessions.clear();
        for node in self.nodes.values_mut() {
            node.session = None;
            node.rewound.clear();
        }
        for drive in self.drives.values_mut() {
            drive.contact = Contact::Silent;
            drive.space = None;
        }
        self.by_fill.clear();
        let attachments =
            self.volumes.values_mut().flat_map(|volume| volume.attachments.values_mut());
        attachments.for_each(|attachment| attachment.unconfirm());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, AttachAtStart, Event as AgentEvent, RecordFound};
    use crate::cluster::testing::{DRIVE, act, device, lead, register, registered, says, store};
    use crate::cluster::{Event, Records, Refused, RegistrationRefused};
    use crate::cms::{Action, Target};
    use crate::ids::Incarnation;
    use crate::rules::Rules;

    /// A backup from before a drive was added is restored: the registry is stopped, until it adopts what the node
    /// knows, and then goes on above it with the drive as the node has it.
    #[test]
    fn a_restored_registry_goes_on_above_what_it_has_forgotten() {
        let mut disk = Records::default();
        let (mut cluster, writes) = lead(Records::default(), 1);
        store(&mut disk, writes);
        let (mut agent, _) = Agent::start(
            Rules::default(),
            Incarnation::from_bits(5),
            RecordFound::Absent(None),
            vec![device("S1")],
            AttachAtStart::default(),
        );
        let effects = register(&mut cluster, 1, says(&agent, "node-a")).unwrap();
        agent.step(AgentEvent::Registered(registered(&effects)));
        store(&mut disk, effects.writes);
        let backup = disk.clone();
        let target = Target { host: None, device: "S1".into() };
        let (effects, _) = act(&mut cluster, Action::AddDevice(target));
        let (_, order) = effects.orders[0].clone();
        agent.step(AgentEvent::Order(order));
        agent.step(AgentEvent::SessionLost);

        let (mut restored, _) = lead(backup, 2);
        let refused = register(&mut restored, 1, says(&agent, "node-a")).unwrap_err();
        let Refused::Registration(RegistrationRefused::RegistryRewound { differences, .. }) =
            refused
        else {
            panic!("{refused:?}")
        };
        assert_eq!(differences.len(), 1, "the generation: {differences:?}");
        let effects = restored.apply(Event::Adopt { term: TermId::from_bits(8) }, 0).unwrap();
        assert!(effects.sessions_end);
        assert_eq!(restored.term().number, 3, "above both terms");
        let effects = register(&mut restored, 2, says(&agent, "node-a")).unwrap();
        let answer = registered(&effects);
        let allowed = answer.allowed[0].ordered;
        assert_eq!(allowed.stamp.generation, Generation::from_number(2), "above what the node saw");
        assert_eq!(agent.record().drives[&DRIVE].seen.stamp.generation.get(), 1);
        agent.step(AgentEvent::Registered(answer));
        assert_eq!(agent.in_force(DRIVE), Some(allowed));
    }

    #[test]
    fn with_nothing_heard_nothing_is_adopted() {
        let (mut cluster, _) = lead(Records::default(), 1);
        let before = cluster.clone();
        let effects = cluster.apply(Event::Adopt { term: TermId::from_bits(8) }, 0).unwrap();
        assert!(effects.writes.is_empty() && !effects.sessions_end);
        assert_eq!(cluster, before);
    }
}
