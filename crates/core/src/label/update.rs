//! What may be written on a drive, given what is on it.
//!
//! A drive is written to only if it is provably empty or provably ours; whatever else is found is refused with a
//! reason, and the drive stays as it is. The host reads the drive, calls [`plan`], and does what it says.

use thiserror::Error;

use super::extents::Digest;
use super::table::TableState;
use super::{Found, Header, SlotNumber};
use crate::ids::{ClusterId, DriveId, NodeId};
use crate::order::Generation;

/// What the label is to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    pub cluster: ClusterId,
    pub drive: DriveId,
    pub node: NodeId,
    pub generation: Generation,
    /// False: the drive is to be released.
    pub in_operation: bool,
    /// The drive may be taken from another node that has not released it.
    pub take_over: bool,
}

impl Want {
    /// The header of a drive without extents.
    fn header(&self, sequence: u64) -> Header {
        let Self { cluster, drive, node, generation, in_operation, take_over: _ } = *self;
        let extents = Digest::default();
        Header { cluster, drive, node, generation, in_operation, sequence, extents }
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// There is no label, and none is wanted.
    Nothing,
    /// The label says it already.
    Keep(Header),
    /// The drive is empty as far as its bytes tell: write slot 0, then the table.
    Initialise(Header),
    /// The drive is ours: write the slot, with the extent table as it was, and then the partition table if it was cut
    /// off.
    Update { slot: SlotNumber, header: Header, finish_table: bool },
}

/// Why the drive must stay as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("the drive has no label and is not empty (first byte that is not zero: {at_byte})")]
    NotEmpty { at_byte: u64 },
    #[error("no copy of the label can be trusted")]
    DamagedLabel,
    #[error("the label is of format {version}, which a later version of hotbay wrote")]
    UnknownVersion { version: u32 },
    #[error("the label is of another cluster ({cluster})")]
    OtherCluster { cluster: ClusterId },
    #[error("the label is of another drive ({drive})")]
    OtherDrive { drive: DriveId },
    #[error("the partition table is not the one that belongs to the label (byte {at_byte})")]
    ForeignTable { at_byte: u64 },
    #[error("the drive is held by another node ({node})")]
    HeldByOtherNode { node: NodeId },
    #[error("generation {wanted} is wanted, and the label is already at {on_label}")]
    OlderGeneration { wanted: Generation, on_label: Generation },
    #[error("the label has the highest sequence number there is")]
    SequenceExhausted,
}

/// Decides what to write on a drive.
///
/// `first_nonzero` counts only where there is no label: the first byte that is not zero, of those that are zero on
/// an empty drive. `table` counts only where there is one.
pub fn plan(
    found: Found,
    table: TableState,
    first_nonzero: Option<u64>,
    want: &Want,
) -> Result<Plan, Refusal> {
    match found {
        Found::Absent if !want.in_operation => Ok(Plan::Nothing),
        Found::Absent => match first_nonzero {
            None => Ok(Plan::Initialise(want.header(1))),
            Some(at_byte) => Err(Refusal::NotEmpty { at_byte }),
        },
        Found::Damaged => Err(Refusal::DamagedLabel),
        Found::UnknownVersion(version) => Err(Refusal::UnknownVersion { version }),
        Found::Valid { header, slot } => {
            refuse_if_not_ours(&header, table, want)?;
            plan_of_ours(header, slot, table, want)
        }
    }
}

fn refuse_if_not_ours(header: &Header, table: TableState, want: &Want) -> Result<(), Refusal> {
    if header.cluster != want.cluster {
        return Err(Refusal::OtherCluster { cluster: header.cluster });
    }
    if header.drive != want.drive {
        return Err(Refusal::OtherDrive { drive: header.drive });
    }
    if let TableState::Foreign { at_byte } = table {
        return Err(Refusal::ForeignTable { at_byte });
    }
    if header.in_operation && header.node != want.node && !want.take_over {
        return Err(Refusal::HeldByOtherNode { node: header.node });
    }
    if want.generation < header.generation {
        return Err(Refusal::OlderGeneration {
            wanted: want.generation,
            on_label: header.generation,
        });
    }
    Ok(())
}

fn plan_of_ours(
    header: Header,
    slot: SlotNumber,
    table: TableState,
    want: &Want,
) -> Result<Plan, Refusal> {
    let finish_table = match table {
        TableState::Unfinished => true,
        // A table for another size serves as it is: the slots do not move with the size.
        TableState::Whole | TableState::OtherSize { .. } | TableState::Foreign { .. } => false,
    };
    let wanted = |sequence| Header { extents: header.extents, ..want.header(sequence) };
    if header == wanted(header.sequence) && !finish_table {
        return Ok(Plan::Keep(header));
    }
    let sequence = header.sequence.checked_add(1).ok_or(Refusal::SequenceExhausted)?;
    Ok(Plan::Update { slot: slot.other(), header: wanted(sequence), finish_table })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WANT: Want = Want {
        cluster: ClusterId::from_bits(1),
        drive: DriveId::from_bits(2),
        node: NodeId::from_bits(3),
        generation: Generation::from_number(4),
        in_operation: true,
        take_over: false,
    };
    const OTHER_NODE: NodeId = NodeId::from_bits(33);

    fn valid(header: Header) -> Found {
        Found::Valid { header, slot: SlotNumber::One }
    }

    fn plan_whole(header: Header, want: &Want) -> Result<Plan, Refusal> {
        plan(valid(header), TableState::Whole, None, want)
    }

    #[test]
    fn a_drive_without_a_label_is_initialised_only_if_empty() {
        let absent = |first_nonzero, want: &Want| {
            plan(Found::Absent, TableState::Unfinished, first_nonzero, want)
        };
        assert_eq!(absent(None, &WANT), Ok(Plan::Initialise(WANT.header(1))));
        assert_eq!(absent(Some(9), &WANT), Err(Refusal::NotEmpty { at_byte: 9 }));
        let release = Want { in_operation: false, ..WANT };
        assert_eq!(absent(None, &release), Ok(Plan::Nothing));
        assert_eq!(absent(Some(9), &release), Ok(Plan::Nothing));
    }

    #[test]
    fn the_label_is_written_only_if_something_differs() {
        let same = WANT.header(7);
        assert_eq!(plan_whole(same, &WANT), Ok(Plan::Keep(same)));
        let wants = [
            Want { generation: WANT.generation.next(), ..WANT },
            Want { in_operation: false, ..WANT },
            Want { node: OTHER_NODE, take_over: true, ..WANT },
        ];
        for want in wants {
            let header = want.header(8);
            let update = Plan::Update { slot: SlotNumber::Zero, header, finish_table: false };
            assert_eq!(plan_whole(same, &want), Ok(update));
        }
    }

    #[test]
    fn an_unfinished_table_is_finished_and_one_for_another_size_is_left() {
        let same = WANT.header(7);
        let finish =
            Plan::Update { slot: SlotNumber::Zero, header: WANT.header(8), finish_table: true };
        assert_eq!(plan(valid(same), TableState::Unfinished, None, &WANT), Ok(finish));
        let grown = TableState::OtherSize { size_bytes: 1 << 30 };
        assert_eq!(plan(valid(same), grown, None, &WANT), Ok(Plan::Keep(same)));
    }

    #[test]
    fn a_held_drive_changes_hands_only_by_release_or_take_over() {
        let held = Header { node: OTHER_NODE, ..WANT.header(7) };
        let refused = Err(Refusal::HeldByOtherNode { node: OTHER_NODE });
        assert_eq!(plan_whole(held, &WANT), refused);
        assert_eq!(plan_whole(held, &Want { in_operation: false, ..WANT }), refused);
        let taken =
            Plan::Update { slot: SlotNumber::Zero, header: WANT.header(8), finish_table: false };
        assert_eq!(plan_whole(held, &Want { take_over: true, ..WANT }), Ok(taken));
        assert_eq!(plan_whole(Header { in_operation: false, ..held }, &WANT), Ok(taken));
    }

    #[test]
    fn what_is_not_ours_is_refused_even_with_take_over() {
        let want = Want { take_over: true, ..WANT };
        let same = WANT.header(7);
        let cluster = ClusterId::from_bits(11);
        let drive = DriveId::from_bits(22);
        let newer = WANT.generation.next();
        let refusals = [
            (Header { cluster, ..same }, Refusal::OtherCluster { cluster }),
            (Header { drive, ..same }, Refusal::OtherDrive { drive }),
            (
                Header { generation: newer, ..same },
                Refusal::OlderGeneration { wanted: WANT.generation, on_label: newer },
            ),
            (WANT.header(u64::MAX).released(), Refusal::SequenceExhausted),
        ];
        for (header, refusal) in refusals {
            assert_eq!(plan_whole(header, &want), Err(refusal));
        }
        let whole = |found| plan(found, TableState::Whole, None, &want);
        assert_eq!(whole(Found::Damaged), Err(Refusal::DamagedLabel));
        let version = 2;
        assert_eq!(whole(Found::UnknownVersion(2)), Err(Refusal::UnknownVersion { version }));
        let foreign = TableState::Foreign { at_byte: 512 };
        let refusal = Refusal::ForeignTable { at_byte: 512 };
        assert_eq!(plan(valid(same), foreign, None, &want), Err(refusal));
    }

    impl Header {
        fn released(self) -> Self {
            Self { in_operation: false, ..self }
        }
    }

    prop_compose! {
        // Small ranges, so that equal values are as likely as different ones.
        fn any_header()(
            cluster in 0..2u128, drive in 0..2u128, node in 0..2u128, generation in 0..3u64,
            in_operation: bool, sequence in prop_oneof![0..3u64, Just(u64::MAX)],
        ) -> Header {
            Header {
                cluster: ClusterId::from_bits(cluster),
                drive: DriveId::from_bits(drive),
                node: NodeId::from_bits(node),
                generation: Generation::from_number(generation),
                in_operation,
                sequence,
                extents: Digest { extents: u32::from(in_operation), checksum: 9 },
            }
        }
    }

    fn any_found() -> impl Strategy<Value = Found> {
        prop_oneof![
            1 => Just(Found::Absent),
            1 => Just(Found::Damaged),
            1 => Just(Found::UnknownVersion(2)),
            10 => any_header().prop_map(valid),
        ]
    }

    fn any_table() -> impl Strategy<Value = TableState> {
        prop_oneof![
            Just(TableState::Whole),
            Just(TableState::Unfinished),
            Just(TableState::OtherSize { size_bytes: 1 << 30 }),
            Just(TableState::Foreign { at_byte: 0 }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        /// Invariant 8: a drive that is not provably ours is never written to.
        #[test]
        fn only_what_is_empty_or_ours_is_written(
            found in any_found(),
            table in any_table(),
            first_nonzero in proptest::option::of(any::<u64>()),
            wanted in any_header(),
            take_over: bool,
        ) {
            let Header { cluster, drive, node, generation, in_operation, .. } = wanted;
            let want = Want { cluster, drive, node, generation, in_operation, take_over };
            match (plan(found, table, first_nonzero, &want), found) {
                (Ok(Plan::Initialise(header)), Found::Absent) => {
                    prop_assert!(first_nonzero.is_none() && in_operation);
                    prop_assert_eq!(header, want.header(1));
                }
                (Ok(Plan::Update { slot, header, .. }), Found::Valid { header: old, slot: at }) => {
                    prop_assert_eq!((old.cluster, old.drive), (cluster, drive));
                    prop_assert_ne!(table, TableState::Foreign { at_byte: 0 });
                    prop_assert!(old.node == node || !old.in_operation || take_over);
                    prop_assert!(header.generation >= old.generation);
                    prop_assert_eq!(header, Header { extents: old.extents, ..want.header(old.sequence + 1) });
                    prop_assert_eq!(slot, at.other());
                }
                (Ok(Plan::Keep(header)), Found::Valid { header: old, .. }) => {
                    prop_assert_eq!(header, old);
                    prop_assert_eq!(header, Header { extents: old.extents, ..want.header(old.sequence) });
                }
                (Ok(Plan::Nothing), Found::Absent) => prop_assert!(!in_operation),
                (Ok(plan), found) => prop_assert!(false, "{plan:?} for {found:?}"),
                (Err(_), _) => {}
            }
        }
    }
}
