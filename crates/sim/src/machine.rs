//! A machine with its agent: what the shell around core's `Agent` does, on a disk and drives that take their time.

use std::collections::BTreeMap;

use hotbay_core::agent::{
    Agent, AgentRecord, AttachAtStart, Effect, Event as Happens, Identity, Kept, RecordFound,
};
use hotbay_core::device::Observed;
use hotbay_core::evidence::{Comparison, Evidence};
use hotbay_core::ids::{DriveId, Incarnation, MachineId, NodeName, VolumeId};
use hotbay_core::label::change::LabelTold;
use hotbay_core::message::{Answer, AnswerResult, OrderRefused};
use hotbay_core::order::Goal;

use crate::drive::Work;
use crate::fault::Fault;
use crate::log::note;
use crate::network::{ConnectionId, Direction, FromAgent, FromRegistry};
use crate::scenario::{Millis, SECOND};
use crate::users::Mapping;
use crate::world::{AgentEvent, Event, World};

pub(crate) const FIRST_DIAL_PAUSE: Millis = 100;
const SAVE_RETRY: Millis = SECOND;
const FIRST_RETRY: Millis = 500;
const LONGEST_RETRY: Millis = 10 * SECOND;

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: NodeName,
    pub(crate) id: MachineId,
    pub(crate) record: Record,
    /// Kept apart from the record.
    pub(crate) kept: Option<Kept>,
    /// The record cannot be written now.
    pub(crate) record_fails: bool,
    pub(crate) starts: u64,
    pub(crate) process: Option<Process>,
    /// The drive in each bay.
    pub(crate) bays: Vec<Option<usize>>,
    pub(crate) children: Vec<Child>,
    pub(crate) up: Direction<FromAgent>,
    pub(crate) down: Direction<FromRegistry>,
    /// Which registry it dials.
    pub(crate) site: usize,
    /// How long its timers take, in percent.
    pub(crate) timers_percent: u64,
    /// No fault of its own ever befalls it.
    pub(crate) calm: bool,
    /// The agent has no right to look for holders now.
    pub(crate) blind: bool,
    /// The whole state directory was lost once.
    pub(crate) directory_lost: bool,
    /// The volumes that somebody on this machine reaches into. They outlive the agent.
    pub(crate) mapped: BTreeMap<VolumeId, Mapping>,
}

/// What is on disk of an agent's record.
#[derive(Debug, Clone)]
pub(crate) enum Record {
    Absent,
    Damaged,
    Usable(AgentRecord),
}

/// One start of an agent.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) start: u64,
    pub(crate) agent: Agent,
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) connected_at: Millis,
    pub(crate) dial_pause: Millis,
    /// The registry's process whose registration answer was accepted last.
    pub(crate) accepted: Option<u64>,
    pub(crate) saving: Option<AgentRecord>,
    pub(crate) steps: BTreeMap<DriveId, Step>,
    pub(crate) open: BTreeMap<DriveId, usize>,
    /// What it read of the labels of drives that it has opened.
    pub(crate) labels: BTreeMap<DriveId, LabelTold>,
    retries: BTreeMap<DriveId, Retries>,
    pub(crate) reported: Vec<Observed>,
    /// It found no usable record, and these labels in operation.
    pub(crate) by_label: Vec<DriveId>,
}

/// The next try of a step that failed.
#[derive(Debug, Default)]
struct Retries {
    /// How often it has failed in a row.
    failed: u32,
    /// The pause that counts; a new one replaces it.
    pause: u64,
}

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) number: u64,
    /// The drive that it works on, if that is in the machine.
    pub(crate) disk: Option<usize>,
    pub(crate) work: Work,
}

/// A child that outlived its agent.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) number: u64,
    pub(crate) drive: DriveId,
    pub(crate) disk: usize,
    pub(crate) work: Work,
}

impl Machine {
    pub(crate) fn new(name: NodeName, id: MachineId, bays: Vec<Option<usize>>) -> Self {
        Self {
            name,
            id,
            record: Record::Absent,
            kept: None,
            record_fails: false,
            starts: 0,
            process: None,
            bays,
            children: Vec::new(),
            up: Direction::open(),
            down: Direction::open(),
            site: 0,
            timers_percent: 100,
            calm: false,
            blind: false,
            directory_lost: false,
            mapped: BTreeMap::new(),
        }
    }

    fn found(&self) -> RecordFound {
        match &self.record {
            Record::Absent => RecordFound::Absent(self.kept),
            Record::Damaged => {
                RecordFound::Damaged { kept: self.kept, why: "bad checksum".to_owned() }
            }
            Record::Usable(record) => RecordFound::Usable(record.clone()),
        }
    }

    pub(crate) fn stored(&self) -> Option<&AgentRecord> {
        match &self.record {
            Record::Usable(record) => Some(record),
            Record::Absent | Record::Damaged => None,
        }
    }
}

/// The drives that are out of operation: nothing of ours opens them, not even to look.
fn left_alone(record: Option<&AgentRecord>) -> Vec<Evidence> {
    let memories = record.into_iter().flat_map(|record| record.drives.values());
    let detached = memories
        .filter(|memory| memory.in_force.is_some_and(|ordered| ordered.goal == Goal::Detach));
    detached.map(|memory| memory.evidence.clone()).collect()
}

impl World {
    pub(crate) fn start_agent(&mut self, machine: usize) {
        if self.machines[machine].process.is_some() {
            return;
        }
        let incarnation = Incarnation::from_bits(self.rng.id());
        let alone = left_alone(self.machines[machine].stored());
        let devices = self.look_at(machine, &alone, &[]);
        let there = &mut self.machines[machine];
        there.starts += 1;
        let start = there.starts;
        let without_record = there.stored().is_none();
        let in_operation = |device: &Observed| {
            device.label.filter(|label| label.in_operation).map(|label| label.drive)
        };
        let by_label = devices.iter().filter_map(in_operation).filter(|_| without_record);
        let by_label = by_label.collect();
        let (agent, effects) = Agent::start(
            self.rules,
            incarnation,
            there.found(),
            devices.clone(),
            AttachAtStart::default(),
        );
        there.process = Some(Process {
            start,
            agent,
            connection: None,
            connected_at: 0,
            dial_pause: FIRST_DIAL_PAUSE,
            accepted: None,
            saving: None,
            steps: BTreeMap::new(),
            open: BTreeMap::new(),
            labels: BTreeMap::new(),
            retries: BTreeMap::new(),
            reported: devices,
            by_label,
        });
        note!(self, "{}: agent starts (start {start})", self.machines[machine].name);
        self.perform(machine, effects);
        self.agent_after(machine, 1, AgentEvent::Dial);
    }

    /// The devices as a look finds them. What the agent knows of a label is newer than what a look finds.
    fn look_at(&self, machine: usize, alone: &[Evidence], known: &[Observed]) -> Vec<Observed> {
        let bays = self.machines[machine].bays.iter().enumerate();
        let there = bays.filter_map(|(bay, disk)| disk.map(|disk| (bay, &self.disks[disk])));
        there
            .map(|(bay, disk)| {
                let shown = disk.shown();
                let same = |other: &Evidence| other.compare(&shown) == Comparison::Same;
                let before = known.iter().find(|device| same(&device.evidence));
                let read = disk.label.seen().filter(|_| !alone.iter().any(same));
                let label = before.and_then(|device| device.label).or(read);
                disk.observed(bay, label)
            })
            .collect()
    }

    /// An event for this start of the agent, after a pause by the machine's own clock.
    pub(crate) fn agent_after(&mut self, machine: usize, pause: Millis, event: AgentEvent) {
        let there = &self.machines[machine];
        let start = there.starts;
        let pause = (pause * there.timers_percent / 100).max(1);
        self.after(pause, Event::Agent { machine, start, event });
    }

    pub(crate) fn agent_event(&mut self, machine: usize, start: u64, event: AgentEvent) {
        let process = self.machines[machine].process.as_ref();
        if process.is_none_or(|process| process.start != start) {
            return;
        }
        match event {
            AgentEvent::Dial => self.dial(machine),
            AgentEvent::Connected { site, reign } => self.connected(machine, site, reign),
            AgentEvent::SaveEnds => self.save_ends(machine),
            AgentEvent::StepEnds { drive } => self.step_ends(machine, drive),
            AgentEvent::StepStuck { drive, step } => self.step_stuck(machine, drive, step),
            AgentEvent::Retry { drive, pause } => self.retry(machine, drive, pause),
            AgentEvent::Look => self.look(machine),
            AgentEvent::UseEnds { volume, epoch } => self.use_ends(machine, volume, epoch),
        }
    }

    pub(crate) fn agent_of(&mut self, machine: usize) -> &mut Process {
        self.machines[machine].process.as_mut().expect("asked for while the agent lives")
    }

    pub(crate) fn step_agent(&mut self, machine: usize, event: Happens) {
        let effects = self.agent_of(machine).agent.step(event);
        self.perform(machine, effects);
    }

    pub(crate) fn perform(&mut self, machine: usize, effects: Vec<Effect>) {
        for effect in effects {
            let fault = match &effect {
                Effect::Save(_) => Some(Fault::AgentCrashAtSave),
                Effect::Send(_) | Effect::SendLabel(_) | Effect::SendUse(_) => {
                    Some(Fault::AgentCrashAtSend)
                }
                _ => None,
            };
            let crash = self.scenario.agent_crash;
            let may = fault.is_some() && !self.trouble_over && !self.machines[machine].calm;
            let crash = may && self.rng.chance(crash);
            let before = crash && self.rng.chance(500);
            if !before {
                self.perform_one(machine, effect);
            }
            if let (true, Some(fault)) = (crash, fault) {
                self.fault(fault);
                self.crash_agent(machine);
            }
            if self.machines[machine].process.is_none() {
                return;
            }
        }
    }

    fn perform_one(&mut self, machine: usize, effect: Effect) {
        let name = self.machines[machine].name.clone();
        match effect {
            Effect::Save(record) => {
                let process = self.agent_of(machine);
                assert!(process.saving.is_none(), "one write at a time");
                process.saving = Some(record);
                self.save_later(machine);
            }
            Effect::Attach(work) => {
                note!(
                    self,
                    "{name}: attaches {}, generation {}",
                    short(work.drive),
                    work.generation
                );
                let drive = work.drive;
                self.carries_out(machine, drive, work.generation, Goal::Attach);
                let identity = self.identity(machine);
                self.begin(machine, drive, Work::Attach { work, identity });
            }
            Effect::Relabel(work) => {
                let drive = work.drive;
                self.carries_out(machine, drive, work.generation, Goal::Attach);
                let identity = self.identity(machine);
                let disk = self.agent_of(machine).open[&drive];
                self.begin(machine, drive, Work::Relabel { work, identity, disk });
            }
            Effect::Detach { drive, generation } => {
                note!(self, "{name}: detaches {}, generation {generation}", short(drive));
                self.carries_out(machine, drive, generation, Goal::Detach);
                let identity = self.identity(machine);
                let evidence = self.remembered(machine, drive);
                let disk = self.agent_of(machine).open[&drive];
                self.begin(machine, drive, Work::Detach { generation, identity, disk, evidence });
            }
            Effect::Prove { drive, generation } => {
                let identity = self.identity(machine);
                let evidence = self.remembered(machine, drive);
                self.begin(machine, drive, Work::Prove { generation, identity, evidence });
            }
            Effect::Send(answer) => self.send_answer(machine, answer),
            Effect::ChangeLabel { generation, order } => {
                let drive = order.drive;
                let by = (self.identity(machine), generation);
                let disk = self.agent_of(machine).open[&drive];
                self.begin(machine, drive, Work::ChangeLabel { order: Box::new(order), by, disk });
            }
            Effect::TellLabel(drive) => self.tell_label(machine, drive),
            Effect::SendLabel(answer) => self.tell(machine, FromAgent::LabelAnswer(answer)),
            Effect::SendUse(answer) => {
                self.answers_about_use(machine, &answer);
                self.tell(machine, FromAgent::UseAnswer(answer));
            }
            Effect::EndUse { volume, epoch } => {
                let most = self.scenario.step_max;
                let pause = self.rng.between(1, most);
                self.agent_after(machine, pause, AgentEvent::UseEnds { volume, epoch });
            }
            Effect::RetryLater(drive) => self.retry_later(machine, drive),
            Effect::RefuseSession(refused) => {
                note!(self, "{name}: does not obey: {refused}");
                if let Some(id) = self.agent_of(machine).connection.take() {
                    self.agent_hangs_up(id);
                    self.dial_again(machine, 0);
                }
            }
            Effect::Alarm { drive, refused } => {
                note!(self, "{name}: ALARM {}: {refused}", short(drive));
            }
        }
    }

    fn tell_label(&mut self, machine: usize, drive: DriveId) {
        if let Some(told) = self.agent_of(machine).labels.get(&drive).cloned() {
            self.tell(machine, FromAgent::LabelTold(drive, told));
        }
    }

    fn send_answer(&mut self, machine: usize, answer: Answer) {
        note!(
            self,
            "{}: answers {} of {}: {}",
            self.machines[machine].name,
            answer.ordered.goal,
            short(answer.drive),
            told(&answer.result)
        );
        self.answers(machine, &answer);
        // An answer goes where its order came from. Only an order over an old connection is stale or foreign to begin
        // with, and nobody listens there any more.
        let to_nobody = matches!(
            answer.result,
            AnswerResult::Refused(
                OrderRefused::Stale { .. }
                    | OrderRefused::ForeignTerm { .. }
                    | OrderRefused::ForeignIncarnation
            )
        );
        if let (Some(id), false) = (self.agent_of(machine).connection, to_nobody) {
            self.send_up(id, FromAgent::Answer(answer));
        }
    }

    /// Says something to the registry, if a connection stands.
    pub(crate) fn tell(&mut self, machine: usize, message: FromAgent) {
        if let Some(id) = self.agent_of(machine).connection {
            self.send_up(id, message);
        }
    }

    fn identity(&mut self, machine: usize) -> Identity {
        let record = self.agent_of(machine).agent.record();
        record.identity.expect("what is attached or detached belongs to a cluster")
    }

    fn remembered(&mut self, machine: usize, drive: DriveId) -> Evidence {
        let agent = &self.agent_of(machine).agent;
        if let Some(memory) = agent.record().drives.get(&drive) {
            return memory.evidence.clone();
        }
        let labelled = |device: &&Observed| device.label.is_some_and(|label| label.drive == drive);
        let device = agent.devices().iter().find(labelled);
        device.map(|device| device.evidence.clone()).unwrap_or_default()
    }

    fn retry_later(&mut self, machine: usize, drive: DriveId) {
        let number = self.number();
        let retries = self.agent_of(machine).retries.entry(drive).or_default();
        let pause = (FIRST_RETRY << retries.failed.min(8)).min(LONGEST_RETRY);
        *retries = Retries { failed: retries.failed.saturating_add(1), pause: number };
        self.agent_after(machine, pause, AgentEvent::Retry { drive, pause: number });
    }

    fn retry(&mut self, machine: usize, drive: DriveId, pause: u64) {
        let retries = self.agent_of(machine).retries.get(&drive);
        if retries.is_some_and(|retries| retries.pause == pause) {
            self.step_agent(machine, Happens::Retry(drive));
        }
    }

    pub(crate) fn succeeded(&mut self, machine: usize, drive: DriveId) {
        self.agent_of(machine).retries.remove(&drive);
    }

    pub(crate) fn save_later(&mut self, machine: usize) {
        let pause = self.rng.between(1, 40);
        self.agent_after(machine, pause, AgentEvent::SaveEnds);
    }

    fn save_ends(&mut self, machine: usize) {
        if self.machines[machine].record_fails {
            self.fault(Fault::RecordErrors);
            note!(self, "{}: its record cannot be written", self.machines[machine].name);
            self.agent_after(machine, SAVE_RETRY, AgentEvent::SaveEnds);
            let error = "no space".to_owned();
            return self.step_agent(machine, Happens::SaveFailed { error });
        }
        let record = self.agent_of(machine).saving.take().expect("a write is under way");
        self.saved(machine, record);
        self.step_agent(machine, Happens::Saved);
    }

    pub(crate) fn saved(&mut self, machine: usize, record: AgentRecord) {
        let there = &mut self.machines[machine];
        there.kept = record.identity.map(|identity| Kept { identity, term: record.term });
        there.record = Record::Usable(record);
    }

    fn look(&mut self, machine: usize) {
        let process = self.agent_of(machine);
        let alone = left_alone(Some(process.agent.record()));
        let known = process.agent.devices().to_vec();
        let devices = self.look_at(machine, &alone, &known);
        self.step_agent(machine, Happens::Devices(devices.clone()));
        let Some(process) = self.machines[machine].process.as_mut() else { return };
        let plain = |devices: &[Observed]| -> Vec<_> {
            devices.iter().map(|device| Observed { label: None, ..device.clone() }).collect()
        };
        let changed = plain(&devices) != plain(&process.reported);
        if let (true, Some(_), Some(id)) = (changed, process.agent.session(), process.connection) {
            process.reported.clone_from(&devices);
            self.send_up(id, FromAgent::Report(devices));
        }
    }
}

/// A drive's name in the log.
pub(crate) fn short(drive: DriveId) -> String {
    format!("d-{}", &drive.to_string()[..8])
}

fn told(result: &AnswerResult) -> String {
    match result {
        AnswerResult::Done => "done".to_owned(),
        AnswerResult::Waiting(obstacle) => format!("waits, {obstacle}"),
        AnswerResult::Refused(refused) => format!("refused, {refused}"),
    }
}
