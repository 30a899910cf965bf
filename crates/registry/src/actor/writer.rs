//! The thread that talks to the store, in one of two ways:
//!
//! ```text
//! a store of its own    one batch after the other, each tried again until it is durable     (here)
//! a shared one          each record by itself, many at a time                               (records)
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::time::{Duration, Instant};

use hotbay_core::pipeline::StepId;
use tokio::sync::mpsc;

use super::{gather, records};
use crate::stats::Stats;
use crate::store::error::StoreError;
use crate::store::{Key, Store, Write, keep_last_of_each};

/// The pause after a write that failed; it doubles up to the longest.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Writes with their number at the gate: a batch of several actions, or a single action for a shared store.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) writes: Vec<Write>,
    /// How many are answered when it is durable.
    pub(super) callers: usize,
}

/// What the thread hears.
#[derive(Debug)]
pub(super) enum ToWriter {
    Batch(Batch),
    /// A write of a single record has ended.
    Ended {
        step: StepId,
        result: Result<(), StoreError>,
    },
    /// Nobody wants anything any more.
    Stop,
}

/// What became of writes.
#[derive(Debug)]
pub(super) enum Written {
    Durable {
        number: u64,
        callers: usize,
    },
    /// The time for callers to come back is over, and no batch has come.
    Waited,
    /// A batch is being tried again.
    Failing {
        error: String,
    },
    /// A record is durable as it was decided with this number.
    Record {
        key: Key,
        number: u64,
    },
    /// The write of a record is being tried again; others go on, but for those behind it.
    RecordFailing {
        key: Key,
        behind: BTreeSet<Key>,
        error: String,
    },
    /// Something will never be durable.
    Lost(StoreError),
}

/// The way to the thread; it ends when this is dropped, after what it has begun.
#[derive(Debug)]
pub(super) struct Writer(pub(super) blocking::Sender<ToWriter>);

impl Writer {
    pub(super) fn write(&self, batch: Batch) {
        // If the thread is gone, its last words are in the channel that the actor listens to.
        self.0.send(ToWriter::Batch(batch)).unwrap_or_default();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It may have ended before.
        self.0.send(ToWriter::Stop).unwrap_or_default();
    }
}

/// Starts the thread. It also ends when something is lost.
pub(super) fn start<S: Store>(
    store: S,
    checkpoint: fn(&'static str),
    stats: Arc<Stats>,
) -> (Writer, mpsc::UnboundedReceiver<Written>) {
    let (sender, inbox) = blocking::channel();
    // The actor takes results before anything else, and has decided on each of them: they do not pile up here.
    let (results, written) = mpsc::unbounded_channel();
    let own = sender.clone();
    std::thread::Builder::new()
        .name("store-writer".into())
        .spawn(move || match store.is_shared() {
            true => records::write_all(store, own, &inbox, &results, checkpoint, &stats),
            false => write_all(store, &inbox, &results, checkpoint, &stats),
        })
        .expect("a thread can be started when the registry starts");
    (Writer(sender), written)
}

fn write_all<S: Store>(
    mut store: S,
    inbox: &blocking::Receiver<ToWriter>,
    results: &mpsc::UnboundedSender<Written>,
    checkpoint: fn(&'static str),
    stats: &Stats,
) {
    let mut patience = Duration::ZERO;
    while let Some(batch) = next(inbox, patience, results) {
        let Batch { number, mut writes, callers } = batch;
        keep_last_of_each(&mut writes);
        checkpoint("registry-batch-decided");
        let mut pause = FIRST_PAUSE;
        let outcome = loop {
            let started = Instant::now();
            match store.commit(&writes) {
                Ok(()) => {
                    let took = started.elapsed();
                    stats.committed(writes.len(), took);
                    patience = gather::patience(took);
                    break Written::Durable { number, callers };
                }
                Err(error) if error.retryable() => {
                    // Each write carries its whole record, so committing what may be there already changes nothing.
                    let failing = Written::Failing { error: error.to_string() };
                    if results.send(failing).is_err() {
                        return;
                    }
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(error) => break Written::Lost(error),
            }
        };
        checkpoint("registry-batch-durable");
        let last = matches!(outcome, Written::Lost(_));
        if results.send(outcome).is_err() || last {
            return;
        }
    }
}

/// The next batch; says so if none comes in time. Here and not in the actor, because the runtime's clock counts in
/// milliseconds, and a commit may take less.
fn next(
    inbox: &blocking::Receiver<ToWriter>,
    patience: Duration,
    results: &mpsc::UnboundedSender<Written>,
) -> Option<Batch> {
    let heard = match inbox.recv_timeout(patience) {
        Ok(heard) => heard,
        Err(blocking::RecvTimeoutError::Disconnected) => return None,
        Err(blocking::RecvTimeoutError::Timeout) => {
            results.send(Written::Waited).ok()?;
            inbox.recv().ok()?
        }
    };
    match heard {
        ToWriter::Batch(batch) => Some(batch),
        ToWriter::Stop => None,
        ToWriter::Ended { .. } => unreachable!("only single records end by themselves"),
    }
}
