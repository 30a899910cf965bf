//! Gives volumes what a drive has grown by: writes the partition table for the size that the drive has now.
//!
//! ```text
//! sync | backup table, sync | zeroes where third copy and backup lay, sync
//!      | primary entries, MBR, sync | primary header, sync | read back
//! ```
//!
//! The primary table for the old size is whole until the backup for the new one lasts. The header comes last: until it
//! is there the table counts as one for the old size, and the next attach begins again. The slots are not touched,
//! and no extent is: they all lie before the end that the partition had. The third copy is written by the caller, where
//! it belongs then.

use hotbay_core::label::table::{Part, Region, TableState};
use hotbay_core::label::update::Want;

use super::change::{ExtentsError, Held};
use super::{LabelError, Sectors, Writer};

/// Writes the table of a drive that is in operation here, as `held` says, and has grown since its table was written.
/// Does nothing on any other, or where an extent is in the way. True: volumes may have more of the drive now.
///
/// When this returns `Ok`, the table survives a power cut. After an error, or a cut at any point, the drive has the
/// room that it had or the new one, and the same call finishes the work.
///
/// `checkpoint` is called with the name of each step after each write and each sync: crash tests cut there.
pub fn grow_table(
    device: &dyn Sectors,
    held: &Want,
    checkpoint: &dyn Fn(&'static str),
) -> Result<bool, ExtentsError> {
    let Held { table, state, extents, .. } = Held::read(device, held)?;
    let Some(outgrown) = table.outgrown(state) else { return Ok(false) };
    // No order places an extent there; if a label says so all the same, the volume comes first.
    let free = |start: u64, end: u64| {
        extents.iter().all(|extent| extent.end_bytes() <= start || end <= extent.start_bytes)
    };
    let new_end = table.extents_end_bytes(TableState::Whole);
    if !free(outgrown.start, outgrown.end) || !free(new_end, u64::MAX) {
        return Ok(false);
    }
    let writer = Writer { device, checkpoint };
    writer.make_found_last()?;
    writer.backup_table(&table)?;
    if !outgrown.is_empty() {
        let length = usize::try_from(outgrown.end - outgrown.start);
        let zeroes = vec![0; length.expect("a few MiB")];
        writer.write(outgrown.start, &zeroes, "outgrown-zeroed")?;
        writer.sync("outgrown-synced")?;
    }
    let primary = |parts: &[Part], synced| -> Result<(), LabelError> {
        let is_one = |region: &&Region| parts.contains(&region.part);
        table.regions().iter().filter(is_one).try_for_each(|region| writer.region(region))?;
        writer.sync(synced)
    };
    primary(&[Part::PrimaryEntries, Part::ProtectiveMbr], "primary-entries-synced")?;
    primary(&[Part::PrimaryHeader], "primary-table-synced")?;
    writer.table_back(&table)?;
    Ok(true)
}
