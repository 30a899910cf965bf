//! The loop of the actor: take a command or the end of a write, apply it, and hold what follows from it until it is
//! durable ([`release`](super::release)).

use std::collections::BTreeMap;
use std::sync::Arc;

use hotbay_core::cluster::{
    Cluster, Effects, Event, Ground, Notice, RecordKey, Refused, Reply, Subject, VolumeRefused,
    Write as Change,
};
use hotbay_core::gate::Gate;
use hotbay_core::ids::{AttachmentId, DriveId, SessionNumber};
use hotbay_core::message::AnswerResult;
use hotbay_core::order::OrderId;
use hotbay_core::pace::{Monotonic, Pace};
use hotbay_core::rules::Rules;
use hotbay_core::volume::orders::{LabelOrder, UseOrder, VolumeOrder};
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, Instant};

use super::events::EventLog;
use super::gather::Gather;
use super::release::{Held, Unwritten};
use super::writer::{Batch, Writer, Written};
use super::{CallError, Command, ReplyTo, StoreHealth, Surroundings, ToAgent};
use crate::codec;
use crate::mandate::Mandate;
use crate::stats::Stats;
use crate::store::Key;
use crate::store::error::StoreError;

/// How many commands are taken before the batch is handed over; bounds how long a batch is.
const COMMANDS_IN_A_BATCH: usize = 1_024;

/// With so many decisions that a shared store has not taken, no more are made while one of them fails.
const OPEN_MOST: usize = 4_096;

/// With so much waiting for the store, orders are not repeated on top of it.
const HELD_REPEATS: usize = 4_096;

pub(super) struct Actor {
    pub(super) cluster: Cluster,
    pub(super) mandate: Mandate,
    pub(super) surroundings: Surroundings,
    pub(super) gate: Gate<Held, RecordKey>,
    pub(super) writer: Writer,
    /// The store keeps each record by itself: nothing is collected, and what is said waits for what it rests on alone.
    pub(super) by_record: bool,
    /// The batch that is being collected, with its number.
    pub(super) collecting: Option<Batch>,
    /// A batch is at the writer.
    pub(super) writing: bool,
    pub(super) gather: Gather,
    pub(super) unwritten: Unwritten,
    pub(super) sessions: BTreeMap<SessionNumber, mpsc::Sender<ToAgent>>,
    /// What is for agents whose registration has not been answered yet.
    pub(super) parked: BTreeMap<SessionNumber, Vec<ToAgent>>,
    newest_session: SessionNumber,
    pace: Pace,
    started: Instant,
    pub(super) shown: Shown,
}

/// What others can follow.
pub(super) struct Shown {
    pub(super) changed: watch::Sender<u64>,
    pub(super) health: watch::Sender<StoreHealth>,
    pub(super) events: EventLog,
    pub(super) stats: Arc<Stats>,
}

impl Actor {
    pub(super) fn new(
        cluster: Cluster,
        mandate: Mandate,
        surroundings: Surroundings,
        (writer, by_record): (Writer, bool),
        shown: Shown,
    ) -> Self {
        Self {
            cluster,
            mandate,
            surroundings,
            gate: Gate::new(Rules::default()),
            writer,
            by_record,
            collecting: None,
            writing: false,
            gather: Gather::default(),
            unwritten: Unwritten::default(),
            sessions: BTreeMap::new(),
            parked: BTreeMap::new(),
            newest_session: SessionNumber::default(),
            pace: Pace::default(),
            started: Instant::now(),
            shown,
        }
    }

    /// Runs until every handle is dropped, until the store cannot be used any more, or until the lead is over. First it
    /// removes the records of uses that were over before it began.
    pub(super) async fn run(
        mut self,
        over: Vec<AttachmentId>,
        mut inbox: mpsc::Receiver<Command>,
        mut written: mpsc::UnboundedReceiver<Written>,
    ) -> Result<(), StoreError> {
        if !self.mandate.holds() {
            return Err(StoreError::LeadEnded);
        }
        self.remove_over(over);
        let mut commands = Vec::new();
        loop {
            let next_due = self.pace.next();
            let due = self.started + Duration::from_millis(next_due.map_or(0, |at| at.0));
            tokio::select! {
                biased;
                outcome = written.recv() => match outcome {
                    Some(Written::Lost(error)) => return Err(error),
                    Some(outcome) => self.written(outcome),
                    None => return Ok(()),
                },
                taken = inbox.recv_many(&mut commands, COMMANDS_IN_A_BATCH) => {
                    if taken == 0 {
                        return Ok(());
                    }
                    for command in commands.drain(..) {
                        self.command(command);
                    }
                }
                () = tokio::time::sleep_until(due), if next_due.is_some() => self.repeat_orders(),
            }
            if !self.mandate.holds() {
                return Err(StoreError::LeadEnded);
            }
            self.hand_over();
            self.shown.stats.holding(self.gate.held());
        }
    }

    fn command(&mut self, command: Command) {
        // Whoever asks hears that the registry stopped: even a refusal is a word of one who leads.
        if !self.mandate.holds() {
            return;
        }
        match command {
            Command::Accept { outbox, reply } => {
                self.newest_session = self.newest_session.next();
                self.sessions.insert(self.newest_session, outbox);
                // An agent that hung up already will be noticed when its session is closed.
                reply.send(self.newest_session).unwrap_or_default();
            }
            Command::Apply { event, report, reply } => self.apply(*event, report, reply),
            Command::Read { look, around } => {
                let (ground, release) = look(&self.cluster);
                let ground = if around { self.writable() } else { ground };
                self.hold(Held::Read(Some(release)), &ground);
            }
            Command::Rewrite { keys, notices, reply } => self.rewrite(&keys, notices, reply),
        }
    }

    fn apply(&mut self, event: Event, report: Option<u64>, reply: ReplyTo) {
        if asks(&event)
            && let Some(error) = self.refused_at_the_door()
        {
            drop(reply.send(Err(error)));
            return;
        }
        let subject = event.subject();
        let session = match &event {
            Event::Register { session, .. } | Event::Devices { session, .. } => Some(*session),
            Event::SessionClosed(session) => {
                self.end_session(*session);
                None
            }
            Event::Answer { .. }
            | Event::Act { .. }
            | Event::Adopt { .. }
            | Event::Certify { .. }
            | Event::LabelTold { .. }
            | Event::LabelAnswer { .. }
            | Event::UseAnswer { .. }
            | Event::VolumeReport { .. }
            | Event::Volume { .. } => None,
        };
        let answered = if let Event::Answer { answer, .. } = &event {
            Some((answer.drive, answer.order(), answer.result.clone()))
        } else {
            None
        };
        let effects = match self.cluster.apply(event, (self.surroundings.wall_ms)()) {
            Ok(effects) => effects,
            Err(refused) => {
                if let Some((_, order, result)) = answered {
                    tracing::debug!(%order, "answered, and not counted: {result}: {refused}");
                }
                self.shown.changed.send_modify(|number| *number += 1);
                self.refuse(refused, &subject, reply);
                return;
            }
        };
        if let Some((_, order, result)) = &answered {
            log_answer(*order, result, !effects.notices.is_empty());
        }
        self.carry_out(effects, &subject, (session, report), reply);
        if let Some((drive, ..)) = answered {
            if self.cluster.owed(drive).is_some() {
                self.pace.keep(drive, self.now());
            } else if self.cluster.owed_volume_orders(drive).is_empty() {
                self.pace.forget(drive);
            }
        }
    }

    /// A refusal is computed from the state, too; most promise nothing, and need not wait. That there is no such volume
    /// is taken for "deleted", so the deletion must be durable.
    fn refuse(&mut self, refused: Refused, subject: &Subject, reply: ReplyTo) {
        match refused {
            Refused::Volume(VolumeRefused::NoSuchVolume) => {
                let ground = self.ground(|cluster| cluster.ground(subject, &Effects::default()));
                self.hold(Held::Refusal(Some(reply), refused), &ground);
            }
            refused => drop(reply.send(Err(refused.into()))),
        }
    }

    /// Why nobody gets an answer now. In a batch, what is already decided and not durable stands before every answer,
    /// so a new caller would only wait with the others.
    fn refused_at_the_door(&self) -> Option<CallError> {
        if self.by_record && self.gate.open() < OPEN_MOST {
            return None;
        }
        let error = self.unwritten.under(&Ground::Everything)?.to_string();
        Some(CallError::StoreFailing { error })
    }

    /// What something rests on. In a batch that is everything.
    fn ground(&self, of: impl FnOnce(&Cluster) -> Ground) -> Ground {
        if self.by_record { of(&self.cluster) } else { Ground::Everything }
    }

    fn carry_out(
        &mut self,
        effects: Effects,
        subject: &Subject,
        (session, report): (Option<SessionNumber>, Option<u64>),
        reply: ReplyTo,
    ) {
        let ground = self.ground(|cluster| cluster.ground(subject, &effects));
        self.collect(&effects.parts().collect::<Vec<_>>());
        let Effects { writes, orders, volume_orders, reply: result, notices, sessions_end, .. } =
            effects;
        if sessions_end {
            self.sessions.clear();
            self.parked.clear();
        }
        // First what was decided, then what follows from it.
        for notice in notices {
            self.hold(Held::Notice(notice), &ground);
        }
        if let (Some(session), Reply::Registered(registered)) = (session, &result) {
            for order in registered.allowed.iter().chain(&registered.unknown) {
                if self.cluster.is_on(order.drive, session) {
                    self.pace.sent(order.drive, self.now());
                }
            }
            self.hold_registered(session, registered.clone(), &ground);
        }
        if let (Some(session), Some(number)) = (session, report) {
            self.hold(Held::ToAgent(session, ToAgent::ReportTaken { number }), &ground);
        }
        // An action may be about many drives, and an order is about its own. Else it rests on all that was decided.
        let decided = self.ground(|_| match subject {
            Subject::Actions => Ground::of([]),
            _ => Ground::of(writes.iter().map(Change::key)),
        });
        for (session, order) in orders {
            if self.cluster.is_on(order.drive, session) {
                self.pace.sent(order.drive, self.now());
            }
            let ground =
                self.ground(|cluster| cluster.ground_of_order(&order).and(decided.clone()));
            self.hold(Held::ToAgent(session, ToAgent::Order(Box::new(order))), &ground);
        }
        for (session, order) in volume_orders {
            // What is asked for about volumes again and again must not have everything else repeated as often.
            match &order {
                VolumeOrder::Label(order) if self.cluster.owed(order.drive).is_none() => {
                    self.pace.sent(order.drive, self.now());
                }
                VolumeOrder::Label(LabelOrder { drive, .. })
                | VolumeOrder::Use(UseOrder { drive, .. }) => self.pace.keep(*drive, self.now()),
            }
            let ground =
                self.ground(|cluster| cluster.ground_of_volume_order(&order).and(decided.clone()));
            self.hold(Held::ToAgent(session, ToAgent::Volume(Box::new(order))), &ground);
        }
        self.hold(Held::Reply(Some(reply), result), &ground);
        // Where nothing was decided, the decision that it rests on brings the news when it is durable.
        if !(writes.is_empty() && self.is_unwritten(&ground)) {
            self.hold(Held::Changed, &ground);
        }
    }

    /// Has the writes of one caller made, action by action: at once, or with the batch that is being collected.
    fn collect(&mut self, actions: &[&[Change]]) {
        let writes_of = |writes: &[Change]| writes.iter().map(codec::encode).collect::<Vec<_>>();
        for writes in actions.iter().filter(|writes| self.by_record && !writes.is_empty()) {
            let number = self.gate.decide_records(writes.iter().map(Change::key));
            self.writer.write(Batch { number, writes: writes_of(writes), callers: 1 });
        }
        if self.by_record || actions.iter().all(|writes| writes.is_empty()) {
            return;
        }
        let gate = &mut self.gate;
        let new = || Batch { number: gate.decide(), writes: Vec::new(), callers: 0 };
        let batch = self.collecting.get_or_insert_with(new);
        batch.callers += 1;
        batch.writes.extend(actions.iter().flat_map(|writes| writes_of(writes)));
    }

    /// Each is an action of its own: none waits for another.
    fn remove_over(&mut self, over: Vec<AttachmentId>) {
        for id in over {
            tracing::info!(attachment = %id, "its use is over, and its record is removed");
            self.collect(&[&[Change::AttachmentGone(id)]]);
        }
    }

    /// Has records written as they are. Each is an action of its own: none waits for another.
    fn rewrite(&mut self, keys: &[Key], notices: Vec<Notice>, reply: ReplyTo) {
        if let Some(error) = self.refused_at_the_door() {
            drop(reply.send(Err(error)));
            return;
        }
        let records = codec::present(&self.cluster, keys);
        let actions: Vec<_> = records.iter().map(std::slice::from_ref).collect();
        self.collect(&actions);
        let ground = self.ground(|_| Ground::of(records.iter().map(Change::key)));
        for notice in notices {
            self.hold(Held::Notice(notice), &ground);
        }
        self.hold(Held::Reply(Some(reply), Reply::Nothing), &ground);
    }

    fn repeat_orders(&mut self) {
        for drive in self.pace.due(self.now()) {
            // What cannot leave would only pile up behind the gate, and leave all at once.
            if self.gate.held() < HELD_REPEATS {
                self.repeat(drive);
            }
        }
    }

    fn repeat(&mut self, drive: DriveId) {
        let owed = self.cluster.owed(drive);
        let volumes = self.cluster.owed_volume_orders(drive);
        if owed.is_none() && volumes.is_empty() {
            self.pace.forget(drive);
        }
        if let Some((session, order)) = owed {
            let ground = self.ground(|cluster| cluster.ground_of_order(&order));
            self.hold_again(Held::Again(session, Box::new(order)), &ground);
        }
        for (session, order) in volumes {
            let ground = self.ground(|cluster| cluster.ground_of_volume_order(&order));
            self.hold_again(Held::VolumeAgain(session, Box::new(order)), &ground);
        }
    }

    /// Hands the collected batch to the writer, if it is free and nobody is waited for.
    fn hand_over(&mut self) {
        let complete = |batch: &mut Batch| self.gather.complete(batch.callers);
        if self.writing {
            return;
        }
        let Some(batch) = self.collecting.take_if(complete) else { return };
        self.writing = true;
        self.writer.write(batch);
    }

    fn now(&self) -> Monotonic {
        let elapsed = self.started.elapsed().as_millis();
        Monotonic(u64::try_from(elapsed).expect("a process runs for less than 2^64 ms"))
    }
}

/// Whether the event is somebody's request, to be refused while nothing can be promised. The rest is news, and news
/// is taken.
fn asks(event: &Event) -> bool {
    match event {
        Event::Register { .. }
        | Event::Act { .. }
        | Event::Adopt { .. }
        | Event::Certify { .. }
        | Event::Volume { .. } => true,
        Event::Devices { .. }
        | Event::Answer { .. }
        | Event::LabelTold { .. }
        | Event::LabelAnswer { .. }
        | Event::UseAnswer { .. }
        | Event::VolumeReport { .. }
        | Event::SessionClosed(_) => false,
    }
}

/// A confirmation of what was confirmed before is nothing new.
fn log_answer(order: OrderId, result: &AnswerResult, news: bool) {
    match result {
        AnswerResult::Done if !news => tracing::debug!(%order, "answered: {result}"),
        AnswerResult::Done | AnswerResult::Waiting(_) | AnswerResult::Refused(_) => {
            tracing::info!(%order, "answered: {result}");
        }
    }
}

#[cfg(test)]
mod tests;
