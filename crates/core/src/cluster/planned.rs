//! A drive as it was when somebody decided about it. A plan for thousands of drives is written by one person, read by
//! another, and carried out an hour later: each entry carries the [`StateHash`] of its drive, and the registry takes it
//! only while that is still the same.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::Cluster;
use crate::device::{Denied, Observed};
use crate::evidence::Evidence;
use crate::ids::DriveId;

/// Stands for everything about a drive that a decision to add it rests on. Equal as long as that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateHash(u64);

/// Why a text is no state hash.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a drive's state is written as s- and 16 hexadecimal digits")]
pub struct NotAStateHash;

impl fmt::Display for StateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // With letters before it, so that no reader takes it for a number.
        write!(f, "s-{:016x}", self.0)
    }
}

impl FromStr for StateHash {
    type Err = NotAStateHash;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("s-").filter(|digits| {
            digits.len() == 16 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        });
        let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.map(Self).ok_or(NotAStateHash)
    }
}

impl Cluster {
    /// The state of a drive: what it is, where, what is on it, and what is wanted of it. Not its path or bay, which a
    /// restart of the machine may change.
    pub fn state_hash(&self, id: DriveId) -> Option<StateHash> {
        let drive = self.drives.get(&id)?;
        let record = &drive.record;
        let mut sum = Sum::default();
        sum.add(&record.node.to_bits().to_le_bytes());
        sum.device(&record.observed);
        for denied in self.denied(id) {
            sum.add(denied.to_string().as_bytes());
        }
        // Who has partitioned a drive anew has made another one of it. The kernel may show the part that goes with a
        // label of ours or not.
        if self.denied(id).any(|denied| matches!(denied, Denied::Partitioned { .. })) {
            for part in &record.observed.details.partitions {
                sum.add(&part.size_bytes.to_le_bytes());
            }
        }
        sum.add(record.state.wire_name().as_bytes());
        sum.add(&record.generation.get().to_le_bytes());
        // Until its agent has said what is there, a drive is taken to be where it was.
        let reports = self.nodes.get(&record.node).is_some_and(|node| node.session.is_some());
        sum.add(&[u8::from(drive.present || !reports)]);
        Some(sum.hash())
    }
}

/// FNV-1a, 64 bits: nobody gains anything by two drives with the same sum, so chance is all that it must withstand.
pub(super) struct Sum(u64);

impl Default for Sum {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Sum {
    /// Adds one field, with its length, so that what stands at the end of one is not at the beginning of the next.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn text(&mut self, text: Option<&String>) {
        self.add(&[u8::from(text.is_some())]);
        self.add(text.map_or(&[], |text| text.as_bytes()));
    }

    pub(super) fn hash(&self) -> StateHash {
        StateHash(self.0)
    }

    pub(super) fn device(&mut self, device: &Observed) {
        let Evidence { nvme, wwn, serial, model, file } = &device.evidence;
        for fact in [nvme, wwn, serial, model, file] {
            self.text(fact.as_ref());
        }
        self.add(&device.size_bytes.to_le_bytes());
        self.add(&device.block_bytes.to_le_bytes());
        self.text(device.details.contents.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, AttachAtStart, RecordFound};
    use crate::cluster::testing::{DRIVE, act, device, lead, register, says};
    use crate::cluster::{Event, Records};
    use crate::cms::{Action, Code, Reason, Target};
    use crate::device::{Details, Partition};
    use crate::ids::{Incarnation, SessionNumber};
    use crate::rules::Rules;

    const A: SessionNumber = SessionNumber::from_number(1);

    fn cluster(devices: Vec<Observed>) -> Cluster {
        let (mut cluster, _) = lead(Records::default(), 1);
        let (agent, _) = Agent::start(
            Rules::default(),
            Incarnation::from_bits(5),
            RecordFound::Absent(None),
            devices,
            AttachAtStart::default(),
        );
        register(&mut cluster, 1, says(&agent, "node-a")).unwrap();
        cluster
    }

    fn report(cluster: &mut Cluster, devices: Vec<Observed>) {
        let fresh = (100..).take(devices.len()).map(DriveId::from_bits).collect();
        let event = Event::Devices { session: A, devices, conditions: vec![], fresh };
        cluster.apply(event, 0).unwrap();
    }

    fn hash(cluster: &Cluster) -> StateHash {
        cluster.state_hash(DRIVE).unwrap()
    }

    fn add(state: StateHash) -> Action {
        let device = cluster(vec![device("S1")]).drive(DRIVE).unwrap().record.name.clone();
        Action::AddPlanned { target: Target { host: None, device }, state }
    }

    #[test]
    fn the_same_drive_has_the_same_state_wherever_it_stands() {
        let one = hash(&cluster(vec![device("S1")]));
        // Kept from release to release: a plan may be carried out by the next one.
        assert_eq!(one.to_string(), "s-0152ee94c346268c");
        let moved = Observed { path: "/dev/sdz".into(), bay: Some("7".into()), ..device("S1") };
        assert_eq!(hash(&cluster(vec![moved])), one);
        assert_eq!(one.to_string().parse(), Ok(one));
        for bad in
            ["", "s-", "s-12", "0000000000000000", "s-000000000000000G", "s-+00000000000000f"]
        {
            assert_eq!(bad.parse::<StateHash>(), Err(NotAStateHash), "{bad}");
        }
    }

    #[test]
    fn whatever_a_decision_rests_on_changes_the_state() {
        let mut cluster = cluster(vec![device("S1")]);
        let planned = hash(&cluster);
        let contents = Details { contents: Some("ext4".into()), ..Details::default() };
        let parted = |size_bytes| {
            let partitions = vec![Partition { name: "sdx1".into(), size_bytes }];
            let details = Box::new(Details { partitions, ..Details::default() });
            let denied = vec![Denied::Partitioned { table: "gpt".into() }];
            Observed { details, denied, ..device("S1") }
        };
        report(&mut cluster, vec![parted(1)]);
        let one = hash(&cluster);
        report(&mut cluster, vec![parted(2)]);
        assert_ne!(hash(&cluster), one, "parted anew");
        for (what, changed) in [
            ("size", vec![Observed { size_bytes: 1 << 31, ..device("S1") }]),
            ("blocks", vec![Observed { block_bytes: 4_096, ..device("S1") }]),
            ("contents", vec![Observed { details: Box::new(contents), ..device("S1") }]),
            ("denied", vec![Observed { denied: vec![Denied::ReadOnly], ..device("S1") }]),
            ("pulled", vec![]),
            ("a twin", vec![device("S1"), Observed { path: "/dev/sdy".into(), ..device("S1") }]),
        ] {
            report(&mut cluster, changed);
            assert_ne!(hash(&cluster), planned, "{what}");
            for dry_run in [true, false] {
                let event =
                    Event::Act { actions: vec![add(planned)], asked_by: "me".into(), dry_run };
                let effects = cluster.apply(event, 0).unwrap();
                let super::super::Reply::Acted(outcomes) = effects.reply else { panic!("{what}") };
                assert_eq!(outcomes[0].code, Code::InvalidState, "{what}");
                let now = hash(&cluster);
                assert_eq!(outcomes[0].reasons, [Reason::ChangedSince { now }], "{what}");
                assert!(effects.writes.is_empty() && effects.orders.is_empty(), "{what}");
            }
            report(&mut cluster, vec![device("S1")]);
            assert_eq!(hash(&cluster), planned, "{what}");
        }
    }

    #[test]
    fn a_plan_may_be_carried_out_twice_and_not_after_a_removal() {
        let mut cluster = cluster(vec![device("S1")]);
        let planned = hash(&cluster);
        assert_eq!(act(&mut cluster, add(planned)).1.code, Code::Ok);
        assert_eq!(act(&mut cluster, add(planned)).1.code, Code::Already);
        let name = cluster.drive(DRIVE).unwrap().record.name.clone();
        act(&mut cluster, Action::RemoveDevice(Target { host: None, device: name }));
        let (effects, outcome) = act(&mut cluster, add(planned));
        assert_eq!(outcome.code, Code::InvalidState);
        assert!(effects.writes.is_empty() && effects.orders.is_empty());
    }

    #[test]
    fn a_registry_that_has_just_started_does_not_call_every_drive_changed() {
        let mut cluster = cluster(vec![device("S1")]);
        let planned = hash(&cluster);
        cluster.apply(Event::SessionClosed(A), 0).unwrap();
        let records = Records {
            registry: Some(cluster.registry.clone()),
            nodes: cluster.nodes().map(|node| node.record.clone()).collect(),
            drives: cluster.drives().map(|drive| drive.record.clone()).collect(),
            ..Records::default()
        };
        assert_eq!(hash(&lead(records, 2).0), planned);
    }
}
