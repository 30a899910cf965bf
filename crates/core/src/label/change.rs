//! Which changes of the extent table are allowed.
//!
//! A change names the label that it was decided on, by sequence and checksum, and any other label refuses it: whatever
//! was decided since, a late change never touches another volume. The host reads the label again, calls [`changed`],
//! and writes what it says into the other slot.

use thiserror::Error;

use super::extents::{ALIGNMENT_BYTES, Extent, FIRST_EXTENT_BYTES, MOST_EXTENTS, Use};
use super::{Header, checksum};
use crate::ids::VolumeId;

/// The label that a change was decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Basis {
    pub sequence: u64,
    /// The header's own, by which the extent table counts as well.
    pub checksum: u32,
}

impl Basis {
    /// The label with this header.
    pub fn of(header: &Header) -> Self {
        Self { sequence: header.sequence, checksum: checksum(header) }
    }
}

/// What is to become of the table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// A volume gets an extent.
    Place(Extent),
    /// The extent of a volume grows where it is.
    Grow { volume: VolumeId, part: u32, length_bytes: u64 },
    /// A volume was deleted: what it had is dirty from here on.
    Free { volume: VolumeId },
    /// What a deleted volume had was erased.
    Erased { volume: VolumeId, part: u32 },
    /// A volume is to be placed elsewhere. An extent that never came is withdrawn all the same: the sequence rises,
    /// which refuses it for good.
    Withdraw { volume: VolumeId },
}

/// Why the table stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChangeRefused {
    #[error(
        "the change was decided on the label with sequence {}, and the drive has sequence {}",
        decided.sequence, found.sequence
    )]
    OtherLabel { decided: Basis, found: Basis },
    #[error("the drive is not in operation")]
    Released,
    #[error(
        "bytes {start_bytes} to {end_bytes} are not whole MiB between {FIRST_EXTENT_BYTES} and {limit_bytes}"
    )]
    OutOfPlace { start_bytes: u64, end_bytes: u64, limit_bytes: u64 },
    #[error("the extent would lie over one of volume {volume}")]
    Overlaps { volume: VolumeId },
    #[error("volume {volume} has part {part} on this drive already")]
    Twice { volume: VolumeId, part: u32 },
    #[error("the label has no room for more than {MOST_EXTENTS} extents")]
    Full,
    #[error("volume {volume} has no such extent on this drive")]
    NotThere { volume: VolumeId },
    #[error("volume {volume} was not deleted: its extent is not erased")]
    NotFreed { volume: VolumeId },
    #[error("the extent of volume {volume} has {length_bytes} bytes and cannot shrink")]
    Shrinks { volume: VolumeId, length_bytes: u64 },
}

/// The table as it is to be, sorted by place. `limit_bytes` is where extents must end.
pub fn changed(
    header: &Header,
    extents: &[Extent],
    basis: Basis,
    change: &Change,
    limit_bytes: u64,
) -> Result<Vec<Extent>, ChangeRefused> {
    let found = Basis::of(header);
    if found != basis {
        return Err(ChangeRefused::OtherLabel { decided: basis, found });
    }
    if !header.in_operation {
        return Err(ChangeRefused::Released);
    }
    let mut table = extents.to_vec();
    match change {
        Change::Place(extent) => place(&mut table, extent.clone(), limit_bytes)?,
        Change::Grow { volume, part, length_bytes } => {
            grow(&mut table, (*volume, *part), *length_bytes, limit_bytes)?;
        }
        Change::Free { volume } => {
            let freed = table.iter_mut().filter(|extent| extent.volume == *volume);
            let count = freed.map(|extent| extent.usage = Use::Dirty).count();
            if count == 0 {
                return Err(ChangeRefused::NotThere { volume: *volume });
            }
        }
        Change::Erased { volume, part } => {
            let at = position(&table, (*volume, *part))?;
            match table[at].usage {
                Use::Used => return Err(ChangeRefused::NotFreed { volume: *volume }),
                Use::Dirty => table.remove(at),
            };
        }
        // It has never held the volume's bytes: the volume counts as made only when this extent is known to last.
        Change::Withdraw { volume } => table.retain(|extent| extent.volume != *volume),
    }
    Ok(table)
}

fn place(table: &mut Vec<Extent>, extent: Extent, limit_bytes: u64) -> Result<(), ChangeRefused> {
    let (volume, part) = (extent.volume, extent.part);
    if position(table, (volume, part)).is_ok() {
        return Err(ChangeRefused::Twice { volume, part });
    }
    if table.len() >= MOST_EXTENTS {
        return Err(ChangeRefused::Full);
    }
    check_place(table, &extent, limit_bytes)?;
    let at = table.partition_point(|other| other.start_bytes < extent.start_bytes);
    table.insert(at, extent);
    Ok(())
}

fn grow(
    table: &mut [Extent],
    which: (VolumeId, u32),
    length_bytes: u64,
    limit_bytes: u64,
) -> Result<(), ChangeRefused> {
    let at = position(table, which)?;
    let grown = Extent { length_bytes, ..table[at].clone() };
    let (volume, before) = (grown.volume, table[at].length_bytes);
    match grown.usage {
        Use::Dirty => return Err(ChangeRefused::NotThere { volume }),
        Use::Used if length_bytes < before => {
            return Err(ChangeRefused::Shrinks { volume, length_bytes: before });
        }
        Use::Used => {}
    }
    check_place(table, &grown, limit_bytes)?;
    table[at] = grown;
    Ok(())
}

/// Whether an extent may be where it is to be, beside all others.
fn check_place(table: &[Extent], extent: &Extent, limit_bytes: u64) -> Result<(), ChangeRefused> {
    let (start_bytes, end_bytes) = (extent.start_bytes, extent.end_bytes());
    let aligned = start_bytes.is_multiple_of(ALIGNMENT_BYTES)
        && extent.length_bytes.is_multiple_of(ALIGNMENT_BYTES);
    let inside = start_bytes >= FIRST_EXTENT_BYTES && end_bytes <= limit_bytes;
    if !aligned || !inside || extent.length_bytes == 0 {
        return Err(ChangeRefused::OutOfPlace { start_bytes, end_bytes, limit_bytes });
    }
    let is_itself = |other: &&Extent| (other.volume, other.part) == (extent.volume, extent.part);
    match table.iter().filter(|other| !is_itself(other)).find(|other| other.overlaps(extent)) {
        Some(other) => Err(ChangeRefused::Overlaps { volume: other.volume }),
        None => Ok(()),
    }
}

fn position(table: &[Extent], which: (VolumeId, u32)) -> Result<usize, ChangeRefused> {
    let found = table.iter().position(|extent| (extent.volume, extent.part) == which);
    found.ok_or(ChangeRefused::NotThere { volume: which.0 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::extents::in_conflict;
    use super::super::tests::{extent, header};
    use super::*;

    const LIMIT: u64 = 20 << 20;

    fn volume(bits: u128) -> VolumeId {
        VolumeId::from_bits(bits)
    }

    fn with(table: &[Extent], change: &Change) -> Result<Vec<Extent>, ChangeRefused> {
        let header = header(4);
        changed(&header, table, Basis::of(&header), change, LIMIT)
    }

    #[test]
    fn another_label_refuses_a_late_change() {
        let (old, free) = (header(4), Change::Free { volume: volume(1) });
        let table = [extent(1, 2, 2)];
        for new in [header(5), header(3), Header { node: crate::ids::NodeId::from_bits(9), ..old }]
        {
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

        let erased = Change::Erased { volume: volume(1), part: 0 };
        assert_eq!(with(&grown, &erased), Err(ChangeRefused::NotFreed { volume: volume(1) }));
        let freed = with(&grown, &Change::Free { volume: volume(1) }).unwrap();
        assert_eq!(freed[0].usage, Use::Dirty);
        assert_eq!(with(&freed, &grow(6)), Err(ChangeRefused::NotThere { volume: volume(1) }));
        let again = Change::Place(extent(3, 2, 1));
        assert_eq!(with(&freed, &again), Err(ChangeRefused::Overlaps { volume: volume(1) }));
        assert_eq!(with(&freed, &erased).unwrap(), [extent(2, 8, 2)]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let place = |start_mib, length_mib| Change::Place(extent(1, start_mib, length_mib));
        for wrong in [place(1, 2), place(2, 0), place(19, 2), place(2, u64::MAX >> 20)] {
            assert!(
                matches!(with(&[], &wrong), Err(ChangeRefused::OutOfPlace { .. })),
                "{wrong:?}"
            );
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
    }

    fn changes() -> impl Strategy<Value = Change> {
        let (volume, mib) = ((0..4_u128).prop_map(VolumeId::from_bits), 0..22_u64);
        prop_oneof![
            (0..4_u128, mib.clone(), mib.clone())
                .prop_map(|(id, start, length)| Change::Place(extent(id, start, length))),
            (volume.clone(), mib).prop_map(|(volume, mib)| {
                Change::Grow { volume, part: 0, length_bytes: mib << 20 }
            }),
            volume.clone().prop_map(|volume| Change::Free { volume }),
            volume.clone().prop_map(|volume| Change::Erased { volume, part: 0 }),
            volume.prop_map(|volume| Change::Withdraw { volume }),
        ]
    }

    proptest! {
        /// Invariant: no two volumes share a byte, and no byte that was not erased is given to another.
        #[test]
        fn no_history_of_changes_gives_one_byte_to_two(changes in prop::collection::vec(changes(), 1..40)) {
            let mut table: Vec<Extent> = Vec::new();
            for change in changes {
                let Ok(next) = with(&table, &change) else { continue };
                prop_assert_eq!(in_conflict(&next).count(), 0);
                prop_assert!(next.is_sorted_by_key(|extent| extent.start_bytes));
                let gone = table.iter().filter(|old| next.iter().all(|new| new.volume != old.volume));
                for old in gone {
                    let erased = Change::Erased { volume: old.volume, part: 0 };
                    let withdrawn = Change::Withdraw { volume: old.volume };
                    prop_assert!(change == erased && old.usage == Use::Dirty || change == withdrawn);
                }
                table = next;
            }
        }
    }
}
