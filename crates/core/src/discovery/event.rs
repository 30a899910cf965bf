//! One message about a device, as the kernel sends it and as udev repeats it, read from bytes that may be anything.
//!
//! The socket's shell calls [`kernel_event`] and [`udev_event`]; [`mod@super::triage`] asks what the event
//! calls for. An event borrows from its datagram, so that reading one allocates nothing.

use thiserror::Error;

use super::properties::fill;
use crate::device::DeviceNumber;

/// The longest datagram that is read. The kernel's own limit is 2 KiB of properties behind a path of the device; udev
/// sends and receives no more than this.
pub const MAX_DATAGRAM_BYTES: usize = 8192;

const UDEV_PREFIX: &[u8; 8] = b"libudev\0";
const UDEV_MAGIC: u32 = 0xfeed_cafe;
/// The fixed part in front of udev's properties: prefix, magic, three lengths, two hashes and a filter of two words.
const UDEV_HEADER_BYTES: usize = 40;

/// What happened to a device, without judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    pub origin: Origin,
    pub action: Action,
    /// The device's place below `/sys`, such as `/devices/virtual/block/loop0`.
    pub devpath: &'a str,
    pub subsystem: Subsystem,
    pub devtype: DevType,
    /// The name of its node without `/dev/`.
    pub devname: Option<&'a str>,
    /// Always there for a block device.
    pub number: Option<DeviceNumber>,
    /// Counts all events of the machine.
    pub seqnum: Option<u64>,
    /// Counts up whenever other contents may be behind a number; that of the disk for a partition.
    pub diskseq: Option<u64>,
    pub partn: Option<u32>,
    pub signs: Signs,
}

impl<'a> Event<'a> {
    /// The name of the disk that a partition is on: the directory that it is in.
    pub fn disk_of_partition(&self) -> Option<&'a str> {
        let (parent, _) = self.devpath.rsplit_once('/')?;
        let (_, name) = parent.rsplit_once('/')?;
        (!name.is_empty()).then_some(name)
    }

    /// Whether the device is one of device-mapper's.
    pub fn is_mapper(&self) -> bool {
        self.signs.mapper.is_some() || self.devname.is_some_and(|name| name.starts_with("dm-"))
    }
}

/// Who sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Kernel,
    /// udev, after it has run its rules and written its database.
    Udev,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Add,
    Remove,
    Change,
    Move,
    Bind,
    Unbind,
    Online,
    Offline,
    /// A word that no kernel known here uses.
    Other,
}

impl Action {
    pub(super) fn parse(word: &str) -> Self {
        match word {
            "add" => Self::Add,
            "remove" => Self::Remove,
            "change" => Self::Change,
            "move" => Self::Move,
            "bind" => Self::Bind,
            "unbind" => Self::Unbind,
            "online" => Self::Online,
            "offline" => Self::Offline,
            _ => Self::Other,
        }
    }
}

/// The subsystems whose events can concern a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subsystem {
    Block,
    Scsi,
    Nvme,
    Other,
}

impl Subsystem {
    pub(super) fn parse(word: &str) -> Self {
        match word {
            "block" => Self::Block,
            "scsi" => Self::Scsi,
            "nvme" => Self::Nvme,
            _ => Self::Other,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevType {
    Disk,
    Partition,
    Other,
}

impl DevType {
    pub(super) fn parse(word: &str) -> Self {
        match word {
            "disk" => Self::Disk,
            "partition" => Self::Partition,
            _ => Self::Other,
        }
    }
}

/// What an event says beyond its action: enough to know what to look at without looking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signs {
    /// `RESIZE=1`: both sizes are not zero, and differ.
    pub resized: bool,
    /// `DISK_MEDIA_CHANGE=1`.
    pub media_changed: bool,
    /// `DISK_EJECT_REQUEST=1`: somebody pressed a button.
    pub eject_requested: bool,
    /// `DISK_RO=0` or `1`: the whole disk became writable or read-only.
    pub read_only_set: bool,
    /// `SYNTH_UUID`: somebody wrote to the device's `uevent` file; udev does so when a writer has closed the device.
    pub synthetic: bool,
    /// Any of device-mapper's keys.
    pub mapper: Option<Mapper>,
    /// `NVME_EVENT`: a controller has connected or found something new.
    pub nvme_event: bool,
    pub unit_attention: Option<UnitAttention>,
}

/// What device-mapper says of its own event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mapper {
    /// The upper half carries the flags of the program that caused the event.
    pub cookie: Option<u32>,
    /// `DM_UDEV_PRIMARY_SOURCE_FLAG`, from udev's rules alone.
    pub primary_flag: Option<bool>,
    pub suspended: bool,
}

impl Mapper {
    const PRIMARY_SOURCE: u32 = 0x0040 << 16;

    /// Whether the event tells of a change of the mapping that was asked for, and not of somebody's having touched
    /// the device.
    pub fn is_primary(&self) -> bool {
        self.primary_flag
            .unwrap_or_else(|| self.cookie.is_some_and(|bits| bits & Self::PRIMARY_SOURCE != 0))
    }
}

/// `SDEV_UA`: what a SCSI device told on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitAttention {
    Capacity,
    Inquiry,
    ModeParameters,
    /// Reported LUNs, thresholds, paths: nothing of this device's own.
    Other,
}

impl UnitAttention {
    pub(super) fn parse(word: &str) -> Self {
        match word {
            "CAPACITY_DATA_HAS_CHANGED" => Self::Capacity,
            "INQUIRY_DATA_HAS_CHANGED" => Self::Inquiry,
            "MODE_PARAMETERS_CHANGED" => Self::ModeParameters,
            _ => Self::Other,
        }
    }
}

/// Why bytes are no event. None of them is read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    #[error("it is empty")]
    Empty,
    #[error("it is longer than {MAX_DATAGRAM_BYTES} bytes")]
    TooLong,
    #[error("it does not begin with ACTION@DEVPATH")]
    NoHeader,
    #[error("its first line and its properties name different events")]
    HeaderDisagrees,
    #[error("its last property is cut off")]
    CutOff,
    #[error("it does not begin as udev's messages do")]
    NotUdev,
    #[error("its header points outside of it")]
    BadOffsets,
    #[error("it has no {key}")]
    Missing { key: &'static str },
    #[error("its {key} is not UTF-8")]
    NotUtf8 { key: &'static str },
    #[error("its {key} is no number")]
    NotANumber { key: &'static str },
}

/// Reads a datagram of the kernel: `ACTION@DEVPATH`, then properties, each ended by a zero byte.
pub fn kernel_event(datagram: &[u8]) -> Result<Event<'_>, Refused> {
    check_length(datagram)?;
    let end = datagram.iter().position(|byte| *byte == 0).ok_or(Refused::CutOff)?;
    let (header, properties) = (&datagram[..end], &datagram[end + 1..]);
    let at = header.iter().position(|byte| *byte == b'@').ok_or(Refused::NoHeader)?;
    let (action, devpath) = (&header[..at], &header[at + 1..]);
    if action.is_empty() || !devpath.starts_with(b"/") {
        return Err(Refused::NoHeader);
    }
    let (event, action_word) = fill(Origin::Kernel, properties)?;
    if event.devpath.as_bytes() != devpath || action_word.as_bytes() != action {
        return Err(Refused::HeaderDisagrees);
    }
    Ok(event)
}

/// Reads a datagram of udev: a header that says where the properties are, then these. Lengths are in the byte order
/// of the machine, the magic number in that of networks.
pub fn udev_event(datagram: &[u8]) -> Result<Event<'_>, Refused> {
    check_length(datagram)?;
    let header = datagram.get(..UDEV_HEADER_BYTES).ok_or(Refused::NotUdev)?;
    if !header.starts_with(UDEV_PREFIX) || header[8..12] != UDEV_MAGIC.to_be_bytes() {
        return Err(Refused::NotUdev);
    }
    let (offset, length) = (word_at(header, 16), word_at(header, 20));
    let end = offset.checked_add(length).ok_or(Refused::BadOffsets)?;
    if word_at(header, 12) < UDEV_HEADER_BYTES || offset < UDEV_HEADER_BYTES {
        return Err(Refused::BadOffsets);
    }
    let properties = datagram.get(offset..end).ok_or(Refused::BadOffsets)?;
    Ok(fill(Origin::Udev, properties)?.0)
}

fn check_length(datagram: &[u8]) -> Result<(), Refused> {
    match datagram.len() {
        0 => Err(Refused::Empty),
        length if length > MAX_DATAGRAM_BYTES => Err(Refused::TooLong),
        _ => Ok(()),
    }
}

/// `at` is within the header, whose length was checked.
#[expect(clippy::host_endian_bytes, reason = "udev writes these in the byte order of the machine")]
fn word_at(header: &[u8], at: usize) -> usize {
    let bytes = header[at..at + 4].try_into().expect("four bytes");
    usize::try_from(u32::from_ne_bytes(bytes)).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
