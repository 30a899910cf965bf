//! A registry's writes to a store that takes one batch after the other, each as a whole: the embedded one.
//!
//! One batch is under way while the next is collected.

use hotbay_core::cluster::{RecordKey, Write};
use hotbay_core::gate::Gate;

use crate::fault::Fault;
use crate::log::note;
use crate::registry::{FIRST_WRITE_PAUSE, LONGEST_WRITE_PAUSE, Writer};
use crate::release::Held;
use crate::scenario::Millis;
use crate::world::{Event, World};

#[derive(Debug, Default)]
pub(crate) struct Batches {
    collecting: Option<Batch>,
    writing: Option<Batch>,
    /// The pause after the last failure.
    pause: Option<Millis>,
}

#[derive(Debug)]
struct Batch {
    number: u64,
    writes: Vec<Write>,
}

impl Batches {
    pub(crate) fn add(&mut self, gate: &mut Gate<Held, RecordKey>, writes: Vec<Write>) {
        let batch = self
            .collecting
            .get_or_insert_with(|| Batch { number: gate.decide(), writes: Vec::new() });
        batch.writes.extend(writes);
    }

    /// Hands the collected batch to the store, if that is free. True: the store has one more to do.
    pub(crate) fn hand_over(&mut self) -> bool {
        if self.writing.is_some() {
            return false;
        }
        self.writing = self.collecting.take();
        self.writing.is_some()
    }

    /// What the store was given and has not said done.
    pub(crate) fn under_way(self) -> Option<Vec<Write>> {
        self.writing.map(|batch| batch.writes)
    }
}

impl World {
    pub(crate) fn commit_later(&mut self, site: usize, reign: u64) {
        let most = self.scenario.commit_max;
        let pause = self.rng.between(1, most);
        self.after(pause, Event::Committed { site, reign });
    }

    /// The store is done with a batch.
    pub(crate) fn committed(&mut self, site: usize, reign: u64) {
        if self.process(site, reign).is_none() {
            return;
        }
        let there = &mut self.sites[site];
        let process = there.process.as_mut().expect("looked at above");
        let Writer::Batches(batches) = &mut process.writer else { return };
        if there.failing {
            process.failing = true;
            let pause = batches.pause.map_or(FIRST_WRITE_PAUSE, |last| last * 2);
            let pause = pause.min(LONGEST_WRITE_PAUSE);
            batches.pause = Some(pause);
            let batch = batches.writing.as_ref().expect("a write is under way");
            if self.rng.chance(200) {
                there.store.commit(&batch.writes);
                self.fault(Fault::StoreErrorAfterLanding);
            }
            note!(self, "registry {site}: a write fails");
            self.after(pause, Event::Committed { site, reign });
            return;
        }
        let batch = batches.writing.take().expect("a write is under way");
        batches.pause = None;
        there.store.commit(&batch.writes);
        process.failing = false;
        let ready = process.gate.durable(batch.number);
        self.written(site, ready);
    }
}
