//! Changes the extent table of a drive that is in operation here: what an order to change the label comes to.
//!
//! ```text
//! found label, sync | (bytes to erase, sync) | other slot: extents, header, sync | read back
//! ```
//!
//! The label that says that bytes are dirty lasts before the first of them is zeroed, and they are zero for good before
//! a label calls them free: whatever cut comes between, no volume in use loses a byte, and none gets another one's.

use std::io;
use std::ops::Range;

use hotbay_core::ids::DriveId;
use hotbay_core::label::change::{self, Basis, Change, ChangeRefused, LabelTold};
use hotbay_core::label::extents::{self, Digest, Extent};
use hotbay_core::label::table::{Table, TableState};
use hotbay_core::label::update::{self, Plan, Refusal, Want};
use hotbay_core::label::{Found, Header, SlotNumber};
use thiserror::Error;

use super::{LabelError, Sectors, Writer, read_whole, table_state};

/// Why the extents are as they were, or, after an error of the drive, may be.
#[derive(Debug, Error)]
pub enum ExtentsError {
    #[error("the extents are left as they are")]
    Refused {
        #[source]
        why: ChangeRefused,
        /// What the next order may be decided on.
        now: LabelTold,
    },
    #[error("the drive is not in operation here: attach it first")]
    NotHeld,
    #[error("the bytes of a deleted volume cannot be erased")]
    Erase(#[source] io::Error),
    #[error("the label cannot be changed")]
    Label(#[from] LabelError),
}

/// The label of a drive that is in operation here.
pub(super) struct Held {
    pub(super) table: Table,
    pub(super) state: TableState,
    pub(super) header: Header,
    slot: SlotNumber,
    pub(super) extents: Vec<Extent>,
}

impl Held {
    /// Reads it, and refuses any other than `held` says.
    pub(super) fn read(device: &dyn Sectors, held: &Want) -> Result<Self, ExtentsError> {
        let table = Table::new(held.drive, device.size_bytes(), device.block_bytes());
        let table = table.map_err(LabelError::Unfit)?;
        let (found, extents) = read_whole(device).map_err(LabelError::Read)?;
        let state = table_state(device, &table).map_err(LabelError::Read)?;
        let plan = update::plan(found, state, None, held).map_err(LabelError::Refused)?;
        // Whatever would have to be written first to hold the drive: it is not held.
        match (plan, found) {
            (Plan::Keep(header), Found::Valid { slot, .. }) if held.in_operation => {
                Ok(Self { table, state, header, slot, extents })
            }
            _ => Err(ExtentsError::NotHeld),
        }
    }

    fn told(self) -> LabelTold {
        let limit_bytes = self.table.extents_end_bytes(self.state);
        LabelTold { basis: Basis::of(&self.header), extents: self.extents, limit_bytes }
    }
}

/// Where the extents of a drive must end. Never writes.
pub fn limit_bytes(device: &dyn Sectors, drive: DriveId) -> Result<u64, LabelError> {
    let table = Table::new(drive, device.size_bytes(), device.block_bytes())?;
    let state = table_state(device, &table).map_err(LabelError::Read)?;
    Ok(table.extents_end_bytes(state))
}

/// The label of a drive that is in operation here, as `held` says. Never writes: what is told may not last.
pub fn told(device: &dyn Sectors, held: &Want) -> Result<LabelTold, ExtentsError> {
    Held::read(device, held).map(Held::told)
}

/// Makes all changes of an order on a drive that is in operation here, as `held` says, or refuses without a single
/// write. Returns the label as it is then.
///
/// `erase` has to zero the bytes of the drive that it is given, for this drive; they belong to a deleted volume alone.
///
/// When this returns `Ok`, the changes survive a power cut. After an error, or a cut, the label says by its sequence
/// whether they came: the caller reads it, and decides anew. An erase that was cut begins again where the label says.
///
/// `checkpoint` is called with the name of each step after each write and each sync: crash tests cut there.
pub fn change_extents(
    device: &dyn Sectors,
    held: &Want,
    basis: Basis,
    changes: &[Change],
    erase: &dyn Fn(Range<u64>) -> io::Result<()>,
    checkpoint: &dyn Fn(&'static str),
) -> Result<LabelTold, ExtentsError> {
    let old = Held::read(device, held)?;
    let limit_bytes = old.table.extents_end_bytes(old.state);
    let changed = match change::changed(&old.header, &old.extents, basis, changes, limit_bytes) {
        Ok(changed) => changed,
        Err(why) => return Err(ExtentsError::Refused { why, now: old.told() }),
    };
    let sequence = old.header.sequence.checked_add(1);
    let sequence = sequence.ok_or(LabelError::Refused(Refusal::SequenceExhausted))?;
    let digest = Digest::of(&extents::encode(&changed.extents));
    let header = Header { sequence, extents: digest, ..old.header };
    let writer = Writer { device, checkpoint };
    writer.make_found_last()?;
    if let Some(range) = changed.erase {
        erase(range).map_err(ExtentsError::Erase)?;
        checkpoint("erase-zeroed");
        writer.sync("erase-synced")?;
    }
    writer.slot(old.slot.other(), &header, &changed.extents)?;
    Ok(LabelTold { basis: Basis::of(&header), extents: changed.extents, limit_bytes })
}
