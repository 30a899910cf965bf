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
        let written = self.pending_write();
        if written == Written::Yes || !self.rules.hold(Rule::TermBeforeAnswer) {
            effects.push(Effect::Send(answer));
        } else {
            // One per order, the newest: an order that comes again and again while the disk hangs adds nothing.
            self.held.retain(|(_, held)| (held.drive, held.ordered) != (drive, ordered));
            self.held.push((written, answer));
        }
    }

    /// With which write everything that is remembered now is on disk.
    pub(super) fn pending_write(&self) -> Written {
        match self.save {
            Save::Idle => Written::Yes,
            Save::Writing => Written::WithThisWrite,
            Save::WritingThenAgain => Written::WithTheNextWrite,
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
        self.uses_saved(effects);
        if again {
            effects.push(Effect::Save(self.record.clone()));
        }
        self.advance_all(effects);
    }

    /// Tells the registry why nothing happens, once for each obstacle. Says nothing that is not on disk: only that it
    /// could not be written.
    pub(super) fn save_failed(&mut self, error: &str, effects: &mut Vec<Effect>) {
        let incarnation = self.incarnation;
        let obstacle = Obstacle::RecordUnwritable { error: error.to_owned() };
        for (drive, local) in &mut self.drives {
            let news = local.written != Written::Yes && local.told.as_ref() != Some(&obstacle);
            if let Some(ordered) = local.owed.filter(|_| news) {
                local.told = Some(obstacle.clone());
                let result = AnswerResult::Waiting(obstacle.clone());
                effects.push(Effect::Send(Answer { drive: *drive, ordered, incarnation, result }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{AttachAtStart, Event, RecordFound};
    use crate::evidence::Evidence;
    use crate::ids::{ClusterId, Incarnation, NodeId, SessionNumber, TermId};
    use crate::message::{Order, Registered};
    use crate::order::{Generation, Goal, Stamp, Term};
    use crate::rules::Rules;

    fn fails(agent: &mut Agent, error: &str) -> Vec<AnswerResult> {
        let effects = agent.step(Event::SaveFailed { error: error.into() });
        let said = effects.into_iter().map(|effect| {
            let Effect::Send(answer) = effect else { panic!("{effect:?}") };
            answer.result
        });
        said.collect()
    }

    #[test]
    fn a_disk_that_goes_on_failing_is_told_once_and_again_when_it_fails_otherwise() {
        let incarnation = Incarnation::from_bits(5);
        let found = RecordFound::Absent(None);
        let (mut agent, _) =
            Agent::start(Rules::default(), incarnation, found, vec![], AttachAtStart::default());
        let term = Term::first(TermId::from_bits(7));
        let stamp = Stamp { term, generation: Generation::from_number(1) };
        let order = Order {
            drive: DriveId::from_bits(3),
            ordered: Ordered { goal: Goal::Attach, stamp },
            incarnation,
            evidence: Evidence::default(),
            take_over: false,
            wipe: None,
            given_up: false,
        };
        agent.step(Event::Registered(Registered {
            session: SessionNumber::from_number(1),
            cluster: ClusterId::from_bits(1),
            node: NodeId::from_bits(2),
            term,
            allowed: vec![order.clone()],
            unknown: vec![],
        }));
        let waits = |error: &str| {
            [AnswerResult::Waiting(Obstacle::RecordUnwritable { error: error.into() })]
        };
        assert_eq!(fails(&mut agent, "full"), waits("full"));
        assert_eq!(fails(&mut agent, "full"), []);
        assert_eq!(fails(&mut agent, "gone"), waits("gone"));
        // An order that comes again wants its answer.
        agent.step(Event::Order(order));
        assert_eq!(fails(&mut agent, "gone"), waits("gone"));
    }
}
