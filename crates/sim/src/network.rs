//! Connections between agents and registries.
//!
//! Within a connection messages arrive in order and once, as over TCP; a blocked direction holds them back. Between
//! connections nothing is ordered: what an old one still carries may arrive after a new one is in use, and in some
//! runs an order is even heard twice that way.

use std::collections::VecDeque;

use hotbay_core::device::Observed;
use hotbay_core::ids::{DriveId, SessionNumber};
use hotbay_core::label::change::LabelTold;
use hotbay_core::message::{Answer, Order, Registered, Registration};
use hotbay_core::volume::orders::{LabelAnswer, UseAnswer, VolumeOrder};

use crate::fault::Fault;
use crate::log::note;
use crate::scenario::{Millis, SECOND};
use crate::world::{Event, World};

/// An agent that is not heard of for so long is not there.
pub(crate) const SILENCE: Millis = 10 * SECOND;
/// How many orders of a connection are kept, to be heard twice.
const KEPT_ORDERS: usize = 4;

pub(crate) type ConnectionId = u64;

#[derive(Debug, Clone)]
pub(crate) enum FromAgent {
    Register(Box<Registration>),
    Report(Vec<Observed>),
    Answer(Answer),
    LabelTold(DriveId, LabelTold),
    LabelAnswer(LabelAnswer),
    UseAnswer(UseAnswer),
    HangUp,
}

#[derive(Debug, Clone)]
pub(crate) enum FromRegistry {
    Registered(Box<Registered>),
    Order(Box<Order>),
    Volume(Box<VolumeOrder>),
    HangUp,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) machine: usize,
    /// The start of the agent that dialled.
    pub(crate) start: u64,
    pub(crate) site: usize,
    pub(crate) reign: u64,
    pub(crate) session: SessionNumber,
    /// The agent still listens to it.
    pub(crate) agent_end: bool,
    /// The registry still listens to it.
    pub(crate) registry_end: bool,
    up_until: Millis,
    down_until: Millis,
    orders: VecDeque<FromRegistry>,
}

/// One direction between a machine and all registries.
#[derive(Debug)]
pub(crate) struct Direction<T> {
    /// Since when nothing gets through.
    pub(crate) blocked: Option<Millis>,
    held: VecDeque<(ConnectionId, T)>,
}

impl<T> Direction<T> {
    pub(crate) const fn open() -> Self {
        Self { blocked: None, held: VecDeque::new() }
    }
}

impl World {
    /// Both ends of a new connection.
    pub(crate) fn connect(
        &mut self,
        machine: usize,
        start: u64,
        site: usize,
        reign: u64,
        session: SessionNumber,
    ) -> ConnectionId {
        let id = self.number();
        let connection = Connection {
            machine,
            start,
            site,
            reign,
            session,
            agent_end: true,
            registry_end: true,
            up_until: 0,
            down_until: 0,
            orders: VecDeque::new(),
        };
        self.connections.insert(id, connection);
        id
    }

    pub(crate) fn send_up(&mut self, id: ConnectionId, message: FromAgent) {
        let pause = self.latency();
        let arrives = self.now + pause;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.up_until = connection.up_until.max(arrives);
        let pause = connection.up_until - self.now;
        self.after(pause, Event::Up { connection: id, message });
    }

    pub(crate) fn send_down(&mut self, id: ConnectionId, message: FromRegistry) {
        let pause = self.latency();
        let arrives = self.now + pause;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if matches!(message, FromRegistry::Order(_) | FromRegistry::Volume(_)) {
            connection.orders.push_back(message.clone());
            if connection.orders.len() > KEPT_ORDERS {
                connection.orders.pop_front();
            }
        }
        connection.down_until = connection.down_until.max(arrives);
        let pause = connection.down_until - self.now;
        self.after(pause, Event::Down { connection: id, message });
    }

    pub(crate) fn arrives_up(&mut self, id: ConnectionId, message: FromAgent) {
        let Some(connection) = self.connections.get(&id) else { return };
        let up = &mut self.machines[connection.machine].up;
        if up.blocked.is_some() || !up.held.is_empty() {
            up.held.push_back((id, message));
            return;
        }
        self.heard_by_registry(id, message);
    }

    pub(crate) fn arrives_down(&mut self, id: ConnectionId, message: FromRegistry) {
        let Some(connection) = self.connections.get(&id) else { return };
        let down = &mut self.machines[connection.machine].down;
        if down.blocked.is_some() || !down.held.is_empty() {
            down.held.push_back((id, message));
            return;
        }
        self.heard_by_agent(id, message);
    }

    pub(crate) fn block(&mut self, machine: usize, up: bool, down: bool) {
        let (now, there) = (self.now, &mut self.machines[machine]);
        if up {
            there.up.blocked.get_or_insert(now);
            let over = there.process.as_ref().and_then(|process| process.connection);
            if let Some(connection) = over {
                self.after(SILENCE, Event::Silence { connection });
            }
        }
        let there = &mut self.machines[machine];
        if down {
            there.down.blocked.get_or_insert(now);
        }
        note!(
            self,
            "network: {} cut off ({})",
            self.machines[machine].name,
            match (up, down) {
                (true, true) => "both ways",
                (true, false) => "cannot be heard",
                _ => "cannot hear",
            }
        );
    }

    /// Lets everything through again that was held back, in order.
    pub(crate) fn unblock(&mut self, machine: usize) {
        note!(self, "network: {} is reachable", self.machines[machine].name);
        self.machines[machine].up.blocked = None;
        self.machines[machine].down.blocked = None;
        while let Some((id, message)) = self.machines[machine].up.held.pop_front() {
            self.heard_by_registry(id, message);
        }
        while let Some((id, message)) = self.machines[machine].down.held.pop_front() {
            self.heard_by_agent(id, message);
        }
    }

    fn heard_by_registry(&mut self, id: ConnectionId, message: FromAgent) {
        let Some(connection) = self.connections.get(&id).filter(|there| there.registry_end) else {
            self.drop_if_done(id);
            return;
        };
        let newer = self.machines[connection.machine]
            .process
            .as_ref()
            .is_some_and(|process| process.connection.is_some_and(|newest| newest > id));
        let answers = matches!(
            message,
            FromAgent::Answer(_) | FromAgent::LabelAnswer(_) | FromAgent::UseAnswer(_)
        );
        if newer && answers {
            self.fault(Fault::LateAnswer);
        }
        match message {
            FromAgent::HangUp => self.registry_notices(id),
            message => self.registry_hears(id, message),
        }
    }

    fn heard_by_agent(&mut self, id: ConnectionId, message: FromRegistry) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (machine, start) = (connection.machine, connection.start);
        let process = self.machines[machine].process.as_ref();
        let current = process.is_some_and(|process| process.connection == Some(id));
        if current && connection.agent_end {
            assert_eq!(process.map(|process| process.start), Some(start), "a start dials itself");
            match message {
                FromRegistry::HangUp => self.agent_notices(id),
                message => self.agent_hears(id, message),
            }
            return;
        }
        if process.is_some() && self.scenario.late_orders {
            match message {
                FromRegistry::Order(order) => {
                    self.fault(Fault::LateOrder);
                    note!(self, "network: an order over an old connection arrives late");
                    self.agent_hears_order(machine, id, *order);
                }
                FromRegistry::Volume(order) => {
                    self.fault(Fault::LateVolumeOrder);
                    note!(self, "network: an order about volumes arrives late");
                    self.agent_hears_of_volume(machine, *order);
                }
                FromRegistry::Registered(_) | FromRegistry::HangUp => {}
            }
        }
        self.drop_if_done(id);
    }

    /// An agent has registered anew: in some runs it hears again what an older connection of its told it.
    pub(crate) fn hear_twice(&mut self, machine: usize) {
        if !self.scenario.late_orders || !self.rng.chance(200) {
            return;
        }
        let of_machine = |(_, connection): &(&ConnectionId, &Connection)| {
            connection.machine == machine && !connection.agent_end && !connection.orders.is_empty()
        };
        let old: Vec<_> = self.connections.iter().filter(of_machine).map(|(id, _)| *id).collect();
        let Some(id) = self.rng.pick(&old) else { return };
        let orders = self.connections[&id].orders.clone();
        let order = orders[self.rng.index(orders.len())].clone();
        self.fault(Fault::DoubledOrder);
        let pause = self.latency();
        self.after(pause, Event::Down { connection: id, message: order });
    }

    /// The agent gives a connection up, and says so.
    pub(crate) fn agent_hangs_up(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.agent_end = false;
            self.send_up(id, FromAgent::HangUp);
        }
    }

    /// The registry looks whether a connection is silent.
    pub(crate) fn listen_for(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id).filter(|there| there.registry_end) else {
            return;
        };
        let blocked = self.machines[connection.machine].up.blocked;
        let silent = blocked.is_some_and(|since| since + SILENCE <= self.now);
        if silent || !connection.agent_end {
            note!(
                self,
                "registry {}: session {} is silent",
                connection.site,
                connection.session.get()
            );
            self.registry_notices(id);
        }
    }

    /// A connection breaks; either side may learn of it late.
    pub(crate) fn cut(&mut self, id: ConnectionId) {
        self.fault(Fault::ConnectionCut);
        let late = self.rng.chance(300).then(|| self.rng.between(SECOND, 60 * SECOND));
        let registry_late = late.is_some() && self.rng.chance(500);
        let (up, down) = match late {
            None => (self.latency(), self.latency()),
            Some(late) if registry_late => {
                self.fault(Fault::RegistryNoticesLate);
                (late, self.latency())
            }
            Some(late) => {
                self.fault(Fault::AgentNoticesLate);
                (self.latency(), late)
            }
        };
        self.after(up, Event::RegistryNotices { connection: id });
        self.after(down, Event::AgentNotices { connection: id });
    }

    /// Forgets a connection that nobody listens to. In runs with late orders the newest old ones are kept.
    pub(crate) fn drop_if_done(&mut self, id: ConnectionId) {
        let done = |there: &Connection| !there.agent_end && !there.registry_end;
        if self.connections.get(&id).is_some_and(done) && !self.scenario.late_orders {
            self.connections.remove(&id);
        }
    }
}
