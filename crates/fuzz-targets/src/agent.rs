//! The agent's machine under any legal sequence of events: the registry and the machine may say anything at any time;
//! the shell ends only what it was told to begin, and a restart finds the record that was last on disk.

use std::collections::{BTreeMap, BTreeSet};

use hotbay_core::agent::{
    Agent, AgentRecord, AttachAtStart, Effect, Event, Identity, Kept, RecordFound,
};
use hotbay_core::device::{DeviceKind, LabelSeen, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, DriveId, Incarnation, MachineId, NodeId, SessionNumber, TermId};
use hotbay_core::message::{AnswerResult, Obstacle, Order, Registered};
use hotbay_core::order::{Generation, Goal, Ordered, Stamp, Term};
use hotbay_core::rules::Rules;
use hotbay_core::wipe::{Content, Wipe};

use crate::bytes::Bytes;

/// So few that different events meet in one drive.
const DRIVES: u8 = 3;
/// One input has at most so many events.
const EVENTS: usize = 2_000;

/// What the shell has been told to do and has not done.
#[derive(Default)]
struct Shell {
    saving: Option<AgentRecord>,
    on_disk: Option<AgentRecord>,
    /// The generation to be written on the label; none for a step that closes or proves.
    running: BTreeMap<DriveId, Option<Generation>>,
    pausing: BTreeSet<DriveId>,
    incarnation: u8,
}

pub(crate) fn agent_machine(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let mut shell = Shell::default();
    let mut agent = shell.start(&mut bytes);
    for _ in 0..EVENTS {
        if bytes.is_empty() {
            return;
        }
        let Some(event) = shell.event(&mut bytes) else {
            agent = shell.start(&mut bytes);
            continue;
        };
        let before = agent.record().clone();
        let effects = agent.step(event);
        never_back(&before, agent.record());
        shell.take(effects);
        let name = "node-a".parse().expect("a plain name");
        assert_eq!(
            agent.registration(name, MachineId::from_bits(9)).newest_term,
            agent.record().term
        );
    }
}

/// What was seen is remembered, and no number in it falls.
fn never_back(before: &AgentRecord, after: &AgentRecord) {
    let number = |record: &AgentRecord| record.term.map(|term| term.number);
    assert!(number(after) >= number(before), "the term went back");
    for (drive, memory) in &before.drives {
        let now = after.drives.get(drive).expect("a drive that was known is remembered");
        let (old, new) = (memory.seen.stamp, now.seen.stamp);
        assert!(new.generation >= old.generation && new.term.number >= old.term.number);
    }
}

impl Shell {
    /// Starts the agent, for the first time or after a crash that ended every step.
    fn start(&mut self, bytes: &mut Bytes<'_>) -> Agent {
        self.saving = None;
        self.running.clear();
        self.pausing.clear();
        self.incarnation = self.incarnation.wrapping_add(1);
        let found = match (bytes.pick(4), &self.on_disk) {
            (0, record) => {
                let term = record.as_ref().and_then(|record| record.term);
                self.on_disk = None;
                let kept = bytes.flag().then(|| Kept { identity: identity(), term });
                RecordFound::Damaged { kept, why: "its checksum is wrong".to_owned() }
            }
            (_, Some(record)) => RecordFound::Usable(record.clone()),
            (_, None) => {
                let kept = || Kept { identity: identity(), term: None };
                RecordFound::Absent(bytes.flag().then(kept))
            }
        };
        let at_start = if bytes.flag() { AttachAtStart::All } else { AttachAtStart::Allowed };
        let devices = devices(bytes);
        let (agent, effects) =
            Agent::start(Rules::default(), self.incarnation(), found, devices, at_start);
        self.take(effects);
        agent
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation::from_bits(u128::from(self.incarnation))
    }

    /// Begins what the agent wants begun, and checks that it may want it.
    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Save(record) => {
                    assert!(self.saving.is_none(), "two writes of the record at a time");
                    self.saving = Some(record);
                }
                Effect::Attach(work) | Effect::Relabel(work) => {
                    self.begin(work.drive, Some(work.generation));
                }
                Effect::Detach { drive, .. } | Effect::Prove { drive, .. } => {
                    self.begin(drive, None);
                }
                Effect::Send(answer) => {
                    assert_eq!(answer.incarnation, self.incarnation(), "in another's name");
                    if answer.result == AnswerResult::Done {
                        self.is_on_disk(answer.drive, answer.ordered);
                    }
                }
                Effect::RetryLater(drive) => drop(self.pausing.insert(drive)),
                Effect::RefuseSession(_)
                | Effect::Alarm { .. }
                // No order about volumes is given here.
                | Effect::ChangeLabel { .. }
                | Effect::TellLabel(_)
                | Effect::SendLabel(_)
                | Effect::SendUse(_)
                | Effect::EndUse { .. } => {}
            }
        }
    }

    fn begin(&mut self, drive: DriveId, generation: Option<Generation>) {
        let running = self.running.insert(drive, generation);
        assert!(running.is_none(), "two steps on {drive} at a time");
    }

    /// Nothing is said to be done before the order that it follows from is on disk.
    fn is_on_disk(&self, drive: DriveId, ordered: Ordered) {
        let record = self.on_disk.as_ref().and_then(|record| record.drives.get(&drive));
        let seen = record.map(|memory| memory.seen.stamp.generation);
        assert!(seen >= Some(ordered.stamp.generation), "answered {ordered:?}, on disk {seen:?}");
    }

    /// The next event; nothing for a restart.
    fn event(&mut self, bytes: &mut Bytes<'_>) -> Option<Event> {
        let kind = bytes.pick(16);
        let drive = drive(bytes);
        Some(match kind {
            0 => return None,
            1 => Event::Devices(devices(bytes)),
            2 => Event::SessionLost,
            3 | 4 => Event::Registered(self.registered(bytes)),
            5..=8 => Event::Order(self.order(bytes, None)),
            9..=12 => self.finish(drive, bytes)?,
            13 => match self.running.contains_key(&drive) {
                true => Event::Stuck { drive, obstacle: obstacle(bytes) },
                false => Event::SessionLost,
            },
            14 if self.pausing.remove(&drive) => Event::Retry(drive),
            _ => match self.saving.take() {
                Some(record) if bytes.flag() => {
                    // The shell tries again by itself until it is written.
                    self.saving = Some(record);
                    Event::SaveFailed { error: "no space".to_owned() }
                }
                Some(record) => {
                    self.on_disk = Some(record);
                    Event::Saved
                }
                None => Event::SessionLost,
            },
        })
    }

    /// The end of a step that runs; without one the session is lost instead.
    fn finish(&mut self, drive: DriveId, bytes: &mut Bytes<'_>) -> Option<Event> {
        let failed = bytes.flag();
        Some(match self.running.remove(&drive) {
            None => Event::SessionLost,
            Some(Some(_)) if failed => Event::Attached { drive, result: Err(obstacle(bytes)) },
            Some(Some(generation)) => {
                Event::Attached { drive, result: Ok(label(drive, generation, true)) }
            }
            Some(None) => {
                let generation = Generation::from_number(u64::from(bytes.pick(6)));
                let label = bytes.flag().then(|| label(drive, generation, bytes.flag()));
                let result = if failed { Err(obstacle(bytes)) } else { Ok(()) };
                Event::Closed { drive, label, result }
            }
        })
    }

    fn registered(&self, bytes: &mut Bytes<'_>) -> Registered {
        let Identity { cluster, node } = identity();
        let other = bytes.byte() == 255;
        let mut orders = |goal| -> Vec<Order> {
            (0..bytes.pick(3)).map(|_| self.order(bytes, Some(goal))).collect()
        };
        Registered {
            allowed: orders(Goal::Attach),
            unknown: orders(Goal::Detach),
            session: SessionNumber::from_number(u64::from(bytes.byte())),
            cluster: if other { ClusterId::from_bits(99) } else { cluster },
            node,
            term: term(bytes),
        }
    }

    /// An order for this start or, now and then, for another.
    fn order(&self, bytes: &mut Bytes<'_>, goal: Option<Goal>) -> Order {
        let any = if bytes.flag() { Goal::Attach } else { Goal::Detach };
        let term = term(bytes);
        let generation = Generation::from_number(u64::from(bytes.pick(6)));
        let other = bytes.byte() >= 240;
        Order {
            drive: drive(bytes),
            ordered: Ordered { goal: goal.unwrap_or(any), stamp: Stamp { term, generation } },
            incarnation: if other { Incarnation::from_bits(77) } else { self.incarnation() },
            evidence: evidence(bytes),
            take_over: bytes.flag(),
            wipe: bytes.flag().then(|| wipe(bytes)),
            given_up: bytes.flag(),
        }
    }
}

/// A permission, most often for another generation than the order's.
fn wipe(bytes: &mut Bytes<'_>) -> Wipe {
    let generation = Generation::from_number(u64::from(bytes.pick(6)));
    Wipe { generation, contents: vec![Content::Nameless] }
}

fn identity() -> Identity {
    Identity { cluster: ClusterId::from_bits(1), node: NodeId::from_bits(2) }
}

fn drive(bytes: &mut Bytes<'_>) -> DriveId {
    DriveId::from_bits(u128::from(bytes.pick(DRIVES)))
}

fn term(bytes: &mut Bytes<'_>) -> Term {
    Term { number: u64::from(bytes.pick(3)) + 1, id: TermId::from_bits(u128::from(bytes.pick(2))) }
}

fn evidence(bytes: &mut Bytes<'_>) -> Evidence {
    let serial = bytes.pick(DRIVES + 1);
    let known = serial < DRIVES;
    Evidence { serial: known.then(|| format!("S{serial}")), ..Evidence::default() }
}

fn label(drive: DriveId, generation: Generation, in_operation: bool) -> LabelSeen {
    let Identity { cluster, node } = identity();
    LabelSeen { cluster, drive, node, generation, in_operation, sequence: 1 }
}

fn devices(bytes: &mut Bytes<'_>) -> Vec<Observed> {
    let device = |bytes: &mut Bytes<'_>| Observed {
        evidence: evidence(bytes),
        path: format!("/dev/sd{}", bytes.pick(3)),
        bay: None,
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 1 << 30,
        block_bytes: 512,
        details: Default::default(),
        label: bytes.flag().then(|| {
            let generation = Generation::from_number(u64::from(bytes.pick(6)));
            label(drive(bytes), generation, bytes.flag())
        }),
        denied: Vec::new(),
    };
    (0..bytes.pick(4)).map(|_| device(bytes)).collect()
}

fn obstacle(bytes: &mut Bytes<'_>) -> Obstacle {
    match bytes.pick(4) {
        0 => Obstacle::DeviceMissing,
        3 => Obstacle::InUse { volumes: vec!["pvc-1".to_owned()] },
        1 => Obstacle::AttachFailed { error: "it does not answer".to_owned() },
        _ => Obstacle::Blocked { by: vec!["pid 7".to_owned()] },
    }
}

/// A registration with an attach, saved and carried out; a detach; a restart.
pub(crate) fn machine_seeds() -> Vec<Vec<u8>> {
    let start: &[u8] = &[1, 1, 1, 0, 0, 0];
    let registered: &[u8] = &[3, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0];
    let saved: &[u8] = &[15, 0, 0];
    let ended: &[u8] = &[9, 0, 0];
    let detach: &[u8] = &[5, 0, 0, 0, 0, 2, 0, 0, 0, 0];
    let restart: &[u8] = &[0, 0, 1, 1, 0, 0, 0];
    vec![
        start.to_vec(),
        [start, registered, saved, ended].concat(),
        [start, registered, saved, ended, detach, saved, ended, restart, saved].concat(),
        (0..=255).collect(),
    ]
}
