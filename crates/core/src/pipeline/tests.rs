//! Stories of writes that go beside each other, and every order kept, beside the slow way to know.

use proptest::prelude::*;

use super::*;

type Played = Pipeline<&'static str, u32>;

/// Begins all that may begin.
fn begin(pipeline: &mut Played) -> Vec<(StepId, u32)> {
    std::iter::from_fn(|| pipeline.next().map(|(id, write)| (id, *write))).collect()
}

fn writes(begun: &[(StepId, u32)]) -> Vec<u32> {
    begun.iter().map(|(_, write)| *write).collect()
}

#[test]
fn writes_of_an_action_go_one_after_the_other_and_actions_beside_each_other() {
    let mut pipeline = Played::default();
    pipeline.add(1, [("volume 1", 10), ("drive 1", 11)]);
    pipeline.add(2, [("volume 2", 20), ("drive 2", 21)]);
    let begun = begin(&mut pipeline);
    assert_eq!(writes(&begun), [10, 20]);
    assert_eq!(pipeline.done(begun[1].0), ("volume 2", 2));
    assert_eq!(writes(&begin(&mut pipeline)), [21], "what is half made goes on first");
    pipeline.done(begun[0].0);
    assert_eq!(writes(&begin(&mut pipeline)), [11]);
}

#[test]
fn a_record_has_one_write_under_way_and_its_newest_state_waits() {
    let mut pipeline = Played::default();
    for number in 1..=4 {
        pipeline.add(number, [("drive", u32::try_from(number).unwrap())]);
        if number == 1 {
            assert_eq!(writes(&begin(&mut pipeline)), [1]);
        }
    }
    assert_eq!(begin(&mut pipeline), []);
    assert_eq!(pipeline.steps.len(), 2);
    pipeline.done(StepId(1));
    let begun = begin(&mut pipeline);
    assert_eq!(writes(&begun), [4], "two and three are in it");
    assert_eq!(pipeline.done(begun[0].0), ("drive", 4));
    assert!(pipeline.steps.is_empty());
}

#[test]
fn a_hundred_volumes_on_a_drive_cost_one_write_of_it() {
    let mut pipeline: Pipeline<u32, u32> = Pipeline::default();
    for volume in 1..=100 {
        pipeline.add(volume.into(), [(volume, 0), (1_000, volume)]);
    }
    assert_eq!(pipeline.steps.len(), 101);
    let begun: Vec<_> =
        std::iter::from_fn(|| pipeline.next().map(|(id, write)| (id, *write))).collect();
    assert_eq!(begun.len(), 100);
    for (id, _) in begun {
        assert!(pipeline.next().is_none());
        pipeline.done(id);
    }
    assert_eq!(pipeline.next().map(|(_, write)| *write), Some(100));
}

#[test]
fn what_fails_holds_up_what_waits_for_it_alone_and_is_tried_last() {
    let mut pipeline = Played::default();
    pipeline.add(1, [("volume 1", 10), ("drive 1", 11)]);
    let stuck = begin(&mut pipeline)[0].0;
    assert_eq!(pipeline.failed(stuck), "volume 1");
    pipeline.add(2, [("volume 2", 20), ("drive 2", 21)]);
    pipeline.again(stuck);
    let begun = begin(&mut pipeline);
    assert_eq!(writes(&begun), [20, 10]);
    pipeline.done(begun[0].0);
    assert_eq!(writes(&begin(&mut pipeline)), [21]);
    pipeline.failed(stuck);
    assert_eq!(begin(&mut pipeline), [], "nobody has said that it is to be tried again");
}

#[test]
fn what_waits_for_one_that_fails_is_known() {
    let mut pipeline = Played::default();
    pipeline.add(1, [("volume 1", 10), ("drive", 11)]);
    pipeline.add(2, [("volume 2", 20), ("drive", 21), ("node", 22)]);
    pipeline.add(3, [("volume 1", 30)]);
    let begun = begin(&mut pipeline);
    assert_eq!(pipeline.behind(begun[0].0), BTreeSet::from(["drive", "node"]));
    pipeline.failed(begun[0].0);
    assert_eq!(pipeline.behind(begun[0].0), BTreeSet::from(["drive", "node"]));
}

#[test]
fn what_failed_is_tried_again_as_it_was_decided_last() {
    let mut pipeline = Played::default();
    pipeline.add(1, [("drive", 1)]);
    let stuck = begin(&mut pipeline)[0].0;
    pipeline.failed(stuck);
    pipeline.add(2, [("drive", 2)]);
    pipeline.again(stuck);
    assert_eq!(begin(&mut pipeline), [(stuck, 2)]);
    assert_eq!(pipeline.done(stuck), ("drive", 2));
}

/// A drive's write may begin. Then a volume is placed on it whose object nobody lets us make: the drive's first write
/// must not wait for that.
#[test]
fn what_may_begin_is_not_held_up_by_what_is_decided_later() {
    let mut pipeline = Played::default();
    pipeline.add(1, [("drive", 1)]);
    pipeline.add(2, [("volume", 20), ("drive", 2)]);
    let begun = begin(&mut pipeline);
    assert_eq!(writes(&begun), [1, 20]);
    pipeline.failed(begun[1].0);
    assert_eq!(pipeline.done(begun[0].0), ("drive", 1));
    assert_eq!(begin(&mut pipeline), []);
}

/// A registration changed a drive, then its node, then the drive once more. With the first write of the drive the gate
/// was told that the drive is as decided: the answer left, the process ended, and the next one knew nothing of it.
#[test]
fn a_decision_that_writes_a_record_twice_is_durable_with_the_second() {
    let mut pipeline = Played::default();
    pipeline.add(7, [("drive", 1), ("node", 2), ("drive", 3)]);
    let begun = begin(&mut pipeline);
    // What is decided next goes in place of the second.
    pipeline.add(8, [("drive", 4)]);
    assert_eq!(pipeline.done(begun[0].0), ("drive", 6));
    let begun = begin(&mut pipeline);
    assert_eq!(pipeline.done(begun[0].0), ("node", 7));
    let begun = begin(&mut pipeline);
    assert_eq!(writes(&begun), [4]);
    assert_eq!(pipeline.done(begun[0].0), ("drive", 8));
}

/// As after the start of a large cluster. Where each step looks through all of them, this takes minutes.
#[test]
fn much_that_waits_costs_no_more_for_each_step() {
    const VOLUMES: u32 = 200_000;
    let mut pipeline: Pipeline<u32, u32> = Pipeline::default();
    for volume in 0..VOLUMES {
        pipeline.add(volume.into(), [(volume, 0), (VOLUMES + volume % 10_000, 0)]);
    }
    let mut made = 0;
    while let Some((id, _)) = pipeline.next() {
        pipeline.done(id);
        made += 1;
    }
    assert!(pipeline.steps.is_empty());
    assert_eq!(made, 210_000);
}

#[derive(Debug, Clone)]
enum Move {
    Add(Vec<u8>),
    Begin,
    /// Of those under way, one ends.
    Done(usize),
    Failed(usize),
    Again,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        3 => proptest::collection::vec(0u8..6, 1..4).prop_map(Move::Add),
        3 => Just(Move::Begin),
        3 => any::<usize>().prop_map(Move::Done),
        1 => any::<usize>().prop_map(Move::Failed),
        1 => Just(Move::Again),
    ];
    proptest::collection::vec(one, 1..80)
}

/// All that was asked for, and what of it is durable: by record, the last write made.
#[derive(Default)]
struct Ledger {
    /// The writes of each action, as they were asked for. Its number is its place, from 1.
    actions: Vec<Vec<(u8, u32)>>,
    durable: BTreeMap<u8, u32>,
}

impl Ledger {
    fn has(&self, (key, write): (u8, u32)) -> bool {
        self.durable.get(&key).is_some_and(|last| *last >= write)
    }

    /// Up to which action all writes of a record are there.
    fn whole(&self, key: u8) -> usize {
        let there = |action: &Vec<(u8, u32)>| {
            action.iter().filter(|(other, _)| *other == key).all(|write| self.has(*write))
        };
        self.actions.iter().take_while(|action| there(action)).count()
    }

    /// How many actions have this record in them, up to a number.
    fn with(&self, key: u8, number: usize) -> usize {
        let first = self.actions.iter().take(number);
        first.filter(|action| action.iter().any(|(other, _)| *other == key)).count()
    }

    /// Every action is there up to a point: no write without those before it.
    fn is_in_order(&self) -> bool {
        let has = |write: &(u8, u32)| self.has(*write);
        self.actions.iter().all(|action| action.is_sorted_by_key(|write| !has(write)))
    }
}

proptest! {
    #[test]
    fn every_order_that_was_asked_for_is_kept(moves in moves()) {
        let mut pipeline: Pipeline<u8, u32> = Pipeline::default();
        let mut ledger = Ledger::default();
        let (mut begun, mut paused): (Vec<(StepId, u8, u32)>, Vec<StepId>) = Default::default();
        let mut count = 0;
        // In the end everything is done.
        let end = (0..1_000).flat_map(|_| [Move::Again, Move::Begin, Move::Done(0)]);
        for step in moves.into_iter().chain(end) {
            match step {
                Move::Add(keys) => {
                    let numbered = |key| { count += 1; (key, count) };
                    let action: Vec<_> = keys.into_iter().map(numbered).collect();
                    ledger.actions.push(action.clone());
                    pipeline.add(ledger.actions.len().try_into().unwrap(), action);
                }
                Move::Begin => {
                    let Some((id, write)) = pipeline.next() else { continue };
                    let write = *write;
                    let key = pipeline.steps[&id].key;
                    prop_assert!(begun.iter().all(|(_, other, _)| *other != key), "two writes of {key}");
                    begun.push((id, key, write));
                }
                Move::Done(pick) if !begun.is_empty() => {
                    let (id, key, write) = begun.remove(pick % begun.len());
                    let (done, number) = pipeline.done(id);
                    prop_assert_eq!(done, key);
                    prop_assert!(ledger.durable.insert(key, write).is_none_or(|last| last < write));
                    prop_assert!(ledger.is_in_order());
                    let number = usize::try_from(number).unwrap();
                    let whole = ledger.whole(key);
                    prop_assert_eq!(ledger.with(key, number), ledger.with(key, whole));
                }
                Move::Failed(pick) if !begun.is_empty() => {
                    let (id, ..) = begun.remove(pick % begun.len());
                    pipeline.failed(id);
                    paused.push(id);
                }
                Move::Again => paused.drain(..).for_each(|id| pipeline.again(id)),
                Move::Done(_) | Move::Failed(_) => {}
            }
        }
        prop_assert!(pipeline.steps.is_empty());
        prop_assert!(ledger.actions.iter().flatten().all(|write| ledger.has(*write)));
    }
}
