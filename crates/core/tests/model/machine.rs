//! A machine's side of the world: what the shell around `Agent` does, and what can befall it.
//!
//! Saving the record and every step on a drive take time: they are begun when the agent asks, and end in a step of
//! the world of their own, well or not. A killed agent takes its descriptors and its children along.

use std::collections::{BTreeMap, BTreeSet};

use hotbay_core::agent::{Agent, AttachAtStart, AttachWork, Effect, Event, Kept, RecordFound};
use hotbay_core::device::LabelSeen;
use hotbay_core::ids::{DriveId, SessionNumber};
use hotbay_core::message::{Obstacle, Order, Registered};
use hotbay_core::order::{Generation, Goal};

use crate::invariants;
use crate::world::{Body, CLUSTER, ChildStep, Connection, Machine, Message, World};

/// How a step on a drive ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum WorkEnd {
    Well,
    /// It fails before anything has changed; a descriptor is closed all the same.
    Obstacle,
    /// An attach fails after it has written the label.
    ObstacleAfterLabel,
    /// A detach ends well, but the label could not be written.
    WellWithoutLabel,
}

impl World {
    /// The agent gives up its connection, if it has one, opens another, and registers.
    pub(crate) fn connect(&mut self, machine: usize, site: usize) {
        self.disconnect(machine);
        let here = self.site(site);
        here.sessions += 1;
        let connection = Connection { site, reign: here.reign, number: here.sessions };
        let there = self.machine(machine);
        there.connection = Some(connection);
        let registration = there.agent.registration(there.name(), there.machine_id());
        self.send(Message { connection, machine, body: Body::Register(Box::new(registration)) });
    }

    fn disconnect(&mut self, machine: usize) {
        if self.machine(machine).connection.take().is_some() {
            self.step_agent(machine, Event::SessionLost);
        }
    }

    /// The answer to a registration arrives.
    pub(crate) fn registered_arrives(
        &mut self,
        machine: usize,
        connection: Connection,
        answer: Registered,
    ) {
        let orders: Vec<_> = answer.allowed.iter().chain(&answer.unknown).cloned().collect();
        for order in &orders {
            invariants::note_refusal(self, machine, order);
        }
        let there = self.machine(machine);
        let accepted_before = there.accepted;
        let effects = there.agent.step(Event::Registered(answer));
        let refused = effects.iter().any(|effect| matches!(effect, Effect::RefuseSession(_)));
        if !refused {
            there.connection = Some(connection);
            there.accepted = Some(connection.reign);
            invariants::accepted(self, machine, accepted_before, connection.reign);
        }
        self.perform(machine, effects);
    }

    /// The registration was refused.
    pub(crate) fn turned_away(&mut self, machine: usize, connection: Connection) {
        if self.machines[machine].connection == Some(connection) {
            self.disconnect(machine);
        }
    }

    /// An order arrives, maybe late, maybe at a later start of the agent than it was meant for.
    pub(crate) fn order_arrives(&mut self, machine: usize, reign: usize, order: Order) {
        invariants::note_refusal(self, machine, &order);
        let there = self.machine(machine);
        let before = there.agent.in_force(order.drive);
        let effects = there.agent.step(Event::Order(order.clone()));
        let after = there.agent.in_force(order.drive);
        if before != after && after == Some(order.ordered) {
            invariants::taken(self, machine, reign);
        }
        self.perform(machine, effects);
    }

    /// The record is on disk.
    pub(crate) fn saved(&mut self, machine: usize) {
        let there = self.machine(machine);
        let record = there.saving.take().expect("only while it is being written");
        there.kept = record.identity.map(|identity| Kept { identity, term: record.term });
        there.accepted_saved = there.accepted_saving;
        there.record = Some(record);
        self.step_agent(machine, Event::Saved);
    }

    /// The record could not be written; the shell goes on trying.
    pub(crate) fn save_failed(&mut self, machine: usize) {
        self.step_agent(machine, Event::SaveFailed { error: "full".to_owned() });
    }

    pub(crate) fn pause_over(&mut self, drive: DriveId, machine: usize) {
        self.machine(machine).pauses.remove(&drive);
        self.step_agent(machine, Event::Retry(drive));
    }

    /// A child's step on a drive ends.
    pub(crate) fn work_ends(&mut self, machine: usize, drive: DriveId, end: WorkEnd) {
        let there = self.machine(machine);
        let step = there.steps.remove(&drive).expect("only while it runs");
        let obstacle = || Obstacle::AttachFailed { error: "I/O".to_owned() };
        let well = matches!(end, WorkEnd::Well | WorkEnd::WellWithoutLabel);
        let event = match step {
            ChildStep::Attach(work) | ChildStep::Relabel(work) => {
                let label = in_operation(there, &work);
                if end != WorkEnd::Obstacle {
                    there.disk(drive).label = Some(label);
                }
                there.disk(drive).open |= well;
                let result = if well { Ok(label) } else { Err(obstacle()) };
                Event::Attached { drive, result }
            }
            ChildStep::Detach(generation) | ChildStep::Prove(generation) => {
                let disk = there.disk(drive);
                // A closed drive is looked for, and a drive taken for another one is not found.
                let found = disk.open || !disk.mistaken;
                disk.open = false;
                disk.misled &= !well;
                if let (WorkEnd::Well, true, Some(label)) = (end, found, &mut disk.label) {
                    label.generation = generation;
                    label.in_operation = false;
                }
                let label = disk.label.filter(|_| found);
                Event::Closed { drive, label, result: if well { Ok(()) } else { Err(obstacle()) } }
            }
        };
        self.step_agent(machine, event);
    }

    /// The machine takes the drive for another one with its label, or sees again that it is the same.
    pub(crate) fn mistake(&mut self, machine: usize, drive: DriveId) {
        let there = self.machine(machine);
        let disk = there.disk(drive);
        disk.mistaken = !disk.mistaken;
        let devices = there.devices();
        self.step_agent(machine, Event::Devices(devices));
    }

    /// The agent is killed and started again; its record may be lost with that.
    pub(crate) fn restart_agent(&mut self, machine: usize, lose_record: bool) {
        let rules = self.rules;
        let there = self.machine(machine);
        there.starts += 1;
        there.saving = None;
        there.steps = BTreeMap::new();
        there.pauses = BTreeSet::new();
        there.connection = None;
        for disk in &mut there.disks {
            disk.open = false;
        }
        if lose_record || there.record.is_none() {
            invariants::record_lost(there);
        }
        there.accepted = there.accepted_saved;
        there.accepted_saving = None;
        let found = match &there.record {
            Some(record) => RecordFound::Usable(record.clone()),
            None => RecordFound::Absent(there.kept),
        };
        let devices = there.devices();
        let (agent, effects) =
            Agent::start(rules, there.incarnation(), found, devices, AttachAtStart::default());
        there.agent = agent;
        self.perform(machine, effects);
    }

    fn step_agent(&mut self, machine: usize, event: Event) {
        let effects = self.machine(machine).agent.step(event);
        self.perform(machine, effects);
    }

    fn perform(&mut self, machine: usize, effects: Vec<Effect>) {
        for effect in effects {
            let there = self.machine(machine);
            match effect {
                Effect::Save(record) => {
                    assert!(there.saving.is_none(), "one write at a time");
                    there.saving = Some(record);
                    there.accepted_saving = there.accepted;
                }
                Effect::Attach(work) => {
                    self.begin(machine, work.drive, work.generation, ChildStep::Attach(work));
                }
                Effect::Relabel(work) => {
                    self.begin(machine, work.drive, work.generation, ChildStep::Relabel(work));
                }
                Effect::Detach { drive, generation } => {
                    self.begin(machine, drive, generation, ChildStep::Detach(generation));
                }
                Effect::Prove { drive, generation } => {
                    let running = there.steps.insert(drive, ChildStep::Prove(generation));
                    assert!(running.is_none(), "one step at a time");
                }
                Effect::Send(answer) => {
                    invariants::speaks(there, &answer);
                    if let Some(connection) = there.connection {
                        self.send(Message { connection, machine, body: Body::Answer(answer) });
                    }
                }
                Effect::RetryLater(drive) => {
                    there.pauses.insert(drive);
                }
                Effect::RefuseSession(_) => self.disconnect(machine),
                Effect::Alarm { .. } => {}
                Effect::TellLabel(drive) => self.label_told(machine, drive),
                // Labels and uses have an order of their own, which this model does not play.
                Effect::ChangeLabel { .. }
                | Effect::SendLabel(_)
                | Effect::SendUse(_)
                | Effect::EndUse { .. } => {}
            }
        }
        invariants::note_completed(self, machine);
    }

    fn begin(&mut self, machine: usize, drive: DriveId, generation: Generation, step: ChildStep) {
        let goal = match step {
            ChildStep::Attach(_) | ChildStep::Relabel(_) => Goal::Attach,
            ChildStep::Detach(_) | ChildStep::Prove(_) => Goal::Detach,
        };
        let running = self.machine(machine).steps.insert(drive, step);
        assert!(running.is_none(), "one step at a time");
        invariants::acts(self, machine, drive, generation, goal);
    }

    /// Whether the agent is registered, as it believes, over the connection that it has.
    pub(crate) fn in_session(&self, machine: usize) -> bool {
        let there = &self.machines[machine];
        let number =
            there.connection.map(|connection| SessionNumber::from_number(connection.number));
        number.is_some() && there.agent.session() == number
    }
}

/// The label that an attach writes.
fn in_operation(machine: &Machine, work: &AttachWork) -> LabelSeen {
    LabelSeen {
        cluster: CLUSTER,
        drive: work.drive,
        node: machine.node_id(),
        generation: work.generation,
        in_operation: true,
        // Counts writes in the product; nothing is decided by it, and the model would never see a state twice.
        sequence: 0,
    }
}
