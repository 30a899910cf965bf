//! Which writes of a batch must wait for which others.
//!
//! The writes of one action go one after the other, and so do those to one record; all others may go at the same
//! time. Of several writes to one record only the last is made, where that breaks no order: a hundred volumes placed
//! on one drive cost one write of the drive, after the hundred volumes.

use std::collections::{HashMap, HashSet};

use hotbay_registry::{Key, Write};

/// One write to make.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step<'a> {
    pub(super) write: &'a Write,
    /// The steps, by their place in the list, that must be durable before it. They all stand before it.
    pub(super) after: Vec<usize>,
}

/// Puts the writes of several actions in order. `ends` says where those of each action end.
pub(super) fn steps<'a>(writes: &'a [Write], ends: &[usize]) -> Vec<Step<'a>> {
    let mut graph = Graph::default();
    let mut start = 0;
    for &end in ends {
        let mut before = None;
        for write in &writes[start..end] {
            before = Some(graph.add(write, before));
        }
        start = end;
    }
    graph.sorted()
}

#[derive(Default)]
struct Graph<'a> {
    nodes: Vec<Node<'a>>,
    /// The newest write to each record.
    newest: HashMap<Key, usize>,
}

struct Node<'a> {
    write: &'a Write,
    after: Vec<usize>,
}

impl<'a> Graph<'a> {
    /// Adds a write that comes after another one of its action, and says where it is.
    fn add(&mut self, write: &'a Write, before: Option<usize>) -> usize {
        let key = write.key();
        match self.newest.get(&key).copied() {
            // In its place it would come before what it must wait for.
            Some(same) if before.is_none_or(|before| !self.waits_for(before, same)) => {
                let node = &mut self.nodes[same];
                node.write = write;
                if let Some(before) = before.filter(|before| *before != same)
                    && !node.after.contains(&before)
                {
                    node.after.push(before);
                }
                same
            }
            same => {
                let at = self.nodes.len();
                self.nodes.push(Node { write, after: before.into_iter().chain(same).collect() });
                self.newest.insert(key, at);
                at
            }
        }
    }

    /// Whether one must wait for the other, directly or not. One does not wait for itself.
    fn waits_for(&self, one: usize, other: usize) -> bool {
        // Of those that it comes by alone: most wait for few, and a batch may be long.
        let mut seen = HashSet::new();
        let mut open = vec![one];
        while let Some(at) = open.pop() {
            for &before in &self.nodes[at].after {
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

    /// Every node after those that it waits for, in the order of the actions otherwise.
    fn sorted(self) -> Vec<Step<'a>> {
        let mut place = vec![None; self.nodes.len()];
        let mut steps: Vec<Step<'a>> = Vec::with_capacity(self.nodes.len());
        let mut open: Vec<usize> = (0..self.nodes.len()).rev().collect();
        while let Some(at) = open.pop() {
            if place[at].is_some() {
                continue;
            }
            let node = &self.nodes[at];
            let unplaced: Vec<_> =
                node.after.iter().copied().filter(|before| place[*before].is_none()).collect();
            if unplaced.is_empty() {
                place[at] = Some(steps.len());
                let after = node.after.iter().filter_map(|before| place[*before]).collect();
                steps.push(Step { write: node.write, after });
            } else {
                open.push(at);
                open.extend(unplaced);
            }
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use hotbay_registry::Kind;
    use proptest::prelude::*;

    use super::*;

    fn put(kind: Kind, id: u128, value: u8) -> Write {
        Write::Put { key: Key { kind, id }, value: vec![value] }
    }

    fn batch(actions: &[&[Write]]) -> (Vec<Write>, Vec<usize>) {
        let ends = actions.iter().scan(0, |end, action| {
            *end += action.len();
            Some(*end)
        });
        (actions.concat(), ends.collect())
    }

    #[test]
    fn actions_that_have_nothing_in_common_do_not_wait() {
        let volume = |id| put(Kind::Volume, id, 0);
        let drive = |id| put(Kind::Drive, id, 0);
        let (writes, ends) = batch(&[&[volume(1), drive(1)], &[volume(2), drive(2)]]);
        let steps = steps(&writes, &ends);
        let after: Vec<_> = steps.iter().map(|step| step.after.clone()).collect();
        assert_eq!(after, [vec![], vec![0], vec![], vec![2]]);
    }

    #[test]
    fn a_drive_with_many_new_volumes_is_written_once_after_them() {
        let actions: Vec<Vec<Write>> =
            (0..100).map(|id| vec![put(Kind::Volume, id, 0), put(Kind::Drive, 1, 7)]).collect();
        let actions: Vec<&[Write]> = actions.iter().map(Vec::as_slice).collect();
        let (writes, ends) = batch(&actions);
        let steps = steps(&writes, &ends);
        assert_eq!(steps.len(), 101);
        assert_eq!(steps[100].write.key().kind, Kind::Drive);
        assert_eq!(steps[100].after.len(), 100);
    }

    /// The second action writes the volume after the drive, the first before: neither is left out.
    #[test]
    fn writes_are_not_taken_together_across_one_that_lies_between() {
        let (volume, drive) = (put(Kind::Volume, 1, 0), put(Kind::Drive, 1, 0));
        let later = put(Kind::Volume, 1, 1);
        let (writes, ends) = batch(&[&[volume.clone(), drive.clone()], &[drive, later]]);
        let steps = steps(&writes, &ends);
        let kinds: Vec<_> = steps.iter().map(|step| step.write.key().kind).collect();
        assert_eq!(kinds, [Kind::Volume, Kind::Drive, Kind::Volume]);
        assert_eq!(steps[2].after, [1, 0]);
    }

    proptest! {
        /// The last write to each record is made; within an action nothing is made before what stood before it.
        #[test]
        fn every_order_that_was_asked_for_is_kept(
            actions in proptest::collection::vec(proptest::collection::vec(0u128..6, 1..4), 1..12)
        ) {
            let mut number = 0;
            let actions: Vec<Vec<Write>> = actions.iter().map(|keys| keys.iter().map(|id| {
                number += 1;
                put(Kind::Drive, *id, number)
            }).collect()).collect();
            let borrowed: Vec<&[Write]> = actions.iter().map(Vec::as_slice).collect();
            let (writes, ends) = batch(&borrowed);
            let steps = steps(&writes, &ends);
            let value = |write: &Write| match write {
                Write::Put { value, .. } => value[0],
                Write::Delete { .. } => unreachable!("none was made"),
            };
            for (at, step) in steps.iter().enumerate() {
                prop_assert!(step.after.iter().all(|before| *before < at));
            }
            // The step that brings a write, or a later one to the same record.
            let brings = |write: &Write| steps.iter().position(|step| {
                step.write.key() == write.key() && value(step.write) >= value(write)
            });
            for write in &writes {
                prop_assert!(brings(write).is_some());
            }
            for action in &actions {
                let at: Vec<_> = action.iter().map(brings).collect();
                prop_assert!(at.is_sorted(), "{at:?}");
            }
            // What waits for what: a chain through each action, and through each record.
            let mut reach = vec![vec![false; steps.len()]; steps.len()];
            for (at, step) in steps.iter().enumerate() {
                for &before in &step.after {
                    reach[at][before] = true;
                    let through = reach[before].clone();
                    reach[at].iter_mut().zip(through).for_each(|(own, theirs)| *own |= theirs);
                }
            }
            for action in &actions {
                for pair in action.windows(2) {
                    let (one, two) = (brings(&pair[0]), brings(&pair[1]));
                    if let (Some(one), Some(two)) = (one, two) && one != two {
                        prop_assert!(reach[two][one], "{one} and {two} may go at the same time");
                    }
                }
            }
            for (at, step) in steps.iter().enumerate() {
                for before in 0..at {
                    if steps[before].write.key() == step.write.key() {
                        prop_assert!(reach[at][before]);
                    }
                }
            }
        }
    }
}
