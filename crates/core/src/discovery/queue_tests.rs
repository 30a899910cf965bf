//! The queue by example, and its promises over any order of events, looks and pauses.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    COOL_MS, DeviceKey, FIRST_PAUSE_MS, LONGEST_PAUSE_MS, MAX_DEVICES, MOST_RUNS_PER_SECOND, Queue,
    Run, Subject, Work,
};
use crate::device::DeviceNumber;
use crate::discovery::probes::{Needs, Probes};
use crate::discovery::triage::Change;
use crate::pace::Monotonic;

fn number(minor: u32) -> DeviceNumber {
    DeviceNumber { major: 7, minor }
}

fn run(minor: u32, sequence: u64, change: Change, probes: Probes) -> Run {
    let device = DeviceKey { number: number(minor), sequence: Some(sequence) };
    Run { device, change, needs: Needs::only(probes) }
}

fn changed(minor: u32, probes: Probes) -> Run {
    run(minor, 1, Change::Changed, probes)
}

fn at(ms: u64) -> Monotonic {
    Monotonic(ms)
}

#[test]
fn the_first_event_is_given_at_once_and_the_next_ones_together() {
    let mut queue = Queue::default();
    queue.push(changed(0, Probes::SIZE), at(100));
    assert_eq!(queue.take(at(100)), Some(Work::Probe(changed(0, Probes::SIZE))));
    queue.push(changed(0, Probes::READ_ONLY), at(100));
    queue.push(changed(0, Probes::SIZE), at(101));
    assert_eq!(queue.take(at(200)), None, "a look is under way");
    queue.finished(Subject::Device(number(0)), at(101));
    assert_eq!(queue.next(), Some(at(100 + FIRST_PAUSE_MS)));
    assert_eq!(queue.take(at(104)), None);
    let both = changed(0, Probes::SIZE | Probes::READ_ONLY);
    assert_eq!(queue.take(at(105)), Some(Work::Probe(both)));
    assert_eq!(queue.next(), None);
}

#[test]
fn a_number_that_is_given_again_is_two_devices_in_order() {
    let mut queue = Queue::default();
    queue.push(run(0, 13, Change::Changed, Probes::SIZE), at(0));
    queue.push(run(0, 13, Change::Went, Probes::NONE), at(0));
    queue.push(run(0, 14, Change::Came, Probes::ALL), at(0));
    queue.push(run(0, 15, Change::Changed, Probes::SIZE), at(0));
    queue.push(run(0, 14, Change::Changed, Probes::CONTENTS), at(0));
    let gone = run(0, 13, Change::Went, Probes::NONE);
    assert_eq!(queue.take(at(0)), Some(Work::Probe(gone)));
    queue.finished(Subject::Device(number(0)), at(0));
    let new = run(0, 15, Change::Changed, Probes::SIZE);
    assert_eq!(queue.take(at(FIRST_PAUSE_MS)), Some(Work::Probe(new)), "14 came and went unseen");
    queue.finished(Subject::Device(number(0)), at(FIRST_PAUSE_MS));
    assert_eq!(queue.next(), None);
}

#[test]
fn without_a_sequence_the_order_of_events_tells_two_devices_apart() {
    let plain = |change| Run {
        device: DeviceKey { number: number(3), sequence: None },
        change,
        needs: if change == Change::Went { Needs::NONE } else { Needs::ALL },
    };
    let mut queue = Queue::default();
    queue.push(plain(Change::Came), at(0));
    queue.push(plain(Change::Went), at(0));
    queue.push(plain(Change::Came), at(0));
    assert_eq!(queue.take(at(0)), Some(Work::Probe(plain(Change::Went))));
    queue.finished(Subject::Device(number(3)), at(0));
    assert_eq!(queue.take(at(5)), Some(Work::Probe(plain(Change::Came))));
}

#[test]
fn what_was_said_to_have_gone_and_changes_is_looked_at_whole() {
    let mut queue = Queue::default();
    queue.push(changed(0, Probes::LABEL), at(0));
    queue.push(run(0, 1, Change::Went, Probes::NONE), at(0));
    queue.push(changed(0, Probes::SIZE), at(0));
    assert_eq!(queue.take(at(0)), Some(Work::Probe(changed(0, Probes::ALL))));
}

#[test]
fn losses_ask_for_one_rescan_and_mounts_for_one_look() {
    let mut queue = Queue::default();
    for _ in 0..100 {
        queue.lost(at(0));
        queue.mounts_changed(at(0));
    }
    let work = [queue.take(at(0)), queue.take(at(0)), queue.take(at(0))];
    assert_eq!(work, [Some(Work::Rescan), Some(Work::Mounts), None]);
    queue.lost(at(1));
    queue.finished(Subject::Machine, at(1_500));
    queue.finished(Subject::Mounts, at(1_500));
    assert_eq!(queue.take(at(1_500)), Some(Work::Rescan), "one more for what was lost meanwhile");
    assert_eq!(queue.take(at(1_500)), None);
}

#[test]
fn a_device_that_is_quiet_again_is_forgotten_without_a_wake_up() {
    let mut queue = Queue::default();
    queue.push(changed(0, Probes::SIZE), at(0));
    queue.take(at(0));
    queue.finished(Subject::Device(number(0)), at(1));
    assert_eq!((queue.len(), queue.next()), (1, None));
    queue.push(changed(1, Probes::SIZE), at(COOL_MS));
    queue.take(at(COOL_MS));
    assert_eq!(queue.len(), 1);
}

#[test]
fn more_devices_than_can_be_kept_are_one_rescan() {
    let mut queue = Queue::default();
    for minor in 0..u32::try_from(MAX_DEVICES).unwrap() + 10 {
        queue.push(changed(minor, Probes::SIZE), at(0));
    }
    assert_eq!(queue.len(), MAX_DEVICES + 1);
    assert_eq!(queue.take(at(0)), Some(Work::Rescan));
}

#[test]
fn a_storm_of_100_000_events_on_10_devices_is_few_looks() {
    let mut queue = Queue::default();
    let mut looks = BTreeMap::<Subject, usize>::new();
    // Over one second, which is as fast as a kernel sends them.
    for event in 0..100_000_u32 {
        let now = at(u64::from(event) / 100);
        queue.push(changed(event % 10, Probes::SIZE), now);
        while let Some(work) = queue.take(now) {
            *looks.entry(work.subject()).or_default() += 1;
            queue.finished(work.subject(), now);
        }
        assert!(queue.len() <= 10);
    }
    assert_eq!(looks.len(), 10);
    assert!(looks.values().all(|n| *n <= MOST_RUNS_PER_SECOND), "{looks:?}");
    let at_last = at(1_000 + LONGEST_PAUSE_MS);
    assert_eq!(std::iter::from_fn(|| queue.take(at_last)).count(), 10, "the last events count");
}

/// What may happen to a queue.
#[derive(Debug, Clone)]
enum Step {
    Event {
        minor: u32,
        change: Change,
        probes: Probes,
    },
    /// The device goes, and the next event is of another under the same number.
    Replace {
        minor: u32,
    },
    Lost,
    Take,
    Finish,
    Pass {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let change = prop_oneof![4 => Just(Change::Changed), 1 => Just(Change::Came)];
    let probes = prop::sample::select(vec![
        Probes::SIZE,
        Probes::READ_ONLY,
        Probes::INSIDE,
        Probes::HIERARCHY,
        Probes::ALL,
    ]);
    prop_oneof![
        8 => (0..4_u32, change, probes)
            .prop_map(|(minor, change, probes)| Step::Event { minor, change, probes }),
        1 => (0..4_u32).prop_map(|minor| Step::Replace { minor }),
        1 => Just(Step::Lost),
        4 => Just(Step::Take),
        3 => Just(Step::Finish),
        4 => prop_oneof![0..8_u64, 0..300_u64, 900..1_200_u64].prop_map(|ms| Step::Pass { ms }),
    ]
}

/// What was pushed and not yet given, kept the slow and obvious way.
#[derive(Default)]
struct Ledger {
    owed: BTreeMap<DeviceKey, Probes>,
    owes_rescan: bool,
    newest: BTreeMap<u32, u64>,
    running: Vec<Subject>,
    given: BTreeMap<Subject, Vec<u64>>,
    last_given: BTreeMap<DeviceNumber, u64>,
}

impl Ledger {
    fn give(&mut self, work: Work, now: u64) -> Result<(), TestCaseError> {
        let subject = work.subject();
        prop_assert!(!self.running.contains(&subject), "{subject:?} is given twice");
        self.running.push(subject);
        let times = self.given.entry(subject).or_default();
        times.push(now);
        let in_last_second = times.iter().filter(|time| now - **time < 1_000).count();
        prop_assert!(in_last_second <= MOST_RUNS_PER_SECOND, "{subject:?} at {times:?}");
        match work {
            Work::Rescan => prop_assert!(std::mem::take(&mut self.owes_rescan)),
            Work::Mounts => prop_assert!(false, "no mount has changed"),
            Work::Probe(run) => {
                let sequence = run.device.sequence.unwrap();
                let last = self.last_given.insert(run.device.number, sequence);
                prop_assert!(last <= Some(sequence), "{run:?} after {last:?}");
                if run.change != Change::Went {
                    let owed = self.owed.remove(&run.device).unwrap_or_default();
                    prop_assert_eq!(run.needs.now, owed, "{:?}", run);
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_repeated_too_often_or_out_of_order(
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut queue = Queue::default();
        let mut ledger = Ledger::default();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Event { minor, change, probes } => {
                    let sequence = *ledger.newest.entry(minor).or_insert(1);
                    let run = run(minor, sequence, change, probes);
                    *ledger.owed.entry(run.device).or_default() |= probes;
                    queue.push(run, at(now));
                }
                Step::Replace { minor } => {
                    let sequence = ledger.newest.entry(minor).or_insert(1);
                    let gone = run(minor, *sequence, Change::Went, Probes::NONE);
                    *sequence += 1;
                    let new = run(minor, *sequence, Change::Came, Probes::ALL);
                    queue.push(gone, at(now));
                    queue.push(new, at(now));
                    ledger.owed.retain(|device, _| device.number != gone.device.number);
                    ledger.owed.insert(new.device, Probes::ALL);
                }
                Step::Lost => {
                    queue.lost(at(now));
                    ledger.owes_rescan = true;
                }
                Step::Take => {
                    if let Some(work) = queue.take(at(now)) {
                        ledger.give(work, now)?;
                    }
                }
                Step::Finish => {
                    if !ledger.running.is_empty() {
                        queue.finished(ledger.running.remove(0), at(now));
                    }
                }
                Step::Pass { ms } => now += ms,
            }
            prop_assert!(queue.len() <= 5, "four devices and the machine");
        }
        // Once the machine is quiet, all that is owed comes within the longest pause of each entry.
        for _ in 0..3 {
            for subject in std::mem::take(&mut ledger.running) {
                queue.finished(subject, at(now));
            }
            now += LONGEST_PAUSE_MS;
            while let Some(work) = queue.take(at(now)) {
                ledger.give(work, now)?;
            }
        }
        prop_assert!(ledger.owed.is_empty() && !ledger.owes_rescan, "{:?}", ledger.owed);
        prop_assert_eq!(queue.next(), None);
    }
}
