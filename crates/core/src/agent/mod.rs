//! The agent's decisions: what it opens, closes, remembers and answers. `node` performs them.
//!
//! The machine compares, per drive, what is wanted with what is, and takes one step at a time:
//!
//! ```text
//!              wanted: attach                        wanted: detach
//!   Closed ───────────────────▶ Opening         Open ─────────────▶ Closing
//!     ▲                           │              ▲                     │
//!     │ failed, asked again later │ opened       │                     │ closed and proved,
//!     └───────────────────────────┴──▶ Open ─────┘        Closed ◀─────┘ or proof asked again later
//! ```
//!
//! A step runs to its end before the next one starts, so a newer order never meets a half-open drive: it waits for
//! the step, and the comparison is made again. Nothing is done, and nothing is answered, before the order that it
//! follows from is on disk.

mod judge;
mod locate;
mod orders;
mod record;
mod saving;
mod steps;
mod volumes;
mod wipe;

use std::collections::{BTreeMap, BTreeSet};

pub use locate::Located;
pub use record::{AgentRecord, DriveMemory, Identity, Kept, RecordFound, UseMemory};

use crate::device::{LabelSeen, Observed};
use crate::evidence::Evidence;
use crate::ids::{DriveId, Incarnation, MachineId, NodeName, SessionNumber, VolumeId};
use crate::label::change::Basis;
use crate::message::{
    Answer, DriveReport, Obstacle, Order, OrderRefused, RecordHealth, Registered, Registration,
};
use crate::node_labels::NodeLabels;
use crate::order::{Generation, Goal, Ordered, Term};
use crate::rules::Rules;
use crate::volume::Epoch;
use crate::volume::orders::{LabelAnswer, LabelOrder, LabelResult, UseAnswer, UseOrder};
use crate::wipe::Content;
use volumes::LabelWork;

/// What happens to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The devices on the machine, all of them.
    Devices(Vec<Observed>),
    /// The registry took the registration.
    Registered(Registered),
    /// The session with the registry is over.
    SessionLost,
    Order(Order),
    LabelOrder(LabelOrder),
    UseOrder(UseOrder),
    /// A filesystem was made on a volume, and its label, which this is, does not say so.
    Formatted {
        drive: DriveId,
        volume: VolumeId,
        basis: Basis,
    },
    /// A change of a label ended.
    LabelChanged {
        drive: DriveId,
        result: LabelResult,
    },
    /// Nothing on this machine uses a volume any more, or something still does.
    UseEnded {
        volume: VolumeId,
        epoch: Epoch,
        result: Result<(), String>,
    },
    /// The record last given out is on disk.
    Saved,
    /// The record last given out could not be written; the shell tries again.
    SaveFailed {
        error: String,
    },
    /// An attach or a new label ended. `Ok`: the drive is open and its label says so.
    Attached {
        drive: DriveId,
        result: Result<LabelSeen, Obstacle>,
    },
    /// A detach or a proof ended. The descriptor is closed either way; `Ok` means that this is proved. `label` is what
    /// the label says now, if that is known: it may not have been possible to write it.
    Closed {
        drive: DriveId,
        label: Option<LabelSeen>,
        result: Result<(), Obstacle>,
    },
    /// A detach was refused: the drive is open as before.
    StillOpen {
        drive: DriveId,
        obstacle: Obstacle,
    },
    /// A step takes too long. It still runs.
    Stuck {
        drive: DriveId,
        obstacle: Obstacle,
    },
    /// The pause after an obstacle is over.
    Retry(DriveId),
    /// What the descriptor of an open drive leads to is gone from the machine. The drive may come back; the descriptor
    /// does not.
    Gone(DriveId),
}

/// What the shell does for the agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Write the record; answer with [`Event::Saved`]. One write is under way at a time.
    Save(AgentRecord),
    /// Prove the identity, open, bring the label up to date.
    Attach(AttachWork),
    /// The drive is open: bring its label up to date through the open descriptor.
    Relabel(AttachWork),
    /// Mark the label released, close, prove that it is closed.
    Detach {
        drive: DriveId,
        generation: Generation,
    },
    /// The drive is closed: mark the label released if it is not, and prove that the drive is closed.
    Prove {
        drive: DriveId,
        generation: Generation,
    },
    Send(Answer),
    /// The drive is open: change its label, which is of that generation.
    ChangeLabel {
        generation: Generation,
        order: LabelOrder,
    },
    /// Tell the registry what is on the label of an open drive.
    TellLabel(DriveId),
    SendLabel(LabelAnswer),
    SendUse(UseAnswer),
    /// Take a volume away from whatever uses it; answer with [`Event::UseEnded`].
    EndUse {
        volume: VolumeId,
        epoch: Epoch,
    },
    /// Give [`Event::Retry`] after a pause.
    RetryLater(DriveId),
    /// The registry's answer was not acceptable: end the session, tell a person.
    RefuseSession(SessionRefused),
    /// Something that a person must look at.
    Alarm {
        drive: DriveId,
        refused: OrderRefused,
    },
}

/// What an attach needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttachWork {
    pub drive: DriveId,
    pub evidence: Evidence,
    pub path: String,
    pub generation: Generation,
    /// What the label is to say. False only where a released drive is opened at the start: its label stays as it is.
    pub in_operation: bool,
    pub take_over: bool,
    /// What on the drive may be wiped first. Empty: nothing.
    pub wipe: Vec<Content>,
}

/// What an agent opens before a registry has said anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AttachAtStart {
    /// What the record allows; without a usable record, what labels of this cluster and node say is in operation.
    #[default]
    Allowed,
    /// Every drive with a label of this cluster and node, removed or not. A removed drive is open again until the
    /// registry has answered the registration.
    All,
}

/// Why an agent does not accept a registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SessionRefused {
    #[error(
        "the registry speaks under term {offered}, but this node has already accepted {accepted}"
    )]
    TermWentBack { accepted: Term, offered: Term },
    #[error("the registry is of another cluster or takes this node for another")]
    ForeignCluster { ours: Identity, theirs: Identity },
}

/// The state of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Agent {
    rules: Rules,
    incarnation: Incarnation,
    health: RecordHealth,
    record: AgentRecord,
    save: Save,
    session: Option<SessionNumber>,
    devices: Vec<Observed>,
    drives: BTreeMap<DriveId, Local>,
    /// Answers that wait for the record on disk, with the write that they wait for.
    held: Vec<(Written, Answer)>,
    held_uses: Vec<(Written, UseAnswer)>,
    /// Volumes whose use is being ended.
    ending: BTreeSet<VolumeId>,
    /// Volumes whose use was taken back, and that nothing here uses: it was looked at since this agent started.
    ended: BTreeSet<VolumeId>,
}

/// Whether a write of the record is under way, and whether another must follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Save {
    Idle,
    Writing,
    WritingThenAgain,
}

/// Which write of the record something waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Written {
    Yes,
    WithThisWrite,
    WithTheNextWrite,
}

/// One drive on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Local {
    actual: Actual,
    /// The drive is open, or to be opened, by what its label said at the start, until an order comes.
    by_label: Option<ByLabel>,
    /// The order in force that the registry waits to hear of.
    owed: Option<Ordered>,
    /// Whether the order in force is on disk.
    written: Written,
    /// A step failed and the pause before the next try is not over.
    pausing: bool,
    /// The obstacle that the registry was last told of, so that it is not told again and again.
    told: Option<Obstacle>,
    label_work: Option<LabelWork>,
    /// The size of the drive when its label was last brought up to date. Another one is told to the label.
    size_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ByLabel {
    generation: Generation,
    in_operation: bool,
}

/// How the drive is, as far as this agent knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Actual {
    Closed,
    Opening,
    Open { label: Generation },
    Relabelling,
    ChangingLabel { label: Generation },
    Closing,
    Proving,
}

impl Local {
    const fn closed() -> Self {
        Self {
            actual: Actual::Closed,
            by_label: None,
            owed: None,
            written: Written::Yes,
            pausing: false,
            told: None,
            label_work: None,
            size_bytes: None,
        }
    }
}

impl Agent {
    /// Starts from what was found on disk and on the machine. The effects open what the record allows; without a
    /// usable record, what labels of this cluster and node say is in operation; or more, if `at_start` says so.
    pub fn start(
        rules: Rules,
        incarnation: Incarnation,
        found: RecordFound,
        devices: Vec<Observed>,
        at_start: AttachAtStart,
    ) -> (Self, Vec<Effect>) {
        let (record, health) = match found {
            RecordFound::Usable(record) => (record, RecordHealth::Usable),
            RecordFound::Absent(kept) => (AgentRecord::of_kept(kept), RecordHealth::Absent),
            RecordFound::Damaged { kept, why } => {
                (AgentRecord::of_kept(kept), RecordHealth::Damaged { why })
            }
        };
        let mut drives: BTreeMap<_, _> =
            record.drives.keys().map(|drive| (*drive, Local::closed())).collect();
        let counts = |label: &LabelSeen| match at_start {
            AttachAtStart::Allowed => health != RecordHealth::Usable && label.in_operation,
            AttachAtStart::All => true,
        };
        if let Some(identity) = record.identity {
            let labels = devices.iter().filter_map(|device| device.label);
            let ours = |label: &LabelSeen| {
                (label.cluster, label.node) == (identity.cluster, identity.node)
            };
            for label in labels.filter(|label| ours(label) && counts(label)) {
                let LabelSeen { generation, in_operation, .. } = label;
                let by_label = Some(ByLabel { generation, in_operation });
                drives.insert(label.drive, Local { by_label, ..Local::closed() });
            }
        }
        let mut agent = Self {
            rules,
            incarnation,
            health,
            record,
            save: Save::Idle,
            session: None,
            devices,
            drives,
            held: Vec::new(),
            held_uses: Vec::new(),
            ending: BTreeSet::new(),
            ended: BTreeSet::new(),
        };
        let mut effects = Vec::new();
        agent.advance_all(&mut effects);
        (agent, effects)
    }

    /// The registration to send at the start of a session. Conditions and labels of the node, and whether it has
    /// device-mapper, are the shell's to add.
    pub fn registration(&self, name: NodeName, machine: MachineId) -> Registration {
        let cluster = self.record.identity.map(|identity| identity.cluster);
        let label_of = |drive: DriveId| {
            let ours = |label: &LabelSeen| label.drive == drive && Some(label.cluster) == cluster;
            self.devices.iter().filter_map(|device| device.label).find(ours)
        };
        let drives = self.drives.iter().map(|(drive, local)| DriveReport {
            drive: *drive,
            seen: self.record.drives.get(drive).map(|memory| memory.seen),
            evidence: self
                .record
                .drives
                .get(drive)
                .map(|memory| memory.evidence.clone())
                .unwrap_or_default(),
            label: label_of(*drive),
            // Also while it waits to be tried again: the registry must not take it for closed.
            open: !matches!(local.actual, Actual::Closed | Actual::Proving)
                || self.wanted(*drive).is_some_and(|(goal, _)| goal == Goal::Attach),
        });
        let mut drives: Vec<_> = drives.collect();
        for label in self.devices.iter().filter_map(|device| device.label) {
            if Some(label.cluster) == cluster && !self.drives.contains_key(&label.drive) {
                let drive = label.drive;
                let evidence = Evidence::default();
                let label = Some(label);
                drives.push(DriveReport { drive, seen: None, evidence, label, open: false });
            }
        }
        Registration {
            node: self.record.identity.map(|identity| identity.node),
            name,
            machine,
            incarnation: self.incarnation,
            cluster,
            newest_term: self.record.term,
            record: self.health.clone(),
            drives,
            devices: self.devices.clone(),
            conditions: Vec::new(),
            labels: NodeLabels::default(),
            uses: self.uses_seen(),
            device_mapper: false,
            program: Box::default(),
        }
    }

    /// Takes one event. What must happen next is returned, in order.
    pub fn step(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Devices(devices) => {
                self.devices = devices;
                self.advance_all(&mut effects);
            }
            Event::Registered(registered) => self.registered(registered, &mut effects),
            Event::SessionLost => self.session_lost(),
            Event::Order(order) => self.order(order, &mut effects),
            Event::LabelOrder(order) => self.label_order(order, &mut effects),
            Event::UseOrder(order) => self.use_order(order, &mut effects),
            Event::Formatted { drive, volume, basis } => {
                self.formatted(drive, volume, basis, &mut effects);
            }
            Event::LabelChanged { drive, result } => {
                self.label_changed(drive, result, &mut effects);
            }
            Event::UseEnded { volume, epoch, result } => {
                self.use_ended(volume, epoch, result, &mut effects);
            }
            Event::Saved => self.saved(&mut effects),
            Event::SaveFailed { error } => self.save_failed(&error, &mut effects),
            Event::Attached { drive, result } => self.attached(drive, result, &mut effects),
            Event::Closed { drive, label, result } => {
                self.closed(drive, label, result, &mut effects);
            }
            Event::StillOpen { drive, obstacle } => {
                self.still_open(drive, obstacle, &mut effects);
            }
            Event::Stuck { drive, obstacle } => self.waiting(drive, obstacle, &mut effects),
            Event::Retry(drive) => {
                if let Some(local) = self.drives.get_mut(&drive) {
                    local.pausing = false;
                }
                self.advance(drive, &mut effects);
            }
            Event::Gone(drive) => self.gone(drive, &mut effects),
        }
        effects
    }

    /// The session that the registry accepted, if any.
    pub fn session(&self) -> Option<SessionNumber> {
        self.session
    }

    /// What is remembered, for people and for tests.
    pub fn record(&self) -> &AgentRecord {
        &self.record
    }

    /// The devices on the machine, with the labels that were written since.
    pub fn devices(&self) -> &[Observed] {
        &self.devices
    }

    /// Whether a drive is to be closed although its label has volumes: they were given up with the host.
    pub fn is_given_up(&self, drive: DriveId) -> bool {
        let memory = self.record.drives.get(&drive);
        memory.is_some_and(|memory| {
            memory.given_up && memory.in_force.is_some_and(|ordered| ordered.goal == Goal::Detach)
        })
    }

    /// The order in force for a drive.
    pub fn in_force(&self, drive: DriveId) -> Option<Ordered> {
        self.record.drives.get(&drive).and_then(|memory| memory.in_force)
    }
}
