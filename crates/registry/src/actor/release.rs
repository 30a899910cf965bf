//! What waits behind the gate, and how it leaves: replies, orders, looks at the state, notices.
//!
//! What rests on a record that cannot be written now is not kept waiting for it: a caller hears why, and asks again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hotbay_core::cluster::{Ground, Notice, RecordKey, Refused, Reply, State};
use hotbay_core::ids::SessionNumber;
use hotbay_core::message::{Order, Registered};
use hotbay_core::volume::orders::VolumeOrder;

use super::run::Actor;
use super::writer::Written;
use super::{CallError, Release, ReplyTo, StoreHealth, ToAgent};

/// What is for an agent that waits for the answer to its registration; one with more loses its session.
const PARKED_MOST: usize = 4_096;

/// What waits behind the gate. Without its caller, if that was told why it would wait.
pub(super) enum Held {
    ToAgent(SessionNumber, ToAgent),
    /// An order that was sent before.
    Again(SessionNumber, Box<Order>),
    VolumeAgain(SessionNumber, Box<VolumeOrder>),
    Reply(Option<ReplyTo>, Reply),
    Refusal(Option<ReplyTo>, Refused),
    Read(Option<Release>),
    Notice(Notice),
    Changed,
}

impl Held {
    /// Tells whoever waits for it that it cannot be said now.
    fn put_off(&mut self, error: &str) {
        let error = || error.to_owned();
        match self {
            Self::Reply(caller, _) | Self::Refusal(caller, _) => {
                let Some(caller) = caller.take() else { return };
                drop(caller.send(Err(CallError::NotDurable { error: error() })));
            }
            Self::Read(caller) => {
                let Some(release) = caller.take() else { return };
                release(Err(CallError::StoreFailing { error: error() }));
            }
            Self::ToAgent(..)
            | Self::Again(..)
            | Self::VolumeAgain(..)
            | Self::Notice(_)
            | Self::Changed => {}
        }
    }

    /// Whether there is nobody left who waits for it.
    const fn is_answered(&self) -> bool {
        match self {
            Self::Reply(caller, _) | Self::Refusal(caller, _) => caller.is_none(),
            Self::Read(caller) => caller.is_none(),
            Self::ToAgent(..)
            | Self::Again(..)
            | Self::VolumeAgain(..)
            | Self::Notice(_)
            | Self::Changed => false,
        }
    }
}

/// What cannot be written now, and why.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    /// The batch, where the store takes batches.
    batch: Option<Arc<str>>,
    records: BTreeMap<RecordKey, Arc<str>>,
    /// What is not tried before one of those is written, and which.
    behind: BTreeMap<RecordKey, BTreeSet<RecordKey>>,
}

impl Unwritten {
    /// Why something that rests on this cannot be said.
    pub(super) fn under(&self, ground: &Ground) -> Option<&Arc<str>> {
        let record = || match ground {
            Ground::Everything => self.records.values().next(),
            // There are few of the one kind, and mostly few of the other.
            Ground::These(keys) if self.records.len() + self.behind.len() < keys.len() => {
                let mut stuck = self.records.keys().chain(self.behind.keys());
                stuck.find(|key| keys.contains(key)).and_then(|key| self.why(key))
            }
            Ground::These(keys) => keys.iter().find_map(|key| self.why(key)),
        };
        self.batch.as_ref().or_else(record)
    }

    /// Why a record cannot be written now.
    fn why(&self, key: &RecordKey) -> Option<&Arc<str>> {
        let waits_for = || self.behind.get(key)?.iter().find_map(|key| self.records.get(key));
        self.records.get(key).or_else(waits_for)
    }

    /// One cannot be written, and those behind it are not tried. Gives the ones of which that is news.
    fn note(&mut self, key: RecordKey, behind: BTreeSet<RecordKey>) -> Vec<RecordKey> {
        let new: Vec<_> = behind.iter().filter(|key| self.why(key).is_none()).copied().collect();
        self.forget_behind(&key);
        for waits in behind {
            self.behind.entry(waits).or_default().insert(key);
        }
        new
    }

    /// One is written.
    fn take(&mut self, key: &RecordKey) -> Option<Arc<str>> {
        self.forget_behind(key);
        self.records.remove(key)
    }

    fn forget_behind(&mut self, key: &RecordKey) {
        self.behind.retain(|_, waits_for| {
            waits_for.remove(key);
            !waits_for.is_empty()
        });
    }

    fn health(&self) -> StoreHealth {
        match (&self.batch, self.records.values().next()) {
            (Some(error), _) => StoreHealth::Failing(error.to_string()),
            (None, Some(error)) if self.records.len() == 1 => {
                StoreHealth::Partly(error.to_string())
            }
            (None, Some(error)) => {
                let others = self.records.len() - 1;
                StoreHealth::Partly(format!("{error}; and {others} more"))
            }
            (None, None) => StoreHealth::Good,
        }
    }
}

impl Actor {
    /// Holds something until what it rests on is durable.
    pub(super) fn hold(&mut self, mut held: Held, ground: &Ground) {
        // News is taken also when its batch fails, and who brought it waits.
        let is_put_off = self.by_record || matches!(held, Held::Read(_));
        if let Some(error) = self.unwritten.under(ground).filter(|_| is_put_off) {
            held.put_off(error);
            // Whoever polls would have one more kept behind the gate each time.
            if held.is_answered() {
                return;
            }
        }
        let free = match ground {
            Ground::These(keys) => self.gate.hold_for(keys, held),
            Ground::Everything => self.gate.hold(held),
        };
        if let Some(free) = free {
            self.let_out(free);
        }
    }

    /// Whether something rests on what cannot be written now.
    pub(super) fn is_unwritten(&self, ground: &Ground) -> bool {
        self.by_record && self.unwritten.under(ground).is_some()
    }

    /// All that can be written now.
    pub(super) fn writable(&self) -> Ground {
        if self.unwritten.records.is_empty() {
            return Ground::Everything;
        }
        let open = self.gate.open_records().copied();
        Ground::These(open.filter(|key| self.unwritten.why(key).is_none()).collect())
    }

    /// An order that was sent before. It is due again later, so it does not pile up behind what cannot be written.
    pub(super) fn hold_again(&mut self, held: Held, ground: &Ground) {
        if self.unwritten.under(ground).is_none() {
            self.hold(held, ground);
        }
    }

    /// The answer to a registration comes before all orders of its session, which may rest on less.
    pub(super) fn hold_registered(
        &mut self,
        session: SessionNumber,
        registered: Box<Registered>,
        ground: &Ground,
    ) {
        if self.is_unwritten(ground) {
            // Who asked is told so, and the agent registers again.
            self.end_session(session);
            return;
        }
        self.parked.insert(session, Vec::new());
        self.hold(Held::ToAgent(session, ToAgent::Registered(registered)), ground);
    }

    pub(super) fn end_session(&mut self, session: SessionNumber) {
        self.sessions.remove(&session);
        self.parked.remove(&session);
    }

    fn let_out(&mut self, held: Held) {
        // What is held back is dropped: callers hear that the registry stopped, and ask the next one.
        if !self.mandate.holds() {
            return;
        }
        match held {
            Held::ToAgent(session, message) => self.tell(session, message),
            Held::Again(session, order) => {
                tracing::debug!(order = %order.id(), session = session.get(), "sent again");
                self.pass_on(session, ToAgent::Order(order));
            }
            Held::VolumeAgain(session, order) => self.pass_on(session, ToAgent::Volume(order)),
            // A caller that hung up asked for something that is done all the same.
            Held::Reply(Some(reply), result) => drop(reply.send(Ok(result))),
            Held::Refusal(Some(reply), refused) => drop(reply.send(Err(refused.into()))),
            Held::Read(Some(release)) => release(Ok(())),
            Held::Reply(None, _) | Held::Refusal(None, _) | Held::Read(None) => {}
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
        match &message {
            ToAgent::Registered(registered) => {
                self.log_registered(session, registered);
                let parked = self.parked.remove(&session).unwrap_or_default();
                self.pass_on(session, message);
                for message in parked {
                    self.tell(session, message);
                }
                return;
            }
            ToAgent::Order(order) => {
                let (id, goal) = (order.id(), order.ordered.goal);
                tracing::info!(order = %id, session = session.get(), "sent: {goal}");
            }
            ToAgent::Volume(order) => log_volume_order(order),
            ToAgent::ReportTaken { .. } => {}
        }
        self.pass_on(session, message);
    }

    fn pass_on(&mut self, session: SessionNumber, message: ToAgent) {
        if let Some(parked) = self.parked.get_mut(&session) {
            if parked.len() < PARKED_MOST {
                parked.push(message);
            } else {
                self.end_session(session);
            }
            return;
        }
        let Some(outbox) = self.sessions.get(&session) else { return };
        self.shown.stats.told(&message);
        if outbox.try_send(message).is_err() {
            // An agent that does not read loses its session, and hears everything again at its next one.
            self.end_session(session);
        }
    }

    pub(super) fn written(&mut self, outcome: Written) {
        match outcome {
            Written::Durable { number, callers } => {
                self.writing = false;
                let waiting = self.collecting.as_ref().map_or(0, |batch| batch.callers);
                self.gather.answered(callers, waiting);
                if self.unwritten.batch.take().is_some() {
                    tracing::info!("the store can be written again");
                    self.shown.health.send_replace(self.unwritten.health());
                }
                for held in self.gate.durable(number) {
                    self.let_out(held);
                }
                (self.surroundings.checkpoint)("registry-released");
            }
            Written::Waited => self.gather.over(),
            Written::Failing { error } => {
                tracing::error!("the store cannot be written, trying again: {error}");
                self.unwritten.batch = Some(error.into());
                self.shown.health.send_replace(self.unwritten.health());
            }
            Written::Record { key, number } => {
                let record = RecordKey::from(key);
                if self.unwritten.take(&record).is_some() {
                    tracing::info!("{key} can be written again");
                    self.shown.health.send_replace(self.unwritten.health());
                }
                for held in self.gate.durable_record(&record, number) {
                    self.let_out(held);
                }
                (self.surroundings.checkpoint)("registry-released");
            }
            Written::RecordFailing { key, behind, error } => {
                let (record, error) = (RecordKey::from(key), Arc::<str>::from(error));
                let behind = behind.into_iter().map(RecordKey::from).collect();
                let new = self.unwritten.note(record, behind);
                let before = self.unwritten.records.insert(record, Arc::clone(&error));
                if before.is_none_or(|before| before != error) {
                    tracing::error!("{key} cannot be written, trying again: {error}");
                    self.shown.health.send_replace(self.unwritten.health());
                }
                for stuck in std::iter::once(record).chain(new) {
                    self.gate.waiting_for(&stuck).for_each(|held| held.put_off(&error));
                }
            }
            Written::Lost(_) => unreachable!("the loop ends on it"),
        }
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
