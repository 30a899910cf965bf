//! Erasing what a deleted volume had: cut everywhere, ordered late and twice, and no byte of another volume touched.

use std::cell::RefCell;

use hotbay_core::ids::VolumeId;
use hotbay_core::label::change::{Basis, Change, ChangeRefused, LabelTold};
use hotbay_core::label::extents::{Extent, Use};
use proptest::prelude::*;

use super::extent_tests::{change, extent, extents_on, header_on};
use super::memory::{BLOCK_SIZES, Fault, MemoryDevice, WANT};
use super::{ExtentsError, Sectors, change_extents, told};

const MIB: u64 = 1 << 20;

fn sized(volume: u128, start_mib: u64, length_mib: u64, usage: Use) -> Extent {
    Extent { length_bytes: length_mib * MIB, usage, ..extent(volume, start_mib) }
}

fn erase(volume: u128, length_mib: u64) -> Change {
    let volume = VolumeId::from_bits(volume);
    Change::Erase { volume, part: 0, length_bytes: length_mib * MIB }
}

fn free(volume: u128) -> Change {
    Change::Free { volume: VolumeId::from_bits(volume) }
}

fn order(device: &MemoryDevice, basis: Basis, order: &[Change]) -> Result<LabelTold, ExtentsError> {
    change_extents(device, &WANT, basis, order, &|range| device.zero(range), &|_| ())
}

/// What is in the first byte of each of these MiB; where a volume is, its number was written.
fn marks(device: &MemoryDevice, mebibytes: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let first = |mib: u64| {
        let mut block = [0; 4096];
        device.read_at(mib * MIB, &mut block).unwrap();
        block[0]
    };
    mebibytes.into_iter().map(first).collect()
}

/// Volume 1 with three MiB, volume 2 right behind it, each with its bytes; and the label.
fn written(block_bytes: u32) -> (MemoryDevice, Basis) {
    let (device, header) = MemoryDevice::labelled(block_bytes);
    let places =
        [Change::Place(sized(1, 2, 3, Use::Used)), Change::Place(sized(2, 5, 1, Use::Used))];
    let label = order(&device, Basis::of(&header), &places).unwrap();
    for (mib, volume) in [(2, 1), (3, 1), (4, 1), (5, 2)] {
        device.change_byte(mib * MIB, volume);
    }
    (device.again(None), label.basis)
}

/// The same with volume 1 deleted.
fn deleted(block_bytes: u32) -> (MemoryDevice, Basis) {
    let (device, basis) = written(block_bytes);
    let label = change(&device, basis, &free(1)).unwrap();
    (device.again(None), label.basis)
}

/// Invariant 8: no erased extent shows old data.
#[test]
fn every_cut_of_an_erase_leaves_it_dirty_or_zero() {
    for block_bytes in BLOCK_SIZES {
        let (start, basis) = deleted(block_bytes);
        let whole = start.again(None);
        change(&whole, basis, &erase(1, 2)).unwrap();
        let dirty = sized(1, 2, 3, Use::Dirty);
        let rest = sized(1, 4, 1, Use::Dirty);
        let volume_two = sized(2, 5, 1, Use::Used);
        for cut in 0..=whole.operations() {
            let device = start.again(Some(Fault::PowerCut(cut)));
            let returned = change(&device, basis, &erase(1, 2)).is_ok();
            assert_eq!(returned, cut == whole.operations());
            for left in device.power_cut().into_iter().chain([device.again(None)]) {
                assert_eq!(marks(&left, [4, 5]), [1, 2], "behind what was to be erased");
                let found = extents_on(&left);
                if found[0] == dirty && !returned {
                    // Nobody gets it, whatever is there; the erase begins again.
                    change(&left, basis, &erase(1, 2)).unwrap();
                }
                assert_eq!(extents_on(&left), [rest.clone(), volume_two.clone()]);
                assert_eq!(marks(&left, [2, 3]), [0, 0], "free, and not zero");
                let last = change(&left, Basis::of(&header_on(&left)), &erase(1, 9)).unwrap();
                assert_eq!(last.extents, std::slice::from_ref(&volume_two));
                assert_eq!(marks(&left, 2..6), [0, 0, 0, 2]);
            }
        }
    }
}

/// The story: a child was killed after it had written that the volume is deleted, and before that lasted. The next one
/// found it in the kernel's cache and erased the volume; then the power went, and the volume was in use, and zero.
#[test]
fn nothing_is_erased_before_it_lasts_that_it_is_dirty() {
    for block_bytes in BLOCK_SIZES {
        let (start, basis) = written(block_bytes);
        let whole = start.again(None);
        change(&whole, basis, &free(1)).unwrap();
        for killed_at in 0..=whole.operations() {
            let killed = start.again(Some(Fault::PowerCut(killed_at)));
            let _ = change(&killed, basis, &free(1));
            let next = Basis::of(&header_on(&killed));
            for cut in 0..6 {
                let device = killed.again(Some(Fault::PowerCut(cut)));
                let _ = change(&device, next, &erase(1, 3));
                for left in device.power_cut() {
                    let used =
                        extents_on(&left).iter().any(|extent| *extent == sized(1, 2, 3, Use::Used));
                    assert!(!used || marks(&left, 2..5) == [1, 1, 1], "in use, and erased");
                    assert_eq!(marks(&left, [5]), [2]);
                }
            }
        }
    }
}

#[test]
fn an_error_at_any_step_leaves_an_erase_that_can_be_ordered_again() {
    let (start, basis) = deleted(512);
    let whole = start.again(None);
    change(&whole, basis, &erase(1, 3)).unwrap();
    for at in 0..whole.operations() {
        let device = start.again(Some(Fault::Error(at)));
        let error = change(&device, basis, &erase(1, 3)).unwrap_err();
        assert!(matches!(error, ExtentsError::Erase(_) | ExtentsError::Label(_)), "{error:?}");
        assert_eq!(device.operations(), at + 1, "nothing follows what has failed");
        let device = device.again(None);
        let label = told(&device, &WANT).unwrap();
        let dirty = label.extents.iter().any(|extent| extent.volume == VolumeId::from_bits(1));
        if dirty {
            change(&device, label.basis, &erase(1, 3)).unwrap();
        }
        assert_eq!(marks(&device, 2..6), [0, 0, 0, 2]);
    }
}

#[test]
fn what_is_used_is_not_erased_and_nothing_is_written() {
    let (device, basis) = written(4096);
    let never = |_| panic!("erased");
    let refused =
        |order: &[Change]| match change_extents(&device, &WANT, basis, order, &never, &|_| ()) {
            Err(ExtentsError::Refused { why, now }) => {
                assert_eq!(now, told(&device, &WANT).unwrap());
                why
            }
            other => panic!("{other:?}"),
        };
    let volume = VolumeId::from_bits(1);
    assert_eq!(refused(&[erase(1, 1)]), ChangeRefused::NotFreed { volume });
    assert_eq!(refused(&[free(1), erase(1, 1)]), ChangeRefused::EraseNotAlone);
    assert_eq!(device.operations(), 0);
}

#[test]
fn each_step_of_an_order_is_a_checkpoint() {
    let (device, basis) = deleted(512);
    let steps = RefCell::new(Vec::new());
    let erasing = |range| device.zero(range);
    let checkpoint = |step| steps.borrow_mut().push(step);
    change_extents(&device, &WANT, basis, &[erase(1, 1)], &erasing, &checkpoint).unwrap();
    let expected = [
        "found-synced",
        "erase-zeroed",
        "erase-synced",
        "extents-written",
        "slot-written",
        "slot-synced",
    ];
    assert_eq!(steps.take(), expected);
    assert_eq!(device.operations(), expected.len());
}

/// What somebody orders: a volume, and how many MiB from where on.
fn any_order() -> impl Strategy<Value = Vec<Change>> {
    let one = |volume: u128, kind: u8, start: u64, length: u64| match kind {
        0 => Change::Place(sized(volume, 2 + start, 1 + length, Use::Used)),
        1 => free(volume),
        2 => erase(volume, 1 + length),
        _ => Change::Withdraw { volume: VolumeId::from_bits(volume) },
    };
    let change =
        (1..4_u128, 0..4_u8, 0..10_u64, 0..3_u64).prop_map(move |(v, k, s, l)| one(v, k, s, l));
    prop_oneof![
        3 => change.clone().prop_map(|change| vec![change]),
        1 => prop::collection::vec(change, 2..4),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Invariant 8: no late message ever destroys a volume's data. Orders that were decided on some label come late,
    /// twice and out of order; each volume writes its number into all that it has.
    #[test]
    fn no_order_however_late_touches_the_bytes_of_another_volume(
        deliveries in prop::collection::vec((any_order(), 0..3_usize, 0..3_usize), 1..40),
    ) {
        let (device, header) = MemoryDevice::labelled(512);
        let mut labels = vec![Basis::of(&header)];
        let mut sent: Vec<(Basis, Vec<Change>)> = Vec::new();
        for (changes, labels_ago, orders_ago) in deliveries {
            sent.push((labels[labels.len().saturating_sub(1 + labels_ago)], changes));
            let (basis, changes) = sent[sent.len().saturating_sub(1 + orders_ago)].clone();
            let before = extents_on(&device);
            let Ok(label) = order(&device, basis, &changes) else {
                prop_assert_eq!(extents_on(&device), before);
                continue;
            };
            prop_assert_eq!(Some(&basis), labels.last(), "a late order was carried out");
            labels.push(label.basis);
            // A withdrawn placement was never written to: its volume did not count as made.
            let withdrawn = |old: &&Extent| {
                let first = |change: Change| changes.iter().position(|other| *other == change);
                let freed = first(Change::Free { volume: old.volume }).unwrap_or(usize::MAX);
                let gone = first(Change::Withdraw { volume: old.volume });
                old.usage == Use::Used && gone.is_some_and(|gone| gone < freed)
            };
            for old in before.iter().filter(withdrawn) {
                device.zero(old.start_bytes..old.end_bytes()).unwrap();
                device.sync().unwrap();
            }
            for extent in &label.extents {
                let number = u8::try_from(extent.volume.to_bits()).unwrap();
                let had = before.iter().find(|old| old.volume == extent.volume && !withdrawn(old));
                for mib in extent.start_bytes / MIB..extent.end_bytes() / MIB {
                    // New ones are handed out as zero; others have what their volume wrote.
                    let expected = if had.is_some() { number } else { 0 };
                    prop_assert_eq!(marks(&device, [mib]), [expected], "MiB {}", mib);
                    device.change_byte(mib * MIB, expected ^ number);
                }
            }
        }
    }
}
