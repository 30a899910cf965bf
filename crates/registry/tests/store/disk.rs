//! A disk in memory that remembers every operation, loses power anywhere, and fails on request.
//!
//! It tells what redb sees (`live`) from what would be there after a power cut (`durable`). A sync
//! that fails loses what it should have written for good while redb still sees it, as on Linux.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use hotbay_registry::store::embedded::make_empty;
use hotbay_registry::store::medium::Medium;
use redb::StorageBackend;

use crate::Random;

const SECTOR: usize = 512;
pub(crate) const EIO: i32 = 5;

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Write { offset: usize, data: Vec<u8> },
    SetLen(usize),
    Sync,
}

/// Which operations fail: those numbered `from..to`, counted from 0, with this error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outage {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) errno: i32,
}

#[derive(Debug, Default)]
struct State {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Changes since the last sync.
    pending: Vec<Op>,
    log: Vec<Op>,
    /// Reads, writes, changes of length and syncs so far.
    count: u64,
    outage: Option<Outage>,
    failed: u64,
}

/// A handle to the disk; clones share it, so it outlives the store on it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub(crate) fn with_image(image: Vec<u8>) -> Self {
        let state = State { live: image.clone(), durable: image, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// A disk with an empty store on it, all of it durable, and nothing in its log.
    pub(crate) fn formatted() -> Self {
        let disk = Self::default();
        make_empty(Path::new("(disk)"), disk.clone()).expect("an empty disk takes a store");
        let image = disk.state().live.clone();
        Self::with_image(image)
    }

    pub(crate) fn image(&self) -> Vec<u8> {
        self.state().live.clone()
    }

    pub(crate) fn durable(&self) -> Vec<u8> {
        self.state().durable.clone()
    }

    pub(crate) fn log_len(&self) -> usize {
        self.state().log.len()
    }

    pub(crate) fn log(&self) -> Vec<Op> {
        self.state().log.clone()
    }

    pub(crate) fn count(&self) -> u64 {
        self.state().count
    }

    pub(crate) fn set_outage(&self, outage: Option<Outage>) {
        self.state().outage = outage;
    }

    pub(crate) fn failed(&self) -> u64 {
        self.state().failed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder panics")
    }
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        let number = self.count;
        self.count += 1;
        match self.outage {
            Some(outage) if (outage.from..outage.to).contains(&number) => {
                self.failed += 1;
                Err(io::Error::from_raw_os_error(outage.errno))
            }
            _ => Ok(()),
        }
    }

    fn change(&mut self, op: Op) {
        apply(&mut self.live, &op);
        self.pending.push(op.clone());
        self.log.push(op);
    }
}

fn apply(image: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write { offset, data } => {
            let end = offset + data.len();
            image.resize(image.len().max(end), 0);
            image[*offset..end].copy_from_slice(data);
        }
        Op::SetLen(len) => image.resize(*len, 0),
        Op::Sync => {}
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let offset = usize::try_from(offset).unwrap();
        let there = state.live.get(offset..offset + out.len());
        out.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.change(Op::SetLen(usize::try_from(len).unwrap()));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        let outcome = state.step();
        let pending = std::mem::take(&mut state.pending);
        if outcome.is_ok() {
            pending.iter().for_each(|op| apply(&mut state.durable, op));
            state.log.push(Op::Sync);
        }
        outcome
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.change(Op::Write { offset: usize::try_from(offset).unwrap(), data: data.to_vec() });
        Ok(())
    }
}

impl Medium for Disk {
    type Backend = Self;

    fn path(&self) -> &Path {
        Path::new("(disk)")
    }

    fn open(&mut self) -> io::Result<Self> {
        Ok(self.clone())
    }

    fn forget_unwritten(&mut self) -> io::Result<()> {
        self.sync_data()?;
        let mut state = self.state();
        state.live = state.durable.clone();
        Ok(())
    }
}

/// What of the operations after the last sync reaches the disk when the power goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unsynced {
    Lost,
    /// All of it: only the process died.
    Kept,
    /// Pieces of this many sectors, each by the toss of a coin.
    Pieces {
        sectors: usize,
        seed: u64,
    },
}

/// The disk after a cut that came when the first `done` operations of `log` had been issued.
pub(crate) fn image_after_cut(
    start: &[u8],
    log: &[Op],
    done: usize,
    unsynced: Unsynced,
) -> Vec<u8> {
    let log = &log[..done];
    let synced = log.iter().rposition(|op| matches!(op, Op::Sync)).map_or(0, |last| last + 1);
    let mut image = start.to_vec();
    log[..synced].iter().for_each(|op| apply(&mut image, op));
    match unsynced {
        Unsynced::Lost => {}
        Unsynced::Kept => log[synced..].iter().for_each(|op| apply(&mut image, op)),
        Unsynced::Pieces { sectors, seed } => {
            keep_pieces(&mut image, &log[synced..], sectors * SECTOR, &mut Random(seed));
        }
    }
    image
}

fn keep_pieces(image: &mut Vec<u8>, unsynced: &[Op], piece_len: usize, random: &mut Random) {
    // Lengths are kept up to some point in their order; what lies beyond the length is not there.
    let lengths = unsynced.iter().filter(|op| matches!(op, Op::SetLen(_))).count() as u64;
    let mut lengths_kept = random.below(lengths + 1);
    for op in unsynced {
        match op {
            Op::SetLen(_) if lengths_kept > 0 => {
                lengths_kept -= 1;
                apply(image, op);
            }
            Op::Write { offset, data } => {
                let mut at = 0;
                while at < data.len() {
                    let piece_end = (offset + at) / piece_len * piece_len + piece_len - offset;
                    let end = piece_end.min(data.len());
                    if random.coin() && offset + end <= image.len() {
                        image[offset + at..offset + end].copy_from_slice(&data[at..end]);
                    }
                    at = end;
                }
            }
            Op::SetLen(_) | Op::Sync => {}
        }
    }
}
