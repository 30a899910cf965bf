//! No hot loops: how many orders leave, and how many steps are begun, per drive and minute while nothing changes; and
//! how long a node that is well may be kept waiting (invariant 11).

use std::collections::VecDeque;

use hotbay_core::ids::{DriveId, SessionNumber};
use hotbay_core::message::Order;
use hotbay_core::order::Generation;

use super::Invariant;
use crate::machine::short;
use crate::scenario::{MINUTE, Millis};
use crate::world::World;

/// The pauses between repetitions start at 1.5 s at the least and double: six in the first minute.
pub(super) const ORDERS_IN_A_MINUTE: usize = 7;
/// Steps are tried again after 0.5 s and more, doubling up to 10 s, and once more for each order that is repeated. A
/// machine's timers may run at double speed.
const STEPS_IN_A_MINUTE: usize = 40;

/// When something happened within the last minute, since `key` last changed.
#[derive(Debug)]
pub(crate) struct Recent<K> {
    key: K,
    times: VecDeque<Millis>,
}

impl<K: PartialEq> Recent<K> {
    pub(super) fn new(key: K) -> Self {
        Self { key, times: VecDeque::new() }
    }

    /// Counts one more, and says how many there were in the last minute.
    pub(super) fn count(&mut self, key: K, now: Millis) -> usize {
        if self.key != key {
            *self = Self::new(key);
        }
        while self.times.front().is_some_and(|time| time + MINUTE < now) {
            self.times.pop_front();
        }
        self.times.push_back(now);
        self.times.len()
    }
}

impl World {
    /// An order leaves the registry: not too often while nothing has changed.
    pub(crate) fn order_leaves(&mut self, site: usize, session: SessionNumber, order: &Order) {
        self.order_is_durable(site, session, order);
        let process = self.sites[site].process.as_ref().expect("it sends");
        // What a node has to close for another one goes out with each of its reports, and those tell of changes.
        if !process.cluster.is_on(order.drive, session) {
            return;
        }
        let key = (order.ordered.stamp.generation, process.reign, session.get());
        let recent =
            self.ledger.orders.entry((site, order.drive)).or_insert_with(|| Recent::new(key));
        let count = recent.count(key, self.now);
        if count > ORDERS_IN_A_MINUTE {
            let what = format!("{count} orders in a minute for {}", short(order.drive));
            self.breaks(Invariant::HotLoop, what);
        }
    }

    /// A step on a drive begins: not too often while nothing has changed.
    pub(crate) fn steps_are_paced(&mut self, machine: usize, drive: DriveId) {
        let process = self.agent_of(machine);
        let in_force = process.agent.in_force(drive);
        let key = (process.start, in_force.map(|ordered| ordered.stamp.generation));
        let recent = self.ledger.steps.entry((machine, drive)).or_insert_with(|| Recent::new(key));
        let count = recent.count(key, self.now);
        if count > STEPS_IN_A_MINUTE {
            let what = format!("{count} steps in a minute on {}", short(drive));
            self.breaks(Invariant::HotLoop, what);
        }
    }

    /// A change was told to a client a while ago: on a node that is well it is carried out by now.
    pub(crate) fn deadline(&mut self, site: usize, drive: DriveId, generation: Generation) {
        let Some(machine) = self.machine_of(site, drive) else { return };
        let Some(process) = &self.sites[site].process else { return };
        let Some(known) = process.cluster.drive(drive) else { return };
        let waits = process.cluster.waiting_for(drive);
        if !self.machines[machine].calm || known.record.generation != generation {
            return;
        }
        if let Some(reason) = waits {
            let name = &self.machines[machine].name;
            let what = format!("{} on {name} still waits: {reason}", short(drive));
            self.breaks(Invariant::Delayed, what);
        }
    }
}
