//! The third copy of a label, at the end of the partition, for people whose drive has lost both slots.
//!
//! It is written after the slot lasts, by whoever has written that, and never decides anything: an attach does not read
//! it, `hotbay drive inspect` shows it. So it may be older than the label, and a drive that cannot write it is in
//! operation all the same.

use hotbay_core::ids::DriveId;
use hotbay_core::label::table::Table;
use hotbay_core::label::{Found, SLOT_BYTES, Slot};

use super::{LabelError, Sectors, Writer, read_copy, read_whole, table_state};

/// Makes the third copy say what the label says, if the drive has one of its own and a place for the copy. Does nothing
/// if it says so already. The caller holds the drive's lock, and has just brought the label up to date; an error is
/// worth a warning, and leaves the label as it is.
///
/// `checkpoint` is called with the name of each step after each write and each sync: crash tests cut there.
pub fn refresh_third_copy(
    device: &dyn Sectors,
    drive: DriveId,
    checkpoint: &dyn Fn(&'static str),
) -> Result<(), LabelError> {
    let table = Table::new(drive, device.size_bytes(), device.block_bytes())?;
    let (Found::Valid { header, .. }, extents) = read_whole(device).map_err(LabelError::Read)?
    else {
        return Ok(());
    };
    let state = table_state(device, &table).map_err(LabelError::Read)?;
    let Some(at_byte) = table.third_copy_bytes(state).filter(|_| header.drive == drive) else {
        return Ok(());
    };
    // No order places an extent there; if a label says so all the same, the volume comes first.
    let end = at_byte + SLOT_BYTES;
    if extents.iter().any(|extent| extent.start_bytes < end && at_byte < extent.end_bytes()) {
        return Ok(());
    }
    if read_copy(device, at_byte).map_err(LabelError::Read)?.0 == Slot::Valid(header) {
        return Ok(());
    }
    let steps = ["third-extents-written", "third-written", "third-synced"];
    Writer { device, checkpoint }.copy(at_byte, &header, &extents, steps)
}
