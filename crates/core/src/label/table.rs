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
    const fn is_backup(self) -> bool {
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
    /// Our primary table, from before the drive grew or shrank.
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
    /// partition keeps the size that it was made with.
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

    /// The size for which the primary table was made, if it is ours and for another size. Its backup lies elsewhere
    /// and is not looked at.
    fn other_size(&self, seen: &[Vec<u8>]) -> Option<u64> {
        let (_, header) =
            self.regions.iter().zip(seen).find(|(region, _)| region.part == Part::PrimaryHeader)?;
        let size_bytes = size_named(header, self.block_bytes)?;
        if size_bytes == self.size_bytes {
            return None;
        }
        let other = Self::new(self.drive, size_bytes, self.block_bytes).ok()?;
        let ours = other
            .regions
            .iter()
            .zip(seen)
            .all(|(region, seen)| region.part.is_backup() || region.bytes == *seen);
        ours.then_some(size_bytes)
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
        put(&mut entries, 40, self.partition_last.to_le_bytes());
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
        put(&mut block, 458, u32::try_from(self.last).unwrap_or(u32::MAX).to_le_bytes());
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
mod tests {
    use super::*;

    const DRIVE: DriveId = DriveId::from_bits(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);

    fn seen(table: &Table) -> Vec<Vec<u8>> {
        table.regions().iter().map(|region| region.bytes.clone()).collect()
    }

    fn number(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(take(bytes, at))
    }

    #[test]
    fn regions_lie_where_gpt_wants_them() {
        for (block, entries_blocks) in [(512u64, 32u64), (4096, 4)] {
            let size = 100 * MIB + 4 * 4096;
            let table = Table::new(DRIVE, size, u32::try_from(block).unwrap()).unwrap();
            let last = size / block - 1;
            let places: Vec<_> = table
                .regions()
                .iter()
                .map(|region| (region.part, region.offset_bytes / block, region.bytes.len() as u64))
                .collect();
            assert_eq!(
                places,
                [
                    (Part::BackupEntries, last - entries_blocks, 16384),
                    (Part::BackupHeader, last, block),
                    (Part::PrimaryEntries, 2, 16384),
                    (Part::PrimaryHeader, 1, block),
                    (Part::ProtectiveMbr, 0, block),
                ]
            );
            let header = &table.regions()[3].bytes;
            assert_eq!([number(header, 24), number(header, 32)], [1, last]);
            assert_eq!(number(header, 40), 2 + entries_blocks);
            assert_eq!(number(header, 48), last - entries_blocks - 1);
            let entry = &table.regions()[2].bytes;
            assert_eq!(number(entry, 32) * block, MIB);
            assert_eq!(
                (number(entry, 40) + 1) * block,
                99 * MIB,
                "the backup begins before 100 MiB"
            );
            assert!(entry[128..].iter().all(|byte| *byte == 0), "one partition");
        }
    }

    #[test]
    fn the_ids_read_as_the_drives() {
        let table = Table::new(DRIVE, LEAST_DRIVE_BYTES, 512).unwrap();
        let header = &table.regions()[3].bytes;
        let text = [0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb];
        assert_eq!(header[56..68], text);
        assert_ne!(table.regions()[2].bytes[16..32], header[56..72]);
    }

    #[test]
    fn drives_that_do_not_fit_are_told_why() {
        let new = |size, block| Table::new(DRIVE, size, block).map(|_| ());
        let least = LEAST_DRIVE_BYTES;
        assert_eq!(new(least, 512), Ok(()));
        assert_eq!(new(least, 4096), Ok(()));
        assert_eq!(new(least - 512, 512), Err(Unfit::TooSmall { size_bytes: least - 512 }));
        for block_bytes in [0, 256, 520, 1024, 8192] {
            assert_eq!(new(least, block_bytes), Err(Unfit::BlockSize { block_bytes }));
        }
        let (size_bytes, block_bytes) = (least + 512, 4096);
        assert_eq!(new(size_bytes, 4096), Err(Unfit::PartialBlock { size_bytes, block_bytes }));
        // The sizes of the largest drives still fit the arithmetic.
        assert_eq!(new(u64::MAX - 4095, 4096), Ok(()));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        for block in [512, 4096] {
            let table = Table::new(DRIVE, LEAST_DRIVE_BYTES, block).unwrap();
            let mut seen = seen(&table);
            for (index, region) in table.regions().iter().enumerate() {
                for at in 0..region.bytes.len() {
                    for change in [0x01, 0x10, 0x80, 0xff] {
                        seen[index][at] ^= change;
                        let sector = region.offset_bytes + (at as u64) / 512 * 512;
                        assert_eq!(table.state(&seen), TableState::Foreign { at_byte: sector });
                        seen[index][at] ^= change;
                    }
                }
            }
            assert_eq!(table.state(&seen), TableState::Whole);
        }
    }

    #[test]
    fn any_sector_still_zero_is_unfinished() {
        let table = Table::new(DRIVE, LEAST_DRIVE_BYTES, 512).unwrap();
        let whole = seen(&table);
        let written: Vec<(usize, usize)> = (0..whole.len())
            .flat_map(|region| (0..whole[region].len() / 512).map(move |sector| (region, sector)))
            .filter(|(region, sector)| {
                whole[*region][sector * 512..][..512].iter().any(|byte| *byte != 0)
            })
            .collect();
        assert_eq!(written.len(), 5, "headers, MBR and the first entry of both copies");
        for kept in 0..(1u32 << written.len()) - 1 {
            let mut cut: Vec<Vec<u8>> = whole.iter().map(|bytes| vec![0; bytes.len()]).collect();
            for (bit, (region, sector)) in written.iter().enumerate() {
                if kept >> bit & 1 == 1 {
                    let range = sector * 512..(sector + 1) * 512;
                    cut[*region][range.clone()].copy_from_slice(&whole[*region][range]);
                }
            }
            assert_eq!(table.state(&cut), TableState::Unfinished, "kept {kept:#b}");
        }
    }

    #[test]
    fn a_drive_that_grew_or_shrank_is_known_by_its_primary_table() {
        for (old, new) in [(32 * MIB, 64 * MIB), (64 * MIB, 32 * MIB)] {
            let before = Table::new(DRIVE, old, 512).unwrap();
            let now = Table::new(DRIVE, new, 512).unwrap();
            let mut seen = seen(&before);
            seen[0].fill(0xaa);
            assert_eq!(now.state(&seen), TableState::OtherSize { size_bytes: old });
            let other = Table::new(DriveId::from_bits(1), new, 512).unwrap();
            assert!(matches!(other.state(&seen), TableState::Foreign { .. }));
            seen[4][0] ^= 1;
            assert!(matches!(now.state(&seen), TableState::Foreign { .. }));
        }
    }
}
