//! Which changes of the extent table are allowed.
//!
//! An order to change a label is a list of changes, made together in one write of a slot: all of them, or none. It
//! names the label that it was decided on, by sequence and checksum, and any other label refuses it: whatever was
//! decided since, a late order never touches another volume. The host reads the label again, calls [`changed`], erases
//! what it says, and writes what it says into the other slot.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::extents::{ALIGNMENT_BYTES, Extent, FIRST_EXTENT_BYTES, MOST_EXTENTS, Use};
use super::{Header, checksum};
use crate::ids::VolumeId;
use crate::rules::{Rule, Rules};

/// How many changes an order may have.
pub const MOST_CHANGES: usize = 64;

/// The label that an order was decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

/// All that the next order is decided on: which label it is, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LabelTold {
    pub basis: Basis,
    /// Sorted by place.
    pub extents: Vec<Extent>,
    /// Where extents must end.
    pub limit_bytes: u64,
}

/// What is to become of the table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "change")]
pub enum Change {
    /// A volume gets an extent.
    Place(Extent),
    /// The extent of a volume grows where it is.
    Grow { volume: VolumeId, part: u32, length_bytes: u64 },
    /// A volume was deleted: what it had is dirty from here on.
    Free { volume: VolumeId },
    /// The first bytes of what a deleted volume had are zeroed, as many as there are at most: its extent begins behind
    /// them from here on, or goes. So the label says how far an erase has come. Alone in its order, as it takes long.
    Erase { volume: VolumeId, part: u32, length_bytes: u64 },
    /// A filesystem was made on a volume, or found on it. No order: the agent that has the drive writes it by itself,
    /// before anybody writes into that filesystem.
    Formatted { volume: VolumeId },
    /// A volume is to be placed elsewhere. An extent that never came is withdrawn all the same: the sequence rises,
    /// which refuses it for good. What is dirty stays so.
    Withdraw { volume: VolumeId },
}

impl Change {
    /// The volume that is off the drive after it.
    pub fn takes_off(&self) -> Option<VolumeId> {
        match self {
            Self::Free { volume } | Self::Withdraw { volume } => Some(*volume),
            Self::Place(_) | Self::Grow { .. } | Self::Formatted { .. } | Self::Erase { .. } => {
                None
            }
        }
    }
}

/// Why the table stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Error)]
#[serde(tag = "refused")]
pub enum ChangeRefused {
    #[error(
        "the change was decided on the label with sequence {} (checksum {:08x}), and the drive has sequence {} \
         (checksum {:08x})",
        decided.sequence, decided.checksum, found.sequence, found.checksum
    )]
    OtherLabel { decided: Basis, found: Basis },
    #[error("the drive is not in operation")]
    Released,
    #[error(
        "{changes} changes are asked for at once: at least 1 and at most {MOST_CHANGES} are made"
    )]
    Number { changes: usize },
    #[error("an erase takes long and is asked for alone, not with other changes")]
    EraseNotAlone,
    #[error("{length_bytes} bytes cannot be erased: at least one MiB is, and whole ones")]
    EraseLength { length_bytes: u64 },
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

/// What an order makes of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The table as it is to be, sorted by place.
    pub extents: Vec<Extent>,
    /// Bytes of the drive that have to be zero, and to last so, before the table may be written.
    pub erase: Option<Range<u64>>,
}

/// Makes all changes of an order, or none. `limit_bytes` is where extents must end.
pub fn changed(
    header: &Header,
    extents: &[Extent],
    basis: Basis,
    changes: &[Change],
    limit_bytes: u64,
) -> Result<Changed, ChangeRefused> {
    changed_by(Rules::default(), header, extents, (basis, changes), limit_bytes)
}

/// The same, by the rules that are given.
pub fn changed_by(
    rules: Rules,
    header: &Header,
    extents: &[Extent],
    (basis, changes): (Basis, &[Change]),
    limit_bytes: u64,
) -> Result<Changed, ChangeRefused> {
    let found = Basis::of(header);
    if found != basis && rules.hold(Rule::LabelBasis) {
        return Err(ChangeRefused::OtherLabel { decided: basis, found });
    }
    if !header.in_operation {
        return Err(ChangeRefused::Released);
    }
    applied(extents, changes, limit_bytes)
}

/// The same, on a label that is known to be the right one: the registry's own copy of it.
pub fn applied(
    extents: &[Extent],
    changes: &[Change],
    limit_bytes: u64,
) -> Result<Changed, ChangeRefused> {
    if !(1..=MOST_CHANGES).contains(&changes.len()) {
        return Err(ChangeRefused::Number { changes: changes.len() });
    }
    let mut table = extents.to_vec();
    if let [Change::Erase { volume, part, length_bytes }] = changes {
        let range = erase(&mut table, (*volume, *part), *length_bytes, limit_bytes)?;
        return Ok(Changed { extents: table, erase: Some(range) });
    }
    for change in changes {
        apply(&mut table, change, limit_bytes)?;
    }
    Ok(Changed { extents: table, erase: None })
}

/// One change of several, none of which touches the drive's bytes.
fn apply(table: &mut Vec<Extent>, change: &Change, limit_bytes: u64) -> Result<(), ChangeRefused> {
    match change {
        Change::Place(extent) => place(table, extent.clone(), limit_bytes),
        Change::Grow { volume, part, length_bytes } => {
            grow(table, (*volume, *part), *length_bytes, limit_bytes)
        }
        Change::Free { volume } => {
            let freed = table.iter_mut().filter(|extent| extent.volume == *volume);
            let count = freed.map(|extent| extent.usage = Use::Dirty).count();
            if count == 0 { Err(ChangeRefused::NotThere { volume: *volume }) } else { Ok(()) }
        }
        Change::Formatted { volume } => {
            let is_its =
                |extent: &&mut Extent| extent.volume == *volume && extent.usage == Use::Used;
            let count =
                table.iter_mut().filter(is_its).map(|extent| extent.formatted = true).count();
            if count == 0 { Err(ChangeRefused::NotThere { volume: *volume }) } else { Ok(()) }
        }
        Change::Erase { .. } => Err(ChangeRefused::EraseNotAlone),
        // It has never held the volume's bytes: the volume counts as made only when this extent is known to last.
        Change::Withdraw { volume } => {
            table.retain(|extent| extent.volume != *volume || extent.usage == Use::Dirty);
            Ok(())
        }
    }
}

/// Takes the first bytes from a dirty extent, and returns where they are.
fn erase(
    table: &mut Vec<Extent>,
    which: (VolumeId, u32),
    length_bytes: u64,
    limit_bytes: u64,
) -> Result<Range<u64>, ChangeRefused> {
    let at = position(table, which)?;
    let extent = &table[at];
    match extent.usage {
        Use::Used => return Err(ChangeRefused::NotFreed { volume: which.0 }),
        Use::Dirty => {}
    }
    if length_bytes == 0 || !length_bytes.is_multiple_of(ALIGNMENT_BYTES) {
        return Err(ChangeRefused::EraseLength { length_bytes });
    }
    // A label in which extents lie over others, or over the label, costs nobody's bytes.
    check_place(table, Some(at), extent, limit_bytes)?;
    let erased_bytes = length_bytes.min(extent.length_bytes);
    let range = extent.start_bytes..extent.start_bytes + erased_bytes;
    if range.end == extent.end_bytes() {
        table.remove(at);
    } else {
        table[at].start_bytes += erased_bytes;
        table[at].length_bytes -= erased_bytes;
    }
    Ok(range)
}

fn place(table: &mut Vec<Extent>, extent: Extent, limit_bytes: u64) -> Result<(), ChangeRefused> {
    let (volume, part) = (extent.volume, extent.part);
    if position(table, (volume, part)).is_ok() {
        return Err(ChangeRefused::Twice { volume, part });
    }
    if table.len() >= MOST_EXTENTS {
        return Err(ChangeRefused::Full);
    }
    check_place(table, None, &extent, limit_bytes)?;
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
    check_place(table, Some(at), &grown, limit_bytes)?;
    table[at] = grown;
    Ok(())
}

/// Whether an extent may be where it is to be, beside all others; it is at `itself` in the table, if it is there.
fn check_place(
    table: &[Extent],
    itself: Option<usize>,
    extent: &Extent,
    limit_bytes: u64,
) -> Result<(), ChangeRefused> {
    let (start_bytes, end_bytes) = (extent.start_bytes, extent.end_bytes());
    let aligned = start_bytes.is_multiple_of(ALIGNMENT_BYTES)
        && extent.length_bytes.is_multiple_of(ALIGNMENT_BYTES);
    let inside = start_bytes >= FIRST_EXTENT_BYTES && end_bytes <= limit_bytes;
    if !aligned || !inside || extent.length_bytes == 0 {
        return Err(ChangeRefused::OutOfPlace { start_bytes, end_bytes, limit_bytes });
    }
    let mut others = table.iter().enumerate().filter(|(at, _)| Some(*at) != itself);
    match others.find(|(_, other)| other.overlaps(extent)) {
        Some((_, other)) => Err(ChangeRefused::Overlaps { volume: other.volume }),
        None => Ok(()),
    }
}

fn position(table: &[Extent], which: (VolumeId, u32)) -> Result<usize, ChangeRefused> {
    let found = table.iter().position(|extent| (extent.volume, extent.part) == which);
    found.ok_or(ChangeRefused::NotThere { volume: which.0 })
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
