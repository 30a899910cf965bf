//! Damaged labels, foreign drives and drives that lie: nothing wrong is believed, and nothing foreign is written to.

use hotbay_core::device::Denied;
use hotbay_core::ids::{ClusterId, DriveId, NodeId};
use hotbay_core::label::table::{LEAST_DRIVE_BYTES, Table, Unfit};
use hotbay_core::label::update::{Refusal, Want};
use hotbay_core::label::{Found, HEADER_BYTES, Header, SlotNumber};

use super::memory::{BLOCK_SIZES, Fault, MemoryDevice, SIZE_BYTES, WANT};
use super::{EMPTY_EDGE_BYTES, LabelError, Outcome, bring_up_to_date, first_nonzero, read};

const CHANGES: [u8; 4] = [0x01, 0x10, 0x80, 0xff];

/// A drive with both slots written, the newer one in slot 1, and what they say.
fn two_copies(block_bytes: u32) -> (MemoryDevice, Header, Header) {
    let (device, old) = MemoryDevice::labelled(block_bytes);
    let want = Want { generation: WANT.generation.next(), ..WANT };
    let new = device.bring_known(&want).unwrap().header().unwrap();
    (device.again(None), old, new)
}

fn assert_refused(device: &MemoryDevice, want: &Want, refusal: Refusal) {
    match device.bring(want) {
        Err(LabelError::Refused(refused)) => assert_eq!(refused, refusal),
        other => panic!("expected {refusal:?}, got {other:?}"),
    }
    assert_eq!(device.operations(), 0, "{refusal:?}, and yet it was written to");
}

#[test]
fn whichever_byte_of_a_slot_is_damaged_the_other_slot_counts() {
    for block_bytes in BLOCK_SIZES {
        let (device, old, new) = two_copies(block_bytes);
        for at in 0..HEADER_BYTES as u64 {
            for change in CHANGES {
                for (slot, header) in [(SlotNumber::Zero, new), (SlotNumber::One, old)] {
                    let byte = slot.offset_bytes() + at;
                    device.change_byte(byte, change);
                    let expected = Found::Valid { header, slot: slot.other() };
                    assert_eq!(read(&device).unwrap(), expected, "byte {byte} by {change:#x}");
                    device.change_byte(byte, change);
                }
            }
        }
    }
}

#[test]
fn with_both_slots_damaged_nothing_is_found_and_nothing_is_written() {
    let (device, _, _) = two_copies(512);
    for at in (0..HEADER_BYTES as u64).step_by(5) {
        let damaged = device.again(None);
        damaged.change_byte(SlotNumber::Zero.offset_bytes() + at, 0x04);
        damaged.change_byte(SlotNumber::One.offset_bytes() + 100, 0x04);
        assert_eq!(read(&damaged).unwrap(), Found::Damaged);
        assert_refused(&damaged, &WANT, Refusal::DamagedLabel);
    }
    // Nothing is left to know the label by: then it is a drive with something on it.
    let (device, _, _) = two_copies(512);
    device.change_byte(SlotNumber::Zero.offset_bytes(), 0x04);
    device.change_byte(SlotNumber::One.offset_bytes(), 0x04);
    assert_eq!(read(&device).unwrap(), Found::Absent);
    // The MBR's record is the first thing on it.
    assert_refused(&device, &WANT, Refusal::NotEmpty { at_byte: 448 });
}

#[test]
fn the_next_write_replaces_the_damaged_copy() {
    let (device, old, new) = two_copies(4096);
    device.change_byte(SlotNumber::One.offset_bytes() + 70, 0x20);
    let want = Want { generation: new.generation.next(), ..WANT };
    let written = device.bring_known(&want).unwrap().header().unwrap();
    assert_eq!(written.sequence, old.sequence + 1);
    assert_eq!(read(&device).unwrap(), Found::Valid { header: written, slot: SlotNumber::One });
}

/// `hotbay_core` tries every byte; here some of each region, through the drive.
#[test]
fn a_damaged_table_is_noticed_and_left_alone() {
    for block_bytes in BLOCK_SIZES {
        let (device, _) = MemoryDevice::labelled(block_bytes);
        let device = device.again(None);
        let table = Table::new(WANT.drive, SIZE_BYTES, block_bytes).unwrap();
        for region in table.regions() {
            for at in (0..region.bytes.len() as u64).step_by(229).chain([511]) {
                let byte = region.offset_bytes + at;
                device.change_byte(byte, CHANGES[(at % 4) as usize]);
                let at_byte = byte / 512 * 512;
                assert_refused(&device, &WANT, Refusal::ForeignTable { at_byte });
                device.change_byte(byte, CHANGES[(at % 4) as usize]);
            }
        }
        assert!(matches!(device.bring_known(&WANT), Ok(Outcome::Kept(_))));
    }
}

/// Invariant 8: a drive that is not provably ours is never written to.
#[test]
fn one_foreign_byte_at_either_end_is_enough_to_be_theirs() {
    let last = SIZE_BYTES - EMPTY_EDGE_BYTES;
    let edges = [0, 1, 511, 512, 4095, 1 << 20, (1 << 20) + 511, 3 << 19, EMPTY_EDGE_BYTES - 1];
    let tail = [last, last + 1, SIZE_BYTES - 4096, SIZE_BYTES - 1];
    // A prime distance, so that all places within a sector and a block come up.
    let strided = (0..EMPTY_EDGE_BYTES).step_by(16381);
    let positions = edges.into_iter().chain(tail).chain(strided.flat_map(|at| [at, last + at]));
    let device = MemoryDevice::new(4096);
    for at_byte in positions {
        device.change_byte(at_byte, 0x40);
        assert_eq!(first_nonzero(&device).unwrap(), Some(at_byte));
        assert_refused(&device, &WANT, Refusal::NotEmpty { at_byte });
        device.change_byte(at_byte, 0x40);
    }
    assert_eq!(first_nonzero(&device).unwrap(), None);
}

#[test]
fn the_callers_proof_is_asked_only_before_the_first_label_and_counts() {
    let device = MemoryDevice::new(512);
    let reason = vec![Denied::Held { by: vec!["dm-0".into()] }];
    match bring_up_to_date(&device, &WANT, || Err(reason.clone()), &|_| ()) {
        Err(LabelError::NotProvedEmpty { denied }) => assert_eq!(denied, reason),
        other => panic!("{other:?}"),
    }
    assert_eq!(device.operations(), 0);
    device.bring(&WANT).unwrap();
    device.bring_known(&Want { generation: WANT.generation.next(), ..WANT }).unwrap();
}

#[test]
fn a_release_of_a_drive_without_a_label_writes_nothing() {
    let device = MemoryDevice::new(512);
    let release = Want { in_operation: false, ..WANT };
    assert_eq!(device.bring_known(&release).unwrap(), Outcome::NoLabel);
    device.change_byte(0, 1);
    assert_eq!(device.bring_known(&release).unwrap(), Outcome::NoLabel);
    assert_eq!(device.operations(), 0);
}

#[test]
fn what_belongs_to_others_is_not_written_to() {
    let (device, _) = MemoryDevice::labelled(512);
    let device = device.again(None);
    let node = WANT.node;
    let others = [
        (
            Want { cluster: ClusterId::from_bits(9), take_over: true, ..WANT },
            Refusal::OtherCluster { cluster: WANT.cluster },
        ),
        (
            Want { drive: DriveId::from_bits(9), take_over: true, ..WANT },
            Refusal::OtherDrive { drive: WANT.drive },
        ),
        (Want { node: NodeId::from_bits(9), ..WANT }, Refusal::HeldByOtherNode { node }),
    ];
    for (want, refusal) in others {
        assert_refused(&device, &want, refusal);
    }
}

#[test]
fn a_drive_that_forgets_a_write_is_found_out() {
    let whole = MemoryDevice::new(512);
    whole.bring(&WANT).unwrap();
    let mut found_out = 0;
    for at in 0..whole.operations() {
        match MemoryDevice::new(512).again(Some(Fault::Forgotten(at))).bring(&WANT) {
            Err(error @ LabelError::ReadBack { .. }) => {
                assert!(!error.retryable());
                found_out += 1;
            }
            other => panic!("operation {at}: {other:?}"),
        }
    }
    assert_eq!(found_out, 9, "six writes, three syncs");
}

#[test]
fn drives_that_cannot_hold_a_label_are_only_looked_at() {
    let tiny = MemoryDevice::new(512).resized(1 << 20);
    assert_eq!(read(&tiny).unwrap(), Found::Absent);
    assert_eq!(first_nonzero(&tiny).unwrap(), None);
    let small = MemoryDevice::new(512).resized(LEAST_DRIVE_BYTES - 512);
    let error = small.bring(&WANT).unwrap_err();
    assert!(matches!(error, LabelError::Unfit(Unfit::TooSmall { .. })), "{error:?}");
    assert_eq!(small.operations(), 0);
}

#[test]
fn a_drive_that_grew_or_shrank_keeps_its_label() {
    let (device, header) = MemoryDevice::labelled(512);
    for size_bytes in [SIZE_BYTES * 4, LEAST_DRIVE_BYTES] {
        let resized = device.resized(size_bytes);
        assert_eq!(resized.bring_known(&WANT).unwrap(), Outcome::Kept(header));
        let release = Want { in_operation: false, ..WANT };
        resized.bring_known(&release).unwrap();
        assert_eq!(resized.writes(), 1, "the slot, and no table");
    }
}
