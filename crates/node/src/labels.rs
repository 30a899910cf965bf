//! Which label a device has after a look: the one that the look read, or the one that the agent has written since.
//!
//! The agent's own knowledge is newer than an earlier look, and older than a device that has come since. Evidence alone
//! does not carry a label over: two drives may give the same, and only one of them has it.

use hotbay_core::device::{LabelSeen, Observed};
use hotbay_core::evidence::Comparison;

/// One device of a look.
#[derive(Debug, Clone)]
pub(crate) struct Looked {
    pub(crate) observed: Observed,
    pub(crate) how: How,
}

/// How much of a device this look has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// It is the very device that was at this path before, and was not read again.
    Unchanged,
    /// It was read just now.
    Read,
    /// It is out of operation and was not read; whether it has a label is unknown.
    LeftAlone,
}

/// Gives every device the label that it has, by what the agent knew. Also gives the paths that should be read again:
/// the label that the agent knows of was not there, which a label written during the look explains as well as another
/// device does.
pub(crate) fn after_look(known: &[Observed], found: &[Looked]) -> (Vec<Observed>, Vec<String>) {
    let mut doubtful = Vec::new();
    let devices = found.iter().map(|looked| {
        let at_path = known_at(known, &looked.observed);
        let read = looked.observed.label;
        let label = match looked.how {
            How::Unchanged => at_path.or(read),
            How::Read => match (read, at_path) {
                (Some(read), Some(known)) if read.drive == known.drive => {
                    Some(if known.sequence > read.sequence { known } else { read })
                }
                (None, Some(_)) => {
                    doubtful.push(looked.observed.path.clone());
                    None
                }
                (read, _) => read,
            },
            How::LeftAlone => the_only(known, found, &looked.observed),
        };
        Observed { label, ..looked.observed.clone() }
    });
    (devices.collect(), doubtful)
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
    use hotbay_core::device::{DeviceKind, Media};
    use hotbay_core::evidence::Evidence;
    use hotbay_core::ids::{ClusterId, DriveId, NodeId};
    use hotbay_core::order::Generation;

    use super::*;

    fn device(path: &str, label: Option<LabelSeen>) -> Observed {
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

    fn looked(how: How, path: &str, label: Option<LabelSeen>) -> Looked {
        Looked { observed: device(path, label), how }
    }

    fn labels(known: &[Observed], found: &[Looked]) -> (Vec<Option<LabelSeen>>, Vec<String>) {
        let (devices, doubtful) = after_look(known, found);
        (devices.into_iter().map(|device| device.label).collect(), doubtful)
    }

    #[test]
    fn what_the_agent_wrote_is_newer_than_an_earlier_look() {
        let known = [device("/dev/sda", written(4))];
        let unchanged = looked(How::Unchanged, "/dev/sda", written(3));
        assert_eq!(labels(&known, &[unchanged]), (vec![written(4)], vec![]));
        let during = looked(How::Read, "/dev/sda", written(3));
        assert_eq!(labels(&known, &[during]), (vec![written(4)], vec![]));
    }

    #[test]
    fn a_twin_does_not_inherit_a_label() {
        let known = [device("/dev/sda", written(4))];
        let swapped =
            [looked(How::Read, "/dev/sda", None), looked(How::Read, "/dev/sdb", written(4))];
        let again = vec!["/dev/sda".to_owned()];
        assert_eq!(labels(&known, &swapped), (vec![None, written(4)], again));
        let left_alone =
            [looked(How::LeftAlone, "/dev/sda", None), looked(How::LeftAlone, "/dev/sdb", None)];
        assert_eq!(labels(&known, &left_alone).0, [None, None]);
    }

    #[test]
    fn a_drive_left_alone_keeps_what_is_known_of_it_under_another_path() {
        let known = [device("/dev/sda", written(4))];
        let moved = looked(How::LeftAlone, "/dev/sdb", None);
        assert_eq!(labels(&known, &[moved]), (vec![written(4)], vec![]));
    }
}
