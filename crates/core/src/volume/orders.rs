//! What registry and agent say to each other about volumes: labels, orders to change them, and who may use what.

use serde::{Deserialize, Serialize};

use super::Epoch;
use crate::ids::{DriveId, Incarnation, VolumeId};
use crate::label::change::{Basis, Change, LabelTold};
use crate::order::Term;

/// Registry to agent: something about volumes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VolumeOrder {
    Label(LabelOrder),
    Use(UseOrder),
}

/// Registry to agent: change the label of a drive. It names the label that it was decided on; another one refuses it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelOrder {
    pub drive: DriveId,
    pub term: Term,
    pub incarnation: Incarnation,
    pub basis: Basis,
    /// All of them, or none.
    pub changes: Vec<Change>,
}

/// Agent to registry: what became of a label order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelAnswer {
    pub drive: DriveId,
    pub incarnation: Incarnation,
    /// The label that the order named.
    pub on: Basis,
    /// What the order was to change: two may have been decided on one label.
    pub changes: Vec<Change>,
    pub result: LabelResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "result")]
pub enum LabelResult {
    /// The changes are on the drive and last.
    Done { now: Basis },
    /// Nothing was changed, and why; the label as it is.
    Refused { why: String, told: LabelTold },
    /// Whether anything was changed is not known.
    Failed { error: String },
    /// Nothing was changed: what was to be freed may still be used on this machine, by these epochs.
    InUse { uses: Vec<(VolumeId, Epoch)> },
}

/// Registry to agent: a volume may be used, or may not any more.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UseOrder {
    pub volume: VolumeId,
    /// The drive that it is on.
    pub drive: DriveId,
    pub term: Term,
    pub incarnation: Incarnation,
    pub grant: Grant,
}

/// The use of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    pub epoch: Epoch,
    /// Within one epoch a grant is given once: what is taken back is never given again.
    pub granted: bool,
    #[serde(default)]
    pub read_only: bool,
    /// A pod is to start although the volume is dead.
    #[serde(default)]
    pub ignore_if_inaccessible: bool,
}

impl Grant {
    /// Whether this one may follow `other`.
    pub fn may_follow(&self, other: &Self) -> bool {
        match self.epoch.cmp(&other.epoch) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => other.granted || !self.granted,
            std::cmp::Ordering::Greater => true,
        }
    }
}

/// Agent to registry: what became of a use order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UseAnswer {
    pub volume: VolumeId,
    pub incarnation: Incarnation,
    pub epoch: Epoch,
    pub granted: bool,
    pub result: UseResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "result")]
pub enum UseResult {
    /// It is on the agent's disk, and so it is.
    Done,
    /// The agent goes on by itself, and answers again.
    Waiting { why: String },
    Refused {
        why: String,
        /// The newest epoch that the agent has seen.
        seen: Epoch,
    },
}

/// Agent to registry: how a volume is staged on its machine. Sent when that changes, and for all of them after a
/// registration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeReport {
    pub volume: VolumeId,
    /// Of the use under which it was staged.
    pub epoch: Epoch,
    pub access: StagedAs,
    /// Why its device does not answer now, if it does not.
    #[serde(default)]
    pub inaccessible: Option<String>,
}

/// What pods get in the place of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "staged")]
pub enum StagedAs {
    /// The volume itself.
    Real,
    /// A dummy, because the volume could not be reached, and why. A block volume has a device for it.
    Fake {
        #[serde(default)]
        device: Option<String>,
        reason: String,
    },
    /// Nothing: it is not staged any more.
    Unstaged,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_that_was_taken_back_is_not_given_again() {
        let grant = |epoch, granted| Grant {
            epoch: Epoch::from_number(epoch),
            granted,
            read_only: false,
            ignore_if_inaccessible: false,
        };
        assert!(grant(2, true).may_follow(&grant(2, true)));
        assert!(grant(2, false).may_follow(&grant(2, true)));
        assert!(!grant(2, true).may_follow(&grant(2, false)));
        assert!(grant(2, false).may_follow(&grant(2, false)));
        assert!(grant(3, true).may_follow(&grant(2, false)));
        assert!(!grant(2, true).may_follow(&grant(3, true)));
        assert!(!grant(2, false).may_follow(&grant(3, true)));
    }
}
