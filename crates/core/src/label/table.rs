//! The partition table that marks a drive as taken for everybody else.
//!
//! A GPT with a protective MBR and one partition of our own type, named `hotbay`. All of it follows from the drive's
//! id, size and block size alone, so that after a cut every sector can be held against what it has to be: ours, still
//! zero, or somebody else's. [`super::update`] decides by that, the host reads and writes the regions.
//!
//! ```text
//! 0        1 block  2 blocks      1 MiB                                   whole MiB     end
//! | MBR    | header | entries |   | partition: slot 0, slot 1, extents |  | entries | header |
//! ```

use std::ops::Range;

use thiserror::Error;

use super::crc32::crc32;
use super::{put, take};
use crate::ids::DriveId;

const MIB: u64 = 1024 * 1024;

/// The smallest drive that is given a label.
pub const LEAST_DRIVE_BYTES: u64 = 16 * MIB;

/// Where the partition starts.
pub const PARTITION_START_BYTES: u64 = MIB;

/// The smallest unit that a drive writes wholly or not at all; a table is compared in these.
const SECTOR_BYTES: usize = 512;

/// The type of our partition, drawn at random once.
const PARTITION_TYPE: u128 = 0xa597_5055_b42a_4bdf_83d6_0f34_6b85_2b56;

/// Told apart from the disk's id by a pattern drawn at random once; both ids stay those of the drive.
const PARTITION_ID_PATTERN: u128 = 0xa08c_9b07_03d2_4bca_b035_86a3_7e12_53e7;

const PARTITION_NAME: &str = "hotbay";

const ENTRY_COUNT: u32 = 128;
const ENTRY_BYTES: u32 = 128;
const ENTRIES_BYTES: usize = 128 * 128;
const GPT_MAGIC: &[u8; 8] = b"EFI PART";
const GPT_HEADER_BYTES: usize = 92;
const GPT_REVISION: u32 = 0x0001_0000;
const GPT_ALTERNATE_AT: usize = 32;
const ENTRY_LAST_AT: usize = 40;
const MBR_LENGTH_AT: usize = 458;

/// Why no table can be laid out on a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unfit {
    #[error("the drive has {size_bytes} bytes, at least {LEAST_DRIVE_BYTES} are needed")]
    TooSmall { size_bytes: u64 },
    #[error("the drive has blocks of {block_bytes} bytes, only 512 and 4096 are supported")]
    BlockSize { block_bytes: u32 },
    #[error("the drive's {size_bytes} bytes are not a whole number of blocks of {block_bytes}")]
    PartialBlock { size_bytes: u64, block_bytes: u32 },
}

/// The parts of a table, in the order in which they are written: the backup is whole before the primary begins, and
/// the record that makes others look for a table at all comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    BackupEntries,
    BackupHeader,
    PrimaryEntries,
    PrimaryHeader,
    ProtectiveMbr,
}

impl Part {
    pub const fn is_backup(self) -> bool {
        match self {
            Self::BackupEntries | Self::BackupHeader => true,
            Self::PrimaryEntries | Self::PrimaryHeader | Self::ProtectiveMbr => false,
        }
    }
}

/// One part: whole blocks and where they belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    pub part: Part,
    pub offset_bytes: u64,
    pub bytes: Vec<u8>,
}

/// The whole table of one drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    drive: DriveId,
    size_bytes: u64,
    block_bytes: u32,
    regions: Vec<Region>,
}

/// What is where the table belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableState {
    /// Our table, every byte of it.
    Whole,
    /// Every sector is ours or still zero: our writing was cut off.
    Unfinished,
    /// Our primary table, from before the drive grew or shrank. Writing it for the new size may have begun.
    OtherSize { size_bytes: u64 },
    /// Something else, first met in the sector at this byte.
    Foreign { at_byte: u64 },
}

impl Table {
    /// Lays the table out on a drive of this size.
    pub fn new(drive: DriveId, size_bytes: u64, block_bytes: u32) -> Result<Self, Unfit> {
        let layout = Layout::of_fit(size_bytes, block_bytes)?;
        let entries = layout.entries(drive);
        let region = |part, block: u64, bytes| Region {
            part,
            offset_bytes: block * u64::from(block_bytes),
            bytes,
        };
        let primary = HeaderPlace { own: 1, alternate: layout.last, entries: 2 };
        let backup =
            HeaderPlace { own: layout.last, alternate: 1, entries: layout.last_usable + 1 };
        let regions = vec![
            region(Part::BackupEntries, backup.entries, entries.clone()),
            region(Part::BackupHeader, backup.own, layout.header(drive, &backup, &entries)),
            region(Part::PrimaryEntries, primary.entries, entries.clone()),
            region(Part::PrimaryHeader, primary.own, layout.header(drive, &primary, &entries)),
            region(Part::ProtectiveMbr, 0, layout.protective_mbr()),
        ];
        Ok(Self { drive, size_bytes, block_bytes, regions })
    }

    /// Where extents must end: before the last MiB of the partition, and on the drive. `state` is that of this table: a
    /// partition has the size that it was made with, until the table is written anew.
    pub fn extents_end_bytes(&self, state: TableState) -> u64 {
        self.last_mebibyte(state).min(self.size_bytes)
    }

    /// Where the third copy of the label belongs, if the partition is whole and its end on the drive.
    pub fn third_copy_bytes(&self, state: TableState) -> Option<u64> {
        match state {
            TableState::Unfinished | TableState::Foreign { .. } => None,
            TableState::Whole | TableState::OtherSize { .. } => {
                Some(self.last_mebibyte(state)).filter(|at| at + MIB <= self.size_bytes)
            }
        }
    }

    /// Where the last MiB of the partition begins: on a drive that has shrunk, perhaps behind its end.
    fn last_mebibyte(&self, state: TableState) -> u64 {
        let size_bytes = match state {
            TableState::OtherSize { size_bytes } => size_bytes.max(LEAST_DRIVE_BYTES),
            TableState::Whole | TableState::Unfinished | TableState::Foreign { .. } => {
                self.size_bytes
            }
        };
        Layout::new(size_bytes, self.block_bytes).last_mebibyte()
    }

    /// The parts, in the order in which they are to be written.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Holds what was read from each of [`Self::regions`], in the same order and length, against the table.
    pub fn state(&self, seen: &[Vec<u8>]) -> TableState {
        assert_eq!(seen.len(), self.regions.len(), "one piece was read for each region");
        if self.regions.iter().zip(seen).all(|(region, seen)| region.bytes == *seen) {
            return TableState::Whole;
        }
        if let Some(size_bytes) = self.other_size(seen) {
            return TableState::OtherSize { size_bytes };
        }
        match self.regions.iter().zip(seen).find_map(|(region, seen)| region.first_foreign(seen)) {
            Some(at_byte) => TableState::Foreign { at_byte },
            None => TableState::Unfinished,
        }
    }

    /// The size for which the primary table was made, by its header, if all of it is ours and for another size. Its
    /// backup lies elsewhere and is not looked at. Where writing it for yet another size was cut off, entries and MBR
    /// are for that one: the header comes last.
    fn other_size(&self, seen: &[Vec<u8>]) -> Option<u64> {
        let [_, _, entries, header, mbr] = seen else { return None };
        let size_bytes = size_named(header, self.block_bytes)?;
        // Most tables name the size that is asked about: no need to make another one.
        if size_bytes == self.size_bytes {
            return None;
        }
        let layout = Layout::of_fit(size_bytes, self.block_bytes).ok()?;
        let primary = HeaderPlace { own: 1, alternate: layout.last, entries: 2 };
        let ours = layout.entries(self.drive);
        let is_header = *header == layout.header(self.drive, &primary, &ours);
        let is_entries = *entries == ours || Layout::are_entries(entries, self);
        (is_header && is_entries && layout.is_mbr(mbr)).then_some(size_bytes)
    }

    /// Where the copy of the label and the backup lay, at the end of a table for a smaller size, as far as volumes may
    /// have it in this one: to be zeroed, as all that is given to volumes. `None`: it is not for a smaller size.
    pub fn outgrown(&self, state: TableState) -> Option<Range<u64>> {
        let TableState::OtherSize { size_bytes } = state else { return None };
        let start = self.last_mebibyte(state);
        let end = size_bytes.checked_next_multiple_of(MIB)?;
        let end = end.min(self.last_mebibyte(TableState::Whole)).max(start);
        (size_bytes <= self.size_bytes).then_some(start..end)
    }
}

impl Region {
    /// The first sector of `seen` that is neither this region's nor zero.
    fn first_foreign(&self, seen: &[u8]) -> Option<u64> {
        assert_eq!(seen.len(), self.bytes.len(), "a region is read whole");
        let sectors = self.bytes.chunks(SECTOR_BYTES).zip(seen.chunks(SECTOR_BYTES));
        (self.offset_bytes..)
            .step_by(SECTOR_BYTES)
            .zip(sectors)
            .find(|(_, (ours, seen))| seen != ours && seen.iter().any(|byte| *byte != 0))
            .map(|(at_byte, _)| at_byte)
    }
}

/// Block numbers of one drive.
struct Layout {
    block_bytes: u32,
    first_usable: u64,
    last_usable: u64,
    last: u64,
    partition_first: u64,
    partition_last: u64,
}

/// Where a GPT header is, and what it points to.
struct HeaderPlace {
    own: u64,
    alternate: u64,
    entries: u64,
}

/// The size of the drive that a GPT was made for, by its primary header.
fn size_named(header: &[u8], block_bytes: u32) -> Option<u64> {
    let alternate = u64::from_le_bytes(take(header, GPT_ALTERNATE_AT));
    alternate.checked_add(1)?.checked_mul(u64::from(block_bytes))
}

/// Where the third copy of a label may be, on a drive that has perhaps nothing else left of it: by the size that its
/// GPT was made for, if it has one, and by its own. `second_block` is what is read where a primary header belongs.
pub fn third_copy_places(second_block: &[u8], size_bytes: u64, block_bytes: u32) -> Vec<u64> {
    let named = Some(second_block).filter(|block| block.starts_with(GPT_MAGIC));
    let named = named.and_then(|block| size_named(block, block_bytes));
    let layouts = named.into_iter().chain([size_bytes]);
    let mut places: Vec<_> = layouts
        .filter_map(|size| Layout::of_fit(size, block_bytes).ok())
        .map(|layout| layout.last_mebibyte())
        .filter(|at| at + MIB <= size_bytes)
        .collect();
    places.dedup();
    places
}

impl Layout {
    /// Of a drive that can have a table.
    fn of_fit(size_bytes: u64, block_bytes: u32) -> Result<Self, Unfit> {
        if ![512, 4096].contains(&block_bytes) {
            return Err(Unfit::BlockSize { block_bytes });
        }
        if size_bytes < LEAST_DRIVE_BYTES {
            return Err(Unfit::TooSmall { size_bytes });
        }
        if !size_bytes.is_multiple_of(u64::from(block_bytes)) {
            return Err(Unfit::PartialBlock { size_bytes, block_bytes });
        }
        Ok(Self::new(size_bytes, block_bytes))
    }

    /// Whether these are entries of ours, for whatever size.
    fn are_entries(entries: &[u8], table: &Table) -> bool {
        let block = u64::from(table.block_bytes);
        let last = u64::from_le_bytes(take(entries, ENTRY_LAST_AT));
        let behind = u64::from(ENTRY_COUNT * ENTRY_BYTES) + block;
        let size = last.checked_add(1).and_then(|blocks| blocks.checked_mul(block));
        let size = size.and_then(|size| size.checked_add(behind));
        let layout = size.and_then(|size| Self::of_fit(size, table.block_bytes).ok());
        layout.is_some_and(|layout| layout.entries(table.drive) == *entries)
    }

    /// Whether this is a protective MBR of ours, for whatever size.
    fn is_mbr(&self, mbr: &[u8]) -> bool {
        let mut ours = self.protective_mbr();
        put(&mut ours, MBR_LENGTH_AT, take::<4>(mbr, MBR_LENGTH_AT));
        ours == *mbr
    }

    fn last_mebibyte(&self) -> u64 {
        (self.partition_last + 1) * u64::from(self.block_bytes) - MIB
    }

    /// The caller has checked that block size and size fit.
    fn new(size_bytes: u64, block_bytes: u32) -> Self {
        let block = u64::from(block_bytes);
        let blocks = size_bytes / block;
        let entries_blocks = u64::from(ENTRY_COUNT * ENTRY_BYTES) / block;
        let last = blocks - 1;
        let last_usable = last - entries_blocks - 1;
        let partition_end_bytes = (last_usable + 1) * block / MIB * MIB;
        Self {
            block_bytes,
            first_usable: 2 + entries_blocks,
            last_usable,
            last,
            partition_first: PARTITION_START_BYTES / block,
            partition_last: partition_end_bytes / block - 1,
        }
    }

    fn empty_block(&self) -> Vec<u8> {
        vec![0; usize::try_from(self.block_bytes).expect("a block is 512 or 4096 bytes")]
    }

    fn entries(&self, drive: DriveId) -> Vec<u8> {
        let mut entries = vec![0; ENTRIES_BYTES];
        put(&mut entries, 0, guid(PARTITION_TYPE));
        put(&mut entries, 16, guid(drive.to_bits() ^ PARTITION_ID_PATTERN));
        put(&mut entries, 32, self.partition_first.to_le_bytes());
        put(&mut entries, ENTRY_LAST_AT, self.partition_last.to_le_bytes());
        for (at, unit) in (56..).step_by(2).zip(PARTITION_NAME.encode_utf16()) {
            put(&mut entries, at, unit.to_le_bytes());
        }
        entries
    }

    fn header(&self, drive: DriveId, place: &HeaderPlace, entries: &[u8]) -> Vec<u8> {
        let mut block = self.empty_block();
        put(&mut block, 0, *GPT_MAGIC);
        put(&mut block, 8, GPT_REVISION.to_le_bytes());
        put(&mut block, 12, 92u32.to_le_bytes());
        put(&mut block, 24, place.own.to_le_bytes());
        put(&mut block, GPT_ALTERNATE_AT, place.alternate.to_le_bytes());
        put(&mut block, 40, self.first_usable.to_le_bytes());
        put(&mut block, 48, self.last_usable.to_le_bytes());
        put(&mut block, 56, guid(drive.to_bits()));
        put(&mut block, 72, place.entries.to_le_bytes());
        put(&mut block, 80, ENTRY_COUNT.to_le_bytes());
        put(&mut block, 84, ENTRY_BYTES.to_le_bytes());
        put(&mut block, 88, crc32(entries).to_le_bytes());
        let checksum = crc32(&block[..GPT_HEADER_BYTES]);
        put(&mut block, 16, checksum.to_le_bytes());
        block
    }

    fn protective_mbr(&self) -> Vec<u8> {
        let mut block = self.empty_block();
        // One record of type 0xee over the whole drive, as far as its 32 bits reach.
        put(&mut block, 446, [0x00, 0x00, 0x02, 0x00, 0xee, 0xff, 0xff, 0xff]);
        put(&mut block, 454, 1u32.to_le_bytes());
        put(&mut block, MBR_LENGTH_AT, u32::try_from(self.last).unwrap_or(u32::MAX).to_le_bytes());
        put(&mut block, 510, [0x55, 0xaa]);
        block
    }
}

/// The bytes of a GUID whose text is the hex digits of `bits`: its first three fields are little-endian.
fn guid(bits: u128) -> [u8; 16] {
    let mut bytes = bits.to_be_bytes();
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    bytes
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
