//! What the registry has done since it started, in numbers: plain atomics that the actor, its writer and its callers
//! add to, and that whoever shows them reads. Knows no format of any monitoring system.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hotbay_core::cluster::{Refused, RegistrationRefused};
use hotbay_core::cms::{Action, Code};
use hotbay_core::message::AnswerResult;
use hotbay_core::order::Goal;

use crate::actor::{CallError, ToAgent};

const ACTIONS: [&str; 11] = [
    "ADD_DEVICE",
    "ADD_HOST",
    "CORDON_HOST",
    "FORGET_HOST",
    "GET_DEPENDENT_VOLUMES",
    "LABEL_HOST",
    "PURGE_HOST",
    "REMOVE_DEVICE",
    "REMOVE_HOST",
    "TAKE_OVER_DEVICE",
    "UNCORDON_HOST",
];
const CODES: [Code; 6] =
    [Code::Ok, Code::Already, Code::TryAgain, Code::InvalidState, Code::NotFound, Code::Argument];
const ANSWERS: [&str; 4] = ["done", "waiting", "refused", "not_counted"];
const REFUSALS: [&str; 6] = [
    "RegistryRewound",
    "DuplicateNode",
    "ForeignCluster",
    "OldSession",
    "Unavailable",
    "CertificateRevoked",
];

/// Upper bounds of the times of a commit, in microseconds: from a fast drive to one that hardly answers.
const COMMIT_BOUNDS_US: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000, 1_000_000, 5_000_000];
/// Upper bounds of the number of writes in a batch.
const BATCH_BOUNDS: [u64; 10] = [1, 2, 4, 8, 16, 64, 256, 1_024, 4_096, 16_384];

/// The numbers of one registry; they start at zero with it.
#[derive(Debug)]
pub struct Stats {
    actions: [[AtomicU64; CODES.len()]; ACTIONS.len()],
    attach_orders: AtomicU64,
    detach_orders: AtomicU64,
    answers: [AtomicU64; ANSWERS.len()],
    sessions: AtomicU64,
    refusals: [AtomicU64; REFUSALS.len()],
    commits: Distribution,
    batches: Distribution,
    held: AtomicU64,
}

/// The numbers at one moment. Each is right by itself; they are not taken in one instant.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Actions that were answered: type, result, how many.
    pub actions: Vec<(&'static str, Code, u64)>,
    /// Orders handed to sessions, repeats included.
    pub orders: [(Goal, u64); 2],
    /// Answers of agents by what they say.
    pub answers: [(&'static str, u64); ANSWERS.len()],
    pub sessions: u64,
    /// Registrations that were refused, by reason.
    pub registrations_refused: [(&'static str, u64); REFUSALS.len()],
    pub commit_seconds: Histogram,
    pub batch_writes: Histogram,
    /// Replies, orders and reads that wait for what they rest on to be durable.
    pub held: u64,
}

/// How often values fell below each bound and above the one before it; the last bound is infinite.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    pub buckets: Vec<(f64, u64)>,
    pub sum: f64,
}

impl Histogram {
    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

impl Stats {
    pub(crate) fn new() -> Self {
        Self {
            actions: Default::default(),
            attach_orders: AtomicU64::new(0),
            detach_orders: AtomicU64::new(0),
            answers: Default::default(),
            sessions: AtomicU64::new(0),
            refusals: Default::default(),
            commits: Distribution::new(&COMMIT_BOUNDS_US, 1e6),
            batches: Distribution::new(&BATCH_BOUNDS, 1.0),
            held: AtomicU64::new(0),
        }
    }

    /// Reads all numbers.
    pub fn snapshot(&self) -> Snapshot {
        let row = |(kind, counts): (&&'static str, &[AtomicU64; CODES.len()])| {
            let kind = *kind;
            CODES
                .iter()
                .zip(counts)
                .map(|(code, count)| (kind, *code, count.load(Relaxed)))
                .collect()
        };
        Snapshot {
            actions: ACTIONS.iter().zip(&self.actions).flat_map::<Vec<_>, _>(row).collect(),
            orders: [
                (Goal::Attach, self.attach_orders.load(Relaxed)),
                (Goal::Detach, self.detach_orders.load(Relaxed)),
            ],
            answers: named(&ANSWERS, &self.answers),
            sessions: self.sessions.load(Relaxed),
            registrations_refused: named(&REFUSALS, &self.refusals),
            commit_seconds: self.commits.read(),
            batch_writes: self.batches.read(),
            held: self.held.load(Relaxed),
        }
    }

    /// An action was answered, and somebody heard it. `kind` is what [`action_kind`] said.
    pub(crate) fn action(&self, kind: usize, code: Code) {
        let code = CODES.iter().position(|known| *known == code).expect("every code is listed");
        add(&self.actions[kind][code], 1);
    }

    /// A message went to an agent's session.
    pub(crate) fn told(&self, message: &ToAgent) {
        match message {
            ToAgent::Registered(registered) => {
                add(&self.attach_orders, registered.allowed.len());
                add(&self.detach_orders, registered.unknown.len());
            }
            ToAgent::Order(order) => match order.ordered.goal {
                Goal::Attach => add(&self.attach_orders, 1),
                Goal::Detach => add(&self.detach_orders, 1),
            },
            ToAgent::Volume(_) | ToAgent::ReportTaken { .. } => {}
        }
    }

    /// An agent answered an order, and the registry counted the answer or did not.
    pub(crate) fn answer(&self, kind: usize, taken: &Result<(), CallError>) {
        let not_counted = ANSWERS.len() - 1;
        let counts = matches!(taken, Ok(()) | Err(CallError::NotDurable { .. }));
        add(&self.answers[if counts { kind } else { not_counted }], 1);
    }

    pub(crate) fn session(&self) {
        add(&self.sessions, 1);
    }

    pub(crate) fn registration_refused(&self, error: &CallError) {
        let reason = match error {
            CallError::Refused(Refused::Registration(refused)) => match refused {
                RegistrationRefused::RegistryRewound { .. } => 0,
                RegistrationRefused::DuplicateNode { .. } => 1,
                RegistrationRefused::ForeignCluster { .. } => 2,
            },
            CallError::Refused(Refused::CertificateRevoked { .. }) => 5,
            CallError::Refused(_) => 3,
            CallError::StoreFailing { .. } | CallError::NotDurable { .. } | CallError::Stopped => 4,
        };
        add(&self.refusals[reason], 1);
    }

    /// A batch of writes is durable; the last try took so long.
    pub(crate) fn committed(&self, writes: usize, took: Duration) {
        self.commits.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.batches.add(writes as u64);
    }

    pub(crate) fn holding(&self, held: usize) {
        self.held.store(held as u64, Relaxed);
    }
}

/// Which row of the actions this one belongs to.
pub(crate) fn action_kind(action: &Action) -> usize {
    let name = match action {
        Action::AddDevice(_) | Action::AddPlanned { .. } | Action::AddWiped { .. } => "ADD_DEVICE",
        Action::AddHost { .. } => "ADD_HOST",
        Action::ForgetHost { .. } => "FORGET_HOST",
        Action::GetDependentVolumes(_) => "GET_DEPENDENT_VOLUMES",
        Action::LabelHost { .. } => "LABEL_HOST",
        Action::CordonHost { cordoned: true, .. } => "CORDON_HOST",
        Action::CordonHost { cordoned: false, .. } => "UNCORDON_HOST",
        Action::PurgeHost { .. } => "PURGE_HOST",
        Action::RemoveDevice(_) => "REMOVE_DEVICE",
        Action::RemoveHost { .. } => "REMOVE_HOST",
        Action::TakeOver(_) => "TAKE_OVER_DEVICE",
    };
    ACTIONS.iter().position(|known| *known == name).expect("every action is listed")
}

/// Which of the answers this one is, if it counts.
pub(crate) fn answer_kind(result: &AnswerResult) -> usize {
    match result {
        AnswerResult::Done => 0,
        AnswerResult::Waiting(_) => 1,
        AnswerResult::Refused(_) => 2,
    }
}

fn add(count: &AtomicU64, number: usize) {
    count.fetch_add(number as u64, Relaxed);
}

fn named<const N: usize>(
    names: &[&'static str; N],
    counts: &[AtomicU64; N],
) -> [(&'static str, u64); N] {
    std::array::from_fn(|index| (names[index], counts[index].load(Relaxed)))
}

/// Counts values by size.
#[derive(Debug)]
struct Distribution {
    bounds: &'static [u64],
    /// One per bound, and one for what is above all of them.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
    /// How many units of the values are one unit of what is shown.
    divisor: f64,
}

impl Distribution {
    fn new(bounds: &'static [u64], divisor: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0), divisor }
    }

    fn add(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    fn read(&self) -> Histogram {
        let shown = |value: u64| value as f64 / self.divisor;
        let bounds = self.bounds.iter().map(|bound| shown(*bound)).chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Relaxed));
        Histogram { buckets: bounds.zip(counts).collect(), sum: shown(self.sum.load(Relaxed)) }
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::cms::Target;

    use super::*;

    #[test]
    fn a_value_falls_into_the_first_bucket_that_holds_it() {
        let stats = Stats::new();
        for (writes, took_us) in [(1, 100), (2, 101), (3, 1_000), (100_000, 60_000_000)] {
            stats.committed(writes, Duration::from_micros(took_us));
        }
        let Snapshot { commit_seconds, batch_writes, .. } = stats.snapshot();
        assert_eq!(commit_seconds.count(), 4);
        assert_eq!(
            commit_seconds.buckets[..4],
            [(0.0001, 1), (0.00025, 1), (0.0005, 0), (0.001, 1)]
        );
        assert_eq!(commit_seconds.buckets.last(), Some(&(f64::INFINITY, 1)));
        assert!((commit_seconds.sum - 60.001_201).abs() < 1e-9, "{}", commit_seconds.sum);
        assert_eq!(batch_writes.buckets[..3], [(1.0, 1), (2.0, 1), (4.0, 1)]);
        assert_eq!(batch_writes.buckets.last(), Some(&(f64::INFINITY, 1)));
    }

    #[test]
    fn an_action_counts_under_its_own_name_and_result() {
        let stats = Stats::new();
        let host = "node-a".to_owned();
        stats.action(action_kind(&Action::RemoveHost { host }), Code::TryAgain);
        let counted: Vec<_> =
            stats.snapshot().actions.into_iter().filter(|(_, _, count)| *count > 0).collect();
        assert_eq!(counted, [("REMOVE_HOST", Code::TryAgain, 1)]);
    }

    #[test]
    fn every_action_is_listed() {
        let (host, target) = (|| "node-a".to_owned(), Target { host: None, device: "d-1".into() });
        for (action, name) in [
            (Action::AddDevice(target.clone()), "ADD_DEVICE"),
            (Action::AddHost { host: host(), with_removed: false, returned: false }, "ADD_HOST"),
            (Action::ForgetHost { host: host() }, "FORGET_HOST"),
            (Action::GetDependentVolumes(target.clone()), "GET_DEPENDENT_VOLUMES"),
            (Action::CordonHost { host: host(), cordoned: true }, "CORDON_HOST"),
            (Action::CordonHost { host: host(), cordoned: false }, "UNCORDON_HOST"),
            (Action::PurgeHost { host: host() }, "PURGE_HOST"),
            (Action::RemoveDevice(target), "REMOVE_DEVICE"),
        ] {
            assert_eq!(ACTIONS[action_kind(&action)], name);
        }
    }
}
