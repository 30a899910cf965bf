//! What an agent's answer to an order changes.

use super::life::Happening;
use super::wipe::permitted;
use super::{About, Cluster, Contact, Effects, Notice, Refused, State};
use crate::ids::{DriveId, SessionNumber};
use crate::message::{Answer, AnswerResult};
use crate::order::Goal;
use crate::rules::Rule;
use crate::wipe::listed;

impl Cluster {
    /// Takes an answer. It counts only if it names the order in force and comes from the start of the agent that
    /// order was meant for; anything else is late, and changes nothing.
    pub(super) fn answer(
        &mut self,
        session: SessionNumber,
        answer: Answer,
        now_ms: u64,
    ) -> Result<Effects, Refused> {
        let node = self.speaker(session)?;
        let current = self.nodes.get(&node).and_then(|node| node.session);
        let current = current.ok_or(Refused::OldSession)?;
        let drive = self.drives.get(&answer.drive).ok_or(Refused::NoSuchDrive)?;
        let Answer { drive: id, ordered, incarnation, result } = answer;
        let expected_goal = drive.record.state.goal();
        let foreign = drive.record.node != node
            || (self.rules.hold(Rule::ConfirmationIncarnation)
                && incarnation != current.incarnation)
            || (self.rules.hold(Rule::ConfirmationTerm) && ordered.stamp.term != self.term())
            || (self.rules.hold(Rule::ConfirmationGeneration)
                && ordered.stamp.generation != drive.record.generation);
        if foreign || ordered.goal != expected_goal {
            return Err(Refused::StaleAnswer);
        }
        let mut effects = Effects::default();
        let contact = match result {
            AnswerResult::Done => {
                if let Some(state) = drive.record.state.after(Happening::Confirmed(ordered.goal)) {
                    effects.notices.push(self.confirmed_notice(id, state, now_ms));
                    self.change_drive(id, &mut effects, |record| {
                        record.state = state;
                        record.since_ms = now_ms;
                        // Only an attach takes the label over; until then another node's name is on it.
                        record.take_over &= ordered.goal == Goal::Detach;
                        record.wipe = None;
                    });
                }
                if ordered.goal == Goal::Attach {
                    // It has the node's own name now; the next report says the rest.
                    self.drives.get_mut(&id).expect("looked up above").label = None;
                }
                match ordered.goal {
                    Goal::Attach => Contact::Confirmed,
                    Goal::Detach => Contact::Reported { open: false },
                }
            }
            AnswerResult::Waiting(obstacle) => Contact::Waiting(obstacle),
            AnswerResult::Refused(refused) => {
                let text = format!("{}: its agent refuses an order: {refused}.", self.describe(id));
                let notice = Notice::warning("OrderRefused", About::Drive(id), text);
                effects.notices.push(notice.of(self.order_id(id)));
                Contact::Refused(refused.to_string())
            }
        };
        self.drives.get_mut(&id).expect("looked up above").contact = contact;
        match self.drives[&id].contact {
            Contact::Confirmed => self.order_label(id, &mut effects),
            Contact::Reported { open: false } => self.forget_label(id),
            Contact::Silent
            | Contact::Reported { open: true }
            | Contact::Waiting(_)
            | Contact::Refused(_) => {}
        }
        Ok(effects)
    }

    fn confirmed_notice(&self, id: DriveId, state: State, now_ms: u64) -> Notice {
        let (drive, after) = (self.describe(id), self.after(id, now_ms));
        let text = match state {
            State::Attached => {
                let record = &self.drives[&id].record;
                let wiped = permitted(record).map(|wipe| {
                    let lost = listed(&wipe.contents);
                    format!(" was wiped of {lost}, asked by {}, and", record.asked_by)
                });
                format!("{drive}{} is in operation{after}.", wiped.unwrap_or_default())
            }
            State::Detached => {
                format!("{drive} is out of operation: closed and proved{after}.")
            }
            State::Unknown | State::Attaching | State::Closing => format!("{drive} is {state}."),
        };
        Notice::plain("DriveConfirmed", About::Drive(id), text).of(self.order_id(id))
    }
}
