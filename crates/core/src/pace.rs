//! When an order is sent again: backing off, spread out, and never more than a bounded number at once.
//!
//! Kept apart from [`crate::cluster::Cluster`], which decides *what* is owed and knows no time. The actor asks here
//! *when*; the model asks at any time, in any order, and the rules must hold all the same.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::DriveId;

/// The pause before the first repetition.
const FIRST_PAUSE_MS: u64 = 2_000;
/// The longest pause.
const LONGEST_PAUSE_MS: u64 = 60_000;
/// How many orders are repeated at one moment at the most; the rest waits for the next.
pub const REPEATED_AT_ONCE: usize = 256;

/// Milliseconds of a monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Monotonic(pub u64);

/// Which orders are to be looked at again, and when.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    due: BTreeSet<(Monotonic, DriveId)>,
    waiting: BTreeMap<DriveId, Waiting>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    at: Monotonic,
    tries: u32,
}

impl Pace {
    /// An order was sent for the first time: its pauses start anew.
    pub fn sent(&mut self, drive: DriveId, now: Monotonic) {
        self.forget(drive);
        self.schedule(drive, 0, now);
    }

    /// Something is owed for a drive, still or again: its pauses go on, or begin.
    pub fn keep(&mut self, drive: DriveId, now: Monotonic) {
        if !self.waiting.contains_key(&drive) {
            self.schedule(drive, 0, now);
        }
    }

    /// Nothing is owed for a drive any more.
    pub fn forget(&mut self, drive: DriveId) {
        if let Some(waiting) = self.waiting.remove(&drive) {
            self.due.remove(&(waiting.at, drive));
        }
    }

    /// The drives whose pause is over, at most [`REPEATED_AT_ONCE`]. Each gets its next, longer pause.
    pub fn due(&mut self, now: Monotonic) -> Vec<DriveId> {
        let over = self.due.iter().take_while(|(at, _)| *at <= now).take(REPEATED_AT_ONCE);
        let over: Vec<_> = over.map(|(_, drive)| *drive).collect();
        for drive in &over {
            let tries = self.waiting.get(drive).map_or(0, |waiting| waiting.tries);
            self.forget(*drive);
            self.schedule(*drive, tries.saturating_add(1), now);
        }
        over
    }

    /// When to ask [`Pace::due`] next.
    pub fn next(&self) -> Option<Monotonic> {
        self.due.first().map(|(at, _)| *at)
    }

    fn schedule(&mut self, drive: DriveId, tries: u32, now: Monotonic) {
        let at = Monotonic(now.0.saturating_add(pause_ms(drive, tries)));
        self.due.insert((at, drive));
        self.waiting.insert(drive, Waiting { at, tries });
    }
}

/// Doubles with every try, and differs by up to a quarter from drive to drive and try to try.
fn pause_ms(drive: DriveId, tries: u32) -> u64 {
    let doubled = FIRST_PAUSE_MS.saturating_mul(1_u64.checked_shl(tries).unwrap_or(u64::MAX));
    let pause = doubled.min(LONGEST_PAUSE_MS);
    let bits = drive.to_bits() ^ u128::from(tries).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let spread =
        bits.to_le_bytes().iter().fold(0_u64, |sum, byte| (sum * 31 + u64::from(*byte)) % 1_000);
    pause - pause / 4 + pause / 2 * spread / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let drive = DriveId::from_bits(7);
        let mut pace = Pace::default();
        let mut now = Monotonic(0);
        pace.sent(drive, now);
        let mut last = 0;
        for _ in 0..20 {
            let at = pace.next().expect("always scheduled");
            let pause = at.0 - now.0;
            assert!(pause <= LONGEST_PAUSE_MS * 5 / 4, "{pause} ms is too long");
            assert!(pause * 2 > last, "pauses shrank from {last} to {pause} ms");
            last = pause;
            assert_eq!(pace.due(Monotonic(at.0 - 1)), []);
            assert_eq!(pace.due(at), [drive]);
            now = at;
        }
        pace.forget(drive);
        assert_eq!(pace.next(), None);
    }

    /// An order that was confirmed, and then refused when it came again, is owed once more.
    #[test]
    fn what_is_owed_again_is_looked_at_again_and_keeps_its_pauses() {
        let drive = DriveId::from_bits(7);
        let mut pace = Pace::default();
        pace.sent(drive, Monotonic(0));
        pace.forget(drive);
        pace.keep(drive, Monotonic(1_000));
        let at = pace.next().expect("owed again");
        pace.keep(drive, Monotonic(1_500));
        assert_eq!(pace.next(), Some(at), "a second answer does not put it off");
    }

    #[test]
    fn a_crowd_is_spread_out_and_bounded() {
        let mut pace = Pace::default();
        for bits in 0..1_000 {
            pace.sent(DriveId::from_bits(bits), Monotonic(0));
        }
        let late = Monotonic(FIRST_PAUSE_MS * 2);
        assert_eq!(pace.due(late).len(), REPEATED_AT_ONCE);
        let first = pace.next().expect("the rest waits");
        assert!(first <= late);
    }
}
