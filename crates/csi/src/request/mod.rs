//! Messages of the wire to requests of a platform. Whatever can be seen to be wrong in a message alone is refused here,
//! with the field and what to do, before anything is locked or asked. Pure; called by the services.
//!
//! What is required is looked at first, then ids, then the rest: a call that lacks something is
//! [`FailureKind::InvalidArgument`] whatever else it says, and an id of another shape than ours is just one that does
//! not exist.

mod capability;
pub mod controller;
pub mod node;
mod path;
mod topology;

use std::collections::BTreeMap;

use hotbay_api::csi::CapacityRange;
use hotbay_core::ids::{NodeId, VolumeId};
use thiserror::Error;

use crate::TOPOLOGY_KEY;
use crate::platform::{Failure, FailureKind, Sizes, Texts};

/// Longest name of a volume, and of a filesystem.
pub const NAME_BYTES_MAX: usize = 128;
/// Most that keys and values of a map, or the entries of a list, may have together.
pub const TEXTS_BYTES_MAX: usize = 4 << 10;
/// Longest path.
pub const PATH_BYTES_MAX: usize = 4 << 10;

/// Why a message was not taken. Each says what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("{field} is missing")]
    Missing { field: &'static str },
    #[error("{field} has {bytes} bytes: at most {limit} are allowed")]
    TooLong { field: &'static str, bytes: usize, limit: usize },
    #[error("{field} {text} has a control character: leave it out")]
    ControlCharacter { field: &'static str, text: String },
    #[error("{field} is {bytes}: a size cannot be negative")]
    NegativeSize { field: &'static str, bytes: i64 },
    #[error("capacity_range names no size: set required_bytes")]
    NoSize,
    #[error(
        "capacity_range asks for at least {required} and at most {limit} bytes: raise limit_bytes"
    )]
    SizesCross { required: i64, limit: i64 },
    #[error("a volume capability names neither block nor mount: set one of them")]
    NoAccessType,
    #[error("a volume capability has no access mode: set access_mode")]
    NoAccessMode,
    #[error("access mode {number} is not known: use one of the single-node modes")]
    UnknownAccessMode { number: i32 },
    #[error(
        "access mode {mode} is not supported for filesystems: two nodes that mount one filesystem destroy it; use \
         ReadWriteOnce or ReadWriteOncePod"
    )]
    SeveralNodesMount { mode: &'static str },
    #[error(
        "access mode {mode} is not supported for block volumes yet: a volume is used on one node at a time; use \
         ReadWriteOnce or ReadWriteOncePod"
    )]
    SeveralNodesBlock { mode: &'static str },
    #[error(
        "the volume capabilities ask for block and for mount: one volume is either; ask for two volumes"
    )]
    BlockAndMount,
    #[error(
        "the volume capabilities ask for different filesystems or mount options: one volume has one filesystem; name \
         the same in all"
    )]
    TwoFilesystems,
    #[error("fs_type {text} cannot be the name of a filesystem: use one like ext4 or xfs")]
    FsType { text: String },
    #[error(
        "volume_mount_group is not supported: leave it to the kubelet (fsGroupPolicy File in the CSIDriver object)"
    )]
    MountGroup,
    #[error(
        "volumes made from a snapshot or from another volume are not supported: leave the claim's data source out"
    )]
    ContentSource,
    #[error(
        "parameters that can be changed later are not supported: leave the claim's volumeAttributesClassName out"
    )]
    MutableParameters,
    #[error("{field} {path} is not absolute: it must start with /")]
    RelativePath { field: &'static str, path: String },
    #[error(
        "{field} {path} has a part that is \"..\", so that it could lead anywhere: give the path itself"
    )]
    ParentInPath { field: &'static str, path: String },
    #[error("{field} {path} has a NUL byte: no path can have one")]
    NulInPath { field: &'static str, path: String },
    #[error("the volume is not there: {cause}")]
    NotThere { cause: Box<Refusal> },
    #[error(
        "staging_target_path is missing: stage the volume with NodeStageVolume first, and name that path"
    )]
    NotStaged,
    #[error("no volume has the id {id}: ids are 32 hex digits, as in `hotbay get volumes`")]
    NoSuchVolume { id: String },
    #[error("no node has the id {id}: ids are 32 hex digits, as NodeGetInfo tells them")]
    NoSuchNode { id: String },
    #[error(
        "topology without {TOPOLOGY_KEY}: name a node by that key and no other (found: {found})"
    )]
    ForeignTopology { found: String },
    #[error("{TOPOLOGY_KEY} {value} is no node's id: use the value in the label of the node")]
    TopologyValue { value: String },
    #[error("max_entries is {number}: it cannot be negative")]
    NegativeEntries { number: i32 },
    #[error(
        "starting_token {token} is not one of ours: list again from the start, without a token"
    )]
    Token { token: String },
}

impl Refusal {
    /// What it is to the caller.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::NoSuchVolume { .. } | Self::NoSuchNode { .. } | Self::NotThere { .. } => {
                FailureKind::NotFound
            }
            Self::NotStaged => FailureKind::FailedPrecondition,
            // As the standard has it for a token that is out of date.
            Self::Token { .. } => FailureKind::Aborted,
            Self::Missing { .. }
            | Self::TooLong { .. }
            | Self::ControlCharacter { .. }
            | Self::NegativeSize { .. }
            | Self::NoSize
            | Self::SizesCross { .. }
            | Self::NoAccessType
            | Self::NoAccessMode
            | Self::UnknownAccessMode { .. }
            | Self::SeveralNodesMount { .. }
            | Self::SeveralNodesBlock { .. }
            | Self::BlockAndMount
            | Self::TwoFilesystems
            | Self::FsType { .. }
            | Self::MountGroup
            | Self::ContentSource
            | Self::MutableParameters
            | Self::RelativePath { .. }
            | Self::ParentInPath { .. }
            | Self::NulInPath { .. }
            | Self::ForeignTopology { .. }
            | Self::TopologyValue { .. }
            | Self::NegativeEntries { .. } => FailureKind::InvalidArgument,
        }
    }

    /// Whether the message is well formed and only asks for what is not to be had: an answer, where that is the
    /// question.
    pub(crate) fn is_about_support(&self) -> bool {
        matches!(
            self,
            Self::SeveralNodesMount { .. }
                | Self::SeveralNodesBlock { .. }
                | Self::BlockAndMount
                | Self::TwoFilesystems
                | Self::MountGroup
        )
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.kind(), refusal)
    }
}

/// Text of a stranger, for an error: escaped, and cut where it is long.
pub(crate) fn shown(text: &str) -> String {
    const CHARS: usize = 80;
    let mut chars = text.chars();
    let start: String = chars.by_ref().take(CHARS).collect();
    let dots = if chars.next().is_some() { "..." } else { "" };
    format!("{start:?}{dots}")
}

fn required(field: &'static str, text: &str) -> Result<(), Refusal> {
    if text.is_empty() { Err(Refusal::Missing { field }) } else { Ok(()) }
}

fn at_most(field: &'static str, bytes: usize, limit: usize) -> Result<(), Refusal> {
    if bytes > limit { Err(Refusal::TooLong { field, bytes, limit }) } else { Ok(()) }
}

/// Only in the form in which we write them: one volume shall not have two names.
fn volume_id(text: &str) -> Result<VolumeId, Refusal> {
    let id = text.parse::<VolumeId>().ok().filter(|id| id.to_string() == text);
    id.ok_or_else(|| Refusal::NoSuchVolume { id: shown(text) })
}

fn node_id(text: &str) -> Result<NodeId, Refusal> {
    let id = text.parse::<NodeId>().ok().filter(|id| id.to_string() == text);
    id.ok_or_else(|| Refusal::NoSuchNode { id: shown(text) })
}

fn name(text: String) -> Result<String, Refusal> {
    at_most("name", text.len(), NAME_BYTES_MAX)?;
    if text.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r')) {
        return Err(Refusal::ControlCharacter { field: "name", text: shown(&text) });
    }
    Ok(text)
}

fn texts(field: &'static str, map: BTreeMap<String, String>) -> Result<Texts, Refusal> {
    let bytes = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    at_most(field, bytes, TEXTS_BYTES_MAX)?;
    Ok(map)
}

/// No range leaves the size to the platform; a range that is there must say something.
fn sizes(range: Option<CapacityRange>) -> Result<Sizes, Refusal> {
    let Some(CapacityRange { required_bytes: required, limit_bytes: limit }) = range else {
        return Ok(Sizes::default());
    };
    let size = |field, bytes: i64| {
        u64::try_from(bytes).map_err(|_| Refusal::NegativeSize { field, bytes })
    };
    let required_bytes = size("required_bytes", required)?;
    let limit_bytes = Some(size("limit_bytes", limit)?).filter(|limit| *limit > 0);
    if required_bytes == 0 && limit_bytes.is_none() {
        return Err(Refusal::NoSize);
    }
    if limit_bytes.is_some_and(|limit| limit < required_bytes) {
        return Err(Refusal::SizesCross { required, limit });
    }
    Ok(Sizes { required_bytes, limit_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(required_bytes: i64, limit_bytes: i64) -> Option<CapacityRange> {
        Some(CapacityRange { required_bytes, limit_bytes })
    }

    #[test]
    fn sizes_that_cannot_be_meant_are_refused() {
        assert_eq!(sizes(None), Ok(Sizes::default()));
        let huge = Sizes { required_bytes: i64::MAX.unsigned_abs(), limit_bytes: None };
        assert_eq!(sizes(range(i64::MAX, 0)), Ok(huge));
        let exact = Sizes { required_bytes: 5, limit_bytes: Some(5) };
        assert_eq!(sizes(range(5, 5)), Ok(exact));
        assert_eq!(sizes(range(0, 7)), Ok(Sizes { required_bytes: 0, limit_bytes: Some(7) }));
        assert_eq!(sizes(range(0, 0)), Err(Refusal::NoSize));
        assert_eq!(sizes(range(6, 5)), Err(Refusal::SizesCross { required: 6, limit: 5 }));
        for (required, limit) in [(-1, 0), (-1, 5), (i64::MIN, 0), (5, -1), (0, i64::MIN)] {
            let refused = sizes(range(required, limit));
            assert!(matches!(refused, Err(Refusal::NegativeSize { .. })), "{refused:?}");
        }
    }

    #[test]
    fn names_may_have_128_bytes_and_no_control_characters() {
        for good in ["pvc-1", "ä".repeat(64).as_str(), "with space", "two\nlines"] {
            assert_eq!(name(good.to_owned()), Ok(good.to_owned()));
        }
        let long = name("ä".repeat(65));
        assert_eq!(long, Err(Refusal::TooLong { field: "name", bytes: 130, limit: 128 }));
        for bad in ["\0", "a\u{7f}", "\u{9f}b", "\u{b}"] {
            let refused = name(bad.to_owned());
            assert!(matches!(refused, Err(Refusal::ControlCharacter { .. })), "{refused:?}");
        }
    }

    /// Upper case would be a second name of the same volume: two calls on it could run at once.
    #[test]
    fn an_id_has_one_form() {
        let id = VolumeId::from_bits(0xab);
        assert_eq!(volume_id(&id.to_string()), Ok(id));
        let upper = id.to_string().to_uppercase();
        for bad in [upper.as_str(), "fake-vol-id", "", "ab", " ", "../../etc/passwd", "\0"] {
            let refused = volume_id(bad).unwrap_err();
            assert_eq!(refused.kind(), FailureKind::NotFound, "{bad:?}");
        }
        assert_eq!(node_id("fake-node-id").unwrap_err().kind(), FailureKind::NotFound);
    }

    #[test]
    fn maps_have_a_limit() {
        let map = |bytes: usize| BTreeMap::from([("k".to_owned(), "v".repeat(bytes - 1))]);
        assert!(texts("parameters", map(TEXTS_BYTES_MAX)).is_ok());
        let refused = texts("parameters", map(TEXTS_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(refused.kind(), FailureKind::InvalidArgument);
    }

    proptest! {
        #[test]
        fn whatever_sizes_are_taken_can_be_met(required: i64, limit: i64) {
            if let Ok(sizes) = sizes(range(required, limit)) {
                prop_assert!(sizes.fits(sizes.limit_bytes.unwrap_or(sizes.required_bytes)));
                prop_assert!(sizes.limit_bytes != Some(0));
                prop_assert!(i64::try_from(sizes.required_bytes).is_ok());
            }
        }

        #[test]
        fn text_of_strangers_is_shown_short_and_on_one_line(text: String) {
            let shown = shown(&text);
            prop_assert!(!shown.chars().any(char::is_control), "{}", shown);
            // One character may need ten to be shown: \u{10ffff}.
            prop_assert!(shown.chars().count() <= 80 * 10 + 5);
        }
    }
}
