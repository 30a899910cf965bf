//! The label that Hotbay keeps on a drive: whose the drive is, and how far the orders about it have come.
//!
//! Two slots at fixed offsets hold a copy each and are written in turn, so that a write that is cut off leaves the
//! other copy as it was. [`newest`] says which one counts. [`extents`] is the table of what belongs to which volume
//! behind each header, [`table`] is the partition table around them; [`update`] and [`change`] decide what may be
//! written. Nothing here reads or writes a device: the host does, and `docs/format.md` shows
//! every byte.

pub mod change;
mod crc32;
pub mod extents;
pub mod table;
pub mod update;

use std::fmt;

use crate::device::LabelSeen;
use crate::ids::{ClusterId, DriveId, NodeId};
use crate::order::Generation;

/// The length of an encoded header: one unit that every drive writes wholly or not at all.
pub const HEADER_BYTES: usize = 512;

/// The length of a slot: a header, and room for the extent table.
pub const SLOT_BYTES: u64 = 512 * 1024;

/// The version of the format that this code reads and writes.
pub const FORMAT_VERSION: u32 = 1;

/// Readable in a hex dump, and ending in bytes that a transfer as text would change.
const MAGIC: [u8; 16] = *b"hotbay label\r\n\x1a\n";

// Offsets within the header. A later format may move everything but these three: magic, version and checksum stay,
// so that an older program can say "newer" instead of "damaged".
const VERSION_AT: usize = 16;
const CHECKSUM_AT: usize = HEADER_BYTES - 4;

const STATE_AT: usize = 20;
const CLUSTER_AT: usize = 24;
const DRIVE_AT: usize = 40;
const NODE_AT: usize = 56;
const GENERATION_AT: usize = 72;
const SEQUENCE_AT: usize = 80;
const EXTENTS_AT: usize = 88;
const TABLE_CHECKSUM_AT: usize = 92;
const RESERVED_AT: usize = 96;

// Neither is zero nor one bit away from the other.
const STATE_IN_OPERATION: u32 = 0x4f50_4552;
const STATE_RELEASED: u32 = 0x5245_4c53;

/// What a label says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    pub cluster: ClusterId,
    pub drive: DriveId,
    /// The node that holds the drive, or held it last.
    pub node: NodeId,
    pub generation: Generation,
    /// Not released: `node` holds the drive.
    pub in_operation: bool,
    /// Grows by one with every write of the label; of two valid copies the higher one counts.
    pub sequence: u64,
    /// Of the extent table behind it.
    pub extents: extents::Digest,
}

impl From<Header> for LabelSeen {
    fn from(header: Header) -> Self {
        let Header { cluster, drive, node, generation, in_operation, sequence, extents: _ } =
            header;
        Self { cluster, drive, node, generation, in_operation, sequence }
    }
}

/// One of the two places where a copy of the label is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotNumber {
    Zero,
    One,
}

impl SlotNumber {
    /// Where the slot starts on the drive.
    pub const fn offset_bytes(self) -> u64 {
        match self {
            Self::Zero => table::PARTITION_START_BYTES,
            Self::One => table::PARTITION_START_BYTES + SLOT_BYTES,
        }
    }

    /// The slot that is written next.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Zero => Self::One,
            Self::One => Self::Zero,
        }
    }
}

impl fmt::Display for SlotNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zero => "slot 0",
            Self::One => "slot 1",
        })
    }
}

/// What is in one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// All zero: never written.
    Empty,
    /// Something that does not begin as a label does, such as the filesystem of a drive that was never ours.
    NoLabel,
    Valid(Header),
    /// It begins as a label, and the rest is not one.
    Damaged,
    /// Undamaged, and written by a later version of Hotbay.
    UnknownVersion(u32),
}

/// What the two slots say together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Neither slot has a label. The drive need not be empty.
    Absent,
    Valid {
        header: Header,
        slot: SlotNumber,
    },
    /// There was a label, and no copy of it can be trusted.
    Damaged,
    UnknownVersion(u32),
}

/// The bytes of a header.
pub fn encode(header: &Header) -> [u8; HEADER_BYTES] {
    let state = if header.in_operation { STATE_IN_OPERATION } else { STATE_RELEASED };
    let mut unit = [0; HEADER_BYTES];
    put(&mut unit, 0, MAGIC);
    put(&mut unit, VERSION_AT, FORMAT_VERSION.to_le_bytes());
    put(&mut unit, STATE_AT, state.to_le_bytes());
    put(&mut unit, CLUSTER_AT, header.cluster.to_bits().to_le_bytes());
    put(&mut unit, DRIVE_AT, header.drive.to_bits().to_le_bytes());
    put(&mut unit, NODE_AT, header.node.to_bits().to_le_bytes());
    put(&mut unit, GENERATION_AT, header.generation.get().to_le_bytes());
    put(&mut unit, SEQUENCE_AT, header.sequence.to_le_bytes());
    put(&mut unit, EXTENTS_AT, header.extents.extents.to_le_bytes());
    put(&mut unit, TABLE_CHECKSUM_AT, header.extents.checksum.to_le_bytes());
    let checksum = crc32c::crc32c(&unit[..CHECKSUM_AT]);
    put(&mut unit, CHECKSUM_AT, checksum.to_le_bytes());
    unit
}

/// The checksum that a header has on the drive.
fn checksum(header: &Header) -> u32 {
    u32::from_le_bytes(take(&encode(header), CHECKSUM_AT))
}

/// What the first [`HEADER_BYTES`] of a slot are. A valid header counts only with its extent table.
pub fn decode(unit: &[u8; HEADER_BYTES]) -> Slot {
    if unit.iter().all(|byte| *byte == 0) {
        return Slot::Empty;
    }
    if !unit.starts_with(&MAGIC) {
        return Slot::NoLabel;
    }
    let checksum = u32::from_le_bytes(take(unit, CHECKSUM_AT));
    if checksum != crc32c::crc32c(&unit[..CHECKSUM_AT]) {
        return Slot::Damaged;
    }
    let version = u32::from_le_bytes(take(unit, VERSION_AT));
    if version != FORMAT_VERSION {
        return Slot::UnknownVersion(version);
    }
    let in_operation = match u32::from_le_bytes(take(unit, STATE_AT)) {
        STATE_IN_OPERATION => true,
        STATE_RELEASED => false,
        _ => return Slot::Damaged,
    };
    if unit[RESERVED_AT..CHECKSUM_AT].iter().any(|byte| *byte != 0) {
        return Slot::Damaged;
    }
    Slot::Valid(Header {
        cluster: ClusterId::from_bits(u128::from_le_bytes(take(unit, CLUSTER_AT))),
        drive: DriveId::from_bits(u128::from_le_bytes(take(unit, DRIVE_AT))),
        node: NodeId::from_bits(u128::from_le_bytes(take(unit, NODE_AT))),
        generation: Generation::from_number(u64::from_le_bytes(take(unit, GENERATION_AT))),
        in_operation,
        sequence: u64::from_le_bytes(take(unit, SEQUENCE_AT)),
        extents: extents::Digest {
            extents: u32::from_le_bytes(take(unit, EXTENTS_AT)),
            checksum: u32::from_le_bytes(take(unit, TABLE_CHECKSUM_AT)),
        },
    })
}

/// Which copy counts.
///
/// A copy of a later format outweighs everything: what it says may be newer than what can be read. Two copies that
/// no sequence of our writes leaves behind (of two drives, of two clusters, or of one sequence and yet different) are
/// not to be trusted, neither of them.
pub fn newest(zero: Slot, one: Slot) -> Found {
    match (zero, one) {
        (Slot::UnknownVersion(version), _) | (_, Slot::UnknownVersion(version)) => {
            Found::UnknownVersion(version)
        }
        (Slot::Valid(zero), Slot::Valid(one)) => newest_of_valid(zero, one),
        (Slot::Valid(header), Slot::Empty | Slot::NoLabel | Slot::Damaged) => {
            Found::Valid { header, slot: SlotNumber::Zero }
        }
        (Slot::Empty | Slot::NoLabel | Slot::Damaged, Slot::Valid(header)) => {
            Found::Valid { header, slot: SlotNumber::One }
        }
        (Slot::Damaged, Slot::Empty | Slot::NoLabel | Slot::Damaged)
        | (Slot::Empty | Slot::NoLabel, Slot::Damaged) => Found::Damaged,
        (Slot::Empty | Slot::NoLabel, Slot::Empty | Slot::NoLabel) => Found::Absent,
    }
}

fn newest_of_valid(zero: Header, one: Header) -> Found {
    let contradict = (zero.cluster, zero.drive) != (one.cluster, one.drive)
        || (zero.sequence == one.sequence && zero != one);
    if contradict {
        Found::Damaged
    } else if zero.sequence >= one.sequence {
        Found::Valid { header: zero, slot: SlotNumber::Zero }
    } else {
        Found::Valid { header: one, slot: SlotNumber::One }
    }
}

/// Copies `field` to its place. The places are constants of this format, so a field that does not fit is a bug.
fn put<const N: usize>(bytes: &mut [u8], at: usize, field: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&field);
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests;
