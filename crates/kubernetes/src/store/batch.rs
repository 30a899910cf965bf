//! Makes the steps of a batch, as many at the same time as may be. The store calls it with each commit.
//!
//! A write that fails does not keep others from being made, unless they wait for it; it is tried again with the next
//! commit of the same batch, which leaves out what is made.

use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use hotbay_core::order::Term;
use hotbay_registry::{StoreError, Write};
use tokio::task::JoinSet;

use super::CustomResourceStore;
use super::order::Step;
use super::progress::Progress;
use super::write::{Outcome, Writing};

/// Objects that are written at the same time.
const WRITES_IN_FLIGHT: usize = 32;

/// After so many failures in one commit no more is begun: a server that refuses everything is not asked for everything.
const FAILURES_MOST: usize = 32;

/// After this long no more is begun in a commit that has failed, so that those above hear of it.
const FAILING_TIME: Duration = Duration::from_secs(20);

/// A batch of which a part is made.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub(super) batch: Fingerprint,
    pub(super) progress: Progress,
}

/// Stands for a whole batch: keeping the batch itself would take as much memory again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(Vec<u8>);

impl Fingerprint {
    /// The same writes under another term are another batch.
    pub(super) fn of(writes: &[Write], ends: &[usize], term: Option<Term>) -> Self {
        let mut hash = Context::new(&SHA256);
        let term = term.map(|term| format!("{}.{}", term.number, term.id)).unwrap_or_default();
        hash.update(format!("{term} {} {ends:?}", writes.len()).as_bytes());
        for write in writes {
            hash.update(&write.key().to_bytes());
            match write {
                Write::Put { value, .. } => {
                    hash.update(format!("put {} ", value.len()).as_bytes());
                    hash.update(value);
                }
                Write::Delete { .. } => hash.update(b"delete "),
            }
        }
        Self(hash.finish().as_ref().to_vec())
    }
}

impl CustomResourceStore {
    /// Makes what is not made yet. Of several errors the first is given back, or one after which nothing can be tried
    /// again: that one ends it.
    pub(super) fn write_steps(
        &self,
        steps: &[Step<'_>],
        progress: &mut Progress,
    ) -> Result<(), StoreError> {
        let began = Instant::now();
        let mut in_flight = JoinSet::new();
        let mut result = Ok(());
        loop {
            while in_flight.len() < WRITES_IN_FLIGHT
                && goes_on(&result, progress, began)
                && let Some(at) = progress.next()
            {
                match self.writing(steps[at].write) {
                    Ok(writing) => {
                        let work = async move { (at, writing.run().await) };
                        in_flight.spawn_on(work, self.runner.handle());
                    }
                    Err(error) => note(&mut result, error),
                }
            }
            let Some(ended) = self.runner.join_next(&mut in_flight) else { return result };
            let (at, Outcome { key, entry, result: ended }) =
                ended.expect("a write neither panics nor is cancelled");
            self.objects.set(key, entry);
            match ended {
                Ok(()) => {
                    (self.checkpoint)("object-written");
                    progress.done(at);
                }
                Err(error) => {
                    progress.failed(at);
                    note(&mut result, error);
                }
            }
        }
    }

    /// What is to be written is made only when the write begins: that of a large batch, all at once, would take
    /// hundreds of megabytes.
    fn writing(&self, write: &Write) -> Result<Writing, StoreError> {
        let wanted = self.wanted(write)?;
        let (entry, newest) = (self.objects.get(wanted.key), self.objects.newest());
        Ok(Writing::new(self.api.clone(), wanted, entry, newest, self.checkpoint))
    }
}

/// Whether another step may begin.
fn goes_on(result: &Result<(), StoreError>, progress: &Progress, began: Instant) -> bool {
    match result {
        Ok(()) => true,
        Err(error) if error.retryable() => {
            progress.failures() < FAILURES_MOST && began.elapsed() < FAILING_TIME
        }
        Err(_) => false,
    }
}

/// Keeps the error that counts: one that says that the lead is lost counts more than one that can be tried again.
fn note(result: &mut Result<(), StoreError>, error: StoreError) {
    match result {
        Err(first) if !first.retryable() || error.retryable() => {
            tracing::debug!("another write of the same batch failed: {error}");
        }
        Ok(()) | Err(_) => *result = Err(error),
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::ids::TermId;
    use hotbay_registry::{Key, Kind};

    use super::*;

    #[test]
    fn another_batch_has_another_fingerprint() {
        let key = |id| Key { kind: Kind::Drive, id };
        let put = |id, value: &str| Write::Put { key: key(id), value: value.into() };
        let term = |number| Some(Term { number, id: TermId::from_bits(1) });
        let batches = [
            (vec![put(1, "{}"), put(2, "{}")], vec![2], None),
            (vec![put(1, "{}"), put(2, "{}")], vec![1, 2], None),
            (vec![put(1, "{}"), put(2, "{}")], vec![2], term(1)),
            (vec![put(1, "{}"), put(2, "{}")], vec![2], term(2)),
            (vec![put(2, "{}"), put(1, "{}")], vec![2], None),
            (vec![put(1, "{}"), put(2, "{ }")], vec![2], None),
            (vec![put(1, "{}"), Write::Delete { key: key(2) }], vec![2], None),
            (vec![put(1, "{}"), put(2, "")], vec![2], None),
            (vec![put(1, "{}")], vec![1], None),
        ];
        let all: Vec<_> = batches.iter().map(|(w, e, term)| Fingerprint::of(w, e, *term)).collect();
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(one == other, at == other_at, "{at} and {other_at}");
            }
        }
    }
}
