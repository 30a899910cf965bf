//! A step that failed is tried again, after a pause that grows.

use std::time::Duration;

use hotbay_core::agent::Event;
use hotbay_core::ids::DriveId;
use hotbay_core::order::Goal;
use tokio::task::AbortHandle;

use super::Shell;
use crate::drives::StepEnd;

const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// The next try of a step that failed.
pub(super) struct Retries {
    /// How often it has failed in a row.
    pub(super) failed: u32,
    /// What was wanted of the drive then. Another wish is another step.
    pub(super) goal: Option<Goal>,
    /// The pause before the next try.
    pause: AbortHandle,
}

impl Shell {
    pub(super) fn retry_later(&mut self, drive: DriveId) {
        let before = self.retries.remove(&drive);
        let goal = self.agent.in_force(drive).map(|ordered| ordered.goal);
        let same = before.as_ref().filter(|before| before.goal == goal);
        let failed = same.map_or(0, |before| before.failed);
        if let Some(before) = before {
            // An order that is repeated is tried at once, while the pause of the last try still runs. Left alone, every
            // such pause would go on begetting the next, and the tries would come faster and faster.
            before.pause.abort();
        }
        let pause = FIRST_RETRY.saturating_mul(1 << failed.min(8)).min(LONGEST_RETRY);
        let ends = self.ends.clone();
        let pausing = tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            drop(ends.send(StepEnd::Event(Event::Retry(drive))).await);
        });
        let (failed, pause) = (failed.saturating_add(1), pausing.abort_handle());
        self.retries.insert(drive, Retries { failed, goal, pause });
    }
}
