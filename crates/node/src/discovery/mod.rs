//! Which devices the machine has, kept true by events: every change is found once, and noise costs next to nothing.
//!
//! ```text
//!  news ──push──▶ queue ──take──▶ a look from outside ──if it differs──▶ a child reads the device
//!   kernel, udev,   one entry       sysfs, mounts        │                    │
//!   mounts, closes, a device                             ▼                    ▼
//!   poll                                            inventory ──if it differs──▶ Found, for the agent's loop
//! ```
//!
//! Runs as a task of its own, so that a storm of events delays no order. What the agent knows and wants comes in as a
//! [`Context`], what was found goes out as [`Found`]; both are states, not messages, so that none can be missed.

mod inventory;
mod labels;
mod metrics;
#[cfg(test)]
mod mount_tests;
mod news;
mod read;
mod seen;

use std::time::Duration;

use hotbay_core::discovery::queue::{DeviceKey, Queue, Run, Work};
use hotbay_core::discovery::triage::Change;
use hotbay_core::discovery::{Needs, Probes};
use hotbay_core::pace::Monotonic;
use hotbay_host::scan::{self, Candidate, MountedNow, ScanError, Selection};
use hotbay_host::worker::Workers;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

pub(crate) use inventory::{Context, Found};
use inventory::{Inventory, Listed, Outcome};
pub(crate) use labels::{Handled, after_look};
pub(crate) use metrics::Metrics;
use news::News;
use read::ReadEnd;

/// How often devices that could not be read are read again.
const FAILED_AGAIN: Duration = Duration::from_secs(5 * 60);

/// One thing to look for: a path or pattern, and the bay that what it finds is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub bay: Option<String>,
    pub pattern: String,
}

impl std::str::FromStr for Place {
    type Err = std::convert::Infallible;

    /// `PATTERN`, or `BAY=PATTERN` where the pattern is a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |bay: &str| {
            (1..=32).contains(&bay.len())
                && bay.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        Ok(match text.split_once('=') {
            Some((bay, pattern)) if plain(bay) => {
                Self { bay: Some(bay.to_owned()), pattern: pattern.to_owned() }
            }
            Some(_) | None => Self { bay: None, pattern: text.to_owned() },
        })
    }
}

/// A device, and the bay that was named for it.
type Located = (Option<String>, Candidate);

/// Where a listing looks, with the bay of what it finds there.
pub(crate) type Selections = Vec<(Option<String>, Selection)>;

/// The task that finds devices.
#[derive(Debug)]
pub(crate) struct Discovery {
    workers: Workers,
    selections: Selections,
    news: News,
    queue: Queue,
    inventory: Inventory,
    context: watch::Receiver<Context>,
    found: watch::Sender<Found>,
    jobs: JoinSet<Ended>,
    /// Reads whose time was over, with the number of the look that each is to end. Nothing waits for them.
    late: JoinSet<(u64, Box<ReadEnd>)>,
    clock: Clock,
    metrics: Metrics,
}

/// A job that was done beside the loop.
#[derive(Debug)]
enum Ended {
    /// With how many mount tables had been taken note of when it began.
    Listed(Result<Listed, ScanError>, u64),
    Mounts(Result<MountedNow, ScanError>),
    /// The same.
    Probed(Run, Result<Option<Box<Located>>, ScanError>, u64),
    Read(Box<ReadEnd>),
}

impl Discovery {
    /// Listens, then looks at the whole machine once. A device that does not answer is left behind after a while.
    pub(crate) async fn start(
        workers: Workers,
        places: &[Place],
        receive_buffer: Option<usize>,
        context: watch::Receiver<Context>,
        metrics: Metrics,
    ) -> (Self, watch::Receiver<Found>) {
        let (mut discovery, receiver) =
            Self::new(workers, places, receive_buffer, context, metrics);
        discovery.queue.lost(discovery.clock.now());
        discovery.take_context();
        discovery.work();
        while let Some(ended) = discovery.jobs.join_next().await {
            discovery.ended(ended);
            discovery.work();
        }
        discovery.publish();
        (discovery, receiver)
    }

    /// Listens, and has not looked yet: nothing falls between the two.
    fn new(
        workers: Workers,
        places: &[Place],
        receive_buffer: Option<usize>,
        context: watch::Receiver<Context>,
        metrics: Metrics,
    ) -> (Self, watch::Receiver<Found>) {
        let (found, receiver) = watch::channel(Found::default());
        let discovery = Self {
            workers,
            news: News::open(has_files(places), receive_buffer, metrics.clone()),
            selections: selections(places),
            queue: Queue::default(),
            inventory: Inventory::default(),
            context,
            found,
            jobs: JoinSet::new(),
            late: JoinSet::new(),
            clock: Clock { started: Instant::now() },
            metrics,
        };
        (discovery, receiver)
    }

    /// Keeps what is known true. Ends when nobody listens any more.
    pub(crate) async fn run(mut self) {
        let mut failed_again =
            tokio::time::interval_at(Instant::now() + FAILED_AGAIN, FAILED_AGAIN);
        failed_again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.work();
            self.publish();
            let due = self.queue.next().map(|at| self.clock.instant(at));
            let clock = self.clock;
            tokio::select! {
                Some(ended) = self.jobs.join_next() => self.ended(ended),
                Some(Ok((look, end))) = self.late.join_next() => {
                    self.inventory.read_late(look, *end);
                    self.metrics.count().quarantined = self.inventory.quarantined();
                }
                files = self.news.next(&mut self.queue, clock) => self.inventory.written(&files),
                () = sleep_until(due) => {}
                _ = failed_again.tick() => self.inventory.read_failed_again(),
                changed = self.context.changed() => match changed {
                    Ok(()) => self.take_context(),
                    Err(_) => return,
                },
            }
        }
    }

    /// Begins whatever is due.
    fn work(&mut self) {
        let tables = self.inventory.mount_tables();
        while let Some(work) = self.queue.take(self.clock.now()) {
            match work {
                Work::Rescan => {
                    self.metrics.count().resyncs += 1;
                    self.inventory.listing();
                    let selections = self.selections.clone();
                    self.jobs.spawn_blocking(move || Ended::Listed(list(&selections), tables));
                }
                Work::Mounts => {
                    self.jobs.spawn_blocking(|| Ended::Mounts(MountedNow::read()));
                }
                Work::Probe(run) => {
                    self.metrics.count().taken += 1;
                    self.metrics.probed(run, run.needs.now);
                    if self.inventory.probe_quickly(run) {
                        self.queue.finished(work.subject(), self.clock.now());
                        continue;
                    }
                    let selections = self.selections.clone();
                    self.jobs.spawn_blocking(move || {
                        Ended::Probed(run, probe(run, &selections), tables)
                    });
                }
            }
        }
        for due in self.inventory.due_to_be_read() {
            let left_alone = self.context.borrow().left_alone.clone();
            let read = read::read(self.workers.clone(), due, left_alone);
            self.jobs.spawn(async move { Ended::Read(Box::new(read.await)) });
        }
    }

    fn ended(&mut self, ended: Result<Ended, tokio::task::JoinError>) {
        let now = self.clock.now();
        match ended {
            Ok(Ended::Listed(result, tables)) => {
                self.queue.finished(Work::Rescan.subject(), now);
                self.doubt_mounts(tables);
                match result {
                    Ok(listed) => {
                        for run in self.inventory.listed(listed) {
                            self.queue.push(run, now);
                        }
                        self.news.known(&self.inventory);
                    }
                    // Unknown is not the same as empty: what was known before stays.
                    Err(error) => {
                        tracing::error!("the devices of this machine are unknown now: {error}");
                        self.news.look_again_later();
                    }
                }
            }
            Ok(Ended::Mounts(result)) => {
                self.queue.finished(Work::Mounts.subject(), now);
                match result {
                    Ok(mounts) => self.inventory.mounted(&mounts),
                    Err(error) => {
                        tracing::error!("the mounts of this machine are unknown now: {error}");
                        self.news.look_again_later();
                    }
                }
            }
            Ok(Ended::Probed(run, result, tables)) => {
                self.queue.finished(Work::Probe(run).subject(), now);
                self.doubt_mounts(tables);
                match result {
                    Ok(candidate) => self.probed(run, candidate.map(|candidate| *candidate)),
                    Err(error) => {
                        tracing::error!("{} is unknown now: {error}", run.device.number);
                        self.news.look_again_later();
                    }
                }
            }
            Ok(Ended::Read(end)) => {
                self.metrics.read(end.took);
                tracing::debug!(path = end.candidate.path, "read within {:?}", end.took);
                if end.candidate.is_still_there() {
                    if let Some((look, candidate, unfinished)) = self.inventory.read(*end) {
                        let (workers, context) = (self.workers.clone(), self.context.clone());
                        let late = read::read_late(workers, candidate, unfinished, context);
                        self.late.spawn(async move { (look, Box::new(late.await)) });
                    }
                } else if let Some(number) = self.inventory.read_in_vain(&end.candidate) {
                    // Its event is on its way, or was lost.
                    let device = DeviceKey { number, sequence: None };
                    let run = Run { device, change: Change::Changed, needs: Needs::ALL };
                    self.queue.push(run, now);
                }
                self.metrics.count().quarantined = self.inventory.quarantined();
            }
            // A job that panicked has said so; what it was to find is found by the next listing.
            Err(_) => self.news.look_again_later(),
        }
    }

    /// A job that has read the mount table for itself may have read it before the one that was taken note of meanwhile,
    /// and nothing would tell of that mount again.
    fn doubt_mounts(&mut self, tables_when_begun: u64) {
        if self.inventory.mount_tables() != tables_when_begun {
            self.queue.mounts_changed(self.clock.now());
        }
    }

    fn probed(&mut self, run: Run, candidate: Option<Located>) {
        let outcome = self.inventory.probed(run, candidate);
        tracing::debug!("looked at {}, which {:?}: {outcome:?}", run.device.number, run.change);
        match outcome {
            Outcome::Same => {}
            Outcome::ToBeRead => self.metrics.probed(run, Probes::INSIDE.without(run.needs.now)),
            Outcome::Other => self.news.known(&self.inventory),
            Outcome::OtherPaths => {
                self.news.known(&self.inventory);
                self.queue.lost(self.clock.now());
            }
            // A mapping, a RAID or a loop device: it matters to the drives that it stands on.
            Outcome::NoDrive => {
                let now = self.clock.now();
                for number in self.inventory.drives_under(run.device.number) {
                    let device = self.inventory.key(number);
                    let needs = Needs::only(Probes::HIERARCHY | Probes::MOUNTS);
                    self.queue.push(Run { device, change: Change::Changed, needs }, now);
                }
            }
        }
    }

    fn take_context(&mut self) {
        let context = self.context.borrow_and_update().clone();
        self.inventory.take_context(context);
    }

    fn publish(&mut self) {
        if let Some(found) = self.inventory.changed() {
            let (devices, hanging) = (found.devices.len(), &found.hanging);
            tracing::debug!(devices, ?hanging, "the machine is another now");
            self.found.send_replace(found);
        }
    }
}

/// Where to look for what is in these places; without any, for all drives of the machine.
pub(crate) fn selections(places: &[Place]) -> Selections {
    if places.is_empty() {
        return vec![(None, Selection::All)];
    }
    let one = |place: &Place| (place.bay.clone(), Selection::Patterns(vec![place.pattern.clone()]));
    places.iter().map(one).collect()
}

/// Whether a place may be a plain file, of which no event tells.
fn has_files(places: &[Place]) -> bool {
    places.iter().any(|place| !place.pattern.starts_with("/dev/"))
}

fn list(selections: &Selections) -> Result<Listed, ScanError> {
    let mut listed = Listed::new();
    let lists = scan::list_each(selections.iter().map(|(_, selection)| selection))?;
    for ((bay, _), candidates) in selections.iter().zip(lists) {
        for candidate in candidates {
            listed.entry(candidate.path.clone()).or_insert((bay.clone(), candidate));
        }
    }
    Ok(listed)
}

fn probe(run: Run, selections: &Selections) -> Result<Option<Box<Located>>, ScanError> {
    for (bay, selection) in selections {
        if let Some(candidate) = scan::one(run.device.number, selection)? {
            return Ok(Some(Box::new((bay.clone(), candidate))));
        }
    }
    Ok(None)
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The time of the queue.
#[derive(Debug, Clone, Copy)]
struct Clock {
    started: Instant,
}

impl Clock {
    fn now(self) -> Monotonic {
        Monotonic(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn instant(self, at: Monotonic) -> Instant {
        self.started + Duration::from_millis(at.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bay_is_named_before_a_path() {
        let place = |text: &str| text.parse::<Place>().unwrap();
        let of = |bay: Option<&str>, pattern: &str| Place {
            bay: bay.map(str::to_owned),
            pattern: pattern.to_owned(),
        };
        assert_eq!(place("0=/dev/loop3"), of(Some("0"), "/dev/loop3"));
        assert_eq!(place("/dev/nvme*n1"), of(None, "/dev/nvme*n1"));
        assert_eq!(place("/tmp/a=b"), of(None, "/tmp/a=b"));
        assert_eq!(place("=x"), of(None, "=x"));
    }
}
