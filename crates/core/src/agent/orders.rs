//! What an agent makes of a registration's answer and of an order.

use super::judge::{Judgement, Standing, judge};
use super::wipe::permission;
use super::{Agent, DriveMemory, Effect, Identity, Local, SessionRefused};
use crate::evidence::Comparison;
use crate::message::{AnswerResult, Order, OrderRefused, RecordHealth, Registered};
use crate::order::Term;
use crate::rules::Rule;

impl Agent {
    pub(super) fn registered(&mut self, registered: Registered, effects: &mut Vec<Effect>) {
        let Registered { session, cluster, node, term, allowed, unknown } = registered;
        let theirs = Identity { cluster, node };
        if let Some(ours) = self.record.identity.filter(|ours| *ours != theirs) {
            effects.push(Effect::RefuseSession(SessionRefused::ForeignCluster { ours, theirs }));
            return;
        }
        let went_back = |accepted: Term| {
            term.number < accepted.number || (term.number == accepted.number && term != accepted)
        };
        if let Some(accepted) = self.record.term.filter(|accepted| went_back(*accepted))
            && self.rules.hold(Rule::TermNeverBack)
        {
            let refused = SessionRefused::TermWentBack { accepted, offered: term };
            effects.push(Effect::RefuseSession(refused));
            return;
        }
        self.session = Some(session);
        self.forget_askers();
        self.tell_labels(effects);
        let known = self.record.term == Some(term) && self.record.identity == Some(theirs);
        // Without a record both may be known all the same, and nothing of it is on disk.
        if !known || self.health != RecordHealth::Usable {
            self.record.term = Some(term);
            self.record.identity = Some(theirs);
            self.write(effects);
        }
        for order in allowed.into_iter().chain(unknown) {
            self.order(order, effects);
        }
    }

    pub(super) fn session_lost(&mut self) {
        // Orders come again with the next registration; an answer now would reach nobody.
        self.session = None;
        self.held.clear();
        self.forget_askers();
        for local in self.drives.values_mut() {
            local.owed = None;
        }
    }

    pub(super) fn order(&mut self, order: Order, effects: &mut Vec<Effect>) {
        let seen = self.record.drives.get(&order.drive).map(|memory| memory.seen);
        // Only within a session: the registry judged the registration by what was seen when it was made. An order
        // that comes late over an earlier connection must not change that before the answer is here.
        let term = self.session.and(self.record.term);
        let standing = Standing { incarnation: self.incarnation, term, seen };
        let judgement = match judge(self.rules, standing, &order) {
            Ok(judgement) => judgement,
            Err(refused) => {
                if matches!(refused, OrderRefused::GoalConflict { .. }) {
                    let alarm = Effect::Alarm { drive: order.drive, refused: refused.clone() };
                    effects.push(alarm);
                }
                self.answer(order.drive, order.ordered, AnswerResult::Refused(refused), effects);
                return;
            }
        };
        let acceptable = self.reaches_its_drive(&order);
        self.remember(&order, acceptable, effects);
        if !acceptable {
            let refused = AnswerResult::Refused(OrderRefused::Evidence);
            self.answer(order.drive, order.ordered, refused, effects);
            return;
        }
        if judgement == Judgement::Same && !self.rules.hold(Rule::CompareAgain) {
            self.answer(order.drive, order.ordered, AnswerResult::Done, effects);
            return;
        }
        let local = self.drives.entry(order.drive).or_insert_with(Local::closed);
        local.by_label = None;
        local.owed = Some(order.ordered);
        local.pausing = false;
        local.told = None;
        self.advance(order.drive, effects);
    }

    /// Whether the order would reach the drive that it was decided on. A drive that is not on the machine contradicts
    /// nothing.
    pub(super) fn reaches_its_drive(&self, order: &Order) -> bool {
        let cluster = self.record.identity.map(|identity| identity.cluster);
        self.devices.iter().all(|device| {
            let same = device.evidence.compare(&order.evidence) == Comparison::Same;
            let ours = device.label.filter(|label| Some(label.cluster) == cluster);
            let labelled = ours.map(|label| label.drive == order.drive);
            match (same, labelled) {
                (true, Some(false)) | (false, Some(true)) => false,
                (true, Some(true) | None) | (false, Some(false) | None) => true,
            }
        })
    }

    /// Notes the order; in force it comes only if it is acceptable.
    pub(super) fn remember(&mut self, order: &Order, acceptable: bool, effects: &mut Vec<Effect>) {
        let before = self.record.drives.get(&order.drive);
        let in_force = if acceptable || !self.rules.hold(Rule::RefusedKeepsGoal) {
            Some(order.ordered)
        } else {
            before.and_then(|memory| memory.in_force)
        };
        let wiped = before.and_then(|memory| memory.wiped);
        let given_up_before = before.is_some_and(|memory| memory.given_up);
        let given_up = if acceptable { order.given_up } else { given_up_before };
        let after = DriveMemory {
            seen: order.ordered,
            in_force,
            evidence: order.evidence.clone(),
            take_over: order.take_over,
            wipe: permission(order, wiped),
            wiped,
            given_up,
        };
        if before == Some(&after) {
            return;
        }
        self.record.drives.insert(order.drive, after);
        let written = self.write(effects);
        self.drives.entry(order.drive).or_insert_with(Local::closed).written = written;
    }
}
