//! What agent and child say to each other, as values.
//!
//! Both are the same program, so the format needs no versions.

use std::path::PathBuf;

use hotbay_core::device::{DeviceKind, LabelSeen};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, DriveId, NodeId, VolumeId};
use hotbay_core::label::change::{Basis, Change, ChangeRefused, LabelTold};
use hotbay_core::label::update::Want;
use hotbay_core::order::Generation;
use hotbay_core::wipe::Content;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::filesystem::{FilesystemDone, FilesystemError, FilesystemTask};
use crate::kernel_id::KernelId;
use crate::locks::LockHolder;
use crate::mapping::dummy::{DummyDone, DummyTask};
use crate::mapping::{Mapping, MappingError, MappingPage, Segment, Wanted};
use crate::proof::{Blocker, Proof};
use crate::scan::Signatures;

/// Longest text of an error, so that every message fits its packet.
const MAX_ERROR_CHARS: usize = 4096;

/// Agent to child.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWorker {
    /// Descriptors for the request that follows. They come first and alone, so that the agent has dropped its own
    /// copies before the child may close them: the last close is then the child's.
    Descriptors,
    Do {
        runtime_dir: PathBuf,
        request: Box<Request>,
    },
}

/// What a child is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Tell which drive is at a path, without opening it.
    Identify { path: String },
    /// Look at what is on a device. Never writes, never opens it exclusively.
    Look { path: String },
    /// Open a drive and bring its label up to date. The descriptor comes with the answer. Where device-mapper is to map
    /// its volumes, it holds the claim on the drive from here on.
    Attach(Attach),
    /// The drive is open, and one descriptor of it comes along: bring its label up to date through that.
    Relabel(Attach),
    /// The drive is open and in operation here, and one descriptor of it comes along: change its label through that.
    ChangeLabel(ChangeLabel),
    /// The same, and only read it.
    ReadLabel(ReadLabel),
    /// Mark the label released, close the drive and prove that it is closed, unless its label says that volumes are on
    /// it. One descriptor may come along; without one the drive is opened for the label, if that is not released.
    Detach(Detach),
    /// Close the descriptors, nothing else.
    Close,
    /// Map a volume. One descriptor of its drive comes along, the one that the drive was attached with.
    Map(Wanted),
    /// Remove the mapping of a volume.
    Unmap { volume: VolumeId },
    /// Make all I/O of a volume's mapping fail.
    Fence { volume: VolumeId },
    /// Give the mapping of a volume more of its drive, of which one descriptor comes along.
    GrowMapping(Wanted),
    /// List the mappings of this machine, those behind a volume.
    ListMappings { after: Option<VolumeId> },
    /// Read the first and the last bytes of each piece of a drive, of which one descriptor comes along. With a volume,
    /// these must be what the label of the drive gives to it.
    ReadParts { parts: Vec<Segment>, of: Option<VolumeId> },
    /// Do something with the dummy device of a block volume.
    Dummy(DummyTask),
    /// Do something with the filesystem of a volume, or with its mounts.
    Filesystem(FilesystemTask),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    pub path: String,
    pub kind: DeviceKind,
    /// What the drive must be known by.
    pub evidence: Evidence,
    pub want: LabelWant,
    /// What on it may be wiped, if it has no label of ours. A relabel wipes nothing.
    pub wipe: Vec<Content>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detach {
    pub path: String,
    pub kind: DeviceKind,
    pub evidence: Evidence,
    /// What [`Attached::id`] said, if the drive was attached: by it a drive is searched for that is gone from the
    /// machine.
    pub known: Option<KernelId>,
    /// What the label is to say before the close.
    pub release: Option<LabelWant>,
    /// Release and close the drive although its label says that volumes are on it, unless one of them is mapped.
    pub even_with_volumes: bool,
}

/// An order to change a label: all changes together, or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeLabel {
    pub path: String,
    pub kind: DeviceKind,
    pub evidence: Evidence,
    /// What the label says while the drive is in operation here.
    pub held: LabelWant,
    /// The label that the changes were decided on.
    pub basis: Basis,
    pub changes: Vec<Change>,
    /// How fast bytes may be erased; as fast as the drive can if `None`.
    pub erase_bytes_per_second: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadLabel {
    pub path: String,
    pub kind: DeviceKind,
    pub evidence: Evidence,
    /// What the label says while the drive is in operation here.
    pub held: LabelWant,
}

/// A [`Want`] in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelWant(#[serde(with = "WantFields")] pub Want);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Want")]
struct WantFields {
    cluster: ClusterId,
    drive: DriveId,
    node: NodeId,
    generation: Generation,
    in_operation: bool,
    take_over: bool,
}

/// Child to agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    Identified(Result<Evidence, LookError>),
    Looked(Result<Looked, LookError>),
    Attached(Result<Attached, AttachError>),
    /// The whole label after the changes.
    LabelChanged(Result<LabelTold, LabelChangeError>),
    LabelRead(Result<LabelTold, LabelChangeError>),
    Detached(Detached),
    /// A detach is refused, and nothing was done: these volumes are on the drive. The descriptor that came along comes
    /// back with this.
    InUse {
        volumes: Vec<String>,
    },
    /// A detach is refused, and nothing was done: this is mapped on the drive. The descriptor comes back as well.
    StillMapped {
        by: Vec<Blocker>,
    },
    Closed,
    Mapped(Result<Mapping, MappingError>),
    /// False if there was no mapping.
    Unmapped(Result<bool, MappingError>),
    /// The mapping that is fenced now, if there is one.
    Fenced(Result<Option<Mapping>, MappingError>),
    Mappings(Result<MappingPage, MappingError>),
    Filesystem(Result<FilesystemDone, FilesystemError>),
    ReadParts(Result<(), MappingError>),
    Dummy(Result<DummyDone, MappingError>),
}

/// What a child sends.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FromWorker {
    pub(super) response: Response,
    /// What went wrong beside what was asked, and does not change the answer.
    pub(super) warnings: Vec<String>,
}

/// What is on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looked {
    pub id: KernelId,
    /// All evidence, that of a file included.
    pub evidence: Evidence,
    pub label: LabelLook,
    /// Where volumes on it are mapped by loop devices, if it has a label.
    pub mappings: Vec<String>,
    /// The names of our own devices that stand on it, if it has no label that they could belong to.
    pub stray: Vec<String>,
}

/// Our label on a device, or what is there instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabelLook {
    Absent {
        signatures: Signatures,
        /// The first byte that is not zero, of those that are zero on an empty drive.
        first_nonzero: Option<u64>,
    },
    Valid(LabelSeen),
    Damaged,
    UnknownVersion(u32),
}

/// Why nothing is known about what is on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum LookError {
    #[error("it is gone")]
    Missing,
    #[error("{error}")]
    Unreadable { error: String },
}

/// A drive that is open: its descriptor comes with this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    pub id: KernelId,
    pub label: LabelSeen,
    /// What orders to change the label are decided on.
    pub told: LabelTold,
}

/// Why a drive was not attached. Nothing is left open, and nothing was written unless it is `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum AttachError {
    #[error("nothing is at {path}")]
    Missing { path: String },
    #[error("{by} may still write to it")]
    LockedBy { by: LockHolder },
    #[error("{path} is another drive now")]
    OtherDrive { path: String, found: Box<Evidence> },
    #[error("nothing proves that {path} is the drive that is meant")]
    NoProof { path: String, found: Box<Evidence> },
    #[error("it is in use by {}", list(by))]
    Busy { by: Vec<Blocker> },
    #[error("it is not ours to take: {why}")]
    NotOurs { why: String },
    #[error("cannot {step}: {error}")]
    Failed { step: String, error: String },
}

impl AttachError {
    /// Whether the same order may succeed later with nobody having decided anything.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::LockedBy { .. }
            | Self::Busy { .. }
            | Self::Failed { .. } => true,
            Self::OtherDrive { .. } | Self::NoProof { .. } | Self::NotOurs { .. } => false,
        }
    }
}

/// Why a label was not changed, or cannot be told. Nothing was written unless it is `Failed`: then the label says by
/// its sequence whether the changes came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum LabelChangeError {
    /// The label is another than the order was decided on, or the change is not allowed.
    #[error("{why}")]
    Refused {
        why: ChangeRefused,
        /// What the next order may be decided on.
        now: LabelTold,
    },
    /// What was to be taken off is mapped on this machine, by these epochs: whoever gave the order does not know that.
    #[error("a volume that is to be taken off the drive is mapped on this machine")]
    Mapped { uses: Vec<(VolumeId, u64)> },
    #[error("it is not in operation here: {why}")]
    NotHeld { why: String },
    #[error("nothing is at {path}")]
    Missing { path: String },
    #[error("{path} is not proved to be the drive that is meant")]
    OtherDrive { path: String },
    #[error("{by} may still write to it")]
    LockedBy { by: LockHolder },
    #[error("cannot {step}: {error}")]
    Failed { step: String, error: String },
}

impl LabelChangeError {
    /// Whether the same order may succeed later with nobody having decided anything. If an order that has `Failed` came
    /// all the same, it is refused then, with the label that it made.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Missing { .. } | Self::LockedBy { .. } | Self::Failed { .. } => true,
            Self::Refused { .. }
            | Self::Mapped { .. }
            | Self::NotHeld { .. }
            | Self::OtherDrive { .. } => false,
        }
    }
}

impl From<AttachError> for LabelChangeError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Missing { path } => Self::Missing { path },
            AttachError::LockedBy { by } => Self::LockedBy { by },
            AttachError::OtherDrive { path, .. } | AttachError::NoProof { path, .. } => {
                Self::OtherDrive { path }
            }
            error @ (AttachError::Busy { .. } | AttachError::NotOurs { .. }) => {
                Self::NotHeld { why: error.to_string() }
            }
            AttachError::Failed { step, error } => Self::Failed { step, error },
        }
    }
}

fn list(by: &[Blocker]) -> String {
    by.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A drive that was closed, as far as it was in our hands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// What the label says now, if that is known.
    pub label: Option<LabelSeen>,
    /// Why the label does not say that the drive is released, if it should.
    pub label_not_updated: Option<String>,
    pub proof: Proof,
}

/// An error with all that caused it, for a message that has room for a text of some length only.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let text = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    text.chars().take(MAX_ERROR_CHARS).collect()
}
