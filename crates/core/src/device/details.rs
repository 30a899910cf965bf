//! What a person wants to know of a device beyond its size and identity. Published with it; nothing here decides whose
//! the drive is.

use serde::{Deserialize, Serialize};

use crate::filter::FilterVerdict;

/// How the machine reaches the device.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    /// Who made it, as it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// The revision of its firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    pub transport: Transport,
    /// The enclosure that the bay is in, where the machine can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enclosure: Option<String>,
    /// The unit that the medium writes; zero if it is not told.
    pub physical_block_bytes: u32,
    /// It refuses writes.
    pub read_only: bool,
    /// Its medium can be taken out.
    pub removable: bool,
    /// Parts of it can only be written in sequence.
    pub zoned: bool,
    /// The names under `/dev/disk/by-id`, as udev's database has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
    /// What is on the whole device, as `blkid` calls it: a filesystem, a partition table, a member of something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contents: Option<String>,
    /// The parts that it is divided into.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Partition {
    /// Such as `sda1`.
    pub name: String,
    /// The size of the part.
    pub size_bytes: u64,
}
