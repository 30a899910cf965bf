//! How far a batch has come: which of its steps may begin, which wait for others, and which failed.
//!
//! The store asks it what to begin next. An answer costs the same however long the batch is. It outlives a commit that
//! failed, so that the next one of the same batch makes only what is not made yet.

use std::collections::VecDeque;

use super::order::Step;

/// Of one batch. Steps are named by their place in the list that it was made of.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// How many others each step still waits for.
    unmet: Vec<usize>,
    /// Those that wait for each step.
    behind: Vec<Vec<usize>>,
    /// What may begin, and was not tried before.
    fresh: VecDeque<usize>,
    /// What may begin, and failed in an earlier attempt. It comes after all others: one that is refused for good must
    /// not keep them from being tried.
    again: VecDeque<usize>,
    /// What failed in this attempt.
    failed: Vec<usize>,
}

impl Progress {
    pub(super) fn of(steps: &[Step<'_>]) -> Self {
        let mut behind = vec![Vec::new(); steps.len()];
        for (at, step) in steps.iter().enumerate() {
            step.after.iter().for_each(|before| behind[*before].push(at));
        }
        let unmet: Vec<_> = steps.iter().map(|step| step.after.len()).collect();
        let fresh = (0..steps.len()).filter(|at| unmet[*at] == 0).collect();
        Self { unmet, behind, fresh, ..Self::default() }
    }

    /// The step to begin next, if there is one that waits for nothing.
    pub(super) fn next(&mut self) -> Option<usize> {
        self.fresh.pop_front().or_else(|| self.again.pop_front())
    }

    /// It is durable. What waited for it alone goes before what is not begun at all: the fewer actions are half made,
    /// the less is left for the next controller to finish.
    pub(super) fn done(&mut self, at: usize) {
        for behind in std::mem::take(&mut self.behind[at]).into_iter().rev() {
            self.unmet[behind] -= 1;
            if self.unmet[behind] == 0 {
                self.fresh.push_front(behind);
            }
        }
    }

    /// It can be tried again in the next attempt. What waits for it waits on.
    pub(super) fn failed(&mut self, at: usize) {
        self.failed.push(at);
    }

    /// How many failed in this attempt.
    pub(super) fn failures(&self) -> usize {
        self.failed.len()
    }

    /// Begins the next attempt.
    pub(super) fn try_again(&mut self) {
        self.again.extend(self.failed.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use hotbay_registry::{Key, Kind, Write};

    use super::super::order::steps;
    use super::*;

    fn write(kind: Kind, id: u128) -> Write {
        Write::Put { key: Key { kind, id }, value: Vec::new() }
    }

    /// Two writes an action: a volume of its own, and the drive that it is given.
    fn placed(volumes: u128, drive: impl Fn(u128) -> u128) -> (Vec<Write>, Vec<usize>) {
        let pair = |id| [write(Kind::Volume, id), write(Kind::Drive, drive(id))];
        let writes: Vec<_> = (0..volumes).flat_map(pair).collect();
        let ends = (1..=writes.len() / 2).map(|action| 2 * action).collect();
        (writes, ends)
    }

    /// All that may begin while these steps fail, in the order of beginning.
    fn attempt(progress: &mut Progress, fails: impl Fn(usize) -> bool) -> Vec<usize> {
        progress.try_again();
        let mut begun = Vec::new();
        while let Some(at) = progress.next() {
            begun.push(at);
            if fails(at) { progress.failed(at) } else { progress.done(at) }
        }
        begun
    }

    #[test]
    fn what_failed_holds_up_what_waits_for_it_alone() {
        let (writes, ends) = placed(3, |id| id);
        let steps = steps(&writes, &ends);
        let mut progress = Progress::of(&steps);
        assert_eq!(attempt(&mut progress, |at| at == 0), [0, 2, 3, 4, 5]);
        assert_eq!(progress.failures(), 1);
        assert_eq!(attempt(&mut progress, |at| at == 0), [0], "the rest is made");
        assert_eq!(attempt(&mut progress, |_| false), [0, 1]);
        assert_eq!(attempt(&mut progress, |_| false), [0; 0]);
    }

    #[test]
    fn what_was_not_tried_yet_goes_before_what_failed() {
        let (writes, ends) = placed(3, |id| id);
        let steps = steps(&writes, &ends);
        let mut progress = Progress::of(&steps);
        let first = progress.next().unwrap();
        progress.failed(first);
        assert_eq!(attempt(&mut progress, |_| false), [2, 3, 4, 5, 0, 1]);
    }

    /// A batch as after the start of a large cluster. Where each step looks through all of them, this takes minutes.
    #[test]
    fn a_long_batch_costs_no_more_for_each_step_than_a_short_one() {
        const VOLUMES: u128 = 200_000;
        let (writes, ends) = placed(VOLUMES, |id| id % 10_000);
        let steps = steps(&writes, &ends);
        let mut progress = Progress::of(&steps);
        let begun = attempt(&mut progress, |_| false);
        assert_eq!(begun.len(), 210_000);
        let mut place = vec![0; begun.len()];
        begun.iter().enumerate().for_each(|(order, at)| place[*at] = order);
        for (at, step) in steps.iter().enumerate() {
            assert!(step.after.iter().all(|before| place[*before] < place[at]), "{at}");
        }
    }
}
