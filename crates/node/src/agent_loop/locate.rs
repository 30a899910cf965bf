//! Where a drive is that a step is about.

use hotbay_core::agent::{AttachWork, Identity, Located};
use hotbay_core::device::DeviceKind;
use hotbay_core::ids::DriveId;
use hotbay_core::message::Obstacle;
use hotbay_core::order::Generation;

use super::Shell;
use crate::drives::Where;

impl Shell {
    pub(super) fn at_work(&self, work: &AttachWork) -> (Where, Identity) {
        let identity = self.identity().expect("what is attached belongs to a cluster");
        (self.place_of(work.drive), identity)
    }

    /// Proves that a closed drive is closed. One that is not on the machine has nothing left to close, but a device
    /// that hangs may be it, and so may each of several that look alike: then nothing is proved.
    pub(super) fn prove(&self, drive: DriveId, generation: Generation) {
        let at = self.agent.locate(drive);
        let doubt = match (&at, self.hanging.first()) {
            (Located::Nowhere, Some(path)) => {
                Some(format!("{path} does not answer, and may be it"))
            }
            (Located::OneOf(_), _) => at.found().err().map(|obstacle| obstacle.to_string()),
            (Located::Nowhere | Located::At(_), _) => None,
        };
        match doubt {
            Some(why) => self.drives.not_proved(drive, Obstacle::CannotProve { why }),
            None => {
                let identity = self.identity().expect("an order names the cluster");
                let order = (generation, self.agent.is_given_up(drive));
                self.drives.prove(drive, self.place_of(drive), identity, order);
            }
        }
    }

    /// Where a drive is. One that is not on the machine is nowhere, and its evidence says what it was.
    pub(super) fn place_of(&self, drive: DriveId) -> Where {
        let memory = self.agent.record().drives.get(&drive);
        match self.agent.locate(drive).device() {
            Some(device) => Where {
                path: device.path.clone(),
                kind: device.kind,
                evidence: device.evidence.clone(),
            },
            None => Where {
                path: String::new(),
                kind: DeviceKind::Block,
                evidence: memory.map(|memory| memory.evidence.clone()).unwrap_or_default(),
            },
        }
    }
}
