//! What is to be looked at, and when: many events of one device become few looks, and none is forgotten.
//!
//! ```text
//!            push            take             finished
//!   quiet --------> waiting ------> running ----------> quiet
//!                     ^ |   push      | push              |
//!                     +-+ (merged)    +--> running and    +--> forgotten after COOL_MS
//!                                          waiting
//! ```
//!
//! The first event of a quiet device is given out at once. The pause after each look grows from [`FIRST_PAUSE_MS`] to
//! [`LONGEST_PAUSE_MS`] while events keep coming, so that a storm costs at most [`MOST_RUNS_PER_SECOND`] looks at each
//! device. The whole machine and the mount table are paced in the same way. The agent's loop owns the queue.

use std::collections::{BTreeMap, BTreeSet};

use super::probes::Needs;
use super::triage::Change;
use crate::device::DeviceNumber;
use crate::pace::Monotonic;

/// The pause after a look at a device that was quiet before.
pub const FIRST_PAUSE_MS: u64 = 5;
/// The longest that a change waits, behind a storm on its own device.
pub const LONGEST_PAUSE_MS: u64 = 200;
/// After this time without a look a device counts as quiet, and is forgotten.
pub const COOL_MS: u64 = 1_000;
/// Pauses of 5, 10, 20, 40, 80, 160, 200, 200, 200 ms lie between ten looks.
pub const MOST_RUNS_PER_SECOND: usize = 10;
/// With more devices at once the machine is looked at as a whole.
pub const MAX_DEVICES: usize = 16_384;

/// A device as long as what is behind its number stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey {
    pub number: DeviceNumber,
    /// `None` on kernels that do not tell.
    pub sequence: Option<u64>,
}

/// What is paced on its own and never worked on twice at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The machine as a whole.
    Machine,
    /// The mount table.
    Mounts,
    /// Whatever has this number.
    Device(DeviceNumber),
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Something was missed: look at everything, and compare with what is known.
    Rescan,
    /// The mount table has changed.
    Mounts,
    Probe(Run),
}

impl Work {
    pub fn subject(&self) -> Subject {
        match self {
            Self::Rescan => Subject::Machine,
            Self::Mounts => Subject::Mounts,
            Self::Probe(run) => Subject::Device(run.device.number),
        }
    }
}

/// One look at one device. By the time of the look the number may be another device's: compare the disk sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub device: DeviceKey,
    pub change: Change,
    pub needs: Needs,
}

/// The queue. Per device number at most two entries wait: the one that was there and the one that is.
#[derive(Debug, Default)]
pub struct Queue {
    entries: BTreeMap<Subject, Entry>,
    due: BTreeSet<(Monotonic, Subject)>,
    /// Entries that are kept only for the pace of their subject, by the time they are forgotten.
    idle: BTreeSet<(Monotonic, Subject)>,
}

#[derive(Debug, Default)]
struct Entry {
    /// A device that has gone and whose number is taken again. Given out first.
    gone: Option<Run>,
    waiting: Option<Run>,
    /// The highest sequence heard of.
    newest: Option<u64>,
    state: State,
    last_taken: Option<Monotonic>,
    pause_ms: u64,
}

/// Where an entry is listed.
#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    New,
    Due,
    Running,
    Idle(Monotonic),
}

impl Queue {
    /// An event of a device. One of a device whose number is already another's is dropped: nothing of it is left to
    /// be looked at, and the look at the other tells that it has gone.
    pub fn push(&mut self, run: Run, now: Monotonic) {
        let subject = Subject::Device(run.device.number);
        if !self.entries.contains_key(&subject) && self.entries.len() >= MAX_DEVICES {
            self.forget_idle(now);
            if self.entries.len() >= MAX_DEVICES {
                return self.lost(now);
            }
        }
        let entry = self.entries.entry(subject).or_default();
        if entry.admit(run) {
            self.schedule(subject, now);
        }
    }

    /// Events were lost, by an overflow or without a sign.
    pub fn lost(&mut self, now: Monotonic) {
        self.push_whole(Subject::Machine, now);
    }

    /// The mount table has changed.
    pub fn mounts_changed(&mut self, now: Monotonic) {
        self.push_whole(Subject::Mounts, now);
    }

    /// The next thing to do, if its time has come. It is not given again before [`Queue::finished`].
    pub fn take(&mut self, now: Monotonic) -> Option<Work> {
        self.forget_idle(now);
        let (at, subject) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.due.pop_first();
        let entry = self.entries.get_mut(&subject)?;
        let run = entry.gone.take().or_else(|| entry.waiting.take());
        entry.state = State::Running;
        entry.take_pause(now);
        match subject {
            Subject::Machine => Some(Work::Rescan),
            Subject::Mounts => Some(Work::Mounts),
            Subject::Device(_) => run.map(Work::Probe),
        }
    }

    /// When to ask [`Queue::take`] next, if nothing is pushed before.
    pub fn next(&self) -> Option<Monotonic> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Work has ended, whatever came of it. What was pushed in the meantime is due after the pause.
    pub fn finished(&mut self, subject: Subject, now: Monotonic) {
        let Some(entry) = self.entries.get_mut(&subject) else { return };
        if !matches!(entry.state, State::Running) {
            return;
        }
        entry.state = State::New;
        if entry.is_waiting() {
            self.schedule(subject, now);
        } else {
            let at = plus(entry.last_taken.unwrap_or(now), COOL_MS);
            entry.state = State::Idle(at);
            self.idle.insert((at, subject));
        }
    }

    /// How many subjects are kept in memory.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn push_whole(&mut self, subject: Subject, now: Monotonic) {
        let entry = self.entries.entry(subject).or_default();
        entry.waiting = Some(WHOLE);
        self.schedule(subject, now);
    }

    /// Lists an entry by the time it may be given out, unless it is listed or running.
    fn schedule(&mut self, subject: Subject, now: Monotonic) {
        let Some(entry) = self.entries.get_mut(&subject) else { return };
        match entry.state {
            State::Due | State::Running => return,
            State::Idle(at) => {
                self.idle.remove(&(at, subject));
            }
            State::New => {}
        }
        let at = match entry.last_taken {
            Some(taken) => now.max(plus(taken, entry.pause_ms)),
            None => now,
        };
        entry.state = State::Due;
        self.due.insert((at, subject));
    }

    fn forget_idle(&mut self, now: Monotonic) {
        while let Some((at, subject)) = self.idle.first().copied().filter(|(at, _)| *at <= now) {
            self.idle.remove(&(at, subject));
            self.entries.remove(&subject);
        }
    }
}

/// Stands for the one thing that there is to do about the machine or the mount table.
const WHOLE: Run = Run {
    device: DeviceKey { number: DeviceNumber { major: 0, minor: 0 }, sequence: None },
    change: Change::Changed,
    needs: Needs::NONE,
};

impl Entry {
    /// Merges an event; false if it is of a device that has gone.
    fn admit(&mut self, run: Run) -> bool {
        let sequence = run.device.sequence;
        if sequence.is_some() && sequence < self.newest {
            return false;
        }
        self.newest = sequence.max(self.newest);
        match &mut self.waiting {
            None => self.waiting = Some(run),
            Some(waiting) if begins_anew(waiting, &run) => {
                // Of several that came and went without being looked at, nobody has ever heard.
                let gone = Run { change: Change::Went, needs: Needs::NONE, ..*waiting };
                self.gone.get_or_insert(gone);
                *waiting = run;
            }
            Some(waiting) => merge(waiting, run),
        }
        true
    }

    fn is_waiting(&self) -> bool {
        self.gone.is_some() || self.waiting.is_some()
    }

    fn take_pause(&mut self, now: Monotonic) {
        let quiet = self.last_taken.is_none_or(|taken| plus(taken, COOL_MS) <= now);
        let grown = self.pause_ms.saturating_mul(2).clamp(FIRST_PAUSE_MS, LONGEST_PAUSE_MS);
        self.pause_ms = if quiet { FIRST_PAUSE_MS } else { grown };
        self.last_taken = Some(now);
    }
}

/// Whether the later event is of another device than the earlier one under the same number.
fn begins_anew(earlier: &Run, later: &Run) -> bool {
    let other_sequence = match (earlier.device.sequence, later.device.sequence) {
        (Some(earlier), Some(later)) => earlier != later,
        // Where the kernel does not tell, the order of the two has to.
        (None, _) | (_, None) => false,
    };
    other_sequence || (earlier.change == Change::Went && later.change == Change::Came)
}

/// Adds a later event of the same device.
fn merge(into: &mut Run, later: Run) {
    into.device.sequence = into.device.sequence.max(later.device.sequence);
    let needs = into.needs.with(later.needs);
    (into.change, into.needs) = match (into.change, later.change) {
        // It is new to whoever takes it, however often it has changed since.
        (Change::Came, Change::Came | Change::Changed) => (Change::Came, needs),
        (Change::Changed, Change::Came | Change::Changed) => (later.change, needs),
        // Nothing is left to be looked at.
        (Change::Came | Change::Changed | Change::Went, Change::Went) => {
            (Change::Went, Needs::NONE)
        }
        // It was said to have gone and has not. What was to be looked at before is forgotten, so all of it is.
        (Change::Went, Change::Came | Change::Changed) => (later.change, Needs::ALL),
    };
}

fn plus(at: Monotonic, pause_ms: u64) -> Monotonic {
    Monotonic(at.0.saturating_add(pause_ms))
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
