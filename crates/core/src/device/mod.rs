//! A device as an agent sees it on its machine and reports it: plain values, no judgement.

mod details;

use std::fmt;

pub use details::{Details, Partition, Transport};
use serde::{Deserialize, Serialize};

use crate::evidence::Evidence;
use crate::ids::{ClusterId, DriveId, NodeId};
use crate::order::Generation;

/// The kernel's number for a device while it is there, as in `8:16`. It is given again to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    /// Reads `MAJOR:MINOR`, as sysfs and the mount table write it.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// What a scan of the machine found out about one device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    pub evidence: Evidence,
    /// Where the device is now, such as `/dev/nvme0n1`. Not identity.
    pub path: String,
    /// The bay, where the machine can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bay: Option<String>,
    pub kind: DeviceKind,
    pub media: Media,
    pub size_bytes: u64,
    /// The smallest unit that the device writes.
    pub block_bytes: u32,
    /// What else people want to know of it.
    #[serde(default)]
    pub details: Box<Details>,
    /// Our label, if one is on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelSeen>,
    /// Why the drive cannot be added. Empty: it can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<Denied>,
}

/// How the kernel gives access to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceKind {
    /// A block device of its own.
    Block,
    /// A loop device over a plain file.
    Loop,
    /// A plain file, where there is no right to make loop devices.
    File,
}

/// What the bytes are kept on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Media {
    #[serde(rename = "NVMe")]
    Nvme,
    Ssd,
    Hdd,
    /// A file on some other drive.
    #[serde(rename = "File")]
    File,
    #[serde(rename = "Unknown")]
    Unknown,
}

impl std::fmt::Display for Media {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nvme => "NVMe",
            Self::Ssd => "SSD",
            Self::Hdd => "HDD",
            Self::File => "File",
            Self::Unknown => "Unknown",
        })
    }
}

/// The part of a label that says whose the drive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSeen {
    pub cluster: ClusterId,
    pub drive: DriveId,
    pub node: NodeId,
    pub generation: Generation,
    /// Not released: the node named holds the drive.
    pub in_operation: bool,
    pub sequence: u64,
}

impl LabelSeen {
    /// Whether its numbers are such as every store keeps; those of our own labels are.
    pub fn is_countable(&self) -> bool {
        let highest = i64::MAX.cast_unsigned();
        self.generation.get() <= highest && self.sequence <= highest
    }
}

/// One reason why a drive cannot be added. Anything on it that is not ours is a reason: an unknown drive is theirs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "reason", rename_all_fields = "camelCase")]
pub enum Denied {
    SystemDrive {
        /// Where the system has it mounted.
        mounts: Vec<String>,
    },
    Mounted {
        /// Where it is mounted, or which parts of it are used for swap.
        at: Vec<String>,
    },
    Partitioned {
        /// The kind of the partition table.
        table: String,
    },
    Filesystem {
        /// What is on it, as `blkid` calls it.
        kind: String,
    },
    /// Something is on it that nothing here knows by name: it is not all zero where it must be.
    NotEmpty {
        /// The first byte that is not zero.
        #[serde(alias = "at_byte")]
        at_byte: u64,
    },
    Held {
        /// The devices that hold it, or through which it is used.
        by: Vec<String>,
    },
    /// It belongs to something that is made of drives, or makes another device of it: `of` is `LVM`, `LUKS`,
    /// `software RAID`, `multipath`, `ZFS` and the like, `by` the devices through which it is in use now, if any.
    Member {
        /// What it is a member of.
        of: String,
        by: Vec<String>,
    },
    /// The machine swaps to it, or to these parts of it.
    Swap {
        at: Vec<String>,
    },
    Looped {
        by: Vec<String>,
    },
    ReadOnly,
    Removable,
    TooSmall {
        /// Its size.
        #[serde(alias = "size_bytes")]
        size_bytes: u64,
        /// The size that is needed.
        #[serde(alias = "least_bytes")]
        least_bytes: u64,
    },
    /// Nothing tells it from another drive.
    NoIdentity,
    /// It cannot be told from a drive that is known, and is not it: that one is on another machine still, or this is a
    /// copy of it.
    IdentityConflict {
        /// The drive that it cannot be told from.
        drive: String,
        /// The node that that drive is on.
        node: String,
        /// Where that drive is.
        path: String,
        /// Where it is now, as it is named to take that drive over; none if they are in one machine.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        here: Option<String>,
    },
    /// It cannot be looked at, so nothing is known about what is on it.
    Unreadable {
        /// What reading it ended with.
        error: String,
    },
    /// Our label, but of another cluster.
    ForeignCluster {
        /// The cluster whose label it has.
        #[cfg_attr(feature = "schema", schemars(with = "String"))]
        cluster: ClusterId,
    },
    /// Our label, damaged in both slots.
    DamagedLabel,
    /// A filter of its node leaves it out: the rule's name, or why it is no rule.
    Filtered {
        /// The rule that leaves it out.
        rule: String,
    },
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SystemDrive { mounts } => {
                write!(f, "it is the system drive (mounted at {})", mounts.join(", "))
            }
            Self::Mounted { at } => write!(f, "it is mounted at {}", at.join(", ")),
            Self::Partitioned { table } => write!(f, "it has a partition table ({table})"),
            Self::Filesystem { kind } => write!(f, "it has {kind} on it"),
            Self::NotEmpty { at_byte } => {
                write!(f, "it is not empty (first byte that is not zero: {at_byte})")
            }
            Self::Held { by } => write!(f, "it is held by {}", by.join(", ")),
            Self::Member { of, by } if by.is_empty() => write!(f, "it is a member of {of}"),
            Self::Member { of, by } => write!(f, "it is a member of {of} ({})", by.join(", ")),
            Self::Swap { at } => write!(f, "it is used for swap ({})", at.join(", ")),
            Self::Looped { by } => write!(f, "a loop device is over it ({})", by.join(", ")),
            Self::ReadOnly => f.write_str("it is read-only"),
            Self::Removable => f.write_str("it is a removable medium"),
            Self::TooSmall { size_bytes, least_bytes } => {
                write!(f, "it is too small ({size_bytes} bytes, at least {least_bytes} are needed)")
            }
            Self::NoIdentity => {
                f.write_str("nothing tells it from another drive (no serial number)")
            }
            Self::IdentityConflict { drive, node, path, here } => {
                write!(f, "IdentityConflict: it looks like {drive}, which is {path} on {node}")?;
                match here {
                    Some(here) => {
                        write!(f, "; if it was moved here:  hotbay drive take-over {here}")
                    }
                    None => Ok(()),
                }
            }
            Self::Unreadable { error } => write!(f, "it cannot be read ({error})"),
            Self::ForeignCluster { cluster } => {
                write!(f, "it carries the label of another cluster ({cluster})")
            }
            Self::DamagedLabel => f.write_str("its label is damaged in both places"),
            Self::Filtered { rule } => write!(f, "it is filtered out by its node ({rule})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The story: the reasons of a drive were the only fields of the API that were written with underscores. Records
    /// that were stored so must load.
    #[test]
    fn reasons_are_written_as_all_of_the_api_and_read_as_they_were() {
        for (denied, written, before) in [
            (
                Denied::NotEmpty { at_byte: 7 },
                json!({ "reason": "NotEmpty", "atByte": 7 }),
                json!({ "reason": "NotEmpty", "at_byte": 7 }),
            ),
            (
                Denied::TooSmall { size_bytes: 1, least_bytes: 2 },
                json!({ "reason": "TooSmall", "sizeBytes": 1, "leastBytes": 2 }),
                json!({ "reason": "TooSmall", "size_bytes": 1, "least_bytes": 2 }),
            ),
        ] {
            assert_eq!(serde_json::to_value(&denied).unwrap(), written);
            assert_eq!(serde_json::from_value::<Denied>(written).unwrap(), denied);
            assert_eq!(serde_json::from_value::<Denied>(before).unwrap(), denied);
        }
    }
}
