//! Everything that tells of devices, merged into the queue: the kernel's events and udev's, the mount table, closed
//! writers, and a poll for what none of these tells. A source that fails is done without, and the poll goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use hotbay_core::device::DeviceNumber;
use hotbay_core::discovery::event::Origin;
use hotbay_core::discovery::probes::{Needs, Probes};
use hotbay_core::discovery::queue::{DeviceKey, Queue, Run};
use hotbay_core::discovery::sequence::{Check, Conclusion, Sequence};
use hotbay_core::discovery::triage::{Change, Target};
use hotbay_core::discovery::{Event, Verdict, triage};
use hotbay_core::pace::Monotonic;
use hotbay_host::KernelId;
use hotbay_host::uevent::{
    CloseWatch, CloseWatchError, Item, KernelCounter, MountWatch, MountWatchError, Poll, Source,
    SourceError, Sources, resolve,
};
use tokio::time::{Interval, MissedTickBehavior};

use super::Clock;
use super::inventory::Inventory;
use super::metrics::Metrics;

/// How often the files of sysfs are read for what no event tells.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// After so many sweeps the machine is listed, whatever the events said: a net below the net.
const SWEEPS_PER_LISTING: u32 = 300;
/// The same for plain files, of which nothing else tells.
const SWEEPS_PER_LISTING_OF_FILES: u32 = 5;

/// Names of devices that the kernel makes for itself or for programs: many, of little size, and never drives by
/// themselves.
const NOT_POLLED: [&str; 5] = ["loop", "ram", "zram", "nbd", "sr"];

#[derive(Debug)]
pub(super) struct News {
    source: Option<Source>,
    mounts: Option<MountWatch>,
    closes: Option<CloseWatch>,
    counter: Option<KernelCounter>,
    sequence: Sequence,
    poll: Poll,
    sweep: Interval,
    sweeps_to_listing: u32,
    sweeps_per_listing: u32,
    /// The names of the devices that are known, and which devices these are.
    known: BTreeSet<String>,
    keys: BTreeSet<DeviceKey>,
    /// The poll does not know them yet.
    stale: bool,
    found: Vec<Run>,
    metrics: Metrics,
}

impl News {
    /// Listens from now on. What cannot be listened to is told, and done without.
    pub(super) fn open(has_files: bool, receive_buffer: Option<usize>, metrics: Metrics) -> Self {
        let usual = Sources::default();
        let buffer_bytes = receive_buffer.unwrap_or(usual.buffer_bytes);
        let source = heard(Source::open(Sources { buffer_bytes, ..usual }), "events of devices");
        let counter = heard(KernelCounter::open(), "the kernel's count of events");
        let count = counter.as_ref().and_then(|counter| counter.read().ok()).unwrap_or(0);
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        // After a pause nothing is gained by several sweeps at once.
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let sweeps_per_listing =
            if has_files { SWEEPS_PER_LISTING_OF_FILES } else { SWEEPS_PER_LISTING };
        Self {
            source,
            mounts: heard(MountWatch::open(), "the mount table"),
            closes: heard(CloseWatch::open(), "writers of devices"),
            counter,
            sequence: Sequence::after(count),
            poll: Poll::new(),
            sweep,
            sweeps_to_listing: sweeps_per_listing,
            sweeps_per_listing,
            known: BTreeSet::new(),
            keys: BTreeSet::new(),
            stale: false,
            found: Vec::new(),
            metrics,
        }
    }

    /// Waits for news and pushes them into the queue. Gives the plain files that were written to, which the queue does
    /// not have. Dropping the future loses nothing.
    pub(super) async fn next(&mut self, queue: &mut Queue, clock: Clock) -> BTreeSet<KernelId> {
        let Self { source, mounts, closes, sequence, sweep, .. } = self;
        let mut pushed = 0;
        let mut files = BTreeSet::new();
        tokio::select! {
            received = receive(source, |item| pushed += take(item, sequence, queue, clock.now())) => {
                if let Err(error) = received {
                    tracing::error!("events of devices are not heard any more, polling: {error}");
                    *source = None;
                }
            }
            changed = changed(mounts) => match changed {
                Ok(()) => queue.mounts_changed(clock.now()),
                Err(error) => {
                    tracing::error!("mounts are not heard of any more, polling: {error}");
                    *mounts = None;
                }
            },
            closed = closed(closes) => match closed {
                Ok(written) => {
                    pushed = written.len();
                    for id in written {
                        match id {
                            KernelId::Block(number) => queue.push(written_to(number), clock.now()),
                            KernelId::File { .. } => {
                                files.insert(id);
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::error!("writers of devices are not heard any more: {error}");
                    *closes = None;
                }
            },
            _ = sweep.tick() => pushed = self.sweep(queue, clock.now()),
        }
        let mut counts = self.metrics.count();
        counts.pushed += pushed as u64;
        counts.events = self.source.as_ref().map_or(counts.events, Source::counters);
        files
    }

    /// The devices that are known are others now: watches for their writers from here on, and polls them from the next
    /// sweep on. With many devices that come one after the other, a poll for each would read all of them each time.
    pub(super) fn known(&mut self, inventory: &Inventory) {
        let name = |path: &str| path.strip_prefix("/dev/").map(|name| name.replace('/', "!"));
        self.known = inventory.candidates().filter_map(|candidate| name(&candidate.path)).collect();
        self.keys = inventory.keys().collect();
        self.stale = true;
        let Some(closes) = &mut self.closes else { return };
        let nodes = inventory.candidates().flat_map(|candidate| {
            let parts = candidate.partitions.iter().map(|part| format!("/dev/{}", part.name));
            parts.chain([candidate.path.clone()]).map(|path| (path, candidate.id))
        });
        let nodes: Vec<_> = nodes.collect();
        closes.only(nodes.iter().map(|(path, id)| (path.as_str(), *id)));
    }

    /// Something could not be found out: the machine is listed with the next sweep.
    pub(super) fn look_again_later(&mut self) {
        self.sweeps_to_listing = 0;
    }

    /// Looks for what no event told; gives the number of looks that this calls for.
    fn sweep(&mut self, queue: &mut Queue, now: Monotonic) -> usize {
        let mut pushed = 0;
        // The counter first: what is counted before is in the socket by now.
        let count = self.counter.as_ref().and_then(|counter| counter.read().ok());
        let Self { source, sequence, .. } = self;
        if let Some(Err(error)) = source
            .as_mut()
            .map(|source| source.drain(|item| pushed += take(item, sequence, queue, now)))
        {
            tracing::error!("events of devices are not heard any more, polling: {error}");
            self.source = None;
        }
        self.found.clear();
        if std::mem::take(&mut self.stale) {
            self.relist();
            // What the inventory has learned already is no news.
            let keys = &self.keys;
            self.found.retain(|run| run.change != Change::Came || !keys.contains(&run.device));
        }
        self.poll.sweep(&mut self.found);
        let check = count.map(|count| self.sequence.check(count));
        let deaf = self.source.is_none();
        if deaf || !matches!(check, Some(Check::Complete)) {
            let before = self.found.len();
            self.relist();
            let lost = self.sequence.polled(self.found.len() > before) == Conclusion::Lost;
            if lost && !deaf {
                tracing::warn!("an event of a device was lost; looking at the whole machine");
                queue.lost(now);
            }
        }
        pushed += self.found.len();
        for run in self.found.drain(..) {
            queue.push(run, now);
        }
        if self.mounts.is_none() {
            queue.mounts_changed(now);
        }
        self.sweeps_to_listing = self.sweeps_to_listing.saturating_sub(1);
        if self.sweeps_to_listing == 0 {
            self.sweeps_to_listing = self.sweeps_per_listing;
            queue.lost(now);
        }
        pushed
    }

    fn relist(&mut self) {
        let known = &self.known;
        let polled = |name: &str| !NOT_POLLED.iter().any(|prefix| name.starts_with(prefix));
        let wanted = |name: &str| polled(name) || known.contains(name);
        if let Err(error) = self.poll.relist(wanted, &mut self.found) {
            tracing::error!("the list of devices cannot be polled: {error}");
        }
    }
}

fn heard<T, E: std::error::Error>(opened: Result<T, E>, what: &str) -> Option<T> {
    opened
        .inspect_err(|error| {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            tracing::error!("{what}: not heard, done without: {error}{cause}");
        })
        .ok()
}

/// Takes one item of the sockets: what it calls for goes into the queue. Gives the number of looks.
fn take(item: Item<'_>, sequence: &mut Sequence, queue: &mut Queue, now: Monotonic) -> usize {
    let event: Event<'_> = match item {
        Item::Event(event) => event,
        Item::Lost(loss) => {
            tracing::warn!("{loss}; looking at the whole machine");
            queue.lost(now);
            return 0;
        }
    };
    if let (Origin::Kernel, Some(number)) = (event.origin, event.seqnum) {
        sequence.seen(number);
    }
    let Verdict::Look(look) = triage(&event) else { return 0 };
    let found = resolve(look.target, |device| {
        queue.push(Run { device, change: look.change, needs: look.needs }, now);
    });
    if found == 0 && matches!(look.target, Target::Below { .. }) {
        queue.lost(now);
    }
    found
}

async fn receive(
    source: &mut Option<Source>,
    each: impl FnMut(Item<'_>),
) -> Result<(), SourceError> {
    match source {
        Some(source) => source.receive(each).await,
        None => std::future::pending().await,
    }
}

async fn changed(mounts: &Option<MountWatch>) -> Result<(), MountWatchError> {
    match mounts {
        Some(mounts) => mounts.changed().await,
        None => std::future::pending().await,
    }
}

async fn closed(closes: &mut Option<CloseWatch>) -> Result<BTreeSet<KernelId>, CloseWatchError> {
    let Some(closes) = closes else { return std::future::pending().await };
    let mut written = BTreeSet::new();
    closes.receive(|id| written.extend([id])).await?;
    Ok(written)
}

/// What a closed writer calls for. Whatever device is there now: that it had the number then is not known.
fn written_to(number: DeviceNumber) -> Run {
    let device = DeviceKey { number, sequence: None };
    let needs = Needs::only(Probes::INSIDE | Probes::HIERARCHY);
    Run { device, change: Change::Changed, needs }
}
