//! What a person wants to know of a device beyond its size and identity. Published with it; nothing here decides whose
//! the drive is.

use serde::{Deserialize, Serialize};

use crate::filter::FilterVerdict;

/// How the machine reaches the device.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Nvme,
    Sata,
    Sas,
    Usb,
    Virtio,
    Iscsi,
    Fc,
    Mmc,
    /// A loop device, or a plain file.
    File,
    #[default]
    Unknown,
}

/// The published properties of a device that are neither its identity nor its size.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    pub transport: Transport,
    /// The enclosure that the bay is in, where the machine can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enclosure: Option<String>,
    /// The unit that the medium writes; zero if it is not told.
    pub physical_block_bytes: u32,
    pub read_only: bool,
    pub removable: bool,
    /// Parts of it can only be written in sequence.
    pub zoned: bool,
    /// The names under `/dev/disk/by-id`, as udev's database has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
    /// What is on the whole device, as `blkid` calls it: a filesystem, a partition table, a member of something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contents: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<Partition>,
    /// Where it, or anything that stands on it, is mounted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
    /// The block devices that stand on it or on a part of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<String>,
    /// What the filters of its machine say about it, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Box<FilterVerdict>>,
}

/// A part of a device, as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Partition {
    /// Such as `sda1`.
    pub name: String,
    pub size_bytes: u64,
}
