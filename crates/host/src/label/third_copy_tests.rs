//! The third copy: it follows the label, shows all of it when both slots are gone, and decides nothing.

use hotbay_core::label::change::{Basis, Change};
use hotbay_core::label::extents::Digest;
use hotbay_core::label::update::{Refusal, Want};
use hotbay_core::label::{Found, Header, SLOT_BYTES, Slot, SlotNumber};

use super::extent_tests::{change, extent, extents_on, filled, header_on, place};
use super::inspect::inspect_sectors;
use super::memory::{BLOCK_SIZES, Fault, MemoryDevice, SIZE_BYTES, WANT};
use super::{LabelError, ThirdCopy, Writer, extents, refresh_third_copy};

const MIB: u64 = 1 << 20;

/// Where it is on the drives here: the backup table takes the last MiB, and the one before is the partition's last.
const AT: u64 = SIZE_BYTES - 2 * MIB;

fn refresh(device: &MemoryDevice) -> Result<(), LabelError> {
    refresh_third_copy(device, WANT.drive, &|_| ())
}

fn third(device: &MemoryDevice) -> ThirdCopy {
    inspect_sectors(device).unwrap().third_copy.unwrap()
}

/// Takes both slots away, and the partition table too if so wanted.
fn without_slots(device: &MemoryDevice, table: bool) -> MemoryDevice {
    let device = device.again(None);
    device.zero(MIB..MIB + 2 * SLOT_BYTES).unwrap();
    if table {
        device.zero(0..MIB).unwrap();
        device.zero(SIZE_BYTES - MIB..SIZE_BYTES).unwrap();
    }
    super::Sectors::sync(&device).unwrap();
    device.again(None)
}

#[test]
fn it_says_all_when_both_slots_are_gone() {
    for block_bytes in BLOCK_SIZES {
        let device = filled(block_bytes);
        refresh(&device).unwrap();
        let (header, extents) = (header_on(&device), extents_on(&device));
        let device = device.again(None);
        for lost in [without_slots(&device, false), without_slots(&device, true)] {
            let inspected = inspect_sectors(&lost).unwrap();
            assert_eq!(inspected.found, Found::Absent);
            let expected = ThirdCopy { slot: Slot::Valid(header), extents: extents.clone() };
            assert_eq!(inspected.third_copy, Some(expected));
        }
        // It is no label: the drive is not taken by it, and not for empty either.
        let lost = without_slots(&device, true);
        let refused = lost.bring(&WANT).unwrap_err();
        let at_byte = AT;
        let not_empty = Refusal::NotEmpty { at_byte };
        assert!(matches!(&refused, LabelError::Refused(why) if *why == not_empty), "{refused:?}");
        let damaged = device.again(None);
        for slot in [SlotNumber::Zero, SlotNumber::One] {
            damaged.change_byte(slot.offset_bytes() + 40, 1);
        }
        let refused = damaged.bring_known(&WANT).unwrap_err();
        assert!(matches!(refused, LabelError::Refused(Refusal::DamagedLabel)), "{refused:?}");
        refresh(&damaged).unwrap();
        assert_eq!((lost.operations(), damaged.operations()), (0, 0));
    }
}

#[test]
fn it_is_written_once_for_each_label() {
    let device = filled(512);
    let steps = std::cell::RefCell::new(Vec::new());
    refresh_third_copy(&device, WANT.drive, &|step| steps.borrow_mut().push(step)).unwrap();
    assert_eq!(steps.take(), ["third-extents-written", "third-written", "third-synced"]);
    assert_eq!(device.operations(), 3);
    refresh(&device).unwrap();
    assert_eq!(device.operations(), 3, "it said so already");
    device.bring_known(&Want { in_operation: false, ..WANT }).unwrap();
    refresh(&device).unwrap();
    assert_eq!(third(&device).slot, Slot::Valid(header_on(&device)));
}

#[test]
fn a_cut_leaves_the_label_and_a_copy_that_is_not_newer() {
    for block_bytes in BLOCK_SIZES {
        let start = filled(block_bytes);
        refresh(&start).unwrap();
        let start = start.again(None);
        let old = header_on(&start);
        let both = |device: &MemoryDevice| {
            change(device, Basis::of(&old), &place(3, 8)).is_ok() && refresh(device).is_ok()
        };
        let whole = start.again(None);
        assert!(both(&whole));
        let new = header_on(&whole);
        for cut in 0..=whole.operations() {
            let device = start.again(Some(Fault::PowerCut(cut)));
            assert_eq!(both(&device), cut == whole.operations());
            for left in device.power_cut().into_iter().chain([device.again(None)]) {
                let label = header_on(&left);
                assert!(label == old || label == new);
                match third(&left).slot {
                    Slot::Valid(copy) => assert!(copy == old || copy == label, "it is newer"),
                    // Only while it is written, and then the label lasts.
                    Slot::Damaged => assert_eq!(label, new),
                    other => panic!("{other:?}"),
                }
                left.bring_known(&WANT).unwrap();
                refresh(&left).unwrap();
                assert_eq!(third(&left).slot, Slot::Valid(label));
                assert_eq!(header_on(&left), label);
            }
        }
    }
}

#[test]
fn an_error_is_told_and_the_label_counts() {
    let device = filled(512);
    let label = header_on(&device);
    for at in 0..3 {
        let failing = device.again(Some(Fault::Error(at)));
        let error = refresh(&failing).unwrap_err();
        assert!(error.retryable(), "{error:?}");
        assert_eq!(header_on(&failing), label);
    }
}

/// The partition keeps its size, and so the copy keeps its place; on a drive that has lost its end there is none.
#[test]
fn it_stays_where_it_is_when_the_drive_grows() {
    let start = filled(512);
    refresh(&start).unwrap();
    let grown = start.resized(SIZE_BYTES * 4);
    change(&grown, Basis::of(&header_on(&grown)), &place(3, 8)).unwrap();
    refresh(&grown).unwrap();
    let expected = ThirdCopy { slot: Slot::Valid(header_on(&grown)), extents: extents_on(&grown) };
    assert_eq!(third(&grown), expected);
    let lost = grown.again(None);
    lost.zero(MIB..MIB + 2 * SLOT_BYTES).unwrap();
    assert_eq!(third(&lost), expected, "found by the partition table alone");

    let shrunk = start.resized(16 * MIB);
    refresh(&shrunk).unwrap();
    assert_eq!(shrunk.operations(), 0);
}

#[test]
fn no_volume_is_written_over_whatever_the_label_says() {
    let device = filled(512);
    let label = header_on(&device);
    let there = vec![extent(1, AT / MIB)];
    let digest = Digest::of(&extents::encode(&there));
    let header = Header { sequence: label.sequence + 1, extents: digest, ..label };
    let (slot, writer) = (SlotNumber::One, Writer { device: &device, checkpoint: &|_| () });
    assert_eq!(header_on(&device), label);
    writer.slot(slot, &header, &there).unwrap();
    let device = device.again(None);
    assert_eq!(header_on(&device), header);
    refresh(&device).unwrap();
    assert_eq!(device.operations(), 0);
    let free = Change::Free { volume: there[0].volume };
    change(&device, Basis::of(&header), &free).unwrap();
    assert_eq!(extents_on(&device).len(), 1);
}
