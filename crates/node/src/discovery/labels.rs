//! Which label a device has after a look: the one that was read, or the one that the agent has written since.
//!
//! The agent's own knowledge is newer than an earlier look, and older than a device that has come since. Evidence alone
//! does not carry a label over: two drives may give the same, and only one of them has it.

use std::collections::BTreeMap;

use hotbay_core::device::{LabelSeen, Observed};
use hotbay_core::evidence::Comparison;
use hotbay_host::KernelId;

/// One device as it was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Looked {
    pub(crate) observed: Observed,
    /// Which device the kernel has there: the same again is the same device.
    pub(crate) device: (KernelId, Option<u64>),
    /// The number of the look in which it was last read. A higher one was later.
    pub(crate) look: u64,
    /// It is out of operation and was not read; whether it has a label is unknown.
    pub(crate) left_alone: bool,
}

impl Looked {
    /// Whether there is nothing new in another look at the device.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        (&self.observed, self.device, self.left_alone)
            == (&other.observed, other.device, other.left_alone)
    }
}

/// The looks whose labels the agent has taken note of, by path.
pub(crate) type Handled = BTreeMap<String, u64>;

/// Gives every device the label that it has, by what the agent knew. Also gives the looks that should be repeated: the
/// label that the agent knows of was not there, which a label written during the look explains as well as another
/// device does.
pub(crate) fn after_look(
    known: &[Observed],
    found: &[Looked],
    handled: &mut Handled,
) -> (Vec<Observed>, Handled) {
    let mut doubts = Handled::new();
    let devices = found.iter().map(|looked| {
        let Looked { observed, look, left_alone, .. } = looked;
        let at_path = known_at(known, observed);
        let read = observed.label;
        let is_news = handled.get(&observed.path) != Some(look);
        let label = match (left_alone, is_news) {
            (false, false) => at_path.or(read),
            (false, true) => match (read, at_path) {
                (Some(read), Some(known)) if read.drive == known.drive => {
                    Some(if known.sequence > read.sequence { known } else { read })
                }
                (None, Some(_)) => {
                    doubts.insert(observed.path.clone(), *look);
                    None
                }
                (read, _) => read,
            },
            (true, false) => at_path,
            (true, true) => the_only(known, found, observed),
        };
        Observed { label, ..observed.clone() }
    });
    let devices = devices.collect();
    *handled = found.iter().map(|looked| (looked.observed.path.clone(), looked.look)).collect();
    (devices, doubts)
}

fn is_same(one: &Observed, other: &Observed) -> bool {
    one.evidence.compare(&other.evidence) == Comparison::Same
}

fn known_at(known: &[Observed], device: &Observed) -> Option<LabelSeen> {
    let same = |other: &&Observed| other.path == device.path && is_same(other, device);
    known.iter().find(same).and_then(|other| other.label)
}

/// The known label of a device that no other can be taken for, before or now.
fn the_only(known: &[Observed], found: &[Looked], device: &Observed) -> Option<LabelSeen> {
    let now = found.iter().filter(|looked| is_same(&looked.observed, device)).count();
    let mut before = known.iter().filter(|other| is_same(other, device));
    match (now, before.next(), before.next()) {
        (1, Some(one), None) => one.label,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::device::{DeviceKind, DeviceNumber, Media};
    use hotbay_core::evidence::Evidence;
    use hotbay_core::ids::{ClusterId, DriveId, NodeId};
    use hotbay_core::order::Generation;

    use super::*;

    fn device_at(path: &str, label: Option<LabelSeen>) -> Observed {
        Observed {
            evidence: Evidence { serial: Some("S1".into()), ..Evidence::default() },
            path: path.into(),
            bay: None,
            kind: DeviceKind::Block,
            media: Media::Ssd,
            size_bytes: 1 << 30,
            block_bytes: 512,
            details: Default::default(),
            label,
            denied: Vec::new(),
        }
    }

    fn written(sequence: u64) -> Option<LabelSeen> {
        Some(LabelSeen {
            cluster: ClusterId::from_bits(1),
            drive: DriveId::from_bits(2),
            node: NodeId::from_bits(3),
            generation: Generation::from_number(1),
            in_operation: true,
            sequence,
        })
    }

    fn looked(look: u64, path: &str, label: Option<LabelSeen>) -> Looked {
        let device = (KernelId::Block(DeviceNumber { major: 8, minor: 0 }), Some(1));
        Looked { observed: device_at(path, label), device, look, left_alone: false }
    }

    fn alone(look: u64, path: &str) -> Looked {
        Looked { left_alone: true, ..looked(look, path, None) }
    }

    /// The labels after a look, if look 1 has been taken note of.
    fn labels(known: &[Observed], found: &[Looked]) -> (Vec<Option<LabelSeen>>, Handled) {
        let mut handled = Handled::from([("/dev/sda".to_owned(), 1)]);
        let (devices, doubts) = after_look(known, found, &mut handled);
        (devices.into_iter().map(|device| device.label).collect(), doubts)
    }

    #[test]
    fn what_the_agent_wrote_is_newer_than_an_earlier_look() {
        let known = [device_at("/dev/sda", written(4))];
        let unchanged = looked(1, "/dev/sda", written(3));
        assert_eq!(labels(&known, &[unchanged]), (vec![written(4)], Handled::new()));
        let during = looked(2, "/dev/sda", written(3));
        assert_eq!(labels(&known, &[during]), (vec![written(4)], Handled::new()));
    }

    #[test]
    fn a_twin_does_not_inherit_a_label() {
        let known = [device_at("/dev/sda", written(4))];
        let swapped = [looked(2, "/dev/sda", None), looked(3, "/dev/sdb", written(4))];
        let again = Handled::from([("/dev/sda".to_owned(), 2)]);
        assert_eq!(labels(&known, &swapped), (vec![None, written(4)], again));
        let left_alone = [alone(2, "/dev/sda"), alone(3, "/dev/sdb")];
        assert_eq!(labels(&known, &left_alone).0, [None, None]);
    }

    #[test]
    fn a_drive_left_alone_keeps_what_is_known_of_it_under_another_path() {
        let known = [device_at("/dev/sda", written(4))];
        assert_eq!(labels(&known, &[alone(2, "/dev/sdb")]).0, [written(4)]);
        assert_eq!(labels(&known, &[alone(1, "/dev/sda")]).0, [written(4)]);
    }
}
