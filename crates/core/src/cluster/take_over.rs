//! A drive that another node holds is taken over: because a person says so, and types its serial number.
//!
//! | the node that has it in its record, or on its label | answer |
//! |---|---|
//! | its agent is connected and reports the drive | `E_INVALID_STATE`: one drive, seen on two nodes |
//! | its agent is connected, and the drive is gone from there | `S_OK` |
//! | its agent is not connected | `S_OK`: the word of the person stands for it |
//! | it was purged | the drive moves by itself, see `purge` |
//!
//! The drive keeps its id, its name and its volumes. Two generations are given out: the first closes it for the old
//! node, the second attaches it to the new one. So one generation has one goal here as everywhere, and an old node that
//! comes back has never seen anything newer than the registry.

use std::fmt;

use super::actions::Asked;
use super::find::Unmet;
use super::planned::Sum;
use super::{About, Cluster, Contact, Effects, Newcomer, Notice, State, StateHash};
use crate::cms::{Code, Outcome, Reason, TakeOver, Target};
use crate::device::Observed;
use crate::evidence::Comparison;
use crate::ids::{DriveId, NodeId};
use crate::message::{DriveReport, Obstacle, Order};
use crate::order::{Generation, Goal, Ordered, Stamp};

/// What a take-over is about, found before anything is decided.
#[derive(Debug, Clone)]
pub(super) struct Sought {
    pub(super) drive: DriveId,
    /// Where the drive is now.
    pub(super) to: NodeId,
    /// Who holds it: by the drive's record, or by its label.
    pub(super) from: NodeId,
    /// The path of the newcomer; none if the drive is in the record of `to` already.
    newcomer: Option<String>,
}

/// How the node that holds a drive stands to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holder {
    /// Its agent is connected and reports the drive.
    HasIt,
    /// Its agent is connected, and the drive is not on its machine.
    Lost,
    /// Its agent is not connected, since that time if the registry has seen it go.
    Silent { for_ms: Option<u64> },
    /// The registry does not know it.
    Forgotten,
}

/// Why a drive is not taken over, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotTakenOver {
    #[error(
        "SeenOnTwoNodes: {node} is connected and reports {drive} at {path} too. If it was moved here, take it out \
         there; if both machines reach it, remove it there first:  hotbay drive remove {drive} --wait"
    )]
    HolderHasIt { drive: String, node: String, path: String },
    #[error("it is {drive} of {node} already; to put it into operation:  hotbay drive add {drive}")]
    NotElsewhere { drive: String, node: String },
    #[error("say where {drive} is now:  hotbay drive take-over {here}")]
    WhereIsIt { drive: String, here: String },
    #[error("it looks like {drive}, which is {path} of the same node; take one of them out")]
    SameNode { drive: String, path: String },
    #[error(
        "it is not {drive}: it carries a label that is not its own, so it is a copy or was one; only the drive itself \
         can be taken over"
    )]
    Copy { drive: String },
    #[error("{given:?} is not its serial number; type that of the drive you mean: {expected}")]
    OtherSerial { given: String, expected: String },
    #[error(
        "ChangedSince: it is not as it was when you looked (its state is {now} now); look again"
    )]
    Changed { now: StateHash },
}

impl Holder {
    /// Whether a person may take the drive from it.
    const fn gives_way(self) -> bool {
        match self {
            Self::HasIt => false,
            Self::Lost | Self::Silent { .. } | Self::Forgotten => true,
        }
    }
}

/// Behind the holder's name.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const RISK: &str = "if it still runs and reaches this drive, both would write to it";
        match self {
            Self::HasIt => f.write_str("is connected and reports it"),
            Self::Lost => f.write_str("is connected, and reports that it is gone from there"),
            Self::Silent { for_ms: Some(ms) } => {
                write!(f, "has not been heard for {}; {RISK}", time(*ms))
            }
            Self::Silent { for_ms: None } => {
                write!(f, "has not been heard since the registry started; {RISK}")
            }
            Self::Forgotten => write!(f, "is not known here; {RISK}"),
        }
    }
}

/// A time in a sentence.
fn time(ms: u64) -> String {
    match ms / 1_000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

impl Cluster {
    /// The drive that a target means, wherever it is known.
    pub(super) fn sought(&self, target: &Target) -> Result<Sought, Unmet> {
        let Some(newcomer) = self.newcomer(target) else {
            let drive = self.find(target)?;
            self.said_where(target, drive)?;
            let known = &self.drives[&drive];
            let to = known.record.node;
            let from = known.label.map_or(to, |label| label.node);
            return Ok(Sought { drive, to, from, newcomer: None });
        };
        let Newcomer { node, device, like, .. } = newcomer;
        let fitting: Vec<_> = self.fitting(device).collect();
        if fitting.len() > 1 {
            let names = fitting.iter().map(|id| self.drives[id].record.name.clone());
            let (device, fitting) = (device.path.clone(), names.collect());
            return Err(Unmet {
                code: Code::InvalidState,
                reason: Reason::Ambiguous { device, fitting },
            });
        }
        let from = self.drives[like].record.node;
        Ok(Sought { drive: *like, to: *node, from, newcomer: Some(device.path.clone()) })
    }

    /// A drive is taken over where it is now. By its name it is where its record says, and that is what is in question.
    fn said_where(&self, target: &Target, drive: DriveId) -> Result<(), Unmet> {
        let by_place = target.host.is_some() || target.device.contains(':');
        let mut elsewhere = self.newcomers.values().filter(|newcomer| newcomer.like == drive);
        let Some(newcomer) = elsewhere.next().filter(|_| !by_place) else { return Ok(()) };
        let (drive, node) = self.names(drive, newcomer.node);
        let here = format!("{node}:{}", newcomer.device.path);
        let why = Box::new(NotTakenOver::WhereIsIt { drive, here });
        Err(Unmet { code: Code::InvalidState, reason: Reason::NotTakenOver(why) })
    }

    /// What must be typed to take a device over: its serial number, or the drive's name if it has none.
    pub fn word_for(&self, like: DriveId, device: &Observed) -> String {
        let serial = device.evidence.serial.clone();
        serial.unwrap_or_else(|| self.drives[&like].record.name.clone())
    }

    /// The node whose name is on the label of a drive that has another node in its record. Only a person may have
    /// that taken over.
    pub fn held_by_label(&self, id: DriveId) -> Option<NodeId> {
        let drive = self.drives.get(&id)?;
        let waits = match drive.record.state {
            State::Attached => false,
            State::Unknown | State::Attaching | State::Closing | State::Detached => true,
        };
        let held = |node: NodeId| waits && !drive.record.take_over && node != drive.record.node;
        drive
            .label
            .filter(|label| label.in_operation)
            .map(|label| label.node)
            .filter(|it| held(*it))
    }

    /// The state that a decision to take a newcomer over rests on: the device, the drive that it looks like, and how
    /// that drive's node stands to it.
    pub fn newcomer_state(&self, newcomer: &Newcomer) -> StateHash {
        let drive = &self.drives[&newcomer.like];
        let mut sum = Sum::default();
        sum.add(&newcomer.node.to_bits().to_le_bytes());
        sum.device(&newcomer.device);
        sum.add(&drive.record.id.to_bits().to_le_bytes());
        sum.add(&drive.record.node.to_bits().to_le_bytes());
        sum.add(drive.record.state.wire_name().as_bytes());
        sum.add(&drive.record.generation.get().to_le_bytes());
        let connected = self.connected(drive.record.node);
        sum.add(&[u8::from(connected), u8::from(connected && drive.present)]);
        sum.hash()
    }

    fn connected(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.session.is_some())
    }

    pub(super) fn name_of(&self, node: NodeId) -> String {
        let known = self.nodes.get(&node).map(|node| node.record.name.to_string());
        known.unwrap_or_else(|| format!("a node that is not known ({node})"))
    }

    fn holder(&self, sought: &Sought, now_ms: u64) -> Holder {
        let Some(node) = self.nodes.get(&sought.from) else { return Holder::Forgotten };
        if node.session.is_none() {
            let for_ms = node.silent_since_ms.map(|since| now_ms.saturating_sub(since));
            return Holder::Silent { for_ms };
        }
        let reported = match sought.newcomer {
            Some(_) => self.drives[&sought.drive].present,
            // The drive is in the record of another node: where it is seen as well, it is a newcomer.
            None => self.newcomers_on(sought.from).any(|other| other.like == sought.drive),
        };
        if reported { Holder::HasIt } else { Holder::Lost }
    }

    /// Takes a drive over for the node that has it now.
    pub(super) fn take_over(
        &mut self,
        sought: &Sought,
        wanted: &TakeOver,
        asked: Asked<'_>,
        effects: &mut Effects,
    ) -> Outcome {
        let newcomer = sought.newcomer.as_ref().map(|path| (sought.to, path.clone()));
        let newcomer = newcomer.and_then(|key| self.newcomers.get(&key)).cloned();
        if let Some(answer) = self.take_over_refused(sought, newcomer.as_ref(), wanted) {
            return answer;
        }
        let holder = self.holder(sought, asked.now_ms);
        if !holder.gives_way() {
            let path = self.path_on(sought.from, sought.drive);
            let (drive, node) = self.names(sought.drive, sought.from);
            return refused(NotTakenOver::HolderHasIt { drive, node, path });
        }
        let from = self.name_of(sought.from);
        self.hand_over(sought, newcomer, asked, effects);
        let id = sought.drive;
        let text = format!(
            "{} was taken over from {from}, asked by {}: {from} {holder}.",
            self.describe(id),
            asked.by
        );
        let notice =
            Notice::warning("DriveTakenOver", About::Drive(id), text).of(self.order_id(id));
        effects.notices.push(notice);
        self.order_anew(id, effects);
        let volumes = self.volumes_on(id).len();
        let come_along = (volumes > 0).then_some(Reason::VolumesComeAlong { volumes });
        let reasons = [Reason::TakenFrom { node: from, holder }].into_iter().chain(come_along);
        Outcome { reasons: reasons.collect(), ..Outcome::new(Code::Ok) }
    }

    /// Whatever keeps a drive from being taken over, beside its holder.
    fn take_over_refused(
        &self,
        sought: &Sought,
        newcomer: Option<&Newcomer>,
        wanted: &TakeOver,
    ) -> Option<Outcome> {
        let record = &self.drives[&sought.drive].record;
        let device = newcomer.map_or(&*record.observed, |newcomer| &newcomer.device);
        let expected = self.word_for(sought.drive, device);
        if wanted.serial != expected {
            let given = wanted.serial.clone();
            return Some(refused(NotTakenOver::OtherSerial { given, expected }));
        }
        if newcomer.is_none() && self.held_by_label(sought.drive).is_none() {
            // Also what was taken over before, by the same word.
            let (drive, node) = self.names(sought.drive, record.node);
            return Some(match record.state.goal() {
                Goal::Attach => Outcome::new(Code::Already),
                Goal::Detach => refused(NotTakenOver::NotElsewhere { drive, node }),
            });
        }
        if self.rewound(sought.to) || self.rewound(sought.from) {
            return Some(Outcome::because(Code::InvalidState, Reason::RegistryRewound));
        }
        if self.is_purged(sought.to) {
            return Some(Outcome::because(Code::InvalidState, Reason::Purged));
        }
        // What it reported last may not be so any more.
        if !self.connected(sought.to) {
            return Some(Outcome::because(Code::InvalidState, Reason::AgentUnreachable));
        }
        let now = match newcomer {
            Some(newcomer) => Some(self.newcomer_state(newcomer)),
            None => self.state_hash(sought.drive),
        };
        if let Some((planned, now)) = wanted.state.zip(now)
            && planned != now
        {
            return Some(refused(NotTakenOver::Changed { now }));
        }
        let denied: Vec<_> = device.denied.iter().cloned().map(Reason::Denied).collect();
        if !denied.is_empty() {
            return Some(Outcome { reasons: denied, ..Outcome::new(Code::InvalidState) });
        }
        newcomer.and_then(|newcomer| self.is_not_it(newcomer))
    }

    /// A newcomer that is not the drive that it looks like, or of which nothing tells whether it is.
    fn is_not_it(&self, newcomer: &Newcomer) -> Option<Outcome> {
        let record = &self.drives[&newcomer.like].record;
        let drive = record.name.clone();
        if record.node == newcomer.node {
            let path = record.observed.path.clone();
            return Some(refused(NotTakenOver::SameNode { drive, path }));
        }
        let same = newcomer.device.evidence.compare(&record.observed.evidence) == Comparison::Same;
        let label = newcomer.device.label.filter(|label| label.cluster == self.id());
        if !same || label.is_some_and(|label| label.drive != newcomer.like) {
            return Some(refused(NotTakenOver::Copy { drive }));
        }
        let labelled = |device: &Observed| {
            device
                .label
                .is_some_and(|label| (label.cluster, label.drive) == (self.id(), newcomer.like))
        };
        let alike = self.newcomers_on(newcomer.node).filter(|other| {
            other.like == newcomer.like
                && (other.device.path == newcomer.device.path
                    || labelled(&other.device) >= labelled(&newcomer.device))
        });
        let paths: Vec<_> = alike.map(|other| other.device.path.clone()).collect();
        let alike = Reason::Obstacle(Obstacle::LooksAlike { paths: paths.clone() });
        (paths.len() > 1).then(|| Outcome::because(Code::InvalidState, alike))
    }

    /// Moves the drive's record, and has it closed where it was.
    fn hand_over(
        &mut self,
        sought: &Sought,
        newcomer: Option<Newcomer>,
        asked: Asked<'_>,
        effects: &mut Effects,
    ) {
        let Sought { drive: id, to, from, .. } = *sought;
        let closed_at = self.raised(self.drives[&id].record.generation);
        let generation = self.raised(closed_at);
        self.close_for_another(from, id, closed_at, effects);
        self.give_to(to, id, effects);
        let empty = self.volumes_on(id).is_empty();
        self.forget_label(id);
        self.change_drive(id, effects, |record| {
            record.generation = generation;
            record.state = State::Attaching;
            record.take_over = true;
            record.removal_wanted = false;
            record.removed_alone = false;
            record.since_ms = asked.now_ms;
            asked.by.clone_into(&mut record.asked_by);
            if empty {
                let device = newcomer.as_ref().map_or(&*record.observed, |it| &it.device);
                record.added_bytes = device.size_bytes;
            }
        });
        let drive = self.drives.get_mut(&id).expect("found above");
        drive.contact = Contact::Silent;
        drive.missing = false;
        if let Some(newcomer) = newcomer {
            self.newcomers.remove(&(to, newcomer.device.path.clone()));
            self.note_present(id, newcomer.device, effects);
        }
    }

    /// Moves the record of a drive to another node.
    pub(super) fn give_to(&mut self, to: NodeId, id: DriveId, effects: &mut Effects) {
        let from = self.drives[&id].record.node;
        if from == to {
            return;
        }
        if let Some(node) = self.nodes.get_mut(&from) {
            node.drives.remove(&id);
        }
        self.nodes.get_mut(&to).expect("only to known nodes").drives.insert(id);
        self.change_drive(id, effects, |record| record.node = to);
    }

    /// Tells a node to close a drive that is another node's, and to do so again with every report, until its session
    /// ends: its next registration is answered the same. Whatever it says of the drive counts for nothing.
    fn close_for_another(
        &mut self,
        node: NodeId,
        id: DriveId,
        generation: Generation,
        effects: &mut Effects,
    ) {
        let stamp = Stamp { term: self.term(), generation };
        let evidence = self.drives[&id].record.observed.evidence.clone();
        let Some(there) = self.nodes.get_mut(&node) else { return };
        let Some(session) = there.session else { return };
        let ordered = Ordered { goal: Goal::Detach, stamp };
        let incarnation = session.incarnation;
        let order = Order {
            drive: id,
            ordered,
            incarnation,
            evidence,
            take_over: false,
            wipe: None,
            // What is on it is used where the drive belongs. Its label may still say that it is this node's: it was
            // taken over and brought back before it was attached there.
            given_up: true,
        };
        there.not_its_own.insert(id, order.clone());
        effects.orders.push((session.number, order));
    }

    /// The orders to close what a node has open, or is about to, and what is another node's.
    pub(super) fn close_what_is_not_its_own<'a>(
        &mut self,
        node: NodeId,
        reports: impl Iterator<Item = &'a DriveReport>,
    ) -> Vec<Order> {
        let mut told = Effects::default();
        for report in reports.filter(|report| report.open) {
            let known = self.drives.get(&report.drive).map(|drive| &drive.record);
            let Some(record) = known.filter(|record| record.node != node) else { continue };
            // Its label may be another node's by now, and then says nothing of what this one was told.
            let seen = DriveReport {
                label: report.label.filter(|_| report.seen.is_none()),
                ..report.clone()
            };
            let closed_at = match seen.newest() {
                Some((generation, Goal::Attach)) => generation.next(),
                // It was told before, and has not got to it.
                Some((generation, Goal::Detach)) => generation,
                // Opened by its label, without a record; and the label has left with the drive. It was out of operation
                // before it was attached to another node: that generation closes it here as well.
                None => match record.state.goal() {
                    Goal::Attach => record.generation.before(),
                    Goal::Detach => record.generation,
                },
            };
            self.close_for_another(node, report.drive, closed_at, &mut told);
        }
        told.orders.into_iter().map(|(_, order)| order).collect()
    }

    /// A node has reported its devices: what it was told to close for another may be among them again. What has come
    /// back to it since is its own.
    pub(super) fn close_again(&self, id: NodeId, effects: &mut Effects) {
        let node = &self.nodes[&id];
        let Some(session) = node.session else { return };
        let orders = node.not_its_own.values().filter(|order| {
            self.drives.get(&order.drive).is_none_or(|drive| drive.record.node != id)
        });
        effects.orders.extend(orders.map(|order| (session.number, order.clone())));
    }

    fn names(&self, drive: DriveId, node: NodeId) -> (String, String) {
        (self.drives[&drive].record.name.clone(), self.name_of(node))
    }

    /// Where a node that holds a drive has it.
    fn path_on(&self, node: NodeId, id: DriveId) -> String {
        let record = &self.drives[&id].record;
        let other = self.newcomers_on(node).find(|newcomer| newcomer.like == id);
        match other {
            Some(newcomer) if record.node != node => newcomer.device.path.clone(),
            Some(_) | None => record.observed.path.clone(),
        }
    }
}

fn refused(why: NotTakenOver) -> Outcome {
    Outcome::because(Code::InvalidState, Reason::NotTakenOver(Box::new(why)))
}

#[cfg(test)]
#[path = "take_over_histories.rs"]
mod histories;
#[cfg(test)]
#[path = "take_over_tests.rs"]
mod tests;
