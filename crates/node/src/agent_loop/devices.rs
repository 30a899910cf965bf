//! The agent's side of discovery: what it makes of the devices that were found, and what discovery must know.

use hotbay_api::convert::FromAgent;
use hotbay_core::agent::{AgentRecord, AttachAtStart, Event, RecordFound};
use hotbay_core::device::Observed;
use hotbay_core::evidence::Evidence;
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
                AttachAtStart::Allowed => left_alone(record),
                AttachAtStart::All => Vec::new(),
            };
            (record.identity.map(|identity| identity.cluster), left_alone)
        }
        RecordFound::Absent(identity) | RecordFound::Damaged { identity, .. } => {
            (identity.map(|identity| identity.cluster), Vec::new())
        }
    };
    Context { ours, left_alone, ..Context::default() }
}

/// The drives that are out of operation: nothing of ours opens them.
fn left_alone(record: &AgentRecord) -> Vec<Evidence> {
    let detached = |memory: &&hotbay_core::agent::DriveMemory| {
        memory.in_force.is_some_and(|ordered| ordered.goal == Goal::Detach)
    };
    record.drives.values().filter(detached).map(|memory| memory.evidence.clone()).collect()
}

impl Shell {
    /// Has discovery know what the agent knows.
    pub(super) fn tell_discovery(&self) {
        let ours = self.identity().map(|identity| identity.cluster);
        let left_alone = left_alone(self.agent.record());
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
