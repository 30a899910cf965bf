//! The steps an agent takes on a drive, one at a time, until the drive is as wanted.

use super::{Actual, Agent, AttachWork, ByLabel, Effect, Written};
use crate::device::LabelSeen;
use crate::ids::DriveId;
use crate::label::table::LEAST_DRIVE_BYTES;
use crate::message::{AnswerResult, Obstacle};
use crate::order::{Generation, Goal};
use crate::rules::Rule;

impl Agent {
    pub(super) fn attached(
        &mut self,
        drive: DriveId,
        result: Result<LabelSeen, Obstacle>,
        effects: &mut Vec<Effect>,
    ) {
        let local = self.drives.get_mut(&drive).expect("a step was under way");
        let was_open = match local.actual {
            Actual::Relabelling => true,
            Actual::Opening => false,
            Actual::Closed
            | Actual::Open { .. }
            | Actual::ChangingLabel { .. }
            | Actual::Closing
            | Actual::Proving => unreachable!("{drive}: attached while {:?}", local.actual),
        };
        match result {
            Ok(label) => {
                local.actual = Actual::Open { label: label.generation };
                self.saw_label(label);
                self.use_up_permission(drive, effects);
                if self.session.is_some() {
                    effects.push(Effect::TellLabel(drive));
                }
                self.advance(drive, effects);
            }
            Err(obstacle) => {
                let unlabelled = Actual::Open { label: Generation::ZERO };
                local.actual = if was_open { unlabelled } else { Actual::Closed };
                self.try_again_later(drive, Goal::Attach, obstacle, effects);
            }
        }
    }

    pub(super) fn closed(
        &mut self,
        drive: DriveId,
        label: Option<LabelSeen>,
        result: Result<(), Obstacle>,
        effects: &mut Vec<Effect>,
    ) {
        let local = self.drives.get_mut(&drive).expect("a step was under way");
        debug_assert!(matches!(local.actual, Actual::Closing | Actual::Proving));
        local.actual = Actual::Closed;
        if let Some(label) = label {
            self.saw_label(label);
        }
        match (result, self.wanted(drive)) {
            (Ok(()), Some((Goal::Detach, generation))) => {
                self.done(drive, effects);
                if self.unreleased(drive, generation) {
                    self.pause(drive, effects);
                }
            }
            (Ok(()) | Err(_), Some((Goal::Attach, _)) | None) => self.advance(drive, effects),
            (Err(obstacle), Some((Goal::Detach, _))) => {
                self.try_again_later(drive, Goal::Detach, obstacle, effects);
            }
        }
    }

    /// A detach was refused, and nothing has changed.
    pub(super) fn still_open(
        &mut self,
        drive: DriveId,
        obstacle: Obstacle,
        effects: &mut Vec<Effect>,
    ) {
        let local = self.drives.get_mut(&drive).expect("a step was under way");
        debug_assert_eq!(local.actual, Actual::Closing);
        // Whatever the label says: if the drive is to stay, it is brought up to date.
        local.actual = Actual::Open { label: Generation::ZERO };
        self.try_again_later(drive, Goal::Detach, obstacle, effects);
    }

    /// Closes a drive whose descriptor leads nowhere any more, so that it is opened anew when it is there again. A step
    /// that is under way ends first: whoever found the device gone finds it so again.
    pub(super) fn gone(&mut self, drive: DriveId, effects: &mut Vec<Effect>) {
        let Some((_, generation)) = self.wanted(drive) else { return };
        let Some(local) = self.drives.get_mut(&drive) else { return };
        if matches!(local.actual, Actual::Open { .. }) {
            local.actual = Actual::Closing;
            effects.push(Effect::Detach { drive, generation });
        }
    }

    /// A step failed. If it still is what is wanted, it is tried again after a pause; else the next step is taken.
    pub(super) fn try_again_later(
        &mut self,
        drive: DriveId,
        tried: Goal,
        obstacle: Obstacle,
        effects: &mut Vec<Effect>,
    ) {
        if self.wanted(drive).is_some_and(|(goal, _)| goal == tried) {
            self.waiting(drive, obstacle, effects);
            self.pause(drive, effects);
        } else {
            self.advance(drive, effects);
        }
    }

    fn pause(&mut self, drive: DriveId, effects: &mut Vec<Effect>) {
        self.drives.get_mut(&drive).expect("a step was under way").pausing = true;
        effects.push(Effect::RetryLater(drive));
    }

    pub(super) fn advance_all(&mut self, effects: &mut Vec<Effect>) {
        let drives: Vec<_> = self.drives.keys().copied().collect();
        for drive in drives {
            self.advance(drive, effects);
        }
    }

    /// Compares what is wanted of a drive with what it is, and takes the one step that is due.
    pub(super) fn advance(&mut self, drive: DriveId, effects: &mut Vec<Effect>) {
        let Some((goal, generation)) = self.wanted(drive) else { return };
        let Some(local) = self.drives.get(&drive) else { return };
        let unwritten = self.rules.hold(Rule::RecordBeforeAct) && local.written != Written::Yes;
        if unwritten || local.pausing {
            return;
        }
        let owed = local.owed.is_some();
        let (step, effect) = match (goal, local.actual) {
            (
                _,
                Actual::Opening
                | Actual::Relabelling
                | Actual::ChangingLabel { .. }
                | Actual::Closing
                | Actual::Proving,
            ) => return,
            (Goal::Attach, Actual::Closed) => match self.attach_work(drive, generation) {
                Ok(work) => (Actual::Opening, Effect::Attach(work)),
                Err(obstacle) => return self.waiting(drive, obstacle, effects),
            },
            (Goal::Attach, Actual::Open { label })
                if label != generation || self.is_resized(drive) =>
            {
                match self.attach_work(drive, generation) {
                    Ok(work) => (Actual::Relabelling, Effect::Relabel(work)),
                    Err(obstacle) => return self.waiting(drive, obstacle, effects),
                }
            }
            (Goal::Attach, Actual::Open { .. }) => return self.done(drive, effects),
            (Goal::Detach, Actual::Open { .. }) => {
                (Actual::Closing, Effect::Detach { drive, generation })
            }
            (Goal::Detach, Actual::Closed) if owed || self.unreleased(drive, generation) => {
                (Actual::Proving, Effect::Prove { drive, generation })
            }
            (Goal::Detach, Actual::Closed) => return,
        };
        let size_bytes = self.labelled_size(drive);
        let local = self.drives.get_mut(&drive).expect("looked at above");
        local.actual = step;
        if matches!(step, Actual::Opening | Actual::Relabelling) {
            local.size_bytes = size_bytes;
        }
        effects.push(effect);
    }

    /// Whether an open drive has grown or shrunk since its label was brought up to date.
    fn is_resized(&self, drive: DriveId) -> bool {
        let then = self.drives.get(&drive).and_then(|local| local.size_bytes);
        let now = self.labelled_size(drive);
        then.is_some() && now.is_some() && then != now
    }

    /// The size of a drive, if it is there and large enough for a label: one that is empty for a moment is left alone.
    fn labelled_size(&self, drive: DriveId) -> Option<u64> {
        let size_bytes = self.locate(drive).device()?.size_bytes;
        (size_bytes >= LEAST_DRIVE_BYTES).then_some(size_bytes)
    }

    /// What is wanted of a drive: what its label said at the start, until an order comes, or the order in force.
    pub(super) fn wanted(&self, drive: DriveId) -> Option<(Goal, Generation)> {
        match self.by_label(drive) {
            Some(by_label) => Some((Goal::Attach, by_label.generation)),
            None => self.in_force(drive).map(|ordered| (ordered.goal, ordered.stamp.generation)),
        }
    }

    fn by_label(&self, drive: DriveId) -> Option<ByLabel> {
        self.drives.get(&drive).and_then(|local| local.by_label)
    }

    fn attach_work(&self, drive: DriveId, generation: Generation) -> Result<AttachWork, Obstacle> {
        let device = self.locate(drive).found()?;
        let memory = self.record.drives.get(&drive);
        Ok(AttachWork {
            drive,
            evidence: device.evidence.clone(),
            path: device.path.clone(),
            generation,
            in_operation: self.by_label(drive).is_none_or(|by_label| by_label.in_operation),
            take_over: memory.is_some_and(|memory| memory.take_over),
            wipe: self.may_wipe(drive, device)?,
        })
    }

    /// Whether a drive that is to be closed has a label that would have it opened at a start without a record: it could
    /// not be written at the detach, or the drive could not be opened any more before it was to be closed.
    fn unreleased(&self, drive: DriveId, generation: Generation) -> bool {
        let (true, Some(identity)) =
            (self.record.drives.contains_key(&drive), self.record.identity)
        else {
            return false;
        };
        let label = self.locate(drive).device().and_then(|device| device.label);
        label.is_some_and(|label| {
            label.in_operation
                && (label.cluster, label.node, label.drive)
                    == (identity.cluster, identity.node, drive)
                && label.generation <= generation
        })
    }

    /// Remembers a label that was just written, so that the next registration reports it.
    pub(super) fn saw_label(&mut self, label: LabelSeen) {
        let Some(found) = self.locate(label.drive).device() else { return };
        let number = self.devices.iter().position(|device| std::ptr::eq(device, found));
        self.devices[number.expect("it is one of them")].label = Some(label);
    }

    pub(super) fn done(&mut self, drive: DriveId, effects: &mut Vec<Effect>) {
        let Some(local) = self.drives.get_mut(&drive) else { return };
        if let Some(ordered) = local.owed.take() {
            self.answer(drive, ordered, AnswerResult::Done, effects);
        }
    }

    /// Tells the registry what is in the way; the order stays owed.
    pub(super) fn waiting(
        &mut self,
        drive: DriveId,
        obstacle: Obstacle,
        effects: &mut Vec<Effect>,
    ) {
        let Some(local) = self.drives.get_mut(&drive) else { return };
        let Some(ordered) = local.owed.filter(|_| local.told.as_ref() != Some(&obstacle)) else {
            return;
        };
        local.told = Some(obstacle.clone());
        self.answer(drive, ordered, AnswerResult::Waiting(obstacle), effects);
    }
}
