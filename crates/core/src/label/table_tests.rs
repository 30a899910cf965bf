//! Every byte of the table, and every way to find it: whole, cut off, of another size, somebody else's.

use super::super::take;
use super::{DriveId, LEAST_DRIVE_BYTES, MIB, Part, Table, TableState, Unfit};

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
        assert_eq!((number(entry, 40) + 1) * block, 99 * MIB, "the backup begins before 100 MiB");
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

/// The header is written last: every mixture that a cut leaves is known as ours, and for the size that was.
#[test]
fn a_table_that_is_written_for_another_size_is_ours() {
    for block in [512, 4096] {
        let (small, large) = (32 * MIB, 64 * MIB);
        let before = seen(&Table::new(DRIVE, small, block).unwrap());
        let table = Table::new(DRIVE, large, block).unwrap();
        let now = seen(&table);
        let other = Table::new(DriveId::from_bits(1), large, block).unwrap();
        for parts in [[2].as_slice(), &[4], &[2, 4]] {
            let mut mixed = before.clone();
            for part in parts {
                mixed[*part].clone_from(&now[*part]);
            }
            let state = TableState::OtherSize { size_bytes: small };
            assert_eq!(table.state(&mixed), state, "{parts:?}");
            assert_eq!(table.extents_end_bytes(state), small - 2 * MIB);
            // And if its size has changed once more meanwhile.
            let third = Table::new(DRIVE, 128 * MIB, block).unwrap();
            assert_eq!(third.state(&mixed), state, "{parts:?}");
            assert!(matches!(other.state(&mixed), TableState::Foreign { .. }), "{parts:?}");
        }
        let mut header_first = before;
        header_first[3].clone_from(&now[3]);
        assert!(matches!(table.state(&header_first), TableState::Foreign { .. }), "not by us");
    }
}

#[test]
fn what_a_smaller_table_had_at_its_end_is_outgrown() {
    let outgrown = |old: u64, new: u64| {
        let table = Table::new(DRIVE, new, 512).unwrap();
        table.outgrown(TableState::OtherSize { size_bytes: old })
    };
    assert_eq!(outgrown(32 * MIB, 64 * MIB), Some(30 * MIB..32 * MIB));
    assert_eq!(outgrown(32 * MIB - 512, 64 * MIB), Some(30 * MIB..32 * MIB));
    assert_eq!(outgrown(32 * MIB, 33 * MIB), Some(30 * MIB..31 * MIB), "the copy begins there");
    assert_eq!(outgrown(32 * MIB, 32 * MIB + 512), Some(30 * MIB..30 * MIB), "it stays");
    assert_eq!(outgrown(64 * MIB, 32 * MIB), None);
    let table = Table::new(DRIVE, 64 * MIB, 512).unwrap();
    assert_eq!(table.outgrown(TableState::Whole), None);
}
