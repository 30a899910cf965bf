//! A drive in memory for the tests: it knows what would survive a power cut, and can be cut at every operation.
//!
//! Sectors of 512 bytes are written wholly or not at all; that is all it promises, as a real drive does. Until a sync,
//! every written sector may or may not have arrived, each for itself and in any order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use hotbay_core::device::Denied;
use hotbay_core::ids::{ClusterId, DriveId, NodeId};
use hotbay_core::label::Header;
use hotbay_core::label::update::Want;
use hotbay_core::order::Generation;

use super::{LabelError, Outcome, Sectors, bring_up_to_date};

type Sector = [u8; 512];
const ZERO: Sector = [0; 512];

pub(super) const SIZE_BYTES: u64 = 24 * 1024 * 1024;
pub(super) const BLOCK_SIZES: [u32; 2] = [512, 4096];

pub(super) const WANT: Want = Want {
    cluster: ClusterId::from_bits(0xc1),
    drive: DriveId::from_bits(0x7f3a_91c0_0011_2233_4455_6677_8899_aabb),
    node: NodeId::from_bits(0x0a),
    generation: Generation::from_number(5),
    in_operation: true,
    take_over: false,
};

/// What goes wrong, and at which operation, counted from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The power goes: this operation and all later ones fail.
    PowerCut(usize),
    /// This operation fails and has no effect; a failed sync also loses what it was to make last.
    Error(usize),
    /// This write is confirmed and forgotten.
    Forgotten(usize),
}

#[derive(Debug, Clone)]
pub(super) struct MemoryDevice {
    size_bytes: u64,
    block_bytes: u32,
    fault: Option<Fault>,
    state: RefCell<State>,
}

#[derive(Debug, Clone, Default)]
struct State {
    durable: BTreeMap<u64, Sector>,
    /// Written since the last sync.
    pending: BTreeMap<u64, Sector>,
    operations: usize,
    writes: usize,
}

impl State {
    /// The sectors that a sync would change.
    fn unsynced(&self) -> Vec<(u64, Sector)> {
        let changes =
            |(sector, bytes): &(&u64, &Sector)| self.durable.get(sector).unwrap_or(&ZERO) != *bytes;
        self.pending.iter().filter(changes).map(|(sector, bytes)| (*sector, *bytes)).collect()
    }
}

impl MemoryDevice {
    pub(super) fn new(block_bytes: u32) -> Self {
        Self { size_bytes: SIZE_BYTES, block_bytes, fault: None, state: RefCell::default() }
    }

    /// A drive that has been attached with [`WANT`].
    pub(super) fn labelled(block_bytes: u32) -> (Self, Header) {
        let device = Self::new(block_bytes);
        let header = device.bring(&WANT).expect("an empty drive").header().expect("a label");
        (device, header)
    }

    /// The same drive, with its counters at zero and another fault.
    pub(super) fn again(&self, fault: Option<Fault>) -> Self {
        let again = Self { fault, ..self.clone() };
        let mut state = again.state.borrow_mut();
        (state.operations, state.writes) = (0, 0);
        drop(state);
        again
    }

    pub(super) fn resized(&self, size_bytes: u64) -> Self {
        Self { size_bytes, ..self.again(None) }
    }

    /// Every state in which a power cut may leave the drive: any subset of what was not synced has arrived.
    pub(super) fn power_cut(&self) -> Vec<Self> {
        let state = self.state.borrow();
        let changed = state.unsynced();
        assert!(changed.len() <= 8, "{} changed sectors are too many to try all", changed.len());
        let kept_sets = 0..1u32 << changed.len();
        kept_sets
            .map(|kept| {
                let mut durable = state.durable.clone();
                let arrived = changed.iter().enumerate().filter(|(bit, _)| kept >> bit & 1 == 1);
                durable.extend(arrived.map(|(_, (sector, bytes))| (*sector, *bytes)));
                let state = RefCell::new(State { durable, ..State::default() });
                Self { fault: None, state, ..*self }
            })
            .collect()
    }

    /// What a worse drive may leave: one sector is half old, half new.
    pub(super) fn torn(&self) -> Vec<Self> {
        let state = self.state.borrow();
        let tear = |(sector, mut bytes): (u64, Sector)| {
            let mut durable = state.durable.clone();
            bytes[..256].copy_from_slice(&durable.get(&sector).unwrap_or(&ZERO)[..256]);
            durable.insert(sector, bytes);
            let state = RefCell::new(State { durable, ..State::default() });
            Self { fault: None, state, ..*self }
        };
        state.unsynced().into_iter().map(tear).collect()
    }

    /// Writes, and operations (writes and syncs), since [`Self::again`].
    pub(super) fn writes(&self) -> usize {
        self.state.borrow().writes
    }

    pub(super) fn operations(&self) -> usize {
        self.state.borrow().operations
    }

    /// Changes one byte behind everybody's back.
    pub(super) fn change_byte(&self, at_byte: u64, change: u8) {
        let mut state = self.state.borrow_mut();
        assert!(state.pending.is_empty(), "the drive is quiet");
        let within = usize::try_from(at_byte % 512).unwrap();
        state.durable.entry(at_byte / 512).or_insert(ZERO)[within] ^= change;
    }

    pub(super) fn bring(&self, want: &Want) -> Result<Outcome, LabelError> {
        bring_up_to_date(self, want, || Ok(()), &|_| ())
    }

    /// Like [`Self::bring`], on a drive that must not be asked whether it is empty.
    pub(super) fn bring_known(&self, want: &Want) -> Result<Outcome, LabelError> {
        let unexpected = || Err(vec![Denied::NoIdentity]);
        bring_up_to_date(self, want, unexpected, &|_| ())
    }

    /// Zeroes bytes, as a drive does: they may come back until a sync.
    pub(super) fn zero(&self, range: Range<u64>) -> io::Result<()> {
        let length = usize::try_from(range.end - range.start).unwrap();
        self.write_at(range.start, &vec![0; length])
    }

    /// Counts an operation. True: it takes effect.
    fn begin(&self, state: &mut State) -> io::Result<bool> {
        let number = state.operations;
        state.operations += 1;
        match self.fault {
            Some(Fault::PowerCut(at)) if number >= at => Err(io::ErrorKind::NotConnected.into()),
            Some(Fault::Error(at)) if number == at => Err(io::ErrorKind::Other.into()),
            Some(Fault::Forgotten(at)) => Ok(number != at),
            Some(Fault::PowerCut(_) | Fault::Error(_)) | None => Ok(true),
        }
    }

    fn check_range(&self, offset: u64, length: usize) {
        let block = u64::from(self.block_bytes);
        let length = length as u64;
        assert!(offset.is_multiple_of(block) && length.is_multiple_of(block), "whole blocks");
        assert!(offset + length <= self.size_bytes, "inside the drive");
    }
}

impl Sectors for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check_range(offset, buf.len());
        buf.fill(0);
        let state = self.state.borrow();
        let sectors = offset / 512..(offset + buf.len() as u64) / 512;
        for layer in [&state.durable, &state.pending] {
            for (sector, bytes) in layer.range(sectors.clone()) {
                let at = usize::try_from(sector * 512 - offset).unwrap();
                buf[at..at + 512].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check_range(offset, buf.len());
        let mut state = self.state.borrow_mut();
        if self.begin(&mut state)? {
            for (sector, bytes) in (offset / 512..).zip(buf.as_chunks::<512>().0) {
                // Zeroes over zeroes are no change, also where megabytes are zeroed.
                let is_known = |layer: &BTreeMap<u64, Sector>| layer.contains_key(&sector);
                if *bytes == ZERO && !is_known(&state.durable) && !is_known(&state.pending) {
                    continue;
                }
                let before = state.pending.insert(sector, *bytes);
                // Else a cut could leave any of the values, and `power_cut` would not try them all.
                assert!(before.is_none_or(|before| before == *bytes), "one value per sync");
            }
        }
        state.writes += 1;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        let pending = match self.fault {
            // What was cached is still there when the power is, and lost when the sync has failed.
            Some(Fault::PowerCut(at)) if state.operations >= at => BTreeMap::new(),
            Some(_) | None => std::mem::take(&mut state.pending),
        };
        if self.begin(&mut state)? {
            state.durable.extend(pending);
        }
        Ok(())
    }
}
