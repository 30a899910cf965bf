//! A drive grows: cut at every write and sync, and the repair cut again. Whatever is left is a drive of ours with its
//! label, its extents and a valid table, and the next attach gives it all its room.

use hotbay_core::label::change::Basis;
use hotbay_core::label::table::{Table, TableState};
use hotbay_core::label::update::Want;
use hotbay_core::label::{Slot, extents::Extent};

use super::extent_tests::{change, extents_on, filled, header_on, place};
use super::inspect::inspect_sectors;
use super::memory::{BLOCK_SIZES, Fault, MemoryDevice, SIZE_BYTES, WANT};
use super::{
    ExtentsError, LabelError, Outcome, Sectors, grow_table, limit_bytes, refresh_third_copy,
};

const MIB: u64 = 1 << 20;

fn grow(device: &MemoryDevice) -> Result<bool, ExtentsError> {
    grow_table(device, &WANT, &|_| ())
}

/// What an attach does about the label, in its order.
fn attach(device: &MemoryDevice) -> Result<(), ExtentsError> {
    device.bring_known(&WANT)?;
    grow(device)?;
    Ok(refresh_third_copy(device, WANT.drive, &|_| ())?)
}

/// A drive with volumes and a third copy, in the state after its growth to `size_bytes`.
fn grown(block_bytes: u32, size_bytes: u64) -> MemoryDevice {
    let device = filled(block_bytes);
    refresh_third_copy(&device, WANT.drive, &|_| ()).unwrap();
    device.resized(size_bytes)
}

fn state(device: &MemoryDevice) -> TableState {
    inspect_sectors(device).unwrap().table.unwrap()
}

/// Whether a program that knows nothing of us finds a partition table: by the primary, or by the backup at the end.
fn has_table(device: &MemoryDevice) -> bool {
    let block = u64::from(device.block_bytes());
    let at = |place: u64| {
        let mut header = vec![0; usize::try_from(block).unwrap()];
        device.read_at(place, &mut header).unwrap();
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
        let mut entries = vec![0; 16384];
        if &header[..8] != b"EFI PART" || (number(72) * block) + 16384 > device.size_bytes() {
            return false;
        }
        device.read_at(number(72) * block, &mut entries).unwrap();
        let crc = u32::from_le_bytes(header[88..92].try_into().unwrap());
        number(24) * block == place && crc == ieee(&entries)
    };
    at(block) || at(device.size_bytes() - block)
}

fn ieee(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

fn zero_from(device: &MemoryDevice, start: u64, end: u64) -> bool {
    let mut bytes = vec![1; usize::try_from(end - start).unwrap()];
    device.read_at(start, &mut bytes).unwrap();
    bytes.iter().all(|byte| *byte == 0)
}

/// What must hold after a cut, and that the next attach finishes.
fn check_cut(left: &MemoryDevice, old: u64, before: &[Extent]) {
    assert!(has_table(left), "a table is found");
    assert_eq!(extents_on(left), before);
    let limit = limit_bytes(left, WANT.drive).unwrap();
    let new = left.size_bytes() - 2 * MIB;
    assert!([old, new].contains(&limit), "{limit}");
    let again = left.again(None);
    attach(&again).unwrap();
    assert_eq!(state(&again), TableState::Whole);
    assert_eq!(limit_bytes(&again, WANT.drive).unwrap(), new);
    assert!(zero_from(&again, old, (old + 2 * MIB).min(new)), "no volume is shown what was there");
    let third = inspect_sectors(&again).unwrap().third_copy.unwrap();
    assert_eq!((third.slot, third.extents), (Slot::Valid(header_on(left)), before.to_vec()));
    for survivor in again.power_cut() {
        attach(&survivor).unwrap();
        assert_eq!((state(&survivor), survivor.writes()), (TableState::Whole, 0));
    }
}

#[test]
fn every_cut_leaves_a_table_and_can_be_finished() {
    let sizes = [SIZE_BYTES + 512 * 8, SIZE_BYTES + MIB, SIZE_BYTES + 2 * MIB, SIZE_BYTES * 4];
    for block_bytes in BLOCK_SIZES {
        for size_bytes in sizes {
            let start = grown(block_bytes, size_bytes);
            let before = extents_on(&start);
            let old = SIZE_BYTES - 2 * MIB;
            let whole = start.again(None);
            attach(&whole).unwrap();
            let mut cuts = 0;
            for cut in 0..=whole.operations() {
                let device = start.again(Some(Fault::PowerCut(cut)));
                assert_eq!(attach(&device).is_ok(), cut == whole.operations());
                for left in device.power_cut() {
                    cuts += 1;
                    if size_bytes.is_multiple_of(MIB) {
                        check_cut(&left, old, &before);
                    }
                    assert!(has_table(&left));
                    attach(&left).unwrap();
                    assert_eq!(state(&left), TableState::Whole);
                }
            }
            assert!(cuts > 20, "the test cuts something: {cuts}");
        }
    }
}

#[test]
fn a_repair_that_is_cut_again_can_be_finished_too_and_so_can_another_growth() {
    let start = grown(512, SIZE_BYTES * 2);
    let before = extents_on(&start);
    let operations = |from: &MemoryDevice| {
        let whole = from.again(None);
        attach(&whole).unwrap();
        whole.operations()
    };
    for cut in 0..=operations(&start) {
        let device = start.again(Some(Fault::PowerCut(cut)));
        let _ = attach(&device);
        let once = device.power_cut();
        // Nothing of what was not synced has arrived, or all of it.
        for once in [once.first().unwrap(), once.last().unwrap()] {
            for size_bytes in [SIZE_BYTES * 2, SIZE_BYTES * 3] {
                let once = once.resized(size_bytes);
                for second in 0..=operations(&once) {
                    let device = once.again(Some(Fault::PowerCut(second)));
                    let _ = attach(&device);
                    let twice = device.again(None);
                    assert_eq!(extents_on(&twice), before);
                    attach(&twice).unwrap();
                    assert_eq!(state(&twice), TableState::Whole);
                }
            }
        }
    }
}

#[test]
fn an_error_of_any_operation_is_told_and_the_next_attach_finishes() {
    let start = grown(512, SIZE_BYTES * 2);
    let whole = start.again(None);
    grow(&whole).unwrap();
    for at in 0..whole.operations() {
        let device = start.again(Some(Fault::Error(at)));
        let error = grow(&device).unwrap_err();
        assert!(matches!(&error, ExtentsError::Label(error) if error.retryable()), "{error:?}");
        assert_eq!(device.operations(), at + 1, "nothing follows what has failed");
        let device = device.again(None);
        attach(&device).unwrap();
        assert_eq!(state(&device), TableState::Whole);
    }
}

#[test]
fn volumes_are_placed_in_what_has_grown() {
    for block_bytes in BLOCK_SIZES {
        let device = grown(block_bytes, SIZE_BYTES * 4);
        let basis = Basis::of(&header_on(&device));
        let last_mib = ((SIZE_BYTES * 4) >> 20) - 3;
        let refused = change(&device, basis, &place(3, last_mib)).unwrap_err();
        assert!(matches!(refused, ExtentsError::Refused { .. }), "{refused:?}");
        assert!(grow(&device).unwrap());
        assert_eq!(Basis::of(&header_on(&device)), basis, "the label is the same");
        change(&device, basis, &place(3, last_mib)).unwrap();
        assert!(!grow(&device).unwrap(), "once");
    }
}

/// Invariant 8: what is not in operation here is not written to, nor is a drive that has shrunk.
#[test]
fn only_a_drive_that_is_held_here_and_has_grown_is_written() {
    let start = grown(512, SIZE_BYTES * 4);
    let other = Want { node: hotbay_core::ids::NodeId::from_bits(0x0b), ..WANT };
    let older = Want { generation: WANT.generation.next(), ..WANT };
    for want in [other, older, Want { in_operation: false, ..WANT }] {
        grow_table(&start, &want, &|_| ()).unwrap_err();
    }
    let foreign = start.again(None);
    foreign.change_byte(512, 1);
    let refused = grow(&foreign).unwrap_err();
    assert!(matches!(refused, ExtentsError::Label(LabelError::Refused(_))), "{refused:?}");
    let shrunk = start.resized(16 * MIB);
    assert!(!grow(&shrunk).unwrap());
    let same = start.resized(SIZE_BYTES);
    assert!(!grow(&same).unwrap());
    for device in [&start, &foreign, &shrunk, &same] {
        assert_eq!(device.operations(), 0);
    }
}

/// Shrunk below what is on it, and grown back to something else: extents come before tables.
#[test]
fn no_extent_is_written_over() {
    let device = filled(512);
    let basis = Basis::of(&header_on(&device));
    let last = (SIZE_BYTES >> 20) - 3;
    change(&device, basis, &place(3, last)).unwrap();
    let shrunk = device.resized(SIZE_BYTES - MIB);
    assert!(!grow(&shrunk).unwrap());
    assert_eq!(shrunk.writes(), 0);
    assert_eq!(shrunk.bring_known(&WANT).unwrap(), Outcome::Kept(header_on(&device)));
    // A cut has left the table as one for a smaller drive, while the label has an extent behind that.
    let small = Table::new(WANT.drive, SIZE_BYTES - MIB, 512).unwrap();
    for region in small.regions().iter().filter(|region| region.offset_bytes < MIB) {
        device.write_at(region.offset_bytes, &region.bytes).unwrap();
    }
    device.sync().unwrap();
    let device = device.again(None);
    assert!(!grow(&device).unwrap());
    assert_eq!(device.operations(), 0);
}
