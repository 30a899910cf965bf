//! When the next batch may go: callers that were just answered get a moment to come back, so that they share its
//! commit. The actor asks here before it hands a batch to the writer, whose thread keeps the time.
//!
//! ```text
//! without   writer  |half A|half B|half A|half B|      while one half is written the other one queues, and starts at
//!                                                      once: no commit ever has more than half of the callers
//! with      writer  |  all  |..|  all  |..|  all  |    ..: until as many wait as were seen lately, but no longer
//!                                                      than a part of the last commit
//! ```

use std::time::Duration;

/// The wait is at most this part of the time that the last commit took ...
const PART_OF_A_COMMIT: u32 = 4;

/// ... and at most this: on a slow disk too, callers that come back do it quickly.
const LONGEST: Duration = Duration::from_millis(5);

/// How long the next batch may wait after a commit that took so long.
pub(super) fn patience(commit: Duration) -> Duration {
    (commit / PART_OF_A_COMMIT).min(LONGEST)
}

/// How many callers the next batch waits for.
#[derive(Debug, Default)]
pub(super) struct Gather {
    expected: usize,
}

impl Gather {
    /// A batch is durable and its callers are answered; `waiting` others are in the next one. All of them may be in
    /// it. One who is alone expects nobody but itself, and so never waits.
    pub(super) fn answered(&mut self, callers: usize, waiting: usize) {
        self.expected = callers + waiting;
    }

    /// Who has not come back by now is not waited for.
    pub(super) fn over(&mut self) {
        self.expected = 0;
    }

    /// Whether a batch with so many callers goes now.
    pub(super) fn complete(&self, callers: usize) -> bool {
        callers >= self.expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_a_part_of_a_commit_and_bounded() {
        assert_eq!(patience(Duration::ZERO), Duration::ZERO);
        assert_eq!(patience(Duration::from_micros(400)), Duration::from_micros(100));
        assert_eq!(patience(Duration::from_secs(10)), LONGEST);
    }
}
