//! Why a mapping was not made, changed or removed.

use hotbay_core::ids::VolumeId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{MOST_PARTS, Mapping, Segment};
use crate::locks::LockHolder;
use crate::proof::Blocker;

/// Why a mapping is not as it should be. Except for `Failed` nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum MappingError {
    #[error("the drive cannot be read: {error}")]
    Unreadable { error: String },
    #[error("no descriptor of the drive came with the request")]
    NoDescriptor,
    #[error("the drive is gone from the machine, or another one has taken its place")]
    DriveGone,
    #[error("a volume has 1 to {MOST_PARTS} parts on a drive, not {parts}")]
    Parts { parts: usize },
    #[error(
        "a loop device shows one part of a drive, and volume {volume} has {parts}: a volume of several parts needs \
         device-mapper in the kernel"
    )]
    OnePartOnly { volume: VolumeId, parts: usize },
    #[error(
        "bytes {} to {} are not the volume's to use on this drive",
        part.start_bytes,
        part.start_bytes.saturating_add(part.length_bytes)
    )]
    OutOfPlace { part: Segment },
    #[error("the drive's label does not give these parts to volume {volume}")]
    NotOnLabel { volume: VolumeId },
    #[error("parts of volume {volume} lie over parts of another volume on the drive's label")]
    LabelConflict { volume: VolumeId },
    #[error("volume {volume} has no mapping on this machine")]
    NotMapped { volume: VolumeId },
    #[error("volume {} is mapped at {}, but {difference}", found.volume, found.path)]
    OtherMapping { difference: String, found: Box<Mapping> },
    #[error("a mapping does not shrink: volume {volume} is mapped with {has_bytes} bytes")]
    Shrink { volume: VolumeId, has_bytes: u64 },
    #[error("{path} is in use by {}", list(by))]
    InUse { path: String, by: Vec<Blocker> },
    #[error("{by} is at work on a mapping of the same drive")]
    LockedBy { by: LockHolder },
    #[error("{path} would not send its I/O straight to the drive: it was undone")]
    NotDirect { path: String },
    #[error("{path} is not as it was asked for ({what}): it was undone")]
    NotAsAsked { path: String, what: String },
    #[error("all {tries} loop devices that the kernel called free were taken by others")]
    NoFreeLoop { tries: u32 },
    #[error("{path} does not answer, so it is not known what is mapped")]
    Silent { path: String },
    #[error("cannot {step}: {error}")]
    Failed { step: String, error: String },
}

impl MappingError {
    /// Whether the same request may succeed later with nobody having decided anything.
    pub fn retryable(&self) -> bool {
        match self {
            Self::InUse { .. }
            | Self::LockedBy { .. }
            | Self::NoFreeLoop { .. }
            | Self::Silent { .. }
            | Self::Unreadable { .. }
            | Self::Failed { .. } => true,
            Self::OtherMapping { found, .. } => found.leaving,
            Self::NoDescriptor
            | Self::DriveGone
            | Self::Parts { .. }
            | Self::OnePartOnly { .. }
            | Self::OutOfPlace { .. }
            | Self::NotOnLabel { .. }
            | Self::LabelConflict { .. }
            | Self::NotMapped { .. }
            | Self::Shrink { .. }
            | Self::NotDirect { .. }
            | Self::NotAsAsked { .. } => false,
        }
    }
}

pub(super) fn failed(step: &str) -> impl Fn(std::io::Error) -> MappingError {
    move |error| MappingError::Failed { step: step.to_owned(), error: error.to_string() }
}

fn list(by: &[Blocker]) -> String {
    by.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
