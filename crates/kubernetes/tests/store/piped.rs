//! Writes to a store as the registry's writer does: each record by itself, in the order that core's pipeline keeps.

use std::sync::mpsc;

use hotbay_core::pipeline::{Pipeline, StepId};
use hotbay_registry::{Key, Store, StoreError, Write};

/// A store, and what it has not taken yet.
pub(crate) struct Piped<'a, S> {
    store: &'a mut S,
    pipeline: Pipeline<Key, Write>,
    failed: Vec<StepId>,
    actions: u64,
}

impl<'a, S: Store> Piped<'a, S> {
    pub(crate) fn to(store: &'a mut S) -> Self {
        Self { store, pipeline: Pipeline::default(), failed: Vec::new(), actions: 0 }
    }

    /// Actions of so many writes each.
    pub(crate) fn add(&mut self, writes: &[Write], each: usize) {
        for action in writes.chunks(each) {
            self.actions += 1;
            let writes = action.iter().map(|write| (write.key(), write.clone()));
            self.pipeline.add(self.actions, writes);
        }
    }

    /// Makes all that can be made, and tries again once what has failed before. Gives the last error.
    pub(crate) fn run(&mut self) -> Result<(), StoreError> {
        let (sender, ended) = mpsc::channel();
        self.failed.drain(..).for_each(|step| self.pipeline.again(step));
        let (mut begun, mut result) = (0, Ok(()));
        loop {
            while begun < 32
                && let Some((step, write)) = self.pipeline.next()
            {
                begun += 1;
                let sender = sender.clone();
                let hear = move |result| sender.send((step, result)).unwrap();
                self.store.begin(write.clone(), Box::new(hear));
            }
            if begun == 0 {
                return result;
            }
            begun -= 1;
            match ended.recv().unwrap() {
                (step, Ok(())) => drop(self.pipeline.done(step)),
                (step, Err(error)) => {
                    self.pipeline.failed(step);
                    self.failed.push(step);
                    let retryable = error.retryable();
                    result = Err(error);
                    if !retryable {
                        return result;
                    }
                }
            }
        }
    }
}

/// Writes single records until all are durable.
pub(crate) fn fill(store: &mut impl Store, writes: &[Write]) {
    let mut piped = Piped::to(store);
    piped.add(writes, 1);
    piped.run().unwrap();
}
