//! Reads the label of a drive, brings it up to date when the drive is attached or released, and changes its extents.
//!
//! What may be written is decided in `hotbay_core::label`; here it is done, in an order in which every cut leaves a
//! drive that is empty, or ours and fit to be finished:
//!
//! ```text
//! (sync) -> slot -> sync -> backup table -> sync -> primary table, MBR last -> sync -> read back
//! ```
//!
//! The slot comes first, because it is the proof by which a half-written table is known as ours. The caller has
//! proved the drive's identity and holds its lock: nobody else writes to it meanwhile. All calls may wait for the
//! drive, so they are made in a child that may hang. When a label is written, [`refresh_third_copy`] follows.

mod change;
mod grow;
mod inspect;
mod sectors;
mod third_copy;

use std::io;

use hotbay_core::device::Denied;
use hotbay_core::label::extents::{self, Extent, TABLE_AT_BYTES};
use hotbay_core::label::table::{Part, Region, Table, TableState, Unfit};
use hotbay_core::label::update::{self, Plan, Refusal, Want};
use hotbay_core::label::{
    Found, HEADER_BYTES, Header, SLOT_BYTES, Slot, SlotNumber, decode, encode, newest,
};
use thiserror::Error;

pub use self::change::{ExtentsError, change_extents, limit_bytes, told};
pub use self::grow::grow_table;
pub use self::inspect::{Inspected, ThirdCopy, inspect};
pub use self::sectors::{FileSectors, Sectors};
pub use self::third_copy::refresh_third_copy;

/// How much of either end of a drive is zero if it is empty.
pub const EMPTY_EDGE_BYTES: u64 = 4 * 1024 * 1024;

/// How much is read at once when looking for a byte that is not zero: a whole number of blocks of any drive.
const SCAN_BYTES: usize = 256 * 1024;

/// What became of the label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was written, and reads back.
    Written(Header),
    /// It said what was wanted, and lasts.
    Kept(Header),
    /// There is none, and a release needs none.
    NoLabel,
}

impl Outcome {
    /// What the label says now.
    pub fn header(self) -> Option<Header> {
        match self {
            Self::Written(header) | Self::Kept(header) => Some(header),
            Self::NoLabel => None,
        }
    }
}

/// Why the label is not up to date.
#[derive(Debug, Error)]
pub enum LabelError {
    #[error("the drive cannot hold a label")]
    Unfit(#[from] Unfit),
    #[error("the label is left as it is")]
    Refused(#[from] Refusal),
    #[error("the drive is not proved to be empty: {}", sentence(.denied))]
    NotProvedEmpty { denied: Vec<Denied> },
    #[error("the drive cannot be read")]
    Read(#[source] io::Error),
    #[error("the drive cannot be written at byte {offset}")]
    Write {
        offset: u64,
        #[source]
        source: io::Error,
    },
    #[error("the drive did not confirm that what was written lasts")]
    Sync(#[source] io::Error),
    #[error("the drive does not return what was written at byte {offset}")]
    ReadBack { offset: u64 },
}

impl LabelError {
    /// Whether the same call may succeed later without anything else being changed by a person or the registry.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Read(_) | Self::Write { .. } | Self::Sync(_) => true,
            // A drive that loses what it has confirmed is not to be trusted with more.
            Self::Unfit(_)
            | Self::Refused(_)
            | Self::NotProvedEmpty { .. }
            | Self::ReadBack { .. } => false,
        }
    }
}

fn sentence(denied: &[Denied]) -> String {
    denied.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The label on the drive. Never writes.
pub fn read(device: &dyn Sectors) -> io::Result<Found> {
    Ok(read_whole(device)?.0)
}

/// The label on the drive, and its extents: none without a valid label. Never writes.
pub fn read_whole(device: &dyn Sectors) -> io::Result<(Found, Vec<Extent>)> {
    let [(zero, extents_zero), (one, extents_one)] = both_slots(device)?;
    let found = newest(zero, one);
    let extents = match found {
        Found::Valid { slot: SlotNumber::Zero, .. } => extents_zero,
        Found::Valid { slot: SlotNumber::One, .. } => extents_one,
        Found::Absent | Found::Damaged | Found::UnknownVersion(_) => Vec::new(),
    };
    Ok((found, extents))
}

/// Both copies, each with its extents. A drive that has no room for them has none.
fn both_slots(device: &dyn Sectors) -> io::Result<[(Slot, Vec<Extent>); 2]> {
    if device.size_bytes() < SlotNumber::One.offset_bytes() + SLOT_BYTES {
        return Ok([(Slot::Empty, Vec::new()), (Slot::Empty, Vec::new())]);
    }
    Ok([read_slot(device, SlotNumber::Zero)?, read_slot(device, SlotNumber::One)?])
}

fn read_slot(device: &dyn Sectors, number: SlotNumber) -> io::Result<(Slot, Vec<Extent>)> {
    read_copy(device, number.offset_bytes())
}

/// A header whose extent table is not the one that belongs to it is damaged: they were written together, and one of
/// them has not arrived.
fn read_copy(device: &dyn Sectors, at_byte: u64) -> io::Result<(Slot, Vec<Extent>)> {
    let mut block = vec![0; block_length(device)];
    device.read_at(at_byte, &mut block)?;
    let slot = decode(block.first_chunk().expect("a block holds a header"));
    let Slot::Valid(Header { extents: digest, .. }) = slot else { return Ok((slot, Vec::new())) };
    let Some(length) = digest.table_bytes() else { return Ok((Slot::Damaged, Vec::new())) };
    let mut table = vec![0; length.next_multiple_of(block.len())];
    device.read_at(at_byte + TABLE_AT_BYTES, &mut table)?;
    Ok(match extents::decode(&table[..length], digest) {
        Some(extents) => (slot, extents),
        None => (Slot::Damaged, Vec::new()),
    })
}

/// Where the first byte is that is not zero, of the first and last [`EMPTY_EDGE_BYTES`] of the drive. `None`: these
/// are all zero. Never writes.
pub fn first_nonzero(device: &dyn Sectors) -> io::Result<Option<u64>> {
    let size = device.size_bytes();
    let head_end = size.min(EMPTY_EDGE_BYTES);
    let tail_start = size.saturating_sub(EMPTY_EDGE_BYTES).max(head_end);
    let zeros = vec![0; SCAN_BYTES];
    let mut buf = vec![0; SCAN_BYTES];
    for (start, end) in [(0, head_end), (tail_start, size)] {
        let mut at = start;
        while at < end {
            let length = usize::try_from(end - at).unwrap_or(SCAN_BYTES).min(SCAN_BYTES);
            let piece = &mut buf[..length];
            device.read_at(at, piece)?;
            // Compared as a whole first: byte by byte, 8 MiB would take a while.
            if *piece != zeros[..length] {
                let nonzero = piece.iter().take_while(|byte| **byte == 0).count();
                return Ok(Some(at + nonzero as u64));
            }
            at += length as u64;
        }
    }
    Ok(None)
}

/// Makes the label say what is wanted, or refuses without a single write.
///
/// A drive without a label gets one if it is empty: its ends are read here, and `otherwise_empty` is the caller's
/// further proof (known filesystems, holders, mounts), asked only then. When this returns `Ok`, the label survives a
/// power cut. After an error, or a cut at any point, the same call finishes the work.
///
/// `checkpoint` is called with the name of each step after each write and each sync: crash tests cut there.
pub fn bring_up_to_date(
    device: &dyn Sectors,
    want: &Want,
    otherwise_empty: impl FnOnce() -> Result<(), Vec<Denied>>,
    checkpoint: &dyn Fn(&'static str),
) -> Result<Outcome, LabelError> {
    let table = Table::new(want.drive, device.size_bytes(), device.block_bytes())?;
    let (found, extents) = read_whole(device).map_err(LabelError::Read)?;
    let state = table_state(device, &table).map_err(LabelError::Read)?;
    let first_nonzero = if found == Found::Absent && want.in_operation {
        first_nonzero(device).map_err(LabelError::Read)?
    } else {
        None
    };
    let writer = Writer { device, checkpoint };
    match update::plan(found, state, first_nonzero, want)? {
        Plan::Nothing => Ok(Outcome::NoLabel),
        Plan::Keep(header) => {
            writer.make_found_last()?;
            Ok(Outcome::Kept(header))
        }
        Plan::Initialise(header) => {
            otherwise_empty().map_err(|denied| LabelError::NotProvedEmpty { denied })?;
            writer.slot(SlotNumber::Zero, &header, &[])?;
            writer.table(&table)?;
            Ok(Outcome::Written(header))
        }
        Plan::Update { slot, header, finish_table } => {
            writer.make_found_last()?;
            writer.slot(slot, &header, &extents)?;
            if finish_table {
                writer.table(&table)?;
            }
            Ok(Outcome::Written(header))
        }
    }
}

fn table_state(device: &dyn Sectors, table: &Table) -> io::Result<TableState> {
    let read = |region: &Region| {
        let mut bytes = vec![0; region.bytes.len()];
        device.read_at(region.offset_bytes, &mut bytes)?;
        Ok(bytes)
    };
    let seen = table.regions().iter().map(read).collect::<io::Result<Vec<_>>>()?;
    Ok(table.state(&seen))
}

/// A block, or a header where a device claims smaller blocks than a header is long.
fn block_length(device: &dyn Sectors) -> usize {
    usize::try_from(device.block_bytes()).map_or(HEADER_BYTES, |block| block.max(HEADER_BYTES))
}

/// Writes in the order of the picture above, and names each step.
struct Writer<'a> {
    device: &'a dyn Sectors,
    checkpoint: &'a dyn Fn(&'static str),
}

impl Writer<'_> {
    /// Whoever wrote the label that was found may have been killed before its sync. It must last before it is
    /// relied on, and before the other copy, perhaps the only one that does last, is written over.
    fn make_found_last(&self) -> Result<(), LabelError> {
        self.sync("found-synced")
    }

    fn slot(
        &self,
        slot: SlotNumber,
        header: &Header,
        extents: &[Extent],
    ) -> Result<(), LabelError> {
        let steps = ["extents-written", "slot-written", "slot-synced"];
        self.copy(slot.offset_bytes(), header, extents, steps)
    }

    /// In one sync: whichever part of the copy is missing after a cut, its header does not fit what is there.
    fn copy(
        &self,
        at_byte: u64,
        header: &Header,
        extents: &[Extent],
        [extents_written, written, synced]: [&'static str; 3],
    ) -> Result<(), LabelError> {
        let mut block = vec![0; block_length(self.device)];
        block[..HEADER_BYTES].copy_from_slice(&encode(header));
        let mut table = extents::encode(extents);
        table.resize(table.len().next_multiple_of(block.len()), 0);
        let table_at = at_byte + TABLE_AT_BYTES;
        if !table.is_empty() {
            self.write(table_at, &table, extents_written)?;
        }
        self.write(at_byte, &block, written)?;
        self.sync(synced)?;
        self.read_back(table_at, &table)?;
        self.read_back(at_byte, &block)
    }

    fn table(&self, table: &Table) -> Result<(), LabelError> {
        self.backup_table(table)?;
        for region in table.regions().iter().filter(|region| !region.part.is_backup()) {
            self.region(region)?;
        }
        self.sync("primary-table-synced")?;
        self.table_back(table)
    }

    fn backup_table(&self, table: &Table) -> Result<(), LabelError> {
        for region in table.regions().iter().filter(|region| region.part.is_backup()) {
            self.region(region)?;
        }
        self.sync("backup-table-synced")
    }

    fn region(&self, region: &Region) -> Result<(), LabelError> {
        let written = match region.part {
            Part::BackupEntries => "backup-entries-written",
            Part::BackupHeader => "backup-header-written",
            Part::PrimaryEntries => "primary-entries-written",
            Part::PrimaryHeader => "primary-header-written",
            Part::ProtectiveMbr => "protective-mbr-written",
        };
        self.write(region.offset_bytes, &region.bytes, written)
    }

    fn table_back(&self, table: &Table) -> Result<(), LabelError> {
        let mut regions = table.regions().iter();
        regions.try_for_each(|region| self.read_back(region.offset_bytes, &region.bytes))
    }

    fn write(&self, offset: u64, bytes: &[u8], step: &'static str) -> Result<(), LabelError> {
        self.device
            .write_at(offset, bytes)
            .map_err(|source| LabelError::Write { offset, source })?;
        (self.checkpoint)(step);
        Ok(())
    }

    fn sync(&self, step: &'static str) -> Result<(), LabelError> {
        self.device.sync().map_err(LabelError::Sync)?;
        (self.checkpoint)(step);
        Ok(())
    }

    fn read_back(&self, offset: u64, expected: &[u8]) -> Result<(), LabelError> {
        let mut seen = vec![0; expected.len()];
        self.device.read_at(offset, &mut seen).map_err(LabelError::Read)?;
        if seen == expected { Ok(()) } else { Err(LabelError::ReadBack { offset }) }
    }
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod erase_tests;
#[cfg(test)]
mod extent_tests;
#[cfg(test)]
mod grow_tests;
#[cfg(test)]
pub(crate) mod loop_tests;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod third_copy_tests;
