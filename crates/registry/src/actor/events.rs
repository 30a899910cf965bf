//! The last things that happened, kept in memory for people. The log has them for longer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hotbay_core::cluster::Notice;
use tokio::sync::watch;

/// How many events are kept.
const KEPT: usize = 1_000;

/// A notice, with its number and wall time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Grows by one with every event since the registry started, from 1.
    pub number: u64,
    pub wall_ms: u64,
    pub notice: Notice,
}

/// The events, for one writer and many readers.
#[derive(Debug, Clone)]
pub struct EventLog {
    kept: Arc<Mutex<VecDeque<Recorded>>>,
    newest: watch::Sender<u64>,
}

impl EventLog {
    pub(super) fn new() -> Self {
        Self { kept: Arc::default(), newest: watch::Sender::new(0) }
    }

    pub(super) fn push(&self, wall_ms: u64, notice: Notice) {
        self.newest.send_modify(|newest| {
            *newest += 1;
            let mut kept = self.kept();
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(Recorded { number: *newest, wall_ms, notice });
        });
    }

    /// The events after a number, oldest first.
    pub fn after(&self, number: u64) -> Vec<Recorded> {
        self.kept().iter().filter(|event| event.number > number).cloned().collect()
    }

    /// Changes with every event; waiting on it is how to follow them.
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Recorded>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::cluster::About;

    use super::*;

    #[test]
    fn the_oldest_make_way() {
        let log = EventLog::new();
        for number in 0..KEPT as u64 + 5 {
            let text = number.to_string();
            let notice = Notice {
                warning: false,
                reason: "Test",
                about: About::Registry,
                text,
                order: None,
            };
            log.push(number, notice);
        }
        let all = log.after(0);
        assert_eq!((all.len(), all[0].number), (KEPT, 6));
        assert_eq!(log.after(KEPT as u64 + 4).len(), 1);
        assert_eq!(*log.newest().borrow(), KEPT as u64 + 5);
    }
}
