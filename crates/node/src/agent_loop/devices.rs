//! The agent's side of discovery: what it makes of the devices that were found, and what discovery must know.

use std::collections::BTreeSet;

use hotbay_api::convert::FromAgent;
use hotbay_core::agent::{AgentRecord, AttachAtStart, DriveMemory, Event, RecordFound};
use hotbay_core::device::Observed;
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::DriveId;
use hotbay_core::message::Obstacle;
use hotbay_core::order::Goal;
use tokio::time::Instant;

use super::Shell;
use crate::discovery::{Context, Found, after_look};

/// What discovery must know before the agent has started.
pub(super) fn first_context(found: &RecordFound, at_start: AttachAtStart) -> Context {
    let (ours, left_alone) = match found {
        RecordFound::Usable(record) => {
            // Whoever wants all drives opened wants their labels read, removed or not.
            let left_alone = match at_start {
                AttachAtStart::Allowed => left_alone(record, &BTreeSet::new()),
                AttachAtStart::All => Vec::new(),
            };
            (record.identity.map(|identity| identity.cluster), left_alone)
        }
        RecordFound::Absent(kept) | RecordFound::Damaged { kept, .. } => {
            (kept.map(|kept| kept.identity.cluster), Vec::new())
        }
    };
    Context { ours, left_alone, ..Context::default() }
}

/// The drives that are out of operation: nothing of ours opens them. But those with something else on them are looked
/// at as drives are that were never added: else nobody would see what is on them, and have it wiped.
fn left_alone(record: &AgentRecord, not_ours: &BTreeSet<DriveId>) -> Vec<Evidence> {
    let detached = |(drive, memory): &(&DriveId, &DriveMemory)| {
        let detach = memory.in_force.is_some_and(|ordered| ordered.goal == Goal::Detach);
        detach && !not_ours.contains(drive)
    };
    let detached = record.drives.iter().filter(detached);
    detached.map(|(_, memory)| memory.evidence.clone()).collect()
}

impl Shell {
    /// Has discovery know what the agent knows.
    pub(super) fn tell_discovery(&self) {
        let ours = self.identity().map(|identity| identity.cluster);
        let left_alone = left_alone(self.agent.record(), &self.not_ours);
        self.context.send_if_modified(|context| {
            let other = (context.ours, &context.left_alone) != (ours, &left_alone);
            (context.ours, context.left_alone) = (ours, left_alone);
            other
        });
    }

    /// The machine has other devices now, or other labels are on them.
    pub(super) fn looked(&mut self, found: Found) {
        let Found { devices, hanging } = found;
        self.hanging = hanging;
        let (devices, doubts) = after_look(self.agent.devices(), &devices, &mut self.handled);
        self.context.send_if_modified(|context| {
            let other = context.doubts != doubts;
            context.doubts = doubts;
            other
        });
        self.publish(devices);
    }

    /// Notes what an attach has found out about whose a drive is.
    pub(super) fn note_not_ours(&mut self, event: &Event) {
        match event {
            Event::Attached { drive, result: Err(Obstacle::NotOurs { .. }) } => {
                self.not_ours.insert(*drive);
            }
            Event::Attached { drive, result: Ok(_) } => {
                self.not_ours.remove(drive);
            }
            _ => {}
        }
    }

    /// A drive was attached: if there were reasons against it, it was wiped since it was looked at, and nobody else
    /// would tell discovery so as long as it is open.
    pub(super) fn look_at_remade(&self, drive: DriveId) {
        let remade = self.agent.locate(drive).device().filter(|device| !device.denied.is_empty());
        if let Some(device) = remade {
            self.context.send_modify(|context| {
                *context.remade.entry(device.path.clone()).or_default() += 1;
            });
        }
    }

    /// Takes the devices as they are now, and tells the registry what has changed in them, or beside them.
    pub(super) fn publish(&mut self, mut devices: Vec<Observed>) {
        devices.iter_mut().for_each(|device| self.filters.apply(device));
        let without_label = |devices: &[Observed]| -> Vec<_> {
            devices.iter().map(|device| Observed { label: None, ..device.clone() }).collect()
        };
        let conditions = self.filters.conditions();
        let changed =
            without_label(&devices) != without_label(&self.reported) || conditions != self.told;
        let effects = self.agent.step(Event::Devices(devices.clone()));
        self.perform(effects);
        self.close_what_is_gone();
        if changed && self.agent.session().is_some() {
            self.reports += 1;
            self.unpublished.push_back((self.reports, Instant::now()));
            self.metrics.reported();
            tracing::debug!(number = self.reports, devices = devices.len(), "telling the registry");
            (self.reported, self.told) = (devices.clone(), conditions.clone());
            self.tell(FromAgent::Report { number: self.reports, devices, conditions });
        }
    }

    pub(super) fn close_what_is_gone(&mut self) {
        for drive in self.drives.gone() {
            tracing::warn!(%drive, "it is gone from this machine, and was in operation");
            let effects = self.agent.step(Event::Gone(drive));
            self.perform(effects);
        }
    }
}
