//! The extent table on a drive: cut at every write and sync, changed in every byte, and never lost by another change.

use hotbay_core::ids::{NodeId, VolumeId};
use hotbay_core::label::change::{Basis, Change, ChangeRefused, LabelTold};
use hotbay_core::label::extents::{EXTENT_BYTES, Extent, TABLE_AT_BYTES, Use};
use hotbay_core::label::update::Want;
use hotbay_core::label::{Found, Header, SlotNumber};

use super::memory::{BLOCK_SIZES, Fault, MemoryDevice, SIZE_BYTES, WANT};
use super::{ExtentsError, LabelError, Sectors, change_extents, read, read_whole, told};

pub(super) fn extent(volume: u128, start_mib: u64) -> Extent {
    Extent {
        volume: VolumeId::from_bits(volume),
        part: 0,
        start_bytes: start_mib << 20,
        length_bytes: 1 << 20,
        usage: Use::Used,
        formatted: false,
        name: format!("volume-{volume}").parse().unwrap(),
        claim: None,
    }
}

pub(super) fn place(volume: u128, start_mib: u64) -> Change {
    Change::Place(extent(volume, start_mib))
}

pub(super) fn header_on(device: &MemoryDevice) -> Header {
    match read(device).unwrap() {
        Found::Valid { header, .. } => header,
        other => panic!("{other:?}"),
    }
}

pub(super) fn extents_on(device: &MemoryDevice) -> Vec<Extent> {
    read_whole(device).unwrap().1
}

pub(super) fn change(
    device: &MemoryDevice,
    basis: Basis,
    change: &Change,
) -> Result<LabelTold, ExtentsError> {
    change_held(device, &WANT, basis, change)
}

fn change_held(
    device: &MemoryDevice,
    held: &Want,
    basis: Basis,
    change: &Change,
) -> Result<LabelTold, ExtentsError> {
    let erase = |range| device.zero(range);
    change_extents(device, held, basis, std::slice::from_ref(change), &erase, &|_| ())
}

/// A drive with two volumes on it.
pub(super) fn filled(block_bytes: u32) -> MemoryDevice {
    let (device, header) = MemoryDevice::labelled(block_bytes);
    let mut basis = Basis::of(&header);
    for (volume, start_mib) in [(1, 2), (2, 5)] {
        basis = change(&device, basis, &place(volume, start_mib)).unwrap().basis;
    }
    device.again(None)
}

/// Invariant 7: what was acknowledged survives, and what was not is there as a whole or not at all.
#[test]
fn every_cut_leaves_the_old_table_or_the_new_one() {
    for block_bytes in BLOCK_SIZES {
        let start = filled(block_bytes);
        let basis = Basis::of(&header_on(&start));
        let old = extents_on(&start);
        let changes = [
            (place(3, 8), vec![extent(1, 2), extent(2, 5), extent(3, 8)]),
            (
                Change::Free { volume: VolumeId::from_bits(1) },
                vec![Extent { usage: Use::Dirty, ..extent(1, 2) }, extent(2, 5)],
            ),
            (Change::Withdraw { volume: VolumeId::from_bits(2) }, vec![extent(1, 2)]),
        ];
        for (wanted, new) in changes {
            let whole = start.again(None);
            change(&whole, basis, &wanted).unwrap();
            for cut in 0..=whole.operations() {
                let device = start.again(Some(Fault::PowerCut(cut)));
                let returned = change(&device, basis, &wanted).is_ok();
                assert_eq!(returned, cut == whole.operations());
                for left in device.power_cut().into_iter().chain([device.again(None)]) {
                    let found = extents_on(&left);
                    assert!(found == new || (found == old && !returned), "{found:?}");
                    let again = change(&left, basis, &wanted);
                    if found == old {
                        again.unwrap();
                        assert_eq!(extents_on(&left), new);
                    } else {
                        // The label is another one now.
                        let found = Basis::of(&header_on(&left));
                        let other = ChangeRefused::OtherLabel { decided: basis, found };
                        let Err(ExtentsError::Refused { why, now }) = again else {
                            panic!("{again:?}")
                        };
                        assert_eq!((why, now.extents), (other, new.clone()));
                    }
                }
            }
        }
    }
}

/// The story: a drive was released, or taken over, and the copy that was written had no extents.
#[test]
fn attach_and_release_keep_the_extents() {
    for block_bytes in BLOCK_SIZES {
        let start = filled(block_bytes);
        let before = extents_on(&start);
        let next = WANT.generation.next();
        let wants = [
            Want { in_operation: false, generation: next, ..WANT },
            Want { node: NodeId::from_bits(0x0b), take_over: true, generation: next, ..WANT },
        ];
        for want in wants {
            let whole = start.again(None);
            whole.bring_known(&want).unwrap();
            for cut in 0..=whole.operations() {
                let device = start.again(Some(Fault::PowerCut(cut)));
                let _ = device.bring_known(&want);
                for left in device.power_cut() {
                    assert_eq!(extents_on(&left), before);
                }
            }
        }
    }
}

#[test]
fn whichever_byte_of_a_table_is_damaged_the_other_slot_counts() {
    let device = filled(512);
    let newest = match read(&device).unwrap() {
        Found::Valid { slot, .. } => slot,
        other => panic!("{other:?}"),
    };
    let table_at = newest.offset_bytes() + TABLE_AT_BYTES;
    for at in 0..2 * EXTENT_BYTES as u64 {
        device.change_byte(table_at + at, 0x20);
        assert_eq!(extents_on(&device), [extent(1, 2)], "byte {at}");
        device.change_byte(table_at + at, 0x20);
    }
    device.change_byte(table_at, 1);
    device.change_byte(newest.other().offset_bytes() + TABLE_AT_BYTES, 1);
    assert_eq!(read_whole(&device).unwrap(), (Found::Damaged, Vec::new()));
}

#[test]
fn a_late_change_or_one_of_another_holder_writes_nothing() {
    let device = filled(4096);
    let (label, late) = (header_on(&device), place(3, 8));
    let basis = Basis::of(&label);
    change(&device, basis, &Change::Free { volume: VolumeId::from_bits(1) }).unwrap();
    let device = device.again(None);
    let refused = change(&device, basis, &late).unwrap_err();
    assert!(matches!(refused, ExtentsError::Refused { why: ChangeRefused::OtherLabel { .. }, .. }));

    let basis = Basis::of(&header_on(&device));
    let other = Want { node: NodeId::from_bits(0x0b), ..WANT };
    let refused = change_held(&device, &other, basis, &late).unwrap_err();
    assert!(matches!(refused, ExtentsError::Label(LabelError::Refused(_))), "{refused:?}");
    let newer = Want { generation: WANT.generation.next(), ..WANT };
    let refused = change_held(&device, &newer, basis, &late).unwrap_err();
    assert!(matches!(refused, ExtentsError::NotHeld), "{refused:?}");
    let behind = change(&device, basis, &place(3, SIZE_BYTES >> 20)).unwrap_err();
    assert!(matches!(behind, ExtentsError::Refused { why: ChangeRefused::OutOfPlace { .. }, .. }));
    let released = Want { in_operation: false, ..WANT };
    device.bring_known(&released).unwrap();
    let basis = Basis::of(&header_on(&device));
    let device = device.again(None);
    for want in [released, WANT] {
        let refused = change_held(&device, &want, basis, &late).unwrap_err();
        assert!(matches!(refused, ExtentsError::NotHeld), "{refused:?}");
        assert!(matches!(told(&device, &want), Err(ExtentsError::NotHeld)));
    }
    assert_eq!(device.operations(), 0);
}

/// A partition keeps its size, and what lies behind it is not ours to give out; nor is what is no longer there.
#[test]
fn extents_stay_in_the_partition_of_a_drive_that_grew_or_shrank() {
    let start = filled(512);
    let basis = Basis::of(&header_on(&start));
    let end_mib = (SIZE_BYTES >> 20) - 2;
    for (size_bytes, last_mib) in [(SIZE_BYTES * 4, end_mib - 1), (16 << 20, 15)] {
        let device = start.resized(size_bytes);
        let behind = change(&device, basis, &place(3, last_mib + 1)).unwrap_err();
        let ExtentsError::Refused { why: ChangeRefused::OutOfPlace { limit_bytes, .. }, .. } =
            behind
        else {
            panic!("{behind:?}");
        };
        assert_eq!(limit_bytes, (last_mib + 1) << 20);
        change(&device, basis, &place(3, last_mib)).unwrap();
    }
}

#[test]
fn a_full_table_fits_its_slot() {
    // As large as a drive that has room for so many.
    let device = MemoryDevice::new(512).resized(2 << 30);
    device.bring(&WANT).unwrap();
    let mut basis = Basis::of(&header_on(&device));
    for number in 0..hotbay_core::label::extents::MOST_EXTENTS as u64 {
        let wanted = place(u128::from(number), 2 + number);
        basis = change(&device, basis, &wanted).unwrap().basis;
    }
    assert_eq!(extents_on(&device).len(), 1016);
    let full = change(&device, basis, &place(5000, 1500)).unwrap_err();
    assert!(matches!(full, ExtentsError::Refused { why: ChangeRefused::Full, .. }));
    let mut slot_one = [0; 512];
    device.read_at(SlotNumber::One.offset_bytes(), &mut slot_one).unwrap();
    assert!(slot_one.starts_with(b"hotbay label"), "the first slot ends before the second");
}
