//! Reads everything that is to be known of a label, from any machine: `hotbay drive inspect` shows it.
//!
//! Opens the drive for reading, not exclusively, and writes nothing, so that it may be in operation meanwhile.

use std::io;
use std::path::Path;

use hotbay_core::label::extents::Extent;
use hotbay_core::label::table::{Table, TableState};
use hotbay_core::label::{Found, Slot, SlotNumber};

use super::{Sectors, both_slots, table_state};
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
}

/// Inspects the drive at a path: a block device, or a plain file. May wait for the drive.
pub fn inspect(path: &Path) -> io::Result<Inspected> {
    inspect_sectors(&open_sectors(path)?)
}

fn inspect_sectors(device: &dyn Sectors) -> io::Result<Inspected> {
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
    Ok(Inspected { size_bytes, block_bytes, slots: [zero, one], found, extents, table })
}
