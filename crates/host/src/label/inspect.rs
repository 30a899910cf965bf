//! Reads everything that is to be known of a label, from any machine: `hotbay drive inspect` shows it.
//!
//! Opens the drive for reading, not exclusively, and writes nothing, so that it may be in operation meanwhile.

use std::io;
use std::path::Path;

use hotbay_core::label::extents::Extent;
use hotbay_core::label::table::{Table, TableState, third_copy_places};
use hotbay_core::label::{Found, Slot, SlotNumber};

use super::{Sectors, both_slots, read_copy, table_state};
use crate::worker::open_sectors;

/// What is on a drive, as far as its label is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    pub size_bytes: u64,
    pub block_bytes: u32,
    /// The two copies, in the order of their places.
    pub slots: [Slot; 2],
    /// What they say together.
    pub found: Found,
    /// Of the copy that counts.
    pub extents: Vec<Extent>,
    /// The partition table, held against the one that belongs to the label, if a drive like this can have one.
    pub table: Option<TableState>,
    /// The copy at the end of the partition, if a drive like this can have one. It counts for nothing, and may be all
    /// that is left.
    pub third_copy: Option<ThirdCopy>,
}

/// The copy that is kept for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThirdCopy {
    pub slot: Slot,
    /// Of this copy, if it is valid.
    pub extents: Vec<Extent>,
}

/// Inspects the drive at a path: a block device, or a plain file. May wait for the drive.
pub fn inspect(path: &Path) -> io::Result<Inspected> {
    inspect_sectors(&open_sectors(path)?)
}

pub(super) fn inspect_sectors(device: &dyn Sectors) -> io::Result<Inspected> {
    let (size_bytes, block_bytes) = (device.size_bytes(), device.block_bytes());
    let [(zero, extents_zero), (one, extents_one)] = both_slots(device)?;
    let found = hotbay_core::label::newest(zero, one);
    let (extents, table) = match found {
        Found::Valid { header, slot } => {
            let table = Table::new(header.drive, size_bytes, block_bytes).ok();
            let table = table.map(|table| table_state(device, &table)).transpose()?;
            match slot {
                SlotNumber::Zero => (extents_zero, table),
                SlotNumber::One => (extents_one, table),
            }
        }
        Found::Absent | Found::Damaged | Found::UnknownVersion(_) => (Vec::new(), None),
    };
    let third_copy = third_copy(device)?;
    let slots = [zero, one];
    Ok(Inspected { size_bytes, block_bytes, slots, found, extents, table, third_copy })
}

/// Whatever else is lost: without label and table, it is looked for where it was if the drive kept its size.
fn third_copy(device: &dyn Sectors) -> io::Result<Option<ThirdCopy>> {
    let (size_bytes, block_bytes) = (device.size_bytes(), device.block_bytes());
    if size_bytes < 2 * u64::from(block_bytes) || block_bytes < 512 {
        return Ok(None);
    }
    let mut second = vec![0; usize::try_from(block_bytes).map_err(io::Error::other)?];
    device.read_at(u64::from(block_bytes), &mut second)?;
    let mut first_found = None;
    for at_byte in third_copy_places(&second, size_bytes, block_bytes) {
        let (slot, extents) = read_copy(device, at_byte)?;
        let found = ThirdCopy { slot, extents };
        match slot {
            Slot::Empty | Slot::NoLabel => drop(first_found.get_or_insert(found)),
            Slot::Valid(_) | Slot::Damaged | Slot::UnknownVersion(_) => return Ok(Some(found)),
        }
    }
    Ok(first_found)
}
