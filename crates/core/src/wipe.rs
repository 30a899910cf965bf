//! Taking a drive that is not empty: which reasons against a drive a wipe cures, and what a permission to wipe covers.
//!
//! A person looks at a drive and says that what is on it may go. That permission is for one generation of the drive and
//! for the kinds of contents that the person saw: [`Wipe`]. The registry decides by [`curable`], keeps the permission
//! with the drive and sends it with the order; the agent keeps it on its disk; the child that wipes compares what it
//! finds by [`uncovered`] before the first byte is written.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::device::Denied;
use crate::ids::ClusterId;
use crate::order::Generation;

/// A permission to wipe a drive, given with one Add.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wipe {
    /// The drive's generation that the Add has made. For every other one the permission is void.
    pub generation: Generation,
    /// What was on the drive when it was given.
    pub contents: Vec<Content>,
}

impl Wipe {
    /// The permission as far as it counts for a generation.
    pub fn for_generation(self, generation: Generation) -> Option<Self> {
        (self.generation == generation).then_some(self)
    }
}

/// Something on a drive that a wipe takes away.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "content", rename_all = "camelCase")]
pub enum Content {
    PartitionTable {
        kind: String,
    },
    /// A filesystem, or other contents with a name.
    Filesystem {
        kind: String,
    },
    /// What makes it a member of LVM, a RAID and the like, none of which is active.
    Member {
        of: String,
    },
    /// The label of another cluster.
    ForeignLabel {
        cluster: ClusterId,
    },
    DamagedLabel,
    /// Bytes that have no name.
    Nameless,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PartitionTable { kind } => write!(f, "a partition table ({kind})"),
            Self::Filesystem { kind } => f.write_str(kind),
            Self::Member { of } => write!(f, "a part of {of}"),
            Self::ForeignLabel { cluster } => write!(f, "the label of cluster {cluster}"),
            Self::DamagedLabel => f.write_str("a damaged label"),
            Self::Nameless => f.write_str("bytes that are not zero"),
        }
    }
}

/// The contents in one sentence.
pub fn listed(contents: &[Content]) -> String {
    contents.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// What a wipe takes away together with a reason against a drive. `None`: no wipe cures that.
pub fn curable(denied: &Denied) -> Option<Content> {
    match denied {
        Denied::Partitioned { table } => Some(Content::PartitionTable { kind: table.clone() }),
        Denied::Filesystem { kind } => Some(Content::Filesystem { kind: kind.clone() }),
        Denied::NotEmpty { at_byte: _ } => Some(Content::Nameless),
        // Not while it is in use through another device.
        Denied::Member { of, by } if by.is_empty() => Some(Content::Member { of: of.clone() }),
        Denied::ForeignCluster { cluster } => Some(Content::ForeignLabel { cluster: *cluster }),
        Denied::DamagedLabel => Some(Content::DamagedLabel),
        Denied::SystemDrive { .. }
        | Denied::Mounted { .. }
        | Denied::Held { .. }
        | Denied::Member { .. }
        | Denied::Swap { .. }
        | Denied::Looped { .. }
        | Denied::ReadOnly
        | Denied::Removable
        | Denied::TooSmall { .. }
        | Denied::NoIdentity
        | Denied::IdentityConflict { .. }
        | Denied::Unreadable { .. }
        | Denied::Filtered { .. } => None,
    }
}

/// What a wipe would take away of a drive with these reasons against it; `Err`: those that it does not cure.
pub fn contents_of(denied: &[Denied]) -> Result<Vec<Content>, Vec<Denied>> {
    let uncured: Vec<_> = denied.iter().filter(|it| curable(it).is_none()).cloned().collect();
    if uncured.is_empty() { Ok(denied.iter().filter_map(curable).collect()) } else { Err(uncured) }
}

/// The first of what was found that the permission does not cover. Less than was permitted is covered: a wipe that was
/// cut off leaves less.
pub fn uncovered<'a>(permitted: &[Content], found: &'a [Content]) -> Option<&'a Content> {
    found.iter().find(|found| !permitted.iter().any(|permitted| covers(permitted, found)))
}

/// Whether what is found now may be what is left of something that was permitted.
fn covers(permitted: &Content, found: &Content) -> bool {
    match (permitted, found) {
        // Whatever had a name before the wipe began has none once its first bytes are gone.
        (_, Content::Nameless) => true,
        // The kernel goes on showing the parts of a table that is gone; and a label comes with a table.
        (
            Content::PartitionTable { .. } | Content::ForeignLabel { .. } | Content::DamagedLabel,
            Content::PartitionTable { .. },
        )
        | (Content::ForeignLabel { .. }, Content::DamagedLabel) => true,
        (
            Content::PartitionTable { .. }
            | Content::Filesystem { .. }
            | Content::Member { .. }
            | Content::ForeignLabel { .. }
            | Content::DamagedLabel
            | Content::Nameless,
            found,
        ) => permitted == found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> String {
        text.to_owned()
    }

    fn filesystem(kind: &str) -> Content {
        Content::Filesystem { kind: text(kind) }
    }

    fn table(kind: &str) -> Content {
        Content::PartitionTable { kind: text(kind) }
    }

    const OTHER: ClusterId = ClusterId::from_bits(9);

    #[test]
    fn a_wipe_cures_what_is_on_a_drive_and_nothing_else() {
        let by = || vec![text("md0")];
        let cured = [
            Denied::Partitioned { table: text("gpt") },
            Denied::Filesystem { kind: text("ext4") },
            Denied::NotEmpty { at_byte: 7 },
            Denied::Member { of: text("LVM"), by: vec![] },
            Denied::ForeignCluster { cluster: OTHER },
            Denied::DamagedLabel,
        ];
        let never = [
            Denied::SystemDrive { mounts: vec![text("/")] },
            Denied::Mounted { at: vec![text("/mnt")] },
            Denied::Held { by: by() },
            Denied::Member { of: text("software RAID"), by: by() },
            Denied::Swap { at: vec![text("sdb2")] },
            Denied::Looped { by: vec![text("/dev/loop0")] },
            Denied::ReadOnly,
            Denied::Removable,
            Denied::TooSmall { size_bytes: 1, least_bytes: 2 },
            Denied::NoIdentity,
            Denied::IdentityConflict {
                drive: text("d"),
                node: text("n"),
                path: text("p"),
                here: None,
            },
            Denied::Unreadable { error: text("why") },
            Denied::Filtered { rule: text("no-usb") },
        ];
        for denied in &cured {
            assert!(curable(denied).is_some(), "{denied}");
        }
        for denied in &never {
            assert_eq!(curable(denied), None, "{denied}");
            let both = [cured[0].clone(), denied.clone()];
            assert_eq!(contents_of(&both), Err(vec![denied.clone()]));
        }
        assert_eq!(contents_of(&cured).unwrap().len(), cured.len());
        assert_eq!(contents_of(&[]), Ok(vec![]));
    }

    #[test]
    fn what_was_not_seen_is_not_covered() {
        let permitted = [filesystem("ext4"), Content::Member { of: text("LVM") }];
        for other in [
            filesystem("xfs"),
            Content::Member { of: text("software RAID") },
            table("gpt"),
            Content::ForeignLabel { cluster: OTHER },
            Content::DamagedLabel,
        ] {
            let found = [filesystem("ext4"), other.clone()];
            assert_eq!(uncovered(&permitted, &found), Some(&other));
        }
        let other_cluster = Content::ForeignLabel { cluster: ClusterId::from_bits(8) };
        let permitted = [Content::ForeignLabel { cluster: OTHER }];
        assert_eq!(
            uncovered(&permitted, std::slice::from_ref(&other_cluster)),
            Some(&other_cluster)
        );
        assert_eq!(uncovered(&[], &[Content::Nameless]), Some(&Content::Nameless));
    }

    #[test]
    fn what_a_wipe_that_was_cut_off_leaves_is_covered() {
        let cases = [
            (filesystem("ext4"), Content::Nameless),
            (table("gpt"), table("sdb1, sdb2")),
            (Content::ForeignLabel { cluster: OTHER }, table("sdb1")),
            (Content::ForeignLabel { cluster: OTHER }, Content::DamagedLabel),
            (Content::DamagedLabel, table("gpt")),
        ];
        for (permitted, left) in cases {
            assert_eq!(uncovered(&[permitted], &[left]), None);
        }
        assert_eq!(uncovered(&[filesystem("ext4"), table("gpt")], &[filesystem("ext4")]), None);
        assert_eq!(uncovered(&[filesystem("ext4")], &[]), None);
    }

    #[test]
    fn a_permission_is_for_one_generation() {
        let one = Generation::ZERO.next();
        let wipe = Wipe { generation: one, contents: vec![Content::Nameless] };
        assert_eq!(wipe.clone().for_generation(one), Some(wipe.clone()));
        assert_eq!(wipe.clone().for_generation(Generation::ZERO), None);
        assert_eq!(wipe.for_generation(one.next()), None);
    }
}
