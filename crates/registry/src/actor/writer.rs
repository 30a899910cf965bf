//! The thread that talks to the store: commits one batch after the other, and tries again until it is durable.

use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::gather;
use crate::stats::Stats;
use crate::store::error::StoreError;
use crate::store::{Store, Write, keep_last_of_each};

/// The pause after a write that failed; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A batch of writes with its number at the gate.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) writes: Vec<Write>,
    /// Where the writes of each action end.
    pub(super) ends: Vec<usize>,
    /// How many are answered when it is durable.
    pub(super) callers: usize,
}

/// What became of a batch.
#[derive(Debug)]
pub(super) enum Written {
    Durable {
        number: u64,
        callers: usize,
    },
    /// The time for callers to come back is over, and no batch has come.
    Waited,
    /// It is being tried again.
    Failing {
        error: String,
    },
    /// It will never be durable.
    Lost(StoreError),
}

/// Starts the thread. It ends when the sender of batches is dropped, or when a batch is lost.
pub(super) fn start<S: Store>(
    store: S,
    checkpoint: fn(&'static str),
    stats: Arc<Stats>,
) -> (blocking::Sender<Batch>, mpsc::UnboundedReceiver<Written>) {
    let (batches, inbox) = blocking::channel();
    // One batch is under way at a time, so at most its few results wait here.
    let (results, written) = mpsc::unbounded_channel();
    std::thread::Builder::new()
        .name("store-writer".into())
        .spawn(move || write_all(store, &inbox, &results, checkpoint, &stats))
        .expect("a thread can be started when the registry starts");
    (batches, written)
}

fn write_all<S: Store>(
    mut store: S,
    batches: &blocking::Receiver<Batch>,
    results: &mpsc::UnboundedSender<Written>,
    checkpoint: fn(&'static str),
    stats: &Stats,
) {
    let mut patience = Duration::ZERO;
    while let Some(batch) = next(batches, patience, results) {
        let Batch { number, mut writes, mut ends, callers } = batch;
        if !store.is_shared() {
            keep_last_of_each(&mut writes);
            ends = vec![writes.len()];
        }
        checkpoint("registry-batch-decided");
        let mut pause = FIRST_PAUSE;
        let outcome = loop {
            let started = Instant::now();
            match store.commit_actions(&writes, &ends) {
                Ok(()) => {
                    let took = started.elapsed();
                    stats.committed(writes.len(), took);
                    patience = gather::patience(took);
                    break Written::Durable { number, callers };
                }
                Err(error) if error.retryable() => {
                    // Each write carries its whole record, so committing what may be there already changes nothing. It
                    // stays the same batch, by which a shared store knows what of it is written.
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
    batches: &blocking::Receiver<Batch>,
    patience: Duration,
    results: &mpsc::UnboundedSender<Written>,
) -> Option<Batch> {
    match batches.recv_timeout(patience) {
        Ok(batch) => Some(batch),
        Err(blocking::RecvTimeoutError::Disconnected) => None,
        Err(blocking::RecvTimeoutError::Timeout) => {
            results.send(Written::Waited).ok()?;
            batches.recv().ok()
        }
    }
}
