//! The loop of the actor: take a command or the end of a write, apply it, let out what is durable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc as blocking;

use hotbay_core::cluster::{
    Cluster, Effects, Event, Notice, Refused, Reply, State, VolumeRefused, Write as Change,
};
use hotbay_core::gate::Gate;
use hotbay_core::ids::{DriveId, SessionNumber};
use hotbay_core::message::{AnswerResult, Order, Registered};
use hotbay_core::order::OrderId;
use hotbay_core::pace::{Monotonic, Pace};
use hotbay_core::rules::Rules;
use hotbay_core::volume::orders::{LabelOrder, UseOrder, VolumeOrder};
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, Instant};

use super::events::EventLog;
use super::gather::Gather;
use super::writer::{Batch, Written};
use super::{CallError, Command, Failing, Release, ReplyTo, StoreHealth, Surroundings, ToAgent};
use crate::codec;
use crate::mandate::Mandate;
use crate::stats::Stats;
use crate::store::Key;
use crate::store::error::StoreError;

/// How many commands are taken before the batch is handed over; bounds how long a batch is.
const COMMANDS_IN_A_BATCH: usize = 1_024;

/// With so much waiting for the store, orders are not repeated on top of it.
const HELD_REPEATS: usize = 4_096;

pub(super) struct Actor {
    cluster: Cluster,
    mandate: Mandate,
    surroundings: Surroundings,
    gate: Gate<Held>,
    writer: blocking::Sender<Batch>,
    /// The batch that is being collected, with its number.
    collecting: Option<Batch>,
    /// A batch is at the writer.
    writing: bool,
    gather: Gather,
    failing: Failing,
    sessions: BTreeMap<SessionNumber, mpsc::Sender<ToAgent>>,
    newest_session: SessionNumber,
    pace: Pace,
    started: Instant,
    shown: Shown,
}

/// What others can follow.
pub(super) struct Shown {
    pub(super) changed: watch::Sender<u64>,
    pub(super) health: watch::Sender<StoreHealth>,
    pub(super) events: EventLog,
    pub(super) stats: Arc<Stats>,
}

/// What waits behind the gate.
enum Held {
    ToAgent(SessionNumber, ToAgent),
    /// An order that was sent before.
    Again(SessionNumber, Box<Order>),
    VolumeAgain(SessionNumber, Box<VolumeOrder>),
    Reply(ReplyTo, Reply),
    Refusal(ReplyTo, Refused),
    Read(Release),
    Notice(Notice),
    Changed,
}

impl Actor {
    pub(super) fn new(
        cluster: Cluster,
        mandate: Mandate,
        surroundings: Surroundings,
        writer: blocking::Sender<Batch>,
        shown: Shown,
    ) -> Self {
        Self {
            cluster,
            mandate,
            surroundings,
            gate: Gate::new(Rules::default()),
            writer,
            collecting: None,
            writing: false,
            gather: Gather::default(),
            failing: None,
            sessions: BTreeMap::new(),
            newest_session: SessionNumber::default(),
            pace: Pace::default(),
            started: Instant::now(),
            shown,
        }
    }

    /// Runs until every handle is dropped, until the store cannot be used any more, or until the lead is over.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Command>,
        mut written: mpsc::UnboundedReceiver<Written>,
    ) -> Result<(), StoreError> {
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
            Command::Read(look) => match self.refused_at_the_door() {
                Some(error) => look(Err(error))(),
                None => {
                    let release = look(Ok(&self.cluster));
                    self.hold(Held::Read(release));
                }
            },
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
        let session = match &event {
            Event::Register { session, .. } | Event::Devices { session, .. } => Some(*session),
            Event::SessionClosed(session) => {
                self.sessions.remove(session);
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
                self.refuse(refused, reply);
                return;
            }
        };
        if let Some((_, order, result)) = &answered {
            log_answer(*order, result, !effects.notices.is_empty());
        }
        self.carry_out(effects, session, report, reply);
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
    fn refuse(&mut self, refused: Refused, reply: ReplyTo) {
        match refused {
            Refused::Volume(VolumeRefused::NoSuchVolume) => {
                self.hold(Held::Refusal(reply, refused))
            }
            refused => drop(reply.send(Err(refused.into()))),
        }
    }

    /// Why nobody gets an answer now. What is already decided and not durable stands before every answer, so a new
    /// caller would only wait with the others.
    fn refused_at_the_door(&self) -> Option<CallError> {
        let error = self.failing.as_ref()?.to_string();
        Some(CallError::StoreFailing { error })
    }

    fn carry_out(
        &mut self,
        effects: Effects,
        session: Option<SessionNumber>,
        report: Option<u64>,
        reply: ReplyTo,
    ) {
        let Effects { writes, orders, volume_orders, reply: result, notices, sessions_end } =
            effects;
        if sessions_end {
            self.sessions.clear();
        }
        self.collect(&[&writes]);
        // First what was decided, then what follows from it.
        for notice in notices {
            self.hold(Held::Notice(notice));
        }
        if let (Some(session), Reply::Registered(registered)) = (session, &result) {
            for order in registered.allowed.iter().chain(&registered.unknown) {
                if self.cluster.is_on(order.drive, session) {
                    self.pace.sent(order.drive, self.now());
                }
            }
            self.hold(Held::ToAgent(session, ToAgent::Registered(registered.clone())));
        }
        if let (Some(session), Some(number)) = (session, report) {
            self.hold(Held::ToAgent(session, ToAgent::ReportTaken { number }));
        }
        for (session, order) in orders {
            if self.cluster.is_on(order.drive, session) {
                self.pace.sent(order.drive, self.now());
            }
            self.hold(Held::ToAgent(session, ToAgent::Order(Box::new(order))));
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
            self.hold(Held::ToAgent(session, ToAgent::Volume(Box::new(order))));
        }
        self.hold(Held::Reply(reply, result));
        self.hold(Held::Changed);
    }

    /// Adds the writes of one caller to the batch that is being collected, action by action.
    fn collect(&mut self, actions: &[&[Change]]) {
        if actions.iter().all(|writes| writes.is_empty()) {
            return;
        }
        let gate = &mut self.gate;
        let new =
            || Batch { number: gate.decide(), writes: Vec::new(), ends: Vec::new(), callers: 0 };
        let batch = self.collecting.get_or_insert_with(new);
        batch.callers += 1;
        for writes in actions {
            batch.writes.extend(writes.iter().map(codec::encode));
            batch.ends.push(batch.writes.len());
        }
    }

    /// Puts records into the batch as they are. Each is an action of its own: none waits for another.
    fn rewrite(&mut self, keys: &[Key], notices: Vec<Notice>, reply: ReplyTo) {
        if let Some(error) = self.refused_at_the_door() {
            drop(reply.send(Err(error)));
            return;
        }
        let records = codec::present(&self.cluster, keys);
        let actions: Vec<_> = records.iter().map(std::slice::from_ref).collect();
        self.collect(&actions);
        for notice in notices {
            self.hold(Held::Notice(notice));
        }
        self.hold(Held::Reply(reply, Reply::Nothing));
    }

    /// What the agent still owes is told; the rest it hears with every registration.
    fn log_registered(&self, session: SessionNumber, registered: &Registered) {
        for order in registered.allowed.iter().chain(&registered.unknown) {
            let (id, goal, session) = (order.id(), order.ordered.goal, session.get());
            let state = self.cluster.drive(order.drive).map(|drive| drive.record.state);
            match state {
                Some(State::Attaching | State::Closing) => {
                    tracing::info!(order = %id, session, "sent with the registration: {goal}");
                }
                Some(State::Attached | State::Unknown | State::Detached) | None => {
                    tracing::debug!(order = %id, session, "sent with the registration: {goal}");
                }
            }
        }
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
            self.hold(Held::Again(session, Box::new(order)));
        }
        for (session, order) in volumes {
            self.hold(Held::VolumeAgain(session, Box::new(order)));
        }
    }

    fn hold(&mut self, held: Held) {
        if let Some(free) = self.gate.hold(held) {
            self.let_out(free);
        }
    }

    fn let_out(&mut self, held: Held) {
        // What is held back is dropped: callers hear that the registry stopped, and ask the next one.
        if !self.mandate.holds() {
            return;
        }
        match held {
            Held::ToAgent(session, message) => {
                match &message {
                    ToAgent::Registered(registered) => self.log_registered(session, registered),
                    ToAgent::Order(order) => {
                        let (id, goal) = (order.id(), order.ordered.goal);
                        tracing::info!(order = %id, session = session.get(), "sent: {goal}");
                    }
                    ToAgent::Volume(order) => log_volume_order(order),
                    ToAgent::ReportTaken { .. } => {}
                }
                self.tell(session, message);
            }
            Held::Again(session, order) => {
                tracing::debug!(order = %order.id(), session = session.get(), "sent again");
                self.tell(session, ToAgent::Order(order));
            }
            Held::VolumeAgain(session, order) => self.tell(session, ToAgent::Volume(order)),
            Held::Reply(reply, result) => {
                // A caller that hung up asked for something that is done all the same.
                drop(reply.send(Ok(result)));
            }
            Held::Refusal(reply, refused) => drop(reply.send(Err(refused.into()))),
            Held::Read(release) => release(),
            Held::Notice(notice) => {
                let order = notice.order.map(tracing::field::display);
                if notice.warning {
                    tracing::warn!(order, "{}", notice.text);
                } else {
                    tracing::info!(order, "{}", notice.text);
                }
                self.shown.events.push((self.surroundings.wall_ms)(), notice);
            }
            Held::Changed => self.shown.changed.send_modify(|number| *number += 1),
        }
    }

    fn tell(&mut self, session: SessionNumber, message: ToAgent) {
        let Some(outbox) = self.sessions.get(&session) else { return };
        self.shown.stats.told(&message);
        if outbox.try_send(message).is_err() {
            // An agent that does not read loses its session, and hears everything again at its next one.
            self.sessions.remove(&session);
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
        // If the writer is gone, its last words are in the channel that the loop listens to.
        self.writer.send(batch).unwrap_or_default();
    }

    fn written(&mut self, outcome: Written) {
        match outcome {
            Written::Durable { number, callers } => {
                self.writing = false;
                let waiting = self.collecting.as_ref().map_or(0, |batch| batch.callers);
                self.gather.answered(callers, waiting);
                if self.failing.take().is_some() {
                    tracing::info!("the store can be written again");
                    self.shown.health.send_replace(StoreHealth::Good);
                }
                for held in self.gate.durable(number) {
                    self.let_out(held);
                }
                (self.surroundings.checkpoint)("registry-released");
            }
            Written::Waited => self.gather.over(),
            Written::Failing { error } => {
                tracing::error!("the store cannot be written, trying again: {error}");
                self.shown.health.send_replace(StoreHealth::Failing(error.clone()));
                self.failing = Some(error.into());
            }
            Written::Lost(_) => unreachable!("the loop ends on it"),
        }
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

fn log_volume_order(order: &VolumeOrder) {
    match order {
        VolumeOrder::Label(order) => {
            let (drive, changes) = (order.drive, order.changes.len());
            tracing::debug!(%drive, sequence = order.basis.sequence, changes, "label order sent");
        }
        VolumeOrder::Use(order) => {
            let (volume, granted) = (order.volume, order.grant.granted);
            tracing::info!(%volume, epoch = %order.grant.epoch, granted, "use order sent");
        }
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
