//! The whole cluster: machines, drives, registries, connections, clients, and the queue of what happens next.
//!
//! Single-threaded and without a clock: time is the time of the event that was taken last, and everything that is up
//! to chance is drawn from the one generator. `run.rs` builds a world and runs it to its end.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use hotbay_core::cluster::Reply;
use hotbay_core::ids::{DriveId, VolumeId};
use hotbay_core::order::Generation;
use hotbay_core::pipeline::StepId;
use hotbay_core::rules::Rules;
use hotbay_core::volume::Epoch;

use crate::chaos::Undo;
use crate::check::{Invariant, Ledger, Violation};
use crate::client::{Client, Request};
use crate::drive::Disk;
use crate::fault::{Coverage, Fault};
use crate::log::Log;
use crate::machine::Machine;
use crate::network::{Connection, ConnectionId, FromAgent, FromRegistry};
use crate::records::Awaited;
use crate::registry::Site;
use crate::rng::Rng;
use crate::scenario::{Millis, Scenario};
use crate::volumes::VolumeTold;

/// More events than any healthy run has: a loop without a pause is found, not waited for.
const EVENTS_MAX: u64 = 3_000_000;

/// Something that happens at its time.
#[derive(Debug)]
pub(crate) enum Event {
    /// A registry process starts and takes the lead.
    Lead {
        site: usize,
    },
    /// The store has done with what it was given, well or not.
    Committed {
        site: usize,
        reign: u64,
    },
    /// The store has done with the write of one record, well or not.
    RecordWritten {
        site: usize,
        reign: u64,
        step: StepId,
    },
    /// A record that could not be written is tried again.
    RecordAgain {
        site: usize,
        reign: u64,
        step: StepId,
    },
    /// Orders may be due again.
    Repeat {
        site: usize,
        reign: u64,
    },
    /// The registry looks whether it has heard of an agent.
    Silence {
        connection: ConnectionId,
    },
    /// The registry learns that a connection is no more.
    RegistryNotices {
        connection: ConnectionId,
    },
    AgentNotices {
        connection: ConnectionId,
    },
    Up {
        connection: ConnectionId,
        message: FromAgent,
    },
    Down {
        connection: ConnectionId,
        message: FromRegistry,
    },
    AgentStarts {
        machine: usize,
    },
    Agent {
        machine: usize,
        start: u64,
        event: AgentEvent,
    },
    /// A child that outlived its agent ends.
    ChildEnds {
        machine: usize,
        child: u64,
    },
    ClientActs {
        client: usize,
    },
    Asked {
        client: usize,
        call: u64,
        request: Request,
    },
    Answered {
        client: usize,
        call: u64,
        reply: Option<Reply>,
        volume: Option<VolumeTold>,
    },
    Unanswered {
        client: usize,
        call: u64,
    },
    Chaos,
    Undo(Undo),
    TroubleEnds,
    /// A drive on an untroubled node must be as wished by now.
    Deadline {
        site: usize,
        drive: DriveId,
        generation: Generation,
    },
    /// A word about nodes that are well must have left by now.
    Overdue {
        site: usize,
        reign: u64,
        awaited: Awaited,
    },
    End,
}

/// What happens to one start of an agent; forgotten when that start is over.
#[derive(Debug)]
pub(crate) enum AgentEvent {
    Dial,
    Connected { site: usize, reign: u64 },
    SaveEnds,
    StepEnds { drive: DriveId },
    StepStuck { drive: DriveId, step: u64 },
    Retry { drive: DriveId, pause: u64 },
    UseEnds { volume: VolumeId, epoch: Epoch },
    Look,
}

#[derive(Debug)]
struct Scheduled {
    at: Millis,
    number: u64,
    event: Event,
}

/// The earliest first; of two at one time, the one that was scheduled first.
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Millis,
    queue: BinaryHeap<Scheduled>,
    scheduled: u64,
    pub(crate) events: u64,
    pub(crate) rng: Rng,
    pub(crate) rules: Rules,
    pub(crate) scenario: Scenario,
    pub(crate) sites: Vec<Site>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    pub(crate) clients: Vec<Client>,
    pub(crate) coverage: Coverage,
    pub(crate) ledger: Ledger,
    pub(crate) log: Log,
    /// No more faults: from here on everything must come right by itself.
    pub(crate) trouble_over: bool,
    /// The first invariant that was broken; it ends the run.
    pub(crate) broken: Option<Violation>,
    ended: bool,
    numbers: u64,
}

impl World {
    /// An empty world; `run.rs` fills it.
    pub(crate) fn new(rng: Rng, rules: Rules, scenario: Scenario, log: Log) -> Self {
        Self {
            now: 0,
            queue: BinaryHeap::new(),
            scheduled: 0,
            events: 0,
            rng,
            rules,
            scenario,
            sites: Vec::new(),
            machines: Vec::new(),
            disks: Vec::new(),
            connections: BTreeMap::new(),
            clients: Vec::new(),
            coverage: Coverage::default(),
            ledger: Ledger::default(),
            log,
            trouble_over: false,
            broken: None,
            ended: false,
            numbers: 0,
        }
    }

    pub(crate) fn after(&mut self, pause: Millis, event: Event) {
        self.scheduled += 1;
        self.queue.push(Scheduled { at: self.now + pause, number: self.scheduled, event });
    }

    /// Runs to the end, or to the first broken invariant.
    pub(crate) fn run(&mut self) {
        while let Some(Scheduled { at, event, .. }) = self.queue.pop() {
            assert!(at >= self.now, "time runs forward");
            self.now = at;
            self.events += 1;
            self.take(event);
            if self.events > EVENTS_MAX {
                self.breaks(Invariant::HotLoop, format!("{EVENTS_MAX} events in one run"));
            }
            if self.broken.is_some() || self.ended {
                return;
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Lead { site } => self.lead(site),
            Event::Committed { site, reign } => self.committed(site, reign),
            Event::RecordWritten { site, reign, step } => self.record_written(site, reign, step),
            Event::RecordAgain { site, reign, step } => self.record_again(site, reign, step),
            Event::Repeat { site, reign } => self.repeat_orders(site, reign),
            Event::Silence { connection } => self.listen_for(connection),
            Event::RegistryNotices { connection } => self.registry_notices(connection),
            Event::AgentNotices { connection } => self.agent_notices(connection),
            Event::Up { connection, message } => self.arrives_up(connection, message),
            Event::Down { connection, message } => self.arrives_down(connection, message),
            Event::AgentStarts { machine } => self.start_agent(machine),
            Event::Agent { machine, start, event } => self.agent_event(machine, start, event),
            Event::ChildEnds { machine, child } => self.child_ends(machine, child),
            Event::ClientActs { client } => self.client_acts(client),
            Event::Asked { client, call, request } => self.asked(client, call, request),
            Event::Answered { client, call, reply, volume } => {
                self.answered(client, call, reply, volume);
            }
            Event::Unanswered { client, call } => self.unanswered(client, call),
            Event::Chaos => self.chaos(),
            Event::Undo(undo) => self.undo(undo),
            Event::TroubleEnds => self.trouble_ends(),
            Event::Deadline { site, drive, generation } => self.deadline(site, drive, generation),
            Event::Overdue { site, reign, awaited } => self.overdue(site, reign, awaited),
            Event::End => {
                self.ended = true;
                self.settled();
            }
        }
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        self.coverage.count(fault);
    }

    /// A number that no other thing of this run has.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(crate) fn latency(&mut self) -> Millis {
        let most = self.scenario.latency_max;
        self.rng.between(1, most)
    }
}
