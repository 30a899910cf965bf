//! The rule of release: nothing leaves the registry before everything that it was computed from is durable.
//!
//! The actor puts every reply, order and read result through here, together with the number of the last batch of
//! writes that was decided before it. It is let out when the store has that batch.

use std::collections::VecDeque;

use crate::rules::{Rule, Rules};

/// Holds back what is not yet safe to say.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gate<T> {
    rules: Rules,
    /// The newest batch handed to the store.
    decided: u64,
    /// The newest batch that the store has.
    durable: u64,
    held: VecDeque<(u64, T)>,
}

impl<T> Gate<T> {
    /// A gate before the first batch.
    pub fn new(rules: Rules) -> Self {
        Self { rules, decided: 0, durable: 0, held: VecDeque::new() }
    }

    /// Counts a batch of writes as decided, and gives its number.
    pub fn decide(&mut self) -> u64 {
        self.decided = self.decided.checked_add(1).expect("fewer than 2^64 batches");
        self.decided
    }

    /// Holds `outcome` until all that is decided by now is durable; gives it back at once where nothing is missing.
    pub fn hold(&mut self, outcome: T) -> Option<T> {
        if self.durable == self.decided || !self.rules.hold(Rule::ReleaseDurable) {
            return Some(outcome);
        }
        self.held.push_back((self.decided, outcome));
        None
    }

    /// Lets out what waited for batches up to `batch`, in order.
    pub fn durable(&mut self, batch: u64) -> Vec<T> {
        assert!(batch <= self.decided, "batch {batch} was never decided");
        self.durable = self.durable.max(batch);
        let ready = self.held.iter().take_while(|(number, _)| *number <= self.durable).count();
        if self.durable == self.decided {
            // Nobody remembers a number any more: counting anew keeps equal states equal, for the model's sake.
            (self.durable, self.decided) = (0, 0);
        }
        self.held.drain(..ready).map(|(_, outcome)| outcome).collect()
    }

    /// How many wait.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_the_write_before_it() {
        let mut gate = Gate::new(Rules::default());
        assert_eq!(gate.hold("read of an empty store"), Some("read of an empty store"));
        let first = gate.decide();
        assert_eq!(gate.hold("reply 1"), None);
        let second = gate.decide();
        assert_eq!(gate.hold("reply 2"), None);
        assert_eq!(gate.hold("read after 2"), None);
        assert_eq!(gate.durable(first), ["reply 1"]);
        assert_eq!(gate.durable(second), ["reply 2", "read after 2"]);
        assert_eq!(gate.hold("read"), Some("read"));
    }
}
