//! Which device on the machine is a drive: decided here alone, for every step on it.
//!
//! A maker may give several drives one serial number, and a file of a virtual machine may be there twice. Then evidence
//! does not tell which of them is meant, and a path does not either: paths change places over a reboot. Only the label
//! tells. Without it nothing is guessed, for the wrong guess would label somebody else's drive.

use super::Agent;
use crate::device::Observed;
use crate::evidence::Comparison;
use crate::ids::DriveId;
use crate::message::Obstacle;

/// Where a drive is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Located<'a> {
    At(&'a Observed),
    /// It is not on the machine.
    Nowhere,
    /// Several devices fit, and nothing tells which one it is.
    OneOf(Vec<&'a Observed>),
}

impl<'a> Located<'a> {
    /// The device, if it is known.
    pub fn device(self) -> Option<&'a Observed> {
        match self {
            Self::At(device) => Some(device),
            Self::Nowhere | Self::OneOf(_) => None,
        }
    }

    /// The device, or what is in the way of naming it.
    pub fn found(self) -> Result<&'a Observed, Obstacle> {
        match self {
            Self::At(device) => Ok(device),
            Self::Nowhere => Err(Obstacle::DeviceMissing),
            Self::OneOf(devices) => {
                let paths = devices.into_iter().map(|device| device.path.clone()).collect();
                Err(Obstacle::LooksAlike { paths })
            }
        }
    }
}

impl Agent {
    /// Where a drive is: among the devices that fit its evidence the one that is labelled for it; without a record of
    /// the drive, the one that is labelled for it.
    pub fn locate(&self, drive: DriveId) -> Located<'_> {
        let labelled = |device: &&Observed| device.label.is_some_and(|label| label.drive == drive);
        let fits = |device: &&Observed| match self.record.drives.get(&drive) {
            Some(memory) => device.evidence.compare(&memory.evidence) == Comparison::Same,
            None => labelled(device),
        };
        let fitting: Vec<_> = self.devices.iter().filter(fits).collect();
        let with_label: Vec<_> = fitting.iter().copied().filter(labelled).collect();
        match (with_label.as_slice(), fitting.as_slice()) {
            ([one], _) | ([], [one]) => Located::At(one),
            ([], []) => Located::Nowhere,
            ([], several) | (several, _) => Located::OneOf(several.to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{AgentRecord, AttachAtStart, DriveMemory, Effect, Event, RecordFound};
    use crate::cluster::testing::{DRIVE, device};
    use crate::device::LabelSeen;
    use crate::ids::{ClusterId, Incarnation, NodeId, TermId};
    use crate::order::{Generation, Goal, Ordered, Stamp, Term};
    use crate::rules::Rules;

    const GENERATION: Generation = Generation::from_number(1);

    fn at(path: &str, label: Option<LabelSeen>) -> Observed {
        Observed { path: path.into(), label, ..device("S1") }
    }

    fn label() -> Option<LabelSeen> {
        Some(LabelSeen {
            cluster: ClusterId::from_bits(1),
            drive: DRIVE,
            node: NodeId::from_bits(2),
            generation: GENERATION,
            in_operation: true,
            sequence: 1,
        })
    }

    /// An agent that had the drive in operation, started on a machine with these devices; the paths that it opens.
    fn opens(devices: Vec<Observed>) -> (Agent, Vec<String>) {
        let stamp = Stamp { term: Term::first(TermId::from_bits(7)), generation: GENERATION };
        let ordered = Ordered { goal: Goal::Attach, stamp };
        let evidence = device("S1").evidence;
        let memory = DriveMemory {
            seen: ordered,
            in_force: Some(ordered),
            evidence,
            take_over: false,
            wipe: None,
            wiped: None,
            given_up: false,
        };
        let record =
            AgentRecord { drives: [(DRIVE, memory)].into_iter().collect(), ..Default::default() };
        let (agent, effects) = Agent::start(
            Rules::default(),
            Incarnation::from_bits(5),
            RecordFound::Usable(record),
            devices,
            AttachAtStart::default(),
        );
        let paths = paths_of(effects);
        (agent, paths)
    }

    fn paths_of(effects: Vec<Effect>) -> Vec<String> {
        let attach =
            |effect| if let Effect::Attach(work) = effect { Some(work.path) } else { None };
        effects.into_iter().filter_map(attach).collect()
    }

    #[test]
    fn of_two_that_look_alike_the_labelled_one_is_the_drive() {
        let (_, paths) = opens(vec![at("/dev/sda", None), at("/dev/sdb", label())]);
        assert_eq!(paths, ["/dev/sdb"]);
    }

    #[test]
    fn without_a_label_nothing_is_guessed_until_only_one_is_left() {
        let (mut agent, paths) = opens(vec![at("/dev/sda", None), at("/dev/sdb", None)]);
        assert_eq!(paths, [] as [&str; 0]);
        let alike = vec!["/dev/sda".to_owned(), "/dev/sdb".to_owned()];
        let obstacle = agent.locate(DRIVE).found().unwrap_err();
        assert_eq!(obstacle, Obstacle::LooksAlike { paths: alike });
        let effects = agent.step(Event::Devices(vec![at("/dev/sdb", None)]));
        assert_eq!(paths_of(effects), ["/dev/sdb"]);
    }

    #[test]
    fn a_copy_of_the_label_is_not_chosen_from() {
        let (agent, paths) = opens(vec![at("/dev/sda", label()), at("/dev/sdb", label())]);
        assert_eq!((paths.len(), agent.locate(DRIVE).device()), (0, None));
    }
}
