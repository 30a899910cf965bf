//! What a volume is asked to be, as values: what CreateVolume, placement, agents and people all speak of.
//!
//! [`class`] reads the parameters of a storage class. What is decided about volumes is in `cluster::volumes`.

pub mod class;
pub mod orders;
mod size;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

pub use size::{NotASize, Size};

use crate::ids::NodeId;
use crate::label::extents::{Claim, VolumeName};
use class::Class;

/// The annotation by which a volume's owner says that a pod is to start although the volume is dead.
pub const IGNORE_IF_INACCESSIBLE: &str = "pv.attach.kubernetes.io/ignore-if-inaccessible";

/// The annotations by which whoever looks after an application says, on the claim, that it takes part when a drive is
/// replaced, and how far it is with releasing a volume. They are kept with the volume.
pub const RELEASE: [&str; 4] = [
    "volumerelease.csi-baremetal/support",
    "volumerelease.csi-baremetal/release",
    "volumerelease.csi-baremetal/recovery",
    "volumerelease.csi-baremetal/status",
];

/// The annotations by which a volume shows that pods got a dummy in its place, and the device of that dummy. Agents
/// report them; nobody else sets them.
pub const FAKE_ATTACH: &str = "fake-attach";
pub const FAKE_DEVICE: &str = "fake-device";

/// Whether a volume works, for those who use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operational {
    #[default]
    Operative,
    /// It cannot be reached, and pods have a dummy in its place.
    Missing,
}

impl Operational {
    pub fn is_operative(&self) -> bool {
        *self == Self::Operative
    }
}

impl fmt::Display for Operational {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operative => "OPERATIVE",
            Self::Missing => "MISSING",
        })
    }
}

/// Who may use a volume counts by this: a use under a lower number than one already seen is refused.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(u64);

impl Epoch {
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    /// The one after it.
    pub const fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("fewer than 2^64 uses are granted"))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A volume that somebody wants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Wish {
    pub name: VolumeName,
    pub size: Size,
    pub class: Class,
    /// The parameters as they were given: the same name with others is another volume.
    pub parameters: BTreeMap<String, String>,
    /// Where it must be reached; empty: anywhere.
    pub nodes: BTreeSet<NodeId>,
    /// Where it should be, best first, among those.
    pub preferred: Vec<NodeId>,
    /// For whom it is, where that is known.
    pub claim: Option<Claim>,
}

/// Most pieces that a volume is made of: as many as fit in a message to the child that maps them.
pub const MOST_PARTS: usize = 256;

/// A piece of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    pub start_bytes: u64,
    pub length_bytes: u64,
}

impl Segment {
    /// The first byte behind it.
    pub const fn end_bytes(self) -> u64 {
        self.start_bytes.saturating_add(self.length_bytes)
    }
}
