//! The agent's rule of release: nothing is done or answered before the record that it follows from is on disk.

use super::{Agent, Effect, Save, Written};
use crate::ids::DriveId;
use crate::message::{Answer, AnswerResult, Obstacle};
use crate::order::Ordered;
use crate::rules::Rule;

impl Agent {
    /// Answers as soon as everything that the answer follows from is on disk.
    pub(super) fn answer(
        &mut self,
        drive: DriveId,
        ordered: Ordered,
        result: AnswerResult,
        effects: &mut Vec<Effect>,
    ) {
        let answer = Answer { drive, ordered, incarnation: self.incarnation, result };
        let written = match self.save {
            Save::Idle => Written::Yes,
            Save::Writing => Written::WithThisWrite,
            Save::WritingThenAgain => Written::WithTheNextWrite,
        };
        if written == Written::Yes || !self.rules.hold(Rule::TermBeforeAnswer) {
            effects.push(Effect::Send(answer));
        } else {
            // One per order, the newest: an order that comes again and again while the disk hangs adds nothing.
            self.held.retain(|(_, held)| (held.drive, held.ordered) != (drive, ordered));
            self.held.push((written, answer));
        }
    }

    /// Has the record written; says which write the change goes with.
    pub(super) fn write(&mut self, effects: &mut Vec<Effect>) -> Written {
        match self.save {
            Save::Idle => {
                self.save = Save::Writing;
                effects.push(Effect::Save(self.record.clone()));
                Written::WithThisWrite
            }
            Save::Writing | Save::WritingThenAgain => {
                self.save = Save::WritingThenAgain;
                Written::WithTheNextWrite
            }
        }
    }

    pub(super) fn saved(&mut self, effects: &mut Vec<Effect>) {
        let again = self.save == Save::WritingThenAgain;
        self.save = if again { Save::Writing } else { Save::Idle };
        let moved_up = |written: Written| match written {
            Written::Yes | Written::WithThisWrite => Written::Yes,
            Written::WithTheNextWrite => Written::WithThisWrite,
        };
        for local in self.drives.values_mut() {
            local.written = moved_up(local.written);
        }
        for (written, answer) in std::mem::take(&mut self.held) {
            match moved_up(written) {
                Written::Yes => effects.push(Effect::Send(answer)),
                still @ (Written::WithThisWrite | Written::WithTheNextWrite) => {
                    self.held.push((still, answer));
                }
            }
        }
        if again {
            effects.push(Effect::Save(self.record.clone()));
        }
        self.advance_all(effects);
    }

    /// Tells the registry why nothing happens. Says nothing that is not on disk: only that it could not be written.
    pub(super) fn save_failed(&mut self, error: &str, effects: &mut Vec<Effect>) {
        let incarnation = self.incarnation;
        for (drive, local) in &self.drives {
            let unwritten = local.written != Written::Yes;
            if let Some(ordered) = local.owed.filter(|_| unwritten) {
                let obstacle = Obstacle::RecordUnwritable { error: error.to_owned() };
                let result = AnswerResult::Waiting(obstacle);
                effects.push(Effect::Send(Answer { drive: *drive, ordered, incarnation, result }));
            }
        }
    }
}
