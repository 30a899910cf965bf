//! The agent's side of a session: it dials, registers, hears, and dials again.

use hotbay_core::agent::{Effect, Event as Happens};
use hotbay_core::message::{Order, Registered};
use hotbay_core::volume::orders::VolumeOrder;

use crate::log::note;
use crate::machine::{FIRST_DIAL_PAUSE, short};
use crate::network::{ConnectionId, FromAgent, FromRegistry};
use crate::scenario::{Millis, SECOND};
use crate::world::{AgentEvent, Event, World};

const LONGEST_DIAL_PAUSE: Millis = 2 * SECOND;
const DIAL_LIMIT: Millis = 5 * SECOND;

impl World {
    pub(crate) fn dial(&mut self, machine: usize) {
        let there = &self.machines[machine];
        let site = there.site;
        let blocked = there.up.blocked.is_some() || there.down.blocked.is_some();
        let serving = self.sites[site].process.as_ref().filter(|process| process.serving);
        match serving.map(|process| process.reign) {
            _ if blocked => self.dial_again(machine, DIAL_LIMIT),
            None => self.dial_again(machine, 0),
            Some(reign) => {
                let (pause, start) = (self.latency(), self.machines[machine].starts);
                let event = AgentEvent::Connected { site, reign };
                self.after(pause, Event::Agent { machine, start, event });
            }
        }
    }

    pub(crate) fn dial_again(&mut self, machine: usize, after: Millis) {
        let process = self.agent_of(machine);
        let pause = process.dial_pause;
        process.dial_pause = (pause * 2).min(LONGEST_DIAL_PAUSE);
        self.agent_after(machine, after + pause, AgentEvent::Dial);
    }

    pub(crate) fn connected(&mut self, machine: usize, site: usize, reign: u64) {
        // It may have been told to dial another registry meanwhile.
        let there = self.machines[machine].site == site;
        let Some(session) = self.accept(site, reign).filter(|_| there) else {
            return self.dial_again(machine, 0);
        };
        let start = self.machines[machine].starts;
        let id = self.connect(machine, start, site, reign, session);
        self.accepted(site, session, id);
        let now = self.now;
        let there = &mut self.machines[machine];
        let process = there.process.as_mut().expect("it dialled");
        process.connection = Some(id);
        process.connected_at = now;
        process.reported = process.agent.devices().to_vec();
        let mut registration = process.agent.registration(there.name.clone(), there.id);
        // Every other machine has it.
        registration.device_mapper = machine.is_multiple_of(2);
        note!(
            self,
            "{}: registers with registry {site}, session {}",
            self.machines[machine].name,
            session.get()
        );
        self.send_up(id, FromAgent::Register(Box::new(registration)));
    }

    /// The agent learns that its connection is over.
    pub(crate) fn agent_notices(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id).filter(|there| there.agent_end) else {
            return;
        };
        connection.agent_end = false;
        let machine = connection.machine;
        let now = self.now;
        let Some(process) = self.machines[machine].process.as_mut() else { return };
        if process.connection != Some(id) {
            return;
        }
        process.connection = None;
        if now - process.connected_at > LONGEST_DIAL_PAUSE {
            process.dial_pause = FIRST_DIAL_PAUSE;
        }
        note!(self, "{}: connection lost", self.machines[machine].name);
        self.step_agent(machine, Happens::SessionLost);
        if self.machines[machine].process.is_some() {
            self.dial_again(machine, 0);
        }
    }

    /// The registry speaks over the current connection.
    pub(crate) fn agent_hears(&mut self, id: ConnectionId, message: FromRegistry) {
        let machine = self.connections[&id].machine;
        match message {
            FromRegistry::Registered(registered) => {
                self.registration_accepted(machine, id, *registered);
            }
            FromRegistry::Order(order) => self.agent_hears_order(machine, id, *order),
            FromRegistry::Volume(order) => self.agent_hears_of_volume(machine, *order),
            FromRegistry::HangUp => self.agent_notices(id),
        }
    }

    pub(crate) fn agent_hears_order(&mut self, machine: usize, id: ConnectionId, order: Order) {
        let Order { drive, ordered, .. } = order;
        note!(
            self,
            "{}: ordered to {} {}, {}",
            self.machines[machine].name,
            ordered.goal,
            short(drive),
            ordered.stamp
        );
        let process = self.agent_of(machine);
        let before = process.agent.in_force(drive);
        let effects = process.agent.step(Happens::Order(order));
        let taken = process.agent.in_force(drive) != before;
        if taken {
            self.order_taken(machine, id);
        }
        self.perform(machine, effects);
    }

    pub(crate) fn agent_hears_of_volume(&mut self, machine: usize, order: VolumeOrder) {
        note!(self, "{}: ordered {order:?}", self.machines[machine].name);
        let event = match order {
            VolumeOrder::Label(order) => Happens::LabelOrder(order),
            VolumeOrder::Use(order) => Happens::UseOrder(order),
        };
        self.step_agent(machine, event);
    }

    fn registration_accepted(&mut self, machine: usize, id: ConnectionId, answer: Registered) {
        let reign = self.connections[&id].reign;
        let process = self.agent_of(machine);
        let before = process.agent.record().term;
        let effects = process.agent.step(Happens::Registered(answer));
        let refused = effects.iter().any(|effect| matches!(effect, Effect::RefuseSession(_)));
        if !refused {
            process.accepted = Some(reign);
            self.registry_accepted(machine, reign, before);
            self.hear_twice(machine);
        }
        self.perform(machine, effects);
    }
}
