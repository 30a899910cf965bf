//! Steps on drives by the agent's children, and the death of an agent in the middle of them.

use hotbay_core::agent::{Effect, Event as Happens, Identity};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{DriveId, MachineId};
use hotbay_core::message::Obstacle;
use hotbay_core::order::Generation;
use hotbay_core::volume::orders::LabelResult;

use crate::drive::Work;
use crate::fault::Fault;
use crate::log::note;
use crate::machine::{Child, Record, Step, short};
use crate::network::SILENCE;
use crate::scenario::{Millis, SECOND};
use crate::world::{AgentEvent, Event, World};

/// After so long a step counts as stuck, and the registry is told.
const STUCK_AFTER: Millis = 5 * SECOND;

impl World {
    pub(crate) fn begin(&mut self, machine: usize, drive: DriveId, work: Work) {
        self.steps_are_paced(machine, drive);
        let number = self.number();
        let most = self.scenario.step_max;
        let mut lasts = self.rng.between(1, most);
        let disk = match &work {
            Work::Attach { work, .. } => self.disk_with(machine, &work.evidence),
            Work::Relabel { disk, .. }
            | Work::Detach { disk, .. }
            | Work::ChangeLabel { disk, .. } => Some(*disk),
            Work::Prove { evidence, .. } => self.disk_with(machine, evidence),
        };
        if disk.is_some_and(|disk| self.disks[disk].hangs) {
            lasts = self.rng.between(STUCK_AFTER + 1, 90 * SECOND);
            self.fault(Fault::StepHangs);
            self.agent_after(machine, STUCK_AFTER, AgentEvent::StepStuck { drive, step: number });
        }
        let replaced = self.agent_of(machine).steps.insert(drive, Step { number, disk, work });
        assert!(replaced.is_none(), "one step at a time on a drive");
        let start = self.machines[machine].starts;
        let event = AgentEvent::StepEnds { drive };
        self.after(lasts, Event::Agent { machine, start, event });
    }

    pub(crate) fn step_stuck(&mut self, machine: usize, drive: DriveId, number: u64) {
        let running = self.agent_of(machine).steps.get(&drive);
        if running.is_some_and(|step| step.number == number) {
            note!(self, "{}: a step on {} hangs", self.machines[machine].name, short(drive));
            let obstacle = Obstacle::Quarantined { why: "a child waits for the drive".to_owned() };
            self.step_agent(machine, Happens::Stuck { drive, obstacle });
        }
    }

    pub(crate) fn step_ends(&mut self, machine: usize, drive: DriveId) {
        let step = self.agent_of(machine).steps.remove(&drive).expect("a step was begun");
        let event = match step.work {
            Work::Attach { work, identity } => {
                let ended = self.attach_ends(machine, &work, identity);
                if let Ok((disk, _)) = ended {
                    if work.take_over {
                        self.fault(Fault::TakenOver);
                    }
                    self.agent_of(machine).open.insert(drive, disk);
                    self.label_is_known(machine, drive, disk);
                }
                Happens::Attached { drive, result: ended.map(|(_, label)| label) }
            }
            Work::Relabel { work, identity, disk } => {
                let result = self.relabel_ends(disk, &work, identity);
                if result.is_ok() {
                    self.label_is_known(machine, drive, disk);
                }
                Happens::Attached { drive, result }
            }
            Work::Detach { generation, identity, disk, evidence } => {
                self.detach_ends(machine, drive, (generation, identity), disk, &evidence)
            }
            Work::Prove { generation, identity, evidence } => {
                let label =
                    self.release_closed_ends(machine, drive, generation, identity, &evidence);
                let disk = self.disk_with(machine, &evidence);
                let in_use = disk.and_then(|disk| self.in_use(machine, drive, disk, identity));
                let result = match in_use {
                    Some(obstacle) => Err(obstacle),
                    None => self.proof(machine, &evidence),
                };
                Happens::Closed { drive, label, result }
            }
            Work::ChangeLabel { order, by, disk } => {
                let result = self.change_ends(machine, disk, &order, by);
                if !matches!(result, LabelResult::Failed { .. }) {
                    self.label_is_known(machine, drive, disk);
                }
                Happens::LabelChanged { drive, result }
            }
        };
        let well = matches!(
            &event,
            Happens::Attached { result: Ok(_), .. }
                | Happens::Closed { result: Ok(()), .. }
                | Happens::LabelChanged { .. }
        );
        note!(self, "{}: {}", self.machines[machine].name, said(&event));
        let effects = self.agent_of(machine).agent.step(event);
        if well && !effects.contains(&Effect::RetryLater(drive)) {
            self.succeeded(machine, drive);
        }
        self.perform(machine, effects);
    }

    /// A detach ends: the drive is closed, or stays open because volumes are on it.
    fn detach_ends(
        &mut self,
        machine: usize,
        drive: DriveId,
        (generation, identity): (Generation, Identity),
        disk: usize,
        evidence: &Evidence,
    ) -> Happens {
        let there = self.machines[machine].bays.contains(&Some(disk));
        if let Some(obstacle) = self.in_use(machine, drive, disk, identity).filter(|_| there) {
            self.fault(Fault::DetachRefusedInUse);
            return Happens::StillOpen { drive, obstacle };
        }
        let label = self.release_ends(disk, drive, generation, identity);
        self.agent_of(machine).open.remove(&drive);
        Happens::Closed { drive, label, result: self.proof(machine, evidence) }
    }

    /// The agent keeps what it read of the label of an open drive.
    fn label_is_known(&mut self, machine: usize, drive: DriveId, disk: usize) {
        if let Some(told) = self.disks[disk].label.told() {
            self.agent_of(machine).labels.insert(drive, told);
        }
    }

    /// The agent dies, and its descriptors and children with it; a child that hangs may outlive it.
    pub(crate) fn crash_agent(&mut self, machine: usize) {
        let Some(mut process) = self.machines[machine].process.take() else { return };
        note!(self, "{}: agent DIES", self.machines[machine].name);
        if let Some(record) = process.saving.take() {
            if self.rng.chance(500) {
                self.fault(Fault::AgentCrashSaveLanded);
                self.saved(machine, record);
            } else {
                self.fault(Fault::AgentCrashSaveLost);
            }
        }
        if !process.steps.is_empty() {
            self.fault(Fault::AgentCrashInStep);
        }
        for (drive, step) in std::mem::take(&mut process.steps) {
            self.cut_off(machine, drive, step);
        }
        let power = self.rng.chance(200);
        if let Some(id) = process.connection {
            if power {
                self.fault(Fault::PowerLoss);
                self.machines[machine].mapped.clear();
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.agent_end = false;
                }
                self.after(SILENCE, Event::Silence { connection: id });
            } else {
                self.agent_hangs_up(id);
            }
        }
        let loss = self.scenario.record_loss;
        if !self.trouble_over && self.rng.chance(loss) {
            self.lose_record(machine);
        }
        let pause = self.rng.between(10, 5 * SECOND);
        self.after(pause, Event::AgentStarts { machine });
    }

    fn cut_off(&mut self, machine: usize, drive: DriveId, step: Step) {
        let holds = step.disk.filter(|_| !matches!(step.work, Work::Prove { .. }));
        match holds.filter(|disk| self.disks[*disk].hangs || self.rng.chance(100)) {
            Some(disk) => {
                self.fault(Fault::ChildOutlivesAgent);
                note!(
                    self,
                    "{}: a child outlives it on {}",
                    self.machines[machine].name,
                    short(drive)
                );
                let number = self.number();
                let child = Child { number, drive, disk, work: step.work };
                self.machines[machine].children.push(child);
                let lasts = self.rng.between(100, 40 * SECOND);
                self.after(lasts, Event::ChildEnds { machine, child: number });
            }
            None => self.step_cut_off(machine, drive, &step.work),
        }
    }

    /// A child that outlived its agent ends; what it was about to write may still land.
    pub(crate) fn child_ends(&mut self, machine: usize, number: u64) {
        let children = &mut self.machines[machine].children;
        let Some(at) = children.iter().position(|child| child.number == number) else { return };
        let child = children.remove(at);
        note!(self, "{}: the child on {} ends", self.machines[machine].name, short(child.drive));
        self.step_cut_off(machine, child.drive, &child.work);
    }

    fn lose_record(&mut self, machine: usize) {
        let (directory, damaged) = (self.rng.chance(200), self.rng.chance(400));
        let id = MachineId::from_bits(self.rng.id());
        let there = &mut self.machines[machine];
        if there.calm {
            return;
        }
        let fault = if directory {
            (there.record, there.kept, there.id) = (Record::Absent, None, id);
            there.directory_lost = true;
            Fault::DirectoryLost
        } else if damaged {
            there.record = Record::Damaged;
            Fault::RecordDamaged
        } else {
            there.record = Record::Absent;
            Fault::RecordLost
        };
        note!(self, "{}: {fault:?}", self.machines[machine].name);
        self.fault(fault);
        self.record_was_lost(machine);
    }
}

fn said(event: &Happens) -> String {
    match event {
        Happens::Attached { drive, result: Ok(_) } => format!("{} is open", short(*drive)),
        Happens::Closed { drive, result: Ok(()), .. } => {
            format!("{} is closed, proved", short(*drive))
        }
        Happens::Attached { drive, result: Err(obstacle) }
        | Happens::Closed { drive, result: Err(obstacle), .. } => {
            format!("{}: {obstacle}", short(*drive))
        }
        Happens::StillOpen { drive, obstacle } => format!("{}: {obstacle}", short(*drive)),
        Happens::LabelChanged { drive, result } => {
            format!("the label of {} was changed: {result:?}", short(*drive))
        }
        _ => String::new(),
    }
}
