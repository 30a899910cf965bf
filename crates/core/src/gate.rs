//! The rule of release: nothing leaves the registry before everything that it was computed from is durable.
//!
//! The actor puts every reply, order and read result through here, and says what it was computed from. There are two
//! kinds of stores, and a gate serves one of them:
//!
//! ```text
//! one commit after the other   decide() ─ hold ─ hold ─ durable(batch)       lets out what waited for batches so far
//! each record by itself        decide_records(keys) ─ hold_for(keys) ─ durable_record(key, number)
//!                                                                            lets out what waited for that alone
//! ```
//!
//! What waits for everything leaves when all that was decided before it is durable, in either kind.

use std::collections::{BTreeMap, BTreeSet};

use crate::rules::{Rule, Rules};

/// Holds back what is not yet safe to say. `K` names a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gate<T, K = ()> {
    rules: Rules,
    /// The newest number given to a decision.
    decided: u64,
    /// Decisions that are not durable, with how many of their records are missing.
    open: BTreeMap<u64, usize>,
    /// For each record, the decisions whose writes of it are not durable.
    records: BTreeMap<K, BTreeSet<u64>>,
    /// What waits, in the order in which it came.
    held: BTreeMap<u64, Held<T>>,
    /// Who waits for all decisions up to a number.
    for_all: BTreeMap<u64, Vec<u64>>,
    /// Who waits for a record as it was decided with a number.
    for_record: BTreeMap<(K, u64), Vec<u64>>,
    arrived: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held<T> {
    outcome: T,
    /// How many records it still waits for.
    unmet: usize,
}

impl<T, K: Ord + Clone> Gate<T, K> {
    /// A gate before the first decision.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            decided: 0,
            open: BTreeMap::new(),
            records: BTreeMap::new(),
            held: BTreeMap::new(),
            for_all: BTreeMap::new(),
            for_record: BTreeMap::new(),
            arrived: 0,
        }
    }

    /// Counts a batch of writes as decided, which becomes durable as a whole, and gives its number.
    pub fn decide(&mut self) -> u64 {
        let number = self.next_number();
        self.open.insert(number, 1);
        number
    }

    /// Counts writes of these records as decided, each of which becomes durable by itself, and gives their number.
    pub fn decide_records(&mut self, keys: impl IntoIterator<Item = K>) -> u64 {
        let number = self.next_number();
        let mut missing = 0;
        for key in keys {
            missing += usize::from(self.records.entry(key).or_default().insert(number));
        }
        if missing > 0 {
            self.open.insert(number, missing);
        }
        number
    }

    fn next_number(&mut self) -> u64 {
        self.decided = self.decided.checked_add(1).expect("fewer than 2^64 decisions");
        self.decided
    }

    /// Holds `outcome` until all that is decided by now is durable; gives it back at once where nothing is missing.
    pub fn hold(&mut self, outcome: T) -> Option<T> {
        if self.open.is_empty() || !self.rules.hold(Rule::ReleaseDurable) {
            return Some(outcome);
        }
        let ticket = self.admit(outcome, 1);
        self.for_all.entry(self.decided).or_default().push(ticket);
        None
    }

    /// Holds `outcome` until these records are durable as they are decided by now.
    pub fn hold_for<'a>(&mut self, keys: impl IntoIterator<Item = &'a K>, outcome: T) -> Option<T>
    where
        K: 'a,
    {
        let newest = |key: &K| Some((key.clone(), *self.records.get(key)?.last()?));
        let missing: BTreeSet<_> = keys.into_iter().filter_map(newest).collect();
        if missing.is_empty() || !self.rules.hold(Rule::ReleaseDurable) {
            return Some(outcome);
        }
        let ticket = self.admit(outcome, missing.len());
        for waits_for in missing {
            self.for_record.entry(waits_for).or_default().push(ticket);
        }
        None
    }

    fn admit(&mut self, outcome: T, unmet: usize) -> u64 {
        self.arrived += 1;
        self.held.insert(self.arrived, Held { outcome, unmet });
        self.arrived
    }

    /// Lets out what waited for batches up to `batch`, in order.
    pub fn durable(&mut self, batch: u64) -> Vec<T> {
        assert!(batch <= self.decided, "batch {batch} was never decided");
        self.open = self.open.split_off(&(batch + 1));
        self.let_out(Vec::new())
    }

    /// A record is durable as it was decided with `number`, or later. Lets out what waited for that, in order.
    pub fn durable_record(&mut self, key: &K, number: u64) -> Vec<T> {
        assert!(number <= self.decided, "{number} was never decided");
        let Some(numbers) = self.records.get_mut(key) else { return Vec::new() };
        let later = numbers.split_off(&(number + 1));
        let done = std::mem::replace(numbers, later);
        if numbers.is_empty() {
            self.records.remove(key);
        }
        let mut met = Vec::new();
        for number in done {
            met.extend(self.for_record.remove(&(key.clone(), number)).unwrap_or_default());
            let missing = self.open.get_mut(&number).expect("its record was not durable");
            *missing -= 1;
            if *missing == 0 {
                self.open.remove(&number);
            }
        }
        self.let_out(met)
    }

    /// What has met one more condition, and whoever waited for all decisions before those that are open.
    fn let_out(&mut self, mut met: Vec<u64>) -> Vec<T> {
        let still_open = match self.open.first_key_value() {
            Some((first, _)) => self.for_all.split_off(first),
            None => BTreeMap::new(),
        };
        met.extend(std::mem::replace(&mut self.for_all, still_open).into_values().flatten());
        met.sort_unstable();
        let mut free = Vec::new();
        for ticket in met {
            let held = self.held.get_mut(&ticket).expect("it waits once for each condition");
            held.unmet -= 1;
            if held.unmet == 0 {
                free.extend(self.held.remove(&ticket).map(|held| held.outcome));
            }
        }
        if self.open.is_empty() {
            // Nobody remembers a number any more: counting anew keeps equal states equal, for the model's sake.
            (self.decided, self.arrived) = (0, 0);
        }
        free
    }

    /// What waits for a record, among others, or for everything.
    pub fn waiting_for(&mut self, key: &K) -> impl Iterator<Item = &mut T> {
        let from = (key.clone(), 0)..=(key.clone(), u64::MAX);
        let for_it = self.for_record.range(from).flat_map(|(_, tickets)| tickets);
        let mut tickets: Vec<_> = for_it.chain(self.for_all.values().flatten()).copied().collect();
        tickets.sort_unstable();
        let held = self.held.iter_mut();
        held.filter(move |(ticket, _)| tickets.binary_search(ticket).is_ok())
            .map(|(_, held)| &mut held.outcome)
    }

    /// The records that are not durable as they are decided.
    pub fn open_records(&self) -> impl Iterator<Item = &K> {
        self.records.keys()
    }

    /// How many wait.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// How many decisions are not durable.
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_read_waits_for_the_write_before_it() {
        let mut gate: Gate<_> = Gate::new(Rules::default());
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

    #[test]
    fn a_record_that_is_not_durable_holds_up_its_own_alone() {
        let mut gate = Gate::new(Rules::default());
        let stuck = gate.decide_records(["a", "b"]);
        assert_eq!(gate.hold_for(&["a", "b"], "reply 1"), None);
        let other = gate.decide_records(["c"]);
        assert_eq!(gate.hold_for(&["c"], "reply 2"), None);
        assert_eq!(gate.hold("list"), None);
        assert_eq!(gate.hold_for(&["d"], "look at d"), Some("look at d"));
        assert_eq!(gate.durable_record(&"c", other), ["reply 2"]);
        assert_eq!(gate.durable_record(&"a", stuck), [""; 0]);
        assert_eq!(gate.waiting_for(&"b").collect::<Vec<_>>(), [&"reply 1", &"list"]);
        assert_eq!(gate.hold_for(&["a"], "look at a"), Some("look at a"));
        assert_eq!(gate.durable_record(&"b", stuck), ["reply 1", "list"]);
        assert_eq!((gate.held(), gate.open()), (0, 0));
    }

    #[test]
    fn a_later_state_of_a_record_stands_for_those_before_it() {
        let mut gate = Gate::new(Rules::default());
        gate.decide_records(["a"]);
        assert_eq!(gate.hold_for(&["a"], 1), None);
        let newest = gate.decide_records(["a"]);
        assert_eq!(gate.hold_for(&["a"], 2), None);
        assert_eq!(gate.durable_record(&"a", newest), [1, 2]);
    }

    #[test]
    fn what_was_decided_later_is_not_waited_for() {
        let mut gate = Gate::new(Rules::default());
        let first = gate.decide_records(["a"]);
        assert_eq!(gate.hold_for(&["a"], "reply 1"), None);
        assert_eq!(gate.hold("list"), None);
        gate.decide_records(["a"]);
        assert_eq!(gate.durable_record(&"a", first), ["reply 1", "list"]);
        assert_eq!(gate.open(), 1);
    }

    /// What the gate is asked, beside a list of all that was decided and is durable: the slow way to know.
    #[derive(Debug, Clone)]
    enum Step {
        Decide(BTreeSet<u8>),
        Hold(Option<BTreeSet<u8>>),
        Durable(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let keys = || proptest::collection::btree_set(0u8..4, 1..4);
        prop_oneof![
            keys().prop_map(Step::Decide),
            proptest::option::of(keys()).prop_map(Step::Hold),
            (0u8..4).prop_map(Step::Durable),
        ]
    }

    proptest! {
        #[test]
        fn nothing_leaves_early_and_nothing_stays(steps in proptest::collection::vec(step(), 1..60)) {
            let mut gate = Gate::new(Rules::default());
            // By key, which writes are not durable; and of all that is held, what it waits for.
            let mut open: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
            let mut held: BTreeMap<usize, BTreeSet<(u8, u64)>> = BTreeMap::new();
            let mut writes = 0;
            for (at, step) in steps.iter().enumerate() {
                let free = match step {
                    Step::Decide(keys) => {
                        gate.decide_records(keys.iter().copied());
                        writes += 1;
                        keys.iter().for_each(|key| open.entry(*key).or_default().push(writes));
                        continue;
                    }
                    Step::Hold(keys) => {
                        let meant = |key: &u8| keys.as_ref().is_none_or(|keys| keys.contains(key));
                        let waits = open.iter().filter(|(key, _)| meant(key));
                        let waits = waits.flat_map(|(key, all)| all.iter().map(|one| (*key, *one)));
                        held.insert(at, waits.collect());
                        match keys {
                            Some(keys) => gate.hold_for(keys, at).into_iter().collect(),
                            None => gate.hold(at).into_iter().collect(),
                        }
                    }
                    Step::Durable(key) => {
                        let Some(first) = open.get_mut(key).filter(|all| !all.is_empty()) else { continue };
                        let done = first.remove(0);
                        held.values_mut().for_each(|waits| { waits.remove(&(*key, done)); });
                        let number = *gate.records[key].first().unwrap();
                        gate.durable_record(key, number)
                    }
                };
                let ready: Vec<_> = held.extract_if(.., |_, waits| waits.is_empty()).map(|(at, _)| at).collect();
                prop_assert_eq!(free, ready);
            }
            prop_assert_eq!(gate.held(), held.len());
        }
    }
}
