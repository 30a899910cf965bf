//! Which certificates of nodes count. Each has a number; purging a host revokes all that its name has been issued.
//!
//! Numbers rise with every certificate, and with every purge. The registry's record keeps the newest one, durable
//! before the certificate goes out; a purged node's record keeps up to which number its names are revoked. They follow
//! the wall clock where it is ahead of them, and so a registry restored from a backup revokes also what it issued after
//! the backup was made.

use std::collections::{BTreeMap, BTreeSet};

use super::records::Write;
use super::{About, Cluster, Effects, Node, Notice, Refused, Reply};
use crate::ids::{CertificateNumber, NodeId, NodeName};
use crate::message::Registration;

impl Cluster {
    /// The lowest number that the next certificate can have. A join token notes it when it is made: purging the host
    /// revokes it with the certificates.
    pub fn next_certificate(&self) -> CertificateNumber {
        self.registry.newest_certificate.next()
    }

    /// The node's agent is registered with a certificate that was revoked.
    pub fn shows_revoked_certificate(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| {
            let certificate = node.session.and_then(|session| session.certificate);
            certificate.is_some_and(|number| self.is_revoked(&node.record.name, number))
        })
    }

    /// Whether a certificate of this name counts no more.
    pub fn is_revoked(&self, name: &NodeName, certificate: CertificateNumber) -> bool {
        self.revoked.get(name).is_some_and(|through| certificate <= *through)
    }

    /// Gives a certificate its number.
    pub(super) fn certify(
        &mut self,
        node: &NodeName,
        by: CertificateNumber,
        now_ms: u64,
    ) -> Result<Effects, Refused> {
        if self.is_revoked(node, by) {
            return Err(Refused::CertificateRevoked { node: node.clone() });
        }
        let number = self.draw_number(now_ms);
        Ok(Effects {
            writes: vec![Write::Registry(self.registry.clone())],
            reply: Reply::Certify(number),
            ..Effects::default()
        })
    }

    /// Revokes what a node's name has been issued. The caller writes the node's record.
    pub(super) fn revoke_certificates(&mut self, id: NodeId, now_ms: u64) {
        // A number of its own: a token that was made before is below it, one that is made afterwards is above.
        let through = self.draw_number(now_ms);
        let record = &mut self.nodes.get_mut(&id).expect("only known nodes are purged").record;
        record.revoked.insert(record.name.clone(), through);
        self.revoked.insert(record.name.clone(), through);
    }

    /// Notes what a stored record says is revoked.
    pub(super) fn note_revoked(&mut self, record: &super::NodeRecord) {
        for (name, through) in &record.revoked {
            let known = self.revoked.entry(name.clone()).or_default();
            *known = (*known).max(*through);
            let newest = &mut self.registry.newest_certificate;
            *newest = (*newest).max(*through);
        }
    }

    /// What is revoked of these nodes' names.
    pub(super) fn revoked_among(
        &self,
        nodes: &BTreeSet<NodeId>,
    ) -> BTreeMap<NodeName, CertificateNumber> {
        let names = nodes.iter().map(|id| &self.nodes[id].record.name);
        names.filter_map(|name| Some((name.clone(), *self.revoked.get(name)?))).collect()
    }

    /// The purged node that speaks with a revoked certificate. A node that has joined again since shows another one:
    /// whoever shows the old one beside it is not that node.
    pub(super) fn purged_node_of(&self, registration: &Registration) -> Result<NodeId, Refused> {
        let name = &registration.name;
        let is_it = |node: &&Node| match registration.node {
            Some(id) => node.record.id == id,
            // It has lost its state directory.
            None => {
                node.record.name == *name && self.shows_its_drives(node.record.id, registration)
            }
        };
        let open = |node: &&Node| {
            let id = node.record.id;
            node.record.purged && (node.session.is_none() || self.shows_revoked_certificate(id))
        };
        let node = self.nodes.values().filter(open).find(is_it).map(|node| node.record.id);
        node.ok_or_else(|| Refused::CertificateRevoked { node: name.clone() })
    }

    pub(super) fn registered_notice(&self, id: NodeId) -> Notice {
        let name = &self.nodes[&id].record.name;
        if self.shows_revoked_certificate(id) {
            let text = format!(
                "The agent of {name}, which was purged, has registered with its revoked certificate; it is told to \
                 close its drives, and nothing else."
            );
            return Notice::warning("RevokedCertificate", About::Node(id), text);
        }
        Notice::plain(
            "AgentRegistered",
            About::Node(id),
            format!("The agent of {name} has registered."),
        )
    }

    fn draw_number(&mut self, now_ms: u64) -> CertificateNumber {
        // A clock that is out of its mind leaves room for the numbers after it.
        let clock = CertificateNumber::from_number(now_ms.min(u64::MAX / 2));
        let number = self.next_certificate().max(clock);
        self.registry.newest_certificate = number;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, AttachAtStart, Event as AgentEvent, RecordFound};
    use crate::cluster::testing::{
        DRIVE, act, device, lead, register, register_with, registered, says, store,
    };
    use crate::cluster::{Event, Records};
    use crate::cms::{Action, Code, Outcome, Reason};
    use crate::ids::{Incarnation, SessionNumber};
    use crate::order::Goal;
    use crate::rules::Rules;

    fn number(number: u64) -> CertificateNumber {
        CertificateNumber::from_number(number)
    }

    fn certify(cluster: &mut Cluster, by: CertificateNumber) -> Result<CertificateNumber, Refused> {
        let node = "node-a".parse().unwrap();
        let effects = cluster.apply(Event::Certify { node, by }, 0)?;
        let [Write::Registry(written)] = &effects.writes[..] else { panic!("{effects:?}") };
        let Reply::Certify(number) = effects.reply else { panic!("{effects:?}") };
        assert_eq!(written.newest_certificate, number, "not durable before it goes out");
        Ok(number)
    }

    fn join(cluster: &mut Cluster) -> CertificateNumber {
        let token = cluster.next_certificate();
        certify(cluster, token).unwrap()
    }

    fn add_host(returned: bool) -> Action {
        Action::AddHost { host: "node-a".into(), with_removed: false, returned }
    }

    fn purge(cluster: &mut Cluster, session: u64) -> Vec<Write> {
        cluster.apply(Event::SessionClosed(SessionNumber::from_number(session)), 0).unwrap();
        let (effects, outcome) = act(cluster, Action::PurgeHost { host: "node-a".into() });
        assert_eq!(outcome.code, Code::Ok);
        effects.writes
    }

    fn refused() -> Refused {
        Refused::CertificateRevoked { node: "node-a".parse().unwrap() }
    }

    /// node-a joined, its drive is in operation, and then it was purged.
    fn purged() -> (Cluster, Agent, Records, CertificateNumber) {
        let (mut cluster, writes) = lead(Records::default(), 1);
        let mut disk = Records::default();
        store(&mut disk, writes);
        let devices = vec![device("S1")];
        let start = Incarnation::from_bits(5);
        let (mut agent, _) = Agent::start(
            Rules::default(),
            start,
            RecordFound::Absent(None),
            devices,
            AttachAtStart::default(),
        );
        let first = join(&mut cluster);
        let effects = register_with(&mut cluster, 1, Some(first), says(&agent, "node-a")).unwrap();
        agent.step(AgentEvent::Registered(registered(&effects)));
        store(&mut disk, effects.writes);
        let (effects, _) = act(&mut cluster, add_host(false));
        agent.step(AgentEvent::Order(effects.orders[0].1.clone()));
        store(&mut disk, effects.writes);
        agent.step(AgentEvent::SessionLost);
        store(&mut disk, purge(&mut cluster, 1));
        (cluster, agent, disk, first)
    }

    fn returned(cluster: &mut Cluster) -> Outcome {
        act(cluster, add_host(true)).1
    }

    #[test]
    fn a_purged_node_is_told_to_close_and_comes_back_only_with_a_new_certificate() {
        let (mut cluster, mut agent, _, first) = purged();
        assert_eq!(certify(&mut cluster, first), Err(refused()), "renewed");
        let effects = register_with(&mut cluster, 2, Some(first), says(&agent, "node-a")).unwrap();
        let answer = registered(&effects);
        assert!(answer.allowed.is_empty());
        assert_eq!(answer.unknown[0].ordered.goal, Goal::Detach);
        assert!(effects.notices[0].text.contains("revoked certificate"), "{:?}", effects.notices);
        agent.step(AgentEvent::Registered(answer));
        let before = cluster.clone();
        assert_eq!(returned(&mut cluster).reasons, [Reason::CertificateRevoked]);
        assert_eq!(cluster, before);

        let second = join(&mut cluster);
        assert!(second > first);
        agent.step(AgentEvent::SessionLost);
        cluster.apply(Event::SessionClosed(SessionNumber::from_number(2)), 0).unwrap();
        register_with(&mut cluster, 3, Some(second), says(&agent, "node-a")).unwrap();
        assert_eq!(returned(&mut cluster).code, Code::Ok);
        assert!(cluster.in_operation(DRIVE));
        assert!(certify(&mut cluster, second).is_ok());

        // Somebody has the old certificate still.
        let theft = register_with(&mut cluster, 4, Some(first), says(&agent, "node-a"));
        assert_eq!(theft, Err(refused()));
        let session = cluster.nodes().next().unwrap().session.unwrap();
        assert_eq!(session.certificate, Some(second), "the thief took its session");
    }

    #[test]
    fn a_purge_is_in_one_record_and_survives_a_restart() {
        let (_, agent, disk, first) = purged();
        assert_eq!(disk.registry.as_ref().unwrap().newest_certificate, number(0), "as if lost");
        let (mut cluster, _) = lead(disk, 2);
        assert!(cluster.next_certificate() > first.next());
        assert_eq!(certify(&mut cluster, first), Err(refused()));
        register_with(&mut cluster, 1, Some(first), says(&agent, "node-a")).unwrap();
        assert_eq!(returned(&mut cluster).reasons, [Reason::CertificateRevoked]);
    }

    #[test]
    fn a_token_from_before_the_purge_is_revoked_with_the_certificates() {
        let (mut cluster, _) = lead(Records::default(), 1);
        let start = Incarnation::from_bits(5);
        let (agent, _) = Agent::start(
            Rules::default(),
            start,
            RecordFound::Absent(None),
            vec![],
            AttachAtStart::default(),
        );
        let first = join(&mut cluster);
        register_with(&mut cluster, 1, Some(first), says(&agent, "node-a")).unwrap();
        let before = cluster.next_certificate();
        purge(&mut cluster, 1);
        assert_eq!(certify(&mut cluster, before), Err(refused()));
        let after = cluster.next_certificate();
        assert!(certify(&mut cluster, after).is_ok());
        let other = Event::Certify { node: "node-b".parse().unwrap(), by: first };
        assert!(cluster.apply(other, 0).is_ok(), "another node's are not touched");
    }

    #[test]
    fn an_agent_on_this_machine_shows_no_certificate_and_none_is_asked_for() {
        let (mut cluster, agent, _, _) = purged();
        register(&mut cluster, 2, says(&agent, "node-a")).unwrap();
        assert_eq!(returned(&mut cluster).code, Code::Ok);
    }

    /// Without its state directory it says no id; it has the drives, so it is that machine, and no new node.
    #[test]
    fn a_purged_machine_without_its_state_is_no_new_node() {
        let (mut cluster, _, _, first) = purged();
        let start = Incarnation::from_bits(6);
        let found = RecordFound::Absent(None);
        let (bare, _) = Agent::start(
            Rules::default(),
            start,
            found.clone(),
            vec![device("S1")],
            AttachAtStart::default(),
        );
        let (empty, _) =
            Agent::start(Rules::default(), start, found, vec![], AttachAtStart::default());
        let stranger = register_with(&mut cluster, 2, Some(first), says(&empty, "node-a"));
        assert_eq!(stranger, Err(refused()));
        register_with(&mut cluster, 3, Some(first), says(&bare, "node-a")).unwrap();
        assert_eq!(cluster.nodes().count(), 1);
    }

    /// The registry that is restored has not issued what the node shows.
    #[test]
    fn a_restored_registry_revokes_what_it_has_forgotten() {
        let (mut cluster, _) = lead(Records::default(), 1);
        let node: NodeName = "node-a".parse().unwrap();
        let by = cluster.next_certificate();
        let effects = cluster.apply(Event::Certify { node: node.clone(), by }, 1_000).unwrap();
        assert_eq!(effects.reply, Reply::Certify(number(1_000)));
        let (mut restored, _) = lead(Records::default(), 2);
        let start = Incarnation::from_bits(5);
        let (agent, _) = Agent::start(
            Rules::default(),
            start,
            RecordFound::Absent(None),
            vec![],
            AttachAtStart::default(),
        );
        register(&mut restored, 1, says(&agent, "node-a")).unwrap();
        restored.apply(Event::SessionClosed(SessionNumber::from_number(1)), 0).unwrap();
        let action = Action::PurgeHost { host: "node-a".into() };
        let actions = vec![action];
        let event = Event::Act { actions, asked_by: String::new(), dry_run: false };
        restored.apply(event, 2_000).unwrap();
        assert!(restored.is_revoked(&node, number(1_000)));
    }
}
