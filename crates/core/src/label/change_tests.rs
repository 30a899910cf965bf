//! Orders to change a label: what each does, what is refused, and that no history of them gives one byte to two.

use proptest::prelude::*;

use super::super::extents::in_conflict;
use super::super::tests::{extent, header};
use super::{
    Basis, Change, ChangeRefused, Changed, Extent, Header, MOST_CHANGES, MOST_EXTENTS, Range, Use,
    VolumeId, changed,
};

const LIMIT: u64 = 20 << 20;

fn volume(bits: u128) -> VolumeId {
    VolumeId::from_bits(bits)
}

/// The table after one change that erases nothing.
fn with(table: &[Extent], change: &Change) -> Result<Vec<Extent>, ChangeRefused> {
    let changed = with_all(table, std::slice::from_ref(change))?;
    assert_eq!(changed.erase, None);
    Ok(changed.extents)
}

fn with_all(table: &[Extent], changes: &[Change]) -> Result<Changed, ChangeRefused> {
    let header = header(4);
    changed(&header, table, Basis::of(&header), changes, LIMIT)
}

/// An erase of so many bytes of volume 1.
fn erase(length_bytes: u64) -> Change {
    Change::Erase { volume: volume(1), part: 0, length_bytes }
}

fn dirty(id: u128, start_mib: u64, length_mib: u64) -> Extent {
    Extent { usage: Use::Dirty, ..extent(id, start_mib, length_mib) }
}

/// What has had a filesystem says so for good, and for itself alone.
#[test]
fn a_volume_that_was_formatted_stays_so() {
    let formatted = Change::Formatted { volume: volume(1) };
    let table = [extent(1, 2, 2), extent(2, 5, 1)];
    let marked = with(&table, &formatted).unwrap();
    let first = Extent { formatted: true, ..extent(1, 2, 2) };
    assert_eq!(marked, [first.clone(), extent(2, 5, 1)]);
    assert_eq!(with(&marked, &formatted).unwrap(), marked);
    let grow = Change::Grow { volume: volume(1), part: 0, length_bytes: 3 << 20 };
    let grown = with(&marked, &grow).unwrap();
    assert_eq!(grown[0], Extent { length_bytes: 3 << 20, ..first });
    let not_there = Err(ChangeRefused::NotThere { volume: volume(1) });
    assert_eq!(with(&[dirty(1, 2, 2), extent(2, 5, 1)], &formatted), not_there);
}

#[test]
fn another_label_refuses_a_late_change() {
    let (old, free) = (header(4), [Change::Free { volume: volume(1) }]);
    let table = [extent(1, 2, 2)];
    for new in [header(5), header(3), Header { node: crate::ids::NodeId::from_bits(9), ..old }] {
        let refused = changed(&new, &table, Basis::of(&old), &free, LIMIT);
        let (decided, found) = (Basis::of(&old), Basis::of(&new));
        assert_eq!(refused, Err(ChangeRefused::OtherLabel { decided, found }));
    }
    let released = Header { in_operation: false, ..old };
    let refused = changed(&released, &table, Basis::of(&released), &free, LIMIT);
    assert_eq!(refused, Err(ChangeRefused::Released));
}

#[test]
fn a_volume_comes_grows_and_goes() {
    let table = with(&[extent(2, 8, 2)], &Change::Place(extent(1, 2, 2))).unwrap();
    assert_eq!(table, [extent(1, 2, 2), extent(2, 8, 2)]);
    let grow = |mib: u64| Change::Grow { volume: volume(1), part: 0, length_bytes: mib << 20 };
    let grown = with(&table, &grow(6)).unwrap();
    assert_eq!(grown, [extent(1, 2, 6), extent(2, 8, 2)]);
    let overlaps = ChangeRefused::Overlaps { volume: volume(2) };
    assert_eq!(with(&table, &grow(7)), Err(overlaps));
    let shrinks = ChangeRefused::Shrinks { volume: volume(1), length_bytes: 6 << 20 };
    assert_eq!(with(&grown, &grow(5)), Err(shrinks));

    let not_freed = Err(ChangeRefused::NotFreed { volume: volume(1) });
    assert_eq!(with(&grown, &erase(1 << 20)), not_freed);
    let freed = with(&grown, &Change::Free { volume: volume(1) }).unwrap();
    assert_eq!(freed[0].usage, Use::Dirty);
    assert_eq!(with(&freed, &grow(6)), Err(ChangeRefused::NotThere { volume: volume(1) }));
    let again = Change::Place(extent(3, 2, 1));
    assert_eq!(with(&freed, &again), Err(ChangeRefused::Overlaps { volume: volume(1) }));
    let erased = with_all(&freed, &[erase(6 << 20)]).unwrap();
    assert_eq!(erased, Changed { extents: vec![extent(2, 8, 2)], erase: Some(2 << 20..8 << 20) });
}

#[test]
fn an_erase_takes_the_first_bytes_until_nothing_is_left() {
    let table = [dirty(1, 2, 5), extent(2, 8, 2)];
    let first = with_all(&table, &[erase(3 << 20)]).unwrap();
    assert_eq!(first.erase, Some(2 << 20..5 << 20));
    assert_eq!(first.extents, [dirty(1, 5, 2), extent(2, 8, 2)]);
    // More than there is: never a byte behind it.
    for more in [2 << 20, 3 << 20, u64::MAX << 20] {
        let last = with_all(&first.extents, &[erase(more)]).unwrap();
        assert_eq!(last.erase, Some(5 << 20..7 << 20));
        assert_eq!(last.extents, [extent(2, 8, 2)]);
    }
    for wrong in [0, 512, (1 << 20) + 4096, u64::MAX] {
        let refused = Err(ChangeRefused::EraseLength { length_bytes: wrong });
        assert_eq!(with_all(&table, &[erase(wrong)]), refused);
    }
    let elsewhere = Change::Erase { volume: volume(1), part: 1, length_bytes: 1 << 20 };
    let refused = Err(ChangeRefused::NotThere { volume: volume(1) });
    assert_eq!(with_all(&table, &[elsewhere]), refused);
}

#[test]
fn nothing_is_erased_that_another_volume_or_the_label_has() {
    let over = [dirty(1, 2, 5), extent(2, 6, 2)];
    let refused = Err(ChangeRefused::Overlaps { volume: volume(2) });
    assert_eq!(with_all(&over, &[erase(1 << 20)]), refused);
    for beyond in [dirty(1, 1, 2), dirty(1, 19, 2)] {
        let refused = with_all(&[beyond], &[erase(1 << 20)]);
        assert!(matches!(refused, Err(ChangeRefused::OutOfPlace { .. })), "{refused:?}");
    }
}

#[test]
fn an_order_is_made_as_a_whole_or_not_at_all() {
    let table = [extent(1, 2, 2), extent(2, 8, 2)];
    let replace = [Change::Withdraw { volume: volume(1) }, Change::Place(extent(3, 3, 2))];
    let changed = with_all(&table, &replace).unwrap();
    assert_eq!(changed, Changed { extents: vec![extent(3, 3, 2), extent(2, 8, 2)], erase: None });
    // The second is refused beside what the first has made.
    let twice = [Change::Place(extent(3, 4, 2)), Change::Place(extent(4, 5, 2))];
    let refused = Err(ChangeRefused::Overlaps { volume: volume(3) });
    assert_eq!(with_all(&table, &twice), refused);

    let freed = [dirty(1, 2, 2)];
    for order in [[erase(1 << 20), erase(1 << 20)], [erase(1 << 20), replace[1].clone()]] {
        assert_eq!(with_all(&freed, &order), Err(ChangeRefused::EraseNotAlone));
    }
    let withdraw = Change::Withdraw { volume: volume(9) };
    assert!(with_all(&table, &vec![withdraw.clone(); MOST_CHANGES]).is_ok());
    for changes in [0, MOST_CHANGES + 1] {
        let refused = with_all(&table, &vec![withdraw.clone(); changes]);
        assert_eq!(refused, Err(ChangeRefused::Number { changes }));
    }
}

#[test]
fn an_order_is_the_same_after_a_message() {
    let changes = [
        Change::Place(extent(1, 2, 2)),
        Change::Grow { volume: volume(1), part: 0, length_bytes: 3 << 20 },
        Change::Free { volume: volume(1) },
        erase(1 << 20),
        Change::Withdraw { volume: volume(1) },
    ];
    let text = serde_json::to_string(&changes).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Change>>(&text).unwrap(), changes);
    assert!(text.starts_with(r#"[{"change":"Place","volume":"#), "{text}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let place = |start_mib, length_mib| Change::Place(extent(1, start_mib, length_mib));
    for wrong in [place(1, 2), place(2, 0), place(19, 2), place(2, u64::MAX >> 20)] {
        assert!(matches!(with(&[], &wrong), Err(ChangeRefused::OutOfPlace { .. })), "{wrong:?}");
    }
    let odd = Change::Place(Extent { start_bytes: (2 << 20) + 512, ..extent(1, 2, 1) });
    assert!(matches!(with(&[], &odd), Err(ChangeRefused::OutOfPlace { .. })));
    let twice = Err(ChangeRefused::Twice { volume: volume(1), part: 0 });
    assert_eq!(with(&[extent(1, 2, 1)], &place(4, 1)), twice);
    let many: Vec<_> = (0..MOST_EXTENTS as u64).map(|n| extent(9, n + 2, 1)).collect();
    assert_eq!(with(&many, &place(2000, 1)), Err(ChangeRefused::Full));
    let nobody = volume(8);
    let free = Change::Free { volume: nobody };
    assert_eq!(with(&many, &free), Err(ChangeRefused::NotThere { volume: nobody }));
}

#[test]
fn a_placement_is_withdrawn_whether_it_came_or_not() {
    let withdraw = Change::Withdraw { volume: volume(1) };
    let left = [extent(2, 8, 2)];
    assert_eq!(with(&[extent(1, 2, 2), extent(2, 8, 2)], &withdraw).unwrap(), left);
    assert_eq!(with(&left, &withdraw).unwrap(), left);
    // What may hold bytes of a volume is erased, never forgotten.
    assert_eq!(with(&[dirty(1, 2, 2)], &withdraw).unwrap(), [dirty(1, 2, 2)]);
}

fn changes() -> impl Strategy<Value = Change> {
    let (volume, mib) = ((0..4_u128).prop_map(VolumeId::from_bits), 0..22_u64);
    prop_oneof![
        (0..4_u128, mib.clone(), mib.clone())
            .prop_map(|(id, start, length)| Change::Place(extent(id, start, length))),
        (volume.clone(), mib.clone()).prop_map(|(volume, mib)| {
            Change::Grow { volume, part: 0, length_bytes: mib << 20 }
        }),
        volume.clone().prop_map(|volume| Change::Free { volume }),
        (volume.clone(), mib).prop_map(|(volume, mib)| {
            Change::Erase { volume, part: 0, length_bytes: mib << 20 }
        }),
        volume.prop_map(|volume| Change::Withdraw { volume }),
    ]
}

/// Erases come alone, as they must; else some changes at once.
fn orders() -> impl Strategy<Value = Vec<Change>> {
    prop_oneof![
        3 => changes().prop_map(|change| vec![change]),
        1 => prop::collection::vec(changes(), 1..4),
    ]
}

/// To whom each MiB of a drive belongs, and whether its bytes are still somebody's.
#[derive(Debug, Clone, Default, PartialEq)]
struct Bytes {
    owners: [Option<VolumeId>; 20],
    /// Whose data is there: written as soon as the volume has the place.
    data: [Option<VolumeId>; 20],
}

impl Bytes {
    /// Follows one order that was accepted, in terms of bytes.
    fn follow(&mut self, before: &[Extent], order: &[Change], changed: &Changed) {
        if let Some(erased) = &changed.erase {
            let Change::Erase { volume, .. } = order[0] else { panic!("{order:?}") };
            for mib in mebibytes(erased.clone()) {
                assert_eq!(self.owners[mib], Some(volume), "erased in another volume");
                let usage = before.iter().find(|extent| extent.volume == volume).unwrap().usage;
                assert_eq!(usage, Use::Dirty, "erased in a volume that is used");
                self.data[mib] = None;
            }
        }
        let mut owners = [None; 20];
        for extent in &changed.extents {
            for mib in mebibytes(extent.start_bytes..extent.end_bytes()) {
                assert_eq!(owners[mib], None, "given to two");
                owners[mib] = Some(extent.volume);
            }
        }
        let withdrawn = |volume| order.contains(&Change::Withdraw { volume });
        for (mib, owner) in owners.into_iter().enumerate() {
            let gone = self.owners[mib].filter(|old| Some(*old) != owner);
            match gone {
                // A placement that is withdrawn was never written to.
                Some(volume) if withdrawn(volume) => self.data[mib] = None,
                Some(_) => assert_eq!(self.data[mib], None, "given away before it was erased"),
                None => {}
            }
            if let Some(owner) = owner {
                let data = self.data[mib].get_or_insert(owner);
                assert_eq!(*data, owner, "a volume shows another one's data");
            }
        }
        self.owners = owners;
    }
}

fn mebibytes(range: Range<u64>) -> Range<usize> {
    let mib = |bytes: u64| usize::try_from(bytes >> 20).unwrap();
    mib(range.start)..mib(range.end)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Invariant 8: no two volumes share a byte, and no byte that was not erased is given to another. Orders come late,
    /// twice and out of order: each was decided on some label that there has been.
    #[test]
    fn no_history_of_orders_gives_one_byte_to_two(
        deliveries in prop::collection::vec((orders(), 0..4_usize, 0..3_usize), 1..60),
    ) {
        let mut label = header(1);
        let mut table: Vec<Extent> = Vec::new();
        let mut bytes = Bytes::default();
        let mut labels = vec![Basis::of(&label)];
        let mut sent: Vec<(Basis, Vec<Change>)> = Vec::new();
        for (order, labels_ago, orders_ago) in deliveries {
            let decided = labels[labels.len().saturating_sub(1 + labels_ago)];
            sent.push((decided, order));
            let (basis, order) = sent[sent.len().saturating_sub(1 + orders_ago)].clone();
            let Ok(changed) = changed(&label, &table, basis, &order, LIMIT) else { continue };
            prop_assert_eq!(basis, Basis::of(&label), "a late order was carried out");
            prop_assert_eq!(in_conflict(&changed.extents).count(), 0);
            prop_assert!(changed.extents.is_sorted_by_key(|extent| extent.start_bytes));
            bytes.follow(&table, &order, &changed);
            table = changed.extents;
            label = Header { sequence: label.sequence + 1, ..label };
            labels.push(Basis::of(&label));
        }
    }
}
