//! The thread that talks to a shared store: each record is written by itself, up to [`IN_FLIGHT`] at a time, in the
//! order that [`Pipeline`] keeps. One that fails is tried again, for as long as it takes, and holds up only what must
//! come after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc as blocking;
use std::time::{Duration, Instant};

use hotbay_core::pipeline::{Pipeline, StepId};
use tokio::sync::mpsc;

use super::writer::{Batch, FIRST_PAUSE, LONGEST_PAUSE, ToWriter, Written};
use crate::stats::Stats;
use crate::store::error::StoreError;
use crate::store::{Key, Store, Write};

/// Records that are written at the same time.
const IN_FLIGHT: usize = 32;

/// The same after so many failures without a success between them: a server that refuses everything is not asked for
/// everything.
const IN_FLIGHT_FAILING: usize = 2;
const FAILURES_IN_A_ROW: usize = 32;

/// Runs until it is told to stop and what was begun has ended, or until something is lost.
pub(super) fn write_all<S: Store>(
    store: S,
    own: blocking::Sender<ToWriter>,
    inbox: &blocking::Receiver<ToWriter>,
    results: &mpsc::UnboundedSender<Written>,
    checkpoint: fn(&'static str),
    stats: &Stats,
) {
    let mut writer = Records {
        store,
        own,
        results,
        checkpoint,
        stats,
        pipeline: Pipeline::default(),
        begun: BTreeMap::new(),
        pauses: BTreeMap::new(),
        due: BTreeSet::new(),
        failures: 0,
        stopping: false,
    };
    while !writer.is_over() {
        writer.try_again();
        writer.begin();
        let Some(heard) = writer.wait(inbox) else { continue };
        if writer.hear(heard).is_none() {
            return;
        }
    }
}

struct Records<'a, S> {
    store: S,
    own: blocking::Sender<ToWriter>,
    results: &'a mpsc::UnboundedSender<Written>,
    checkpoint: fn(&'static str),
    stats: &'a Stats,
    pipeline: Pipeline<Key, Write>,
    /// What is under way, and since when.
    begun: BTreeMap<StepId, Instant>,
    /// The next pause of what has failed.
    pauses: BTreeMap<StepId, Duration>,
    /// When what has failed is tried again.
    due: BTreeSet<(Instant, StepId)>,
    /// Without a success between them.
    failures: usize,
    stopping: bool,
}

/// None: something is lost, or whoever hears the results is gone.
type GoesOn = Option<()>;

impl<S: Store> Records<'_, S> {
    fn is_over(&self) -> bool {
        self.stopping && self.begun.is_empty()
    }

    /// What has failed and is due. Before anything is heard: a storm of news must not put it off.
    fn try_again(&mut self) {
        let later = self.due.split_off(&(Instant::now(), StepId::LAST));
        for (_, step) in std::mem::replace(&mut self.due, later) {
            self.pipeline.again(step);
        }
    }

    fn begin(&mut self) {
        let most = if self.failures < FAILURES_IN_A_ROW { IN_FLIGHT } else { IN_FLIGHT_FAILING };
        while !self.stopping
            && self.begun.len() < most
            && let Some((step, write)) = self.pipeline.next()
        {
            self.begun.insert(step, Instant::now());
            let own = self.own.clone();
            // Nobody may be left to hear it when the process ends.
            let ended =
                move |result| own.send(ToWriter::Ended { step, result }).unwrap_or_default();
            self.store.begin(write.clone(), Box::new(ended));
        }
    }

    /// What is heard next; none if it is time to try something again.
    fn wait(&self, inbox: &blocking::Receiver<ToWriter>) -> Option<ToWriter> {
        let Some((at, _)) = self.due.first().filter(|_| !self.stopping) else {
            return Some(inbox.recv().expect("a sender is kept here"));
        };
        inbox.recv_timeout(at.saturating_duration_since(Instant::now())).ok()
    }

    fn hear(&mut self, heard: ToWriter) -> GoesOn {
        match heard {
            ToWriter::Batch(Batch { number, writes, .. }) => {
                (self.checkpoint)("registry-batch-decided");
                self.pipeline.add(number, writes.into_iter().map(|write| (write.key(), write)));
                Some(())
            }
            ToWriter::Stop => {
                self.stopping = true;
                Some(())
            }
            ToWriter::Ended { step, result } => {
                let took = self.begun.remove(&step).map(|since| since.elapsed());
                match result {
                    Ok(()) => self.done(step, took.unwrap_or_default()),
                    Err(error) if error.retryable() => self.failed(step, &error),
                    Err(error) => {
                        self.results.send(Written::Lost(error)).ok()?;
                        None
                    }
                }
            }
        }
    }

    fn done(&mut self, step: StepId, took: Duration) -> GoesOn {
        self.stats.committed(1, took);
        (self.failures, _) = (0, self.pauses.remove(&step));
        let (key, number) = self.pipeline.done(step);
        (self.checkpoint)("registry-batch-durable");
        self.results.send(Written::Record { key, number }).ok()
    }

    fn failed(&mut self, step: StepId, error: &StoreError) -> GoesOn {
        self.failures += 1;
        let pause = self.pauses.entry(step).or_insert(FIRST_PAUSE);
        self.due.insert((Instant::now() + *pause, step));
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        let (key, behind) = (self.pipeline.failed(step), self.pipeline.behind(step));
        self.results.send(Written::RecordFailing { key, behind, error: error.to_string() }).ok()
    }
}
