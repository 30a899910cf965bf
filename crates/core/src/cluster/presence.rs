//! What becomes of a drive on its machine: it comes and goes, grows and shrinks. Every real change is written once and
//! told once, and a report that says nothing new leaves no trace.

use std::fmt;
use std::sync::Arc;

use super::{About, Cluster, Effects, Notice};
use crate::device::Observed;
use crate::ids::DriveId;
use crate::words::bytes;

/// How many volumes are named that a drive is too small for.
const MOST_NAMED: usize = 8;

/// How a drive in operation is too small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shrunk {
    /// Its end is before the end of volumes on it.
    BelowVolumes { volumes: Vec<String> },
    /// Nothing is behind its end, but it had more when it was added.
    SinceAdded { added_bytes: u64 },
}

impl fmt::Display for Shrunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BelowVolumes { volumes } => {
                let (named, more) = volumes.split_at(volumes.len().min(MOST_NAMED));
                let (noun, reach) =
                    if volumes.len() == 1 { ("volume", "reaches") } else { ("volumes", "reach") };
                write!(f, "{noun} {}", named.join(", "))?;
                if !more.is_empty() {
                    write!(f, " and {} more", more.len())?;
                }
                write!(f, " {reach} beyond its end")
            }
            Self::SinceAdded { added_bytes } => {
                write!(f, "it had {} when it was added", bytes(*added_bytes))
            }
        }
    }
}

impl Cluster {
    /// A drive is on its machine, and as reported.
    pub(super) fn note_present(&mut self, id: DriveId, device: Observed, effects: &mut Effects) {
        let ours = self.id();
        let drive = self.drives.get_mut(&id).expect("only known drives are noted");
        let was_missing = std::mem::take(&mut drive.missing);
        drive.present = true;
        drive.label = device.label.filter(|label| label.cluster == ours);
        let device = Observed { label: None, ..device };
        let before = Arc::clone(&drive.record.observed);
        if *before != device {
            self.note_facts(id, &device.evidence);
            self.change_drive(id, effects, |record| record.observed = Arc::new(device));
            // How full it is follows from its size.
            self.rank(id);
        }
        if was_missing {
            let text = format!("{} is on its machine again.", self.describe(id));
            effects.notices.push(Notice::plain("DriveSeen", About::Drive(id), text));
        }
        self.tell_size(id, before.size_bytes, effects);
    }

    /// A drive is not among what its machine has.
    pub(super) fn note_missing(&mut self, id: DriveId, effects: &mut Effects) {
        let drive = self.drives.get_mut(&id).expect("only known drives are noted");
        if !std::mem::take(&mut drive.present) {
            return;
        }
        drive.missing = true;
        let about = About::Drive(id);
        let text = format!("{} is not on its machine any more", self.describe(id));
        effects.notices.push(if self.in_operation(id) {
            Notice::warning("DriveGone", about, format!("{text}, and was in operation."))
        } else {
            Notice::plain("DriveGone", about, format!("{text}."))
        });
    }

    /// How a drive in operation is too small now, if it is: then it takes no new volumes.
    pub fn shrunk(&self, id: DriveId) -> Option<Shrunk> {
        let drive = self.drives.get(&id).filter(|_| self.in_operation(id))?;
        let volumes: Vec<_> =
            drive.beyond_end().iter().map(|volume| self.volume_name(*volume)).collect();
        if !volumes.is_empty() {
            return Some(Shrunk::BelowVolumes { volumes });
        }
        let added_bytes = drive.record.added_bytes;
        let smaller = drive.record.observed.size_bytes < added_bytes;
        smaller.then_some(Shrunk::SinceAdded { added_bytes })
    }

    fn tell_size(&self, id: DriveId, before: u64, effects: &mut Effects) {
        let now = self.drives[&id].record.observed.size_bytes;
        if before == now {
            return;
        }
        let (name, about) = (self.describe(id), About::Drive(id));
        let sizes = format!("from {} to {}", bytes(before), bytes(now));
        effects.notices.push(match self.shrunk(id) {
            Some(why) if now < before => {
                let text = format!(
                    "{name} has shrunk {sizes} while in operation: {why}; it takes no new volumes."
                );
                Notice::warning("DriveShrunk", about, text)
            }
            Some(_) | None if now < before => {
                Notice::plain("DriveShrunk", about, format!("{name} has shrunk {sizes}."))
            }
            Some(_) | None => {
                Notice::plain("DriveGrown", about, format!("{name} has grown {sizes}."))
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, AttachAtStart, RecordFound};
    use crate::cluster::testing::{DRIVE, act, device, lead, register, says};
    use crate::cluster::{Event, Records};
    use crate::cms::{Action, Target};
    use crate::ids::{Incarnation, SessionNumber};
    use crate::rules::Rules;

    const GIB: u64 = 1 << 30;

    fn sized(size_bytes: u64) -> Observed {
        Observed { size_bytes, ..device("S1") }
    }

    fn cluster_with(devices: Vec<Observed>) -> Cluster {
        let (mut cluster, _) = lead(Records::default(), 1);
        let (start, record) = (Incarnation::from_bits(5), RecordFound::Absent(None));
        let at_start = AttachAtStart::default();
        let (agent, _) = Agent::start(Rules::default(), start, record, devices, at_start);
        register(&mut cluster, 1, says(&agent, "node-a")).unwrap();
        cluster
    }

    /// A report of all devices: how many records were written, and what was told, with a mark for warnings.
    fn reports(cluster: &mut Cluster, devices: Vec<Observed>) -> (usize, Vec<String>) {
        let session = SessionNumber::from_number(1);
        let fresh = (100..).take(devices.len()).map(DriveId::from_bits).collect();
        let effects = cluster
            .apply(Event::Devices { session, devices, conditions: vec![], fresh }, 0)
            .unwrap();
        let told = effects.notices.into_iter();
        let told =
            told.map(|notice| format!("{}{}", if notice.warning { "! " } else { "" }, notice.text));
        (effects.writes.len(), told.collect())
    }

    #[test]
    fn every_change_of_size_is_written_and_told_once() {
        let mut cluster = cluster_with(vec![sized(GIB)]);
        assert_eq!(reports(&mut cluster, vec![sized(GIB)]), (0, vec![]));
        let grown = "Drive d-00000000 in node-a /dev/sdx has grown from 1 GiB to 2 GiB.".to_owned();
        assert_eq!(reports(&mut cluster, vec![sized(2 * GIB)]), (1, vec![grown]));
        assert_eq!(reports(&mut cluster, vec![sized(2 * GIB)]), (0, vec![]));
        let shrunk = "Drive d-00000000 in node-a /dev/sdx has shrunk from 2 GiB to 0 B.".to_owned();
        assert_eq!(reports(&mut cluster, vec![sized(0)]), (1, vec![shrunk]));
        assert_eq!(reports(&mut cluster, vec![sized(GIB)]).0, 1, "from nothing to something");
    }

    #[test]
    fn a_drive_that_shrinks_in_operation_says_so_until_it_has_its_size_again() {
        let mut cluster = cluster_with(vec![sized(2 * GIB)]);
        let target = Target { host: None, device: "S1".into() };
        act(&mut cluster, Action::AddDevice(target));
        let (_, told) = reports(&mut cluster, vec![sized(GIB)]);
        assert!(told[0].starts_with("! ") && told[0].contains("no new volumes"), "{told:?}");
        assert_eq!(cluster.shrunk(DRIVE), Some(Shrunk::SinceAdded { added_bytes: 2 * GIB }));
        reports(&mut cluster, vec![sized(3 * GIB)]);
        assert_eq!(cluster.shrunk(DRIVE), None);
    }

    #[test]
    fn a_drive_that_goes_and_comes_is_told_once_each() {
        let mut cluster = cluster_with(vec![sized(GIB)]);
        let (writes, told) = reports(&mut cluster, vec![]);
        assert_eq!((writes, told.len()), (0, 1), "{told:?}");
        assert_eq!(reports(&mut cluster, vec![]), (0, vec![]));
        let (writes, told) = reports(&mut cluster, vec![sized(GIB)]);
        assert_eq!((writes, told.len()), (0, 1), "{told:?}");
        assert_eq!(reports(&mut cluster, vec![sized(GIB)]), (0, vec![]));
    }
}
