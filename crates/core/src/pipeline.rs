//! Which writes may go to a store that keeps each record by itself, and which wait for others.
//!
//! The writes of one action go one after the other, and so do those to one record; all others may go at the same
//! time, those of later actions too. A record has one write under way, and its newest state waits behind it: of
//! several writes to one record that are not begun only the last is made, where that breaks no order. So a hundred
//! volumes placed on one drive cost one write of the drive, after the hundred volumes.
//!
//! ```text
//!   add ──▶ waits for others ──▶ may begin ──next──▶ begun ──done──▶ durable
//!                                    ▲                  │
//!                                    └──again── paused ◀┴failed
//! ```
//!
//! The registry's writer asks it what to begin, and the simulation does. An answer costs the same however much waits.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

/// Names a write that was given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(u64);

impl StepId {
    /// After all others.
    pub const LAST: Self = Self(u64::MAX);
}

/// All writes that are not durable. `K` names a record, `W` is what is to be written.
#[derive(Debug, Clone)]
pub struct Pipeline<K, W> {
    steps: BTreeMap<StepId, Step<K, W>>,
    /// The last step of each record.
    newest: BTreeMap<K, StepId>,
    /// What may begin, and was not tried before.
    fresh: VecDeque<StepId>,
    /// What may begin, and failed before. It comes after all others: one that is refused for good must not keep them
    /// from being tried.
    again: VecDeque<StepId>,
    made: u64,
}

#[derive(Debug, Clone)]
struct Step<K, W> {
    key: K,
    write: W,
    /// The decision that it is of.
    first: u64,
    /// The last one, where it stands for several.
    last: u64,
    /// What must be durable before it.
    after: BTreeSet<StepId>,
    /// What waits for it.
    behind: BTreeSet<StepId>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not tried yet, or to be tried again.
    Waits {
        tried: bool,
    },
    Begun,
    /// It failed, and nobody has said that it is to be tried again.
    Paused,
}

impl<K, W> Default for Pipeline<K, W> {
    fn default() -> Self {
        Self {
            steps: BTreeMap::new(),
            newest: BTreeMap::new(),
            fresh: VecDeque::new(),
            again: VecDeque::new(),
            made: 0,
        }
    }
}

impl<K: Ord + Clone, W> Pipeline<K, W> {
    /// Adds the writes of one action, in their order. `number` must not be lower than any before.
    pub fn add(&mut self, number: u64, writes: impl IntoIterator<Item = (K, W)>) {
        let mut before = None;
        for (key, write) in writes {
            before = Some(self.add_one(number, key, write, before));
        }
    }

    fn add_one(&mut self, number: u64, key: K, write: W, before: Option<StepId>) -> StepId {
        let same = self.newest.get(&key).copied();
        if let Some(same) = same.filter(|same| self.takes(*same, before)) {
            let step = self.steps.get_mut(&same).expect("the newest of a record is there");
            (step.write, step.last) = (write, number);
            if let Some(before) = before.filter(|before| *before != same) {
                self.wait(same, before);
            }
            return same;
        }
        self.made += 1;
        let id = StepId(self.made);
        let (after, behind) = (BTreeSet::new(), BTreeSet::new());
        let state = State::Waits { tried: false };
        let step =
            Step { key: key.clone(), write, first: number, last: number, after, behind, state };
        self.steps.insert(id, step);
        self.newest.insert(key, id);
        for other in before.into_iter().chain(same) {
            self.wait(id, other);
        }
        if self.steps[&id].after.is_empty() {
            self.fresh.push_back(id);
        }
        id
    }

    /// Whether a write may take the place of one that is not made yet, though it comes after `before`.
    fn takes(&self, same: StepId, before: Option<StepId>) -> bool {
        let step = &self.steps[&same];
        if step.state == State::Begun {
            return false;
        }
        match before {
            None => true,
            Some(before) if before == same => true,
            // What may begin must not be held up by what is decided later, which may never be durable.
            Some(_) if step.after.is_empty() => false,
            // In its place it would come before what it must wait for.
            Some(before) => !self.waits_for(before, same),
        }
    }

    /// Whether one must wait for the other, directly or not.
    fn waits_for(&self, one: StepId, other: StepId) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![one];
        while let Some(at) = open.pop() {
            for &before in &self.steps[&at].after {
                if before == other {
                    return true;
                }
                if seen.insert(before) {
                    open.push(before);
                }
            }
        }
        false
    }

    fn wait(&mut self, id: StepId, other: StepId) {
        self.step(id).after.insert(other);
        self.step(other).behind.insert(id);
    }

    fn step(&mut self, id: StepId) -> &mut Step<K, W> {
        self.steps.get_mut(&id).expect("a step is there until it is durable")
    }

    /// The write to begin next, if there is one that waits for nothing.
    #[expect(
        clippy::should_implement_trait,
        reason = "what it gives is borrowed, as no iterator's is"
    )]
    pub fn next(&mut self) -> Option<(StepId, &W)> {
        let id = self.fresh.pop_front().or_else(|| self.again.pop_front())?;
        let step = self.steps.get_mut(&id).expect("what may begin is not durable");
        step.state = State::Begun;
        Some((id, &step.write))
    }

    /// It is durable. Gives the record, and the last decision that is in it as a whole: one that writes a record twice
    /// is not, before its last write. What waited for it alone goes before what is not begun at all: the fewer actions
    /// are half made, the less is left for the next leader to finish.
    pub fn done(&mut self, id: StepId) -> (K, u64) {
        let step = self.steps.remove(&id).expect("a step is done once");
        let next = step.behind.iter().map(|id| &self.steps[id]).find(|next| next.key == step.key);
        let goes_on = next.is_some_and(|next| next.first == step.last);
        if self.newest.get(&step.key) == Some(&id) {
            self.newest.remove(&step.key);
        }
        for behind in step.behind.into_iter().rev() {
            let waiting = self.step(behind);
            waiting.after.remove(&id);
            if waiting.after.is_empty() {
                match waiting.state {
                    State::Waits { tried: false } => self.fresh.push_front(behind),
                    State::Waits { tried: true } => self.again.push_back(behind),
                    State::Begun | State::Paused => {}
                }
            }
        }
        (step.key, step.last - u64::from(goes_on))
    }

    /// It was not made, and nothing that waits for it begins. Gives the record.
    pub fn failed(&mut self, id: StepId) -> K {
        let step = self.step(id);
        step.state = State::Paused;
        step.key.clone()
    }

    /// The records whose writes wait for this one, directly or not.
    pub fn behind(&self, id: StepId) -> BTreeSet<K> {
        let (mut seen, mut open) = (BTreeSet::from([id]), vec![id]);
        while let Some(step) = open.pop().and_then(|at| self.steps.get(&at)) {
            open.extend(step.behind.iter().filter(|next| seen.insert(**next)));
        }
        let keys = seen.iter().filter_map(|id| Some(self.steps.get(id)?.key.clone()));
        let own = self.steps.get(&id).map(|step| step.key.clone());
        keys.filter(|key| Some(key) != own.as_ref()).collect()
    }

    /// What failed is to be tried again.
    pub fn again(&mut self, id: StepId) {
        let step = self.step(id);
        step.state = State::Waits { tried: true };
        // What came after it may have taken its place, and waits for others.
        if step.after.is_empty() {
            self.again.push_back(id);
        }
    }
}

#[cfg(test)]
mod tests;
