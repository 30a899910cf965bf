//! Devices that cannot be told from a drive that is known, and are not it: a drive that was carried to another machine
//! before its old one has let go of it, or a copy. Each is denied with `IdentityConflict` for as long as that is so,
//! and the drive that is known keeps its record.
//!
//! They have no record: what they are follows from what the nodes report, and is looked at again with every report.

use std::collections::BTreeSet;

use super::registration::Matched;
use super::{About, Cluster, Effects, Notice, State};
use crate::cms::{Code, Outcome, Reason, Target};
use crate::device::{Denied, Observed};
use crate::ids::{DriveId, NodeId};
use crate::order::Generation;

/// A device that looks like a drive that is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Newcomer {
    /// Where it is.
    pub node: NodeId,
    pub device: Observed,
    /// The drive that has its identity.
    pub like: DriveId,
    pub since_ms: u64,
}

impl Cluster {
    pub fn newcomers(&self) -> impl Iterator<Item = &Newcomer> {
        self.newcomers.values()
    }

    /// The newcomer that a target means: by its host, and a path or bay there.
    pub fn newcomer(&self, target: &Target) -> Option<&Newcomer> {
        let (host, device) = match &target.host {
            Some(host) => (host.as_str(), target.device.as_str()),
            None => target.device.split_once(':')?,
        };
        let node = self.host(host).ok()?;
        let bay = device.strip_prefix("bay-").unwrap_or(device);
        self.newcomers_on(node).find(|newcomer| {
            let Observed { path, bay: in_bay, .. } = &newcomer.device;
            path == device || in_bay.as_deref() == Some(bay)
        })
    }

    /// Why a newcomer cannot be added.
    pub fn conflict(&self, newcomer: &Newcomer) -> Denied {
        let record = &self.drives[&newcomer.like].record;
        let name = |id| self.nodes.get(&id).map(|node| node.record.name.to_string());
        let here = name(newcomer.node).filter(|_| newcomer.node != record.node);
        Denied::IdentityConflict {
            drive: record.name.clone(),
            node: name(record.node).unwrap_or_default(),
            path: record.observed.path.clone(),
            here: here.map(|node| format!("{node}:{}", newcomer.device.path)),
        }
    }

    /// Why a drive cannot be added. What the device says by itself, and a device beside it that looks the same: as long
    /// as the drive has never had a label, nothing tells which of them is meant.
    pub fn denied(&self, id: DriveId) -> impl Iterator<Item = Denied> {
        let record = &self.drives[&id].record;
        let never_labelled = record.generation == Generation::ZERO;
        let alike = self
            .newcomers_on(record.node)
            .find(move |newcomer| never_labelled && newcomer.like == id);
        let alike = alike.map(|newcomer| {
            let node = self.nodes[&record.node].record.name.to_string();
            let path = newcomer.device.path.clone();
            Denied::IdentityConflict { drive: format!("{node}:{path}"), node, path, here: None }
        });
        record.observed.denied.iter().cloned().chain(alike)
    }

    /// The newcomers of a node, as a host action names what it leaves out.
    pub(super) fn left_out_newcomers(&self, node: NodeId) -> impl Iterator<Item = Outcome> {
        self.newcomers_on(node).map(|newcomer| {
            let path = newcomer.device.path.clone();
            let denied = Box::new(self.conflict(newcomer));
            let reason = Reason::Newcomer { path, denied };
            Outcome::because(Code::InvalidState, reason)
        })
    }

    pub(super) fn newcomers_on(&self, node: NodeId) -> impl Iterator<Item = &Newcomer> {
        let of_node = self.newcomers.range((node, String::new())..);
        of_node.take_while(move |((on, _), _)| *on == node).map(|(_, newcomer)| newcomer)
    }

    /// Notes the newcomers that a node has now reported, all of them.
    pub(super) fn note_newcomers(
        &mut self,
        node: NodeId,
        now: Vec<Newcomer>,
        effects: &mut Effects,
    ) {
        let paths: BTreeSet<_> = now.iter().map(|newcomer| newcomer.device.path.clone()).collect();
        let gone = |newcomer: &&Newcomer| !paths.contains(&newcomer.device.path);
        let gone: Vec<_> = self.newcomers_on(node).filter(gone).cloned().collect();
        for newcomer in gone {
            self.forget_newcomer(&newcomer, "is not reported as that any more", effects);
        }
        for newcomer in now {
            let key = (node, newcomer.device.path.clone());
            let before = self.newcomers.get(&key);
            if before.is_none_or(|before| before.like != newcomer.like) {
                let text = format!(
                    "IdentityConflict: {} on {} looks like {}; it is left alone.",
                    newcomer.device.path,
                    self.nodes[&node].record.name,
                    self.describe(newcomer.like)
                );
                effects.notices.push(Notice::warning("IdentityConflict", About::Node(node), text));
            }
            let since_ms = before.map_or(newcomer.since_ms, |before| before.since_ms);
            self.newcomers.insert(key, Newcomer { since_ms, ..newcomer });
        }
    }

    /// Looks at the newcomers again: what another node has reported, or a purge, may have made one the drive itself.
    pub(super) fn settle_newcomers(&mut self, effects: &mut Effects) {
        for newcomer in self.newcomers.values().cloned().collect::<Vec<_>>() {
            let Newcomer { node, device, .. } = newcomer.clone();
            self.bring_over(node, &device, effects);
            let present = |id: &DriveId| self.drives[id].present;
            let seen = self.nodes[&node].drives.iter().copied().filter(present).collect();
            if let Matched::Known(id) = self.matched(node, &device, &seen) {
                self.forget_newcomer(&newcomer, "is that drive now", effects);
                self.note_present(id, device, effects);
            }
        }
    }

    /// A node that was given up has nothing any more.
    pub(super) fn drop_newcomers_on(&mut self, node: NodeId) {
        self.newcomers.retain(|(on, _), _| *on != node);
    }

    /// Whether a drive has left its machine for good: the machine says so, and nothing is wanted of it there.
    pub(super) fn has_left(&self, id: DriveId) -> bool {
        let drive = &self.drives[&id];
        let reports = self.nodes.get(&drive.record.node).is_some_and(|node| node.session.is_some());
        let unwanted = match drive.record.state {
            State::Unknown | State::Detached => true,
            State::Attaching | State::Attached | State::Closing => false,
        };
        reports && unwanted && !drive.present
    }

    fn forget_newcomer(&mut self, newcomer: &Newcomer, why: &str, effects: &mut Effects) {
        let Newcomer { node, device, like, .. } = newcomer;
        self.newcomers.remove(&(*node, device.path.clone()));
        let name = &self.nodes[node].record.name;
        let drive = &self.drives[like].record.name;
        let text = format!("{} on {name}, which looked like {drive}, {why}.", device.path);
        effects.notices.push(Notice::plain("IdentityConflictOver", About::Node(*node), text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, AttachAtStart, RecordFound};
    use crate::cluster::testing::{DRIVE, act, device, lead, register, says};
    use crate::cluster::{Event, Records};
    use crate::cms::Action;
    use crate::device::LabelSeen;
    use crate::ids::{Incarnation, SessionNumber};
    use crate::rules::Rules;

    const A: SessionNumber = SessionNumber::from_number(1);
    const B: SessionNumber = SessionNumber::from_number(2);

    fn at(path: &str, serial: &str) -> Observed {
        Observed { path: path.into(), ..device(serial) }
    }

    fn registers(
        cluster: &mut Cluster,
        session: SessionNumber,
        name: &str,
        devices: Vec<Observed>,
    ) {
        let start = Incarnation::from_bits(5);
        let (agent, _) = Agent::start(
            Rules::default(),
            start,
            RecordFound::Absent(None),
            devices,
            AttachAtStart::default(),
        );
        register(cluster, session.get(), says(&agent, name)).unwrap();
    }

    /// A report of all devices; gives the notices.
    fn reports(
        cluster: &mut Cluster,
        session: SessionNumber,
        devices: Vec<Observed>,
    ) -> Vec<String> {
        let fresh = (100..).take(devices.len()).map(DriveId::from_bits).collect();
        let effects = cluster
            .apply(Event::Devices { session, devices, conditions: vec![], fresh }, 0)
            .unwrap();
        effects.notices.into_iter().map(|notice| notice.text).collect()
    }

    /// The drive is node-a's; node-b has a device with the same serial number.
    fn conflict() -> Cluster {
        let (mut cluster, _) = lead(Records::default(), 1);
        registers(&mut cluster, A, "node-a", vec![at("/dev/sda", "S1")]);
        registers(&mut cluster, B, "node-b", vec![at("/dev/sdb", "S1")]);
        assert_eq!(cluster.newcomers().count(), 1);
        cluster
    }

    fn node_of(cluster: &Cluster) -> String {
        let record = &cluster.drive(DRIVE).unwrap().record;
        cluster.node(record.node).unwrap().record.name.to_string()
    }

    fn target(device: &str) -> Target {
        Target { host: None, device: device.into() }
    }

    #[test]
    fn a_newcomer_is_shown_and_denied_and_the_known_drive_keeps_its_record() {
        let mut cluster = conflict();
        let (_, outcome) = act(&mut cluster, Action::AddDevice(target("node-b:/dev/sdb")));
        let denied = Denied::IdentityConflict {
            drive: "d-00000000".into(),
            node: "node-a".into(),
            path: "/dev/sda".into(),
            here: Some("node-b:/dev/sdb".into()),
        };
        assert_eq!(outcome.code, Code::InvalidState);
        assert_eq!(outcome.reasons, [Reason::Denied(denied.clone())]);
        let host = Action::AddHost { host: "node-b".into(), with_removed: false, returned: false };
        let (_, outcome) = act(&mut cluster, host);
        assert_eq!(outcome.reasons, [Reason::NoUsableDrive], "it counted");
        let (path, denied) = ("/dev/sdb".into(), Box::new(denied));
        assert_eq!(outcome.drives[0].reasons, [Reason::Newcomer { path, denied }]);
        assert_eq!(act(&mut cluster, Action::AddDevice(target("S1"))).1.code, Code::Ok);
        assert_eq!(node_of(&cluster), "node-a");

        let same = reports(&mut cluster, B, vec![at("/dev/sdb", "S1")]);
        assert!(same.is_empty(), "told again: {same:?}");
        let gone = reports(&mut cluster, B, vec![]);
        assert_eq!((cluster.newcomers().count(), gone.len()), (0, 1), "{gone:?}");
        let (_, outcome) = act(&mut cluster, Action::AddDevice(target("node-b:/dev/sdb")));
        assert_eq!(outcome.code, Code::NotFound);
    }

    #[test]
    fn a_drive_changes_machine_when_its_old_one_has_reported_it_gone() {
        let mut cluster = conflict();
        reports(&mut cluster, A, vec![]);
        assert_eq!((node_of(&cluster).as_str(), cluster.newcomers().count()), ("node-b", 0));
        let drive = cluster.drive(DRIVE).unwrap();
        assert!(drive.present && !drive.record.take_over);
        assert_eq!(drive.record.observed.path, "/dev/sdb");
    }

    #[test]
    fn a_drive_in_operation_stays_with_its_machine_until_it_is_removed_or_purged() {
        let mut cluster = conflict();
        act(&mut cluster, Action::AddDevice(target("S1")));
        reports(&mut cluster, A, vec![]);
        assert_eq!((node_of(&cluster).as_str(), cluster.newcomers().count()), ("node-a", 1));
        cluster.apply(Event::SessionClosed(A), 0).unwrap();
        assert_eq!(cluster.newcomers().count(), 1, "silence is no report");
        act(&mut cluster, Action::PurgeHost { host: "node-a".into() });
        assert_eq!((node_of(&cluster).as_str(), cluster.newcomers().count()), ("node-b", 0));
        assert!(cluster.drive(DRIVE).unwrap().record.take_over);
    }

    /// The story: the machine died without a word, so that its drive was last seen in it. It was purged, and the drive
    /// in the other machine went on being taken for a copy.
    #[test]
    fn a_drive_of_a_machine_that_died_belongs_to_the_other_when_that_is_purged() {
        let mut cluster = conflict();
        cluster.apply(Event::SessionClosed(A), 0).unwrap();
        act(&mut cluster, Action::PurgeHost { host: "node-a".into() });
        assert_eq!((node_of(&cluster).as_str(), cluster.newcomers().count()), ("node-b", 0));
        assert!(cluster.drive(DRIVE).unwrap().present);
    }

    /// A device that is another one by all evidence, and has the label of a drive: somebody copied it.
    #[test]
    fn a_copy_of_a_drive_is_a_newcomer_until_its_label_is_gone() {
        let (mut cluster, _) = lead(Records::default(), 1);
        registers(&mut cluster, A, "node-a", vec![at("/dev/sda", "S1")]);
        let label = LabelSeen {
            cluster: cluster.id(),
            drive: DRIVE,
            node: NodeId::from_bits(7),
            generation: Generation::ZERO,
            in_operation: true,
            sequence: 1,
        };
        let copy = Observed { label: Some(label), ..at("/dev/sdb", "S2") };
        reports(&mut cluster, A, vec![at("/dev/sda", "S1"), copy]);
        let (_, outcome) = act(&mut cluster, Action::AddDevice(target("node-a:/dev/sdb")));
        assert_eq!(outcome.code, Code::InvalidState);
        reports(&mut cluster, A, vec![at("/dev/sda", "S1"), at("/dev/sdb", "S2")]);
        assert_eq!((cluster.newcomers().count(), cluster.drives().count()), (0, 2));
    }

    /// A clone beside the drive, at a path that comes before it.
    #[test]
    fn a_clone_in_the_same_machine_is_not_taken_for_the_drive() {
        let (mut cluster, _) = lead(Records::default(), 1);
        registers(&mut cluster, A, "node-a", vec![at("/dev/sdc", "S1")]);
        reports(&mut cluster, A, vec![at("/dev/sda", "S1"), at("/dev/sdc", "S1")]);
        assert_eq!(cluster.drive(DRIVE).unwrap().record.observed.path, "/dev/sdc");
        assert_eq!(cluster.newcomers().next().unwrap().device.path, "/dev/sda");
        reports(&mut cluster, A, vec![at("/dev/sda", "S1")]);
        assert_eq!(cluster.drive(DRIVE).unwrap().record.observed.path, "/dev/sda", "it moved");
        assert_eq!(cluster.newcomers().count(), 0);
    }

    /// Two blank drives with one serial number: neither is taken, for nothing would tell which one was.
    #[test]
    fn a_drive_that_was_never_labelled_is_not_added_beside_its_twin() {
        let (mut cluster, _) = lead(Records::default(), 1);
        registers(&mut cluster, A, "node-a", vec![at("/dev/sda", "S1")]);
        reports(&mut cluster, A, vec![at("/dev/sda", "S1"), at("/dev/sdb", "S1")]);
        let (_, outcome) = act(&mut cluster, Action::AddDevice(target("node-a:/dev/sda")));
        let denied = Denied::IdentityConflict {
            drive: "node-a:/dev/sdb".into(),
            node: "node-a".into(),
            path: "/dev/sdb".into(),
            here: None,
        };
        assert_eq!(outcome.reasons, [Reason::Denied(denied)]);
        reports(&mut cluster, A, vec![at("/dev/sda", "S1")]);
        let (_, outcome) = act(&mut cluster, Action::AddDevice(target("node-a:/dev/sda")));
        assert_eq!(outcome.code, Code::Ok);
    }

    /// The twins changed places over a reboot: the label says which one is the drive, wherever that was before.
    #[test]
    fn a_label_outweighs_the_place_where_a_drive_was() {
        let (mut cluster, _) = lead(Records::default(), 1);
        registers(&mut cluster, A, "node-a", vec![at("/dev/sda", "S1")]);
        act(&mut cluster, Action::AddDevice(target("S1")));
        let label = LabelSeen {
            cluster: cluster.id(),
            drive: DRIVE,
            node: cluster.drive(DRIVE).unwrap().record.node,
            generation: Generation::from_number(1),
            in_operation: true,
            sequence: 1,
        };
        let labelled = Observed { label: Some(label), ..at("/dev/sdb", "S1") };
        reports(&mut cluster, A, vec![at("/dev/sda", "S1"), labelled]);
        assert_eq!(cluster.drive(DRIVE).unwrap().record.observed.path, "/dev/sdb");
        assert_eq!(cluster.newcomers().next().unwrap().device.path, "/dev/sda");
    }

    #[test]
    fn a_drive_that_came_while_its_agent_was_there_is_known_to_be_closed() {
        let (mut cluster, _) = lead(Records::default(), 1);
        registers(&mut cluster, A, "node-a", vec![at("/dev/sda", "S1")]);
        reports(&mut cluster, A, vec![at("/dev/sda", "S1"), at("/dev/sdb", "S2")]);
        let (_, outcome) = act(&mut cluster, Action::RemoveDevice(target("S2")));
        assert_eq!(outcome.code, Code::Ok);
    }

    #[test]
    fn a_dry_run_names_what_looks_like_another_drive() {
        let mut cluster = conflict();
        let add = Action::AddHost { host: "node-b".into(), with_removed: false, returned: false };
        let asked =
            |dry_run| Event::Act { actions: vec![add.clone()], asked_by: "me".into(), dry_run };
        let dry = cluster.apply(asked(true), 0).unwrap().reply;
        let real = cluster.apply(asked(false), 0).unwrap().reply;
        assert!(format!("{real:?}").contains("node-a"), "{real:?}");
        assert_eq!(dry, real);
    }
}
