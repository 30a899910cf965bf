//! What an agent makes of orders about volumes: to change a label, and who may use a volume.
//!
//! A label order changes nothing that is remembered: the label itself says by its sequence what was done. A use is on
//! the agent's own disk before it counts; one that ends is ended on the machine first, and then answered.

use std::collections::BTreeSet;

use super::{Actual, Agent, AgentRecord, Effect, UseMemory, Written};
use crate::ids::{DriveId, VolumeId};
use crate::label::change::{Basis, Change};
use crate::message::UseReport;
use crate::order::Goal;
use crate::rules::Rule;
use crate::volume::Epoch;
use crate::volume::orders::{LabelAnswer, LabelOrder, LabelResult, UseAnswer, UseOrder, UseResult};

/// A label order that is being carried out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LabelWork {
    basis: Basis,
    changes: Vec<Change>,
    /// Volumes that are off the drive if it succeeds.
    freed: Vec<VolumeId>,
    /// Whoever gave it still listens.
    asked: bool,
}

impl Agent {
    /// Whether a drive is just being opened or closed, or is about to be: what is not open now may be in a moment.
    pub fn is_settling(&self, drive: DriveId) -> bool {
        self.drives.get(&drive).is_some_and(|local| {
            local.written != Written::Yes
                || matches!(local.actual, Actual::Opening | Actual::Closing)
        })
    }

    pub(super) fn label_order(&mut self, order: LabelOrder, effects: &mut Vec<Effect>) {
        if !self.is_meant(order.incarnation, order.term) {
            return;
        }
        let wanted = self.wanted(order.drive).is_some_and(|(goal, _)| goal == Goal::Attach);
        let drive = order.drive;
        match self.drives.get_mut(&drive) {
            Some(local) if matches!(local.actual, Actual::ChangingLabel { .. }) => {
                // It comes again while it is carried out, and is answered then.
            }
            Some(local) if wanted && local.actual == Actual::Relabelling => {
                // The label is told when that has ended, and what is owed is ordered anew.
            }
            Some(local) if wanted && matches!(local.actual, Actual::Open { .. }) => {
                let Actual::Open { label } = local.actual else { unreachable!("looked at above") };
                let freed: Vec<_> = order.changes.iter().filter_map(Change::takes_off).collect();
                let uses = in_use(&self.record, &self.ended, &freed);
                if !uses.is_empty() && self.rules.hold(Rule::FreeUnused) {
                    let result = LabelResult::InUse { uses };
                    return self.answer_label(drive, order.basis, order.changes, result, effects);
                }
                local.actual = Actual::ChangingLabel { label };
                let (basis, changes) = (order.basis, order.changes.clone());
                local.label_work = Some(LabelWork { basis, changes, freed, asked: true });
                effects.push(Effect::ChangeLabel { generation: label, order });
            }
            Some(_) | None => {
                let error = "the drive is not open".to_owned();
                let result = LabelResult::Failed { error };
                self.answer_label(drive, order.basis, order.changes, result, effects);
            }
        }
    }

    /// A filesystem was made on a volume: the label is to say so. Nothing happens while something else is under way on
    /// the drive, or it is not open; the shell asks again.
    pub(super) fn formatted(
        &mut self,
        drive: DriveId,
        volume: VolumeId,
        basis: Basis,
        effects: &mut Vec<Effect>,
    ) {
        let wanted = self.wanted(drive).is_some_and(|(goal, _)| goal == Goal::Attach);
        let (Some(term), Some(local)) = (self.record.term, self.drives.get_mut(&drive)) else {
            return;
        };
        let Actual::Open { label } = local.actual else { return };
        if !wanted {
            return;
        }
        local.actual = Actual::ChangingLabel { label };
        let (incarnation, changes) = (self.incarnation, vec![Change::Formatted { volume }]);
        // The registry is told the label that comes of it, and decides anew.
        let work = LabelWork { basis, changes: changes.clone(), freed: Vec::new(), asked: false };
        local.label_work = Some(work);
        let order = LabelOrder { drive, term, incarnation, basis, changes };
        effects.push(Effect::ChangeLabel { generation: label, order });
    }

    pub(super) fn label_changed(
        &mut self,
        drive: DriveId,
        result: LabelResult,
        effects: &mut Vec<Effect>,
    ) {
        let local = self.drives.get_mut(&drive).expect("a step was under way");
        let Actual::ChangingLabel { label } = local.actual else {
            unreachable!("{drive}: its label was changed while {:?}", local.actual)
        };
        local.actual = Actual::Open { label };
        let work = local.label_work.take().expect("a label was being changed");
        if matches!(result, LabelResult::Done { .. }) {
            self.forget_uses(&work.freed, effects);
        }
        if work.asked {
            self.answer_label(drive, work.basis, work.changes, result, effects);
        } else if self.session.is_some() {
            effects.push(Effect::TellLabel(drive));
        }
        self.advance(drive, effects);
    }

    pub(super) fn use_order(&mut self, order: UseOrder, effects: &mut Vec<Effect>) {
        let UseOrder { volume, drive, term, incarnation, grant } = order;
        if !self.is_meant(incarnation, term) {
            return;
        }
        let before = self.record.volumes.get(&volume);
        if let Some(before) = before.filter(|before| !grant.may_follow(&before.grant))
            && self.rules.hold(Rule::UseEpoch)
        {
            let seen = before.grant.epoch;
            let why = format!("a later use was seen, of epoch {seen}");
            let (epoch, granted) = (grant.epoch, grant.granted);
            self.answer_use(volume, (epoch, granted), UseResult::Refused { why, seen }, effects);
            return;
        }
        // What is just being freed on the label is used by nobody, whoever has forgotten that it was to be freed.
        let mut freed = self.drives.values().filter_map(|local| local.label_work.as_ref());
        if grant.granted && freed.any(|work| work.freed.contains(&volume)) {
            let why = "it is just being taken off its drive".to_owned();
            self.answer_use(volume, (grant.epoch, true), UseResult::Waiting { why }, effects);
            return;
        }
        let after = UseMemory { drive, grant };
        if before != Some(&after) {
            self.record.volumes.insert(volume, after);
            self.ended.remove(&volume);
            self.write(effects);
        }
        if grant.granted {
            self.answer_use(volume, (grant.epoch, true), UseResult::Done, effects);
        } else if self.ending.insert(volume) {
            effects.push(Effect::EndUse { volume, epoch: grant.epoch });
        }
    }

    pub(super) fn use_ended(
        &mut self,
        volume: VolumeId,
        epoch: Epoch,
        result: Result<(), String>,
        effects: &mut Vec<Effect>,
    ) {
        self.ending.remove(&volume);
        let result = match result {
            Ok(()) => {
                let memory = self.record.volumes.get(&volume);
                if memory.is_some_and(|memory| !memory.grant.granted && memory.grant.epoch == epoch)
                {
                    self.ended.insert(volume);
                }
                UseResult::Done
            }
            Err(why) => UseResult::Waiting { why },
        };
        self.answer_use(volume, (epoch, false), result, effects);
    }

    /// The labels of open drives are told anew in every session, before anything is decided on them.
    pub(super) fn tell_labels(&mut self, effects: &mut Vec<Effect>) {
        for (drive, local) in &mut self.drives {
            match local.actual {
                Actual::Open { .. } => effects.push(Effect::TellLabel(*drive)),
                // Told when it is changed: whoever asked for that is gone.
                Actual::ChangingLabel { .. }
                | Actual::Closed
                | Actual::Opening
                | Actual::Relabelling
                | Actual::Closing
                | Actual::Proving => {}
            }
        }
    }

    /// Whoever gave a label order does not listen any more.
    pub(super) fn forget_askers(&mut self) {
        for work in self.drives.values_mut().filter_map(|local| local.label_work.as_mut()) {
            work.asked = false;
        }
        self.held_uses.clear();
    }

    pub(super) fn uses_saved(&mut self, effects: &mut Vec<Effect>) {
        for (written, answer) in std::mem::take(&mut self.held_uses) {
            match written {
                Written::Yes | Written::WithThisWrite => effects.push(Effect::SendUse(answer)),
                Written::WithTheNextWrite => {
                    self.held_uses.push((Written::WithThisWrite, answer));
                }
            }
        }
    }

    /// What a registry that was restored or rebuilt must not fall behind.
    pub(super) fn uses_seen(&self) -> Vec<UseReport> {
        let volumes = self.record.volumes.iter();
        volumes.map(|(volume, seen)| UseReport { volume: *volume, grant: seen.grant }).collect()
    }

    fn is_meant(&self, incarnation: crate::ids::Incarnation, term: crate::order::Term) -> bool {
        incarnation == self.incarnation && Some(term) == self.session.and(self.record.term)
    }

    /// What is off its drive is used by nobody, and its epochs are of no more use.
    fn forget_uses(&mut self, freed: &[VolumeId], effects: &mut Vec<Effect>) {
        let before = self.record.volumes.len();
        let over = |volume: &VolumeId, memory: &mut UseMemory| {
            memory.grant.granted || !freed.contains(volume)
        };
        self.record.volumes.retain(over);
        self.ended.retain(|volume| !freed.contains(volume));
        if self.record.volumes.len() != before {
            self.write(effects);
        }
    }

    fn answer_label(
        &self,
        drive: DriveId,
        on: Basis,
        changes: Vec<Change>,
        result: LabelResult,
        effects: &mut Vec<Effect>,
    ) {
        let incarnation = self.incarnation;
        let answer = LabelAnswer { drive, incarnation, on, changes, result };
        effects.push(Effect::SendLabel(answer));
    }

    fn answer_use(
        &mut self,
        volume: VolumeId,
        (epoch, granted): (Epoch, bool),
        result: UseResult,
        effects: &mut Vec<Effect>,
    ) {
        let incarnation = self.incarnation;
        let answer = UseAnswer { volume, incarnation, epoch, granted, result };
        match self.pending_write() {
            _ if !self.rules.hold(Rule::UseBeforeAnswer) => effects.push(Effect::SendUse(answer)),
            Written::Yes => effects.push(Effect::SendUse(answer)),
            written @ (Written::WithThisWrite | Written::WithTheNextWrite) => {
                self.held_uses.retain(|(_, held)| held.volume != volume);
                self.held_uses.push((written, answer));
            }
        }
    }
}

/// Of the volumes that are to be freed, those of which it is not known that nothing on this machine uses them: granted,
/// or taken back and not ended since this agent started.
fn in_use(
    record: &AgentRecord,
    ended: &BTreeSet<VolumeId>,
    freed: &[VolumeId],
) -> Vec<(VolumeId, Epoch)> {
    let known = freed.iter().filter(|volume| !ended.contains(volume));
    let uses = known.filter_map(|volume| Some((*volume, record.volumes.get(volume)?.grant.epoch)));
    uses.collect()
}
