//! How far a history goes: how often each thing may happen, and which steps are possible next.

use hotbay_core::order::Goal;

use crate::machine::WorkEnd;
use crate::step::{Outcome, Step};
use crate::world::{ChildStep, World};

/// How often each thing may happen. What is not counted here happens as often as it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Limits {
    /// Adds and removals that change something; asking again is free.
    pub(crate) actions: u8,
    pub(crate) volumes: u8,
    /// Restarts of the registry, and of its copy.
    pub(crate) registry_restarts: u8,
    pub(crate) restores: u8,
    pub(crate) copies: u8,
    pub(crate) agent_restarts: u8,
    /// Of the restarts of the agent.
    pub(crate) records_lost: u8,
    /// Steps on a drive, and writes of the record, that fail.
    pub(crate) obstacles: u8,
    pub(crate) mistakes: u8,
    /// Connections that an agent opens.
    pub(crate) connections: u8,
    /// Messages that arrive twice.
    pub(crate) doubled: u8,
}

/// How late a message may be heard. An order may always come late, over any connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Late {
    /// Over its own connection, or not at all.
    ByConnection,
    /// The answer to a registration is heard also after its connection was given up.
    Registered,
    /// An answer to an order is heard as if it came over the newest connection.
    Answers,
}

impl Limits {
    /// The limit that a step counts against, if any.
    fn counted(&mut self, step: &Step, outcome: Outcome) -> Option<&mut u8> {
        match step {
            Step::Client { .. } => (outcome == Outcome::Changed).then_some(&mut self.actions),
            Step::Place { .. } => Some(&mut self.volumes),
            Step::RestartRegistry { .. } => Some(&mut self.registry_restarts),
            Step::RestoreBackup => Some(&mut self.restores),
            Step::StartCopy => Some(&mut self.copies),
            Step::RestartAgent { lose_record: true, .. } => Some(&mut self.records_lost),
            Step::RestartAgent { lose_record: false, .. } => Some(&mut self.agent_restarts),
            Step::SaveFailed { .. } => Some(&mut self.obstacles),
            Step::WorkEnds { end, .. } => (*end != WorkEnd::Well).then_some(&mut self.obstacles),
            Step::Mistake { .. } => Some(&mut self.mistakes),
            Step::Connect { .. } => Some(&mut self.connections),
            Step::Deliver { keep: true, .. } => Some(&mut self.doubled),
            Step::Deliver { keep: false, .. }
            | Step::Lose { .. }
            | Step::Free { .. }
            | Step::BatchDurable { .. }
            | Step::MakeBackup
            | Step::Resend { .. }
            | Step::SessionClosed { .. }
            | Step::Saved { .. }
            | Step::PauseOver { .. } => None,
        }
    }

    /// Counts a step that was taken; `false` if it goes beyond the limit.
    pub(crate) fn spend(&mut self, step: &Step, outcome: Outcome) -> bool {
        let Some(left) = self.counted(step, outcome) else { return true };
        match left.checked_sub(1) {
            Some(less) => {
                *left = less;
                true
            }
            None => false,
        }
    }
}

/// Every step that could be taken next within what is left.
pub(crate) fn possible(world: &World, left: &Limits, under_way: usize, steps: &mut Vec<Step>) {
    for site in 0..world.sites.len() {
        registry_steps(world, site, left, steps);
    }
    // Before that, a registry that starts on a copy would draw new ids, and here each drive has one id for ever.
    let all_known = world.sites[0].durable.drives.len() == world.drive_ids().count();
    if world.backup.is_none() && left.restores > 0 && all_known {
        steps.push(Step::MakeBackup);
    }
    if world.backup.is_some() && left.restores > 0 {
        steps.push(Step::RestoreBackup);
    }
    if left.copies > 0 && all_known {
        steps.push(Step::StartCopy);
    }
    for machine in 0..world.machines.len() {
        machine_steps(world, machine, left, steps);
    }
    for (at, message) in world.network.iter().enumerate() {
        if at > 0 && world.network[at - 1] == *message {
            continue;
        }
        let message = || (**message).clone();
        steps.push(Step::Deliver { message: message(), keep: false });
        if left.doubled > 0 {
            steps.push(Step::Deliver { message: message(), keep: true });
        }
        // A message that never arrives is as good as lost; it goes only where it takes the place of another.
        if world.network.len() >= under_way {
            steps.push(Step::Lose { message: message() });
        }
    }
}

fn registry_steps(world: &World, site: usize, left: &Limits, steps: &mut Vec<Step>) {
    let here = &world.sites[site];
    if !here.pending.is_empty() {
        steps.push(Step::BatchDurable { site });
    }
    if left.registry_restarts > 0 {
        steps.push(Step::RestartRegistry { site });
    }
    for drive in world.drive_ids() {
        // Beyond the limit an answer may still be asked for that changes nothing.
        steps.push(Step::Client { site, drive, wish: Goal::Attach });
        steps.push(Step::Client { site, drive, wish: Goal::Detach });
        if here.gate.held() == 0 && here.cluster.owed(drive).is_some() {
            steps.push(Step::Resend { site, drive });
        }
        let volumes = here.cluster.drive(drive).is_some_and(|d| !d.record.volumes.is_empty());
        if site == 0 && volumes {
            steps.push(Step::Free { drive });
        }
    }
    for machine in 0..world.machines.len() {
        if site == 0 && left.volumes > 0 {
            steps.push(Step::Place { machine });
        }
        if let Some(session) = world.closed_session(site, machine) {
            steps.push(Step::SessionClosed { site, session });
        }
    }
}

fn machine_steps(world: &World, machine: usize, left: &Limits, steps: &mut Vec<Step>) {
    let there = &world.machines[machine];
    if left.connections > 0 {
        for site in 0..world.sites.len() {
            steps.push(Step::Connect { machine, site });
        }
    }
    if there.saving.is_some() {
        steps.push(Step::Saved { machine });
        if left.obstacles > 0 {
            steps.push(Step::SaveFailed { machine });
        }
    }
    for (drive, step) in &there.steps {
        let drive = *drive;
        steps.push(Step::WorkEnds { drive, end: WorkEnd::Well });
        if left.obstacles > 0 {
            steps.push(Step::WorkEnds { drive, end: WorkEnd::Obstacle });
            let other = match step {
                ChildStep::Attach(_) => Some(WorkEnd::ObstacleAfterLabel),
                ChildStep::Detach(_) | ChildStep::Prove(_) => Some(WorkEnd::WellWithoutLabel),
                ChildStep::Relabel(_) => None,
            };
            steps.extend(other.map(|end| Step::WorkEnds { drive, end }));
        }
    }
    steps.extend(there.pauses.iter().map(|drive| Step::PauseOver { drive: *drive }));
    if left.agent_restarts > 0 {
        steps.push(Step::RestartAgent { machine, lose_record: false });
    }
    if left.records_lost > 0 {
        steps.push(Step::RestartAgent { machine, lose_record: true });
    }
    for disk in &there.disks {
        if disk.mistaken || (left.mistakes > 0 && disk.label.is_some()) {
            steps.push(Step::Mistake { drive: disk.id });
        }
    }
}
