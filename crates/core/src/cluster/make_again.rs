//! Records of drives that the registry lost, and that the nodes still know: they are made again at the registration.

use std::collections::BTreeMap;

use super::records::Write;
use super::registration::new_record;
use super::{About, Cluster, Effects, Notice, State};
use crate::device::Observed;
use crate::evidence::Comparison;
use crate::ids::{DriveId, NodeId};
use crate::message::DriveReport;
use crate::order::Goal;

impl Cluster {
    /// The device of a drive that this registry has no record of, by its label or by the agent's record.
    ///
    /// What the agent knows the drive by outweighs what is read of it now. A device that is misread, or that has a copy
    /// of the label, would give the drive another identity, under which nobody finds who still has it open.
    pub(super) fn lost_device(
        &self,
        report: &DriveReport,
        devices: &[Observed],
    ) -> Option<Observed> {
        let known_by = |device: &Observed| device.evidence.compare(&report.evidence);
        let is_it = |device: &&Observed| match device.label {
            Some(label) if label.cluster == self.id() => label.drive == report.drive,
            Some(_) | None => known_by(device) == Comparison::Same,
        };
        let contradicted = |device: &Observed| known_by(device) == Comparison::Different;
        let found = devices.iter().filter(is_it).min_by_key(|device| contradicted(device))?;
        let evidence = if contradicted(found) { &report.evidence } else { &found.evidence }.clone();
        let device = Observed { evidence, ..found.clone() };
        let has_another_id = self.fitting(&device).next().is_some();
        (!has_another_id).then_some(device)
    }

    /// Makes the record of a drive again that the registry lost and that the node still knows.
    pub(super) fn make_again(
        &mut self,
        node: NodeId,
        reports: &BTreeMap<DriveId, DriveReport>,
        devices: &[Observed],
        now_ms: u64,
        effects: &mut Effects,
    ) {
        for (id, report) in reports {
            let newest = report.newest().filter(|_| !self.drives.contains_key(id));
            let Some((generation, goal)) = newest else { continue };
            let Some(device) = self.lost_device(report, devices) else { continue };
            let mut record = new_record(node, *id, device, now_ms);
            record.name = self.free_name(*id);
            record.generation = generation.next();
            record.state = match goal {
                // A host that was given up gets no order but to close.
                Goal::Attach if !self.is_purged(node) => State::Attaching,
                Goal::Attach | Goal::Detach => State::Closing,
            };
            effects.writes.push(Write::Drive(Box::new(record.clone())));
            self.insert_drive(record);
            let drive = self.describe(*id);
            let text = format!("{drive} is known again from its node; its record was missing.");
            effects.notices.push(Notice::warning("DriveRecordMissing", About::Drive(*id), text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, AttachAtStart, Event as AgentEvent, RecordFound};
    use crate::cluster::testing::{DRIVE, act, device, lead, register, registered, says};
    use crate::cluster::{Event, FreshIds, Records};
    use crate::cms::{Action, Target};
    use crate::device::LabelSeen;
    use crate::evidence::Evidence;
    use crate::ids::{Incarnation, SessionNumber};
    use crate::message::Registration;
    use crate::rules::Rules;

    /// A registry that lost all its records hears of a drive in operation, which the agent knows as `S1`, while devices
    /// with these serial numbers have the drive's label.
    fn lost_and_heard(serials: &[&str]) -> (Cluster, Vec<Observed>) {
        let (mut cluster, _) = lead(Records::default(), 1);
        let (mut agent, _) = Agent::start(
            Rules::default(),
            Incarnation::from_bits(5),
            RecordFound::Absent(None),
            vec![device("S1")],
            AttachAtStart::default(),
        );
        let effects = register(&mut cluster, 1, says(&agent, "node-a")).unwrap();
        let answer = registered(&effects);
        let (of, node) = (answer.cluster, answer.node);
        agent.step(AgentEvent::Registered(answer));
        let target = Target { host: None, device: "S1".into() };
        let (effects, _) = act(&mut cluster, Action::AddDevice(target));
        let order = effects.orders[0].1.clone();
        let generation = order.ordered.stamp.generation;
        agent.step(AgentEvent::Order(order));

        let (in_operation, sequence) = (true, 1);
        let label =
            LabelSeen { cluster: of, drive: DRIVE, node, generation, in_operation, sequence };
        let labelled = |serial: &&str| Observed {
            label: Some(label),
            path: format!("/dev/{serial}"),
            ..device(serial)
        };
        let devices: Vec<_> = serials.iter().map(labelled).collect();
        let (mut cluster, _) = lead(Records::default(), 1);
        let said = Registration { devices: devices.clone(), ..says(&agent, "node-a") };
        let bits = (100..).take(devices.len());
        let fresh = FreshIds { node, drives: bits.map(DriveId::from_bits).collect() };
        let session = SessionNumber::from_number(1);
        let certificate = None;
        let event = Event::Register { session, certificate, registration: said, fresh };
        cluster.apply(event, 0).unwrap();
        (cluster, devices)
    }

    fn evidence(cluster: &Cluster) -> &Evidence {
        &cluster.drive(DRIVE).unwrap().record.observed.evidence
    }

    /// The story: the drive was misread at that moment, and was known by the wrong serial number from then on. An order
    /// to close it was about no device that anybody could find, and was said to be done while a child had it open.
    #[test]
    fn a_drive_that_is_misread_is_known_by_what_the_agent_remembers() {
        let (mut cluster, misread) = lost_and_heard(&["S1-misread"]);
        assert_eq!(evidence(&cluster), &device("S1").evidence);
        assert!(!cluster.drive(DRIVE).unwrap().present);
        let read = Observed { evidence: device("S1").evidence, ..misread[0].clone() };
        let session = SessionNumber::from_number(1);
        let fresh = vec![DriveId::from_bits(100)];
        let event = Event::Devices { session, devices: vec![read], conditions: vec![], fresh };
        cluster.apply(event, 0).unwrap();
        assert!(cluster.drive(DRIVE).unwrap().present);
        assert_eq!(cluster.newcomers().count(), 0);
    }

    #[test]
    fn a_copy_is_not_taken_for_the_drive() {
        for serials in [["S1", "S9"], ["S9", "S1"]] {
            let (cluster, _) = lost_and_heard(&serials);
            assert_eq!(evidence(&cluster), &device("S1").evidence, "{serials:?}");
            assert!(cluster.drive(DRIVE).unwrap().present);
            let copies: Vec<_> = cluster.newcomers().map(|it| &it.device.path).collect();
            assert_eq!(copies, ["/dev/S9"]);
        }
    }
}
