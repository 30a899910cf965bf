//! How a cluster comes into memory: from what a store holds, or as an excerpt of another one.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    AutoAdd, Cluster, Contact, Drive, DriveRecord, Node, NodeRecord, Records, RegistryRecord, Write,
};
use crate::ids::{CertificateNumber, ClusterId, NodeId, SessionNumber, TermId};
use crate::message::AgentProgram;
use crate::order::Term;
use crate::rules::{Rule, Rules};

impl Cluster {
    /// Takes the lead over what a store holds: makes it a cluster if it is new, and begins a new term. The writes must
    /// be durable before anything else is said. Whoever could not load the rest, and tries again with the same id,
    /// leads on under the term that it has: nothing was said under it.
    pub fn lead(
        rules: Rules,
        records: Records,
        cluster: ClusterId,
        term: TermId,
    ) -> (Self, Vec<Write>) {
        let mut registry = records.registry.clone().unwrap_or_else(|| RegistryRecord {
            cluster,
            terms: Vec::new(),
            newest_certificate: CertificateNumber::default(),
        });
        let next = match registry.terms.last() {
            None => Some(Term::first(term)),
            Some(last) if last.id == term => None,
            Some(last) => rules.hold(Rule::TermRises).then(|| last.succeeded_by(term)),
        };
        if let Some(next) = next {
            registry.note_term(next);
        }
        let writes = vec![Write::Registry(registry.clone())];
        (Self::under(rules, registry, records), writes)
    }

    /// Leads on, over what a store holds after the writes of [`Cluster::lead`] became durable: for a store that others
    /// may have written to until then. `None` if another leads by now.
    pub fn lead_on(&self, records: Records) -> Option<Self> {
        let registry = records.registry.clone().filter(|registry| *registry == self.registry)?;
        Some(Self::under(self.rules, registry, records))
    }

    /// The record of the registry itself.
    pub fn registry_record(&self) -> &RegistryRecord {
        &self.registry
    }

    fn under(rules: Rules, registry: RegistryRecord, records: Records) -> Self {
        let Records { registry: _, nodes, drives, volumes, attachments } = records;
        let mut this = Self {
            rules,
            auto_add: AutoAdd::default(),
            registry,
            nodes: BTreeMap::new(),
            drives: BTreeMap::new(),
            sessions: BTreeMap::new(),
            node_by_name: BTreeMap::new(),
            revoked: BTreeMap::new(),
            drives_by_fact: BTreeSet::new(),
            drive_by_name: BTreeMap::new(),
            newcomers: BTreeMap::new(),
            heard: BTreeMap::new(),
            given_up: BTreeSet::new(),
            volumes: BTreeMap::new(),
            volume_by_name: BTreeMap::new(),
            uses: BTreeSet::new(),
            kept_uses: BTreeMap::new(),
            by_fill: BTreeSet::new(),
            left_over: BTreeSet::new(),
            half_purged: BTreeSet::new(),
        };
        for record in nodes {
            this.insert_node(record);
        }
        for record in volumes {
            this.insert_volume(record);
        }
        for record in drives {
            this.insert_drive(record);
        }
        for record in attachments {
            this.insert_attachment(record);
        }
        this.note_left_over();
        this.note_half_purged();
        this
    }

    /// A copy of some nodes with their drives, for decisions that are not to be taken.
    pub(super) fn excerpt(&self, nodes: BTreeSet<NodeId>) -> Self {
        let newcomers = self.newcomers.iter().filter(|((node, _), _)| nodes.contains(node));
        let alike = newcomers.clone().map(|(_, newcomer)| &newcomer.like);
        let drives = nodes.iter().flat_map(|node| &self.nodes[node].drives).chain(alike.clone());
        // What a newcomer looks like may be elsewhere, and is told with its place.
        let elsewhere = alike.map(|id| &self.drives[id].record.node);
        let seen = nodes.iter().chain(elsewhere).filter_map(|id| self.nodes.get_key_value(id));
        Self {
            rules: self.rules,
            auto_add: self.auto_add.clone(),
            registry: self.registry.clone(),
            drives: drives.map(|id| (*id, self.drives[id].clone())).collect(),
            nodes: seen.map(|(id, node)| (*id, node.clone())).collect(),
            sessions: BTreeMap::new(),
            node_by_name: BTreeMap::new(),
            revoked: self.revoked_among(&nodes),
            drives_by_fact: BTreeSet::new(),
            drive_by_name: BTreeMap::new(),
            newcomers: newcomers.map(|(at, newcomer)| (at.clone(), newcomer.clone())).collect(),
            heard: BTreeMap::new(),
            given_up: BTreeSet::new(),
            volumes: BTreeMap::new(),
            volume_by_name: BTreeMap::new(),
            uses: self.uses.iter().filter(|(node, _)| nodes.contains(node)).copied().collect(),
            kept_uses: BTreeMap::new(),
            by_fill: BTreeSet::new(),
            left_over: BTreeSet::new(),
            half_purged: BTreeSet::new(),
        }
    }

    pub(super) fn insert_node(&mut self, record: NodeRecord) {
        self.note_revoked(&record);
        // A purged node leaves its name to another.
        if !record.purged {
            self.node_by_name.insert(record.name.clone(), record.id);
        }
        let node = Node {
            drives: BTreeSet::new(),
            session: None,
            rewound: Vec::new(),
            agent_record: None,
            program: AgentProgram::default(),
            conditions: Vec::new(),
            silent_since_ms: None,
            duplicate_ms: None,
            not_its_own: BTreeMap::new(),
            newest: SessionNumber::default(),
            record,
        };
        self.nodes.insert(node.record.id, node);
    }

    pub(super) fn insert_drive(&mut self, record: DriveRecord) {
        self.note_facts(record.id, &record.observed.evidence);
        self.drive_by_name.insert(record.name.clone(), record.id);
        if let Some(node) = self.nodes.get_mut(&record.node) {
            node.drives.insert(record.id);
        }
        for volume in record.volumes.keys() {
            if let Some(volume) = self.volumes.get_mut(volume) {
                volume.drive = Some(record.id);
            }
        }
        let drive = Drive {
            present: false,
            missing: false,
            label: None,
            space: None,
            contact: Contact::Silent,
            record,
        };
        self.drives.insert(drive.record.id, drive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{lead, store};

    /// A controller could not list the drives, and tried again every second. Each time it began a new term, until the
    /// record was too long to be written and nobody could lead any more.
    #[test]
    fn whoever_tries_again_leads_under_the_same_term() {
        let mut disk = Records::default();
        for _ in 0..3 {
            let (cluster, writes) = lead(disk.clone(), 7);
            assert_eq!(cluster.term(), Term::first(TermId::from_bits(7)));
            store(&mut disk, writes);
        }
        let (other, writes) = lead(disk.clone(), 8);
        store(&mut disk, writes);
        assert_eq!(other.term().number, 2);
        assert_eq!(lead(disk, 7).0.term().number, 3, "somebody else has led since");
    }

    #[test]
    fn the_past_is_remembered_as_far_as_it_can_matter() {
        let mut disk = Records::default();
        let mut reigns = Vec::new();
        for term in 1..=5_000 {
            let (cluster, writes) = lead(disk.clone(), term);
            store(&mut disk, writes);
            reigns.push(cluster.term());
        }
        let record = disk.registry.unwrap();
        assert_eq!(record.terms.len(), 1_024);
        assert!(reigns.iter().all(|term| record.has_reigned_under(term)));
        let foreign = |number| Term { number, id: TermId::from_bits(0) };
        for number in [4_000, 5_000, 5_001] {
            assert!(!record.has_reigned_under(&foreign(number)), "{number}");
        }
    }
}
