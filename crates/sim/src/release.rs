//! What leaves a registry: held back by core's `Gate` until all that it was computed from is durable.

use hotbay_core::cluster::{Effects, Event as Happens, Ground, Reply, Write};
use hotbay_core::ids::SessionNumber;
use hotbay_core::pace::Monotonic;
use hotbay_core::volume::orders::{LabelOrder, UseOrder, VolumeOrder};

use crate::check::Told;
use crate::fault::Fault;
use crate::log::note;
use crate::network::FromRegistry;
use crate::registry::{CALM_LIMIT, Caller, Process, Writer};
use crate::scenario::Kind;
use crate::volumes::VolumeTold;
use crate::world::{Event, World};

/// What waits behind the gate.
#[derive(Debug)]
pub(crate) enum Held {
    ToAgent(SessionNumber, FromRegistry),
    Reply { client: usize, call: u64, reply: Reply, told: Vec<Told>, volume: Option<VolumeTold> },
}

impl Process {
    fn hold(&mut self, ground: &Ground, held: Held) -> Option<Held> {
        match (&self.writer, ground) {
            (Writer::Records(_), Ground::These(keys)) => self.gate.hold_for(keys, held),
            (Writer::Records(_), Ground::Everything) | (Writer::Batches(_), _) => {
                self.gate.hold(held)
            }
        }
    }
}

impl World {
    pub(crate) fn carry_out(
        &mut self,
        site: usize,
        asked: &Happens,
        effects: Effects,
        caller: Caller,
        told: Vec<Told>,
    ) {
        let process = self.sites[site].process.as_mut().expect("it decided this");
        let now = Monotonic(self.now - process.started);
        let ground = process.cluster.ground(&asked.subject(), &effects);
        // The orders of an action over many drives each rest on their own.
        let decided = match asked {
            Happens::Act { .. } => Ground::of([]),
            _ => Ground::of(effects.writes.iter().map(Write::key)),
        };
        let parts: Vec<_> = effects.parts().map(<[Write]>::to_vec).collect();
        let Effects { writes, orders, volume_orders, reply, notices, sessions_end, .. } = effects;
        self.terms_known(site, &writes);
        if sessions_end {
            self.end_sessions(site);
        }
        for notice in notices {
            note!(self, "registry {site}: {}", notice.text);
        }
        let process = self.sites[site].process.as_mut().expect("still there");
        parts.into_iter().for_each(|part| process.decide(part));
        if let (Reply::Registered(registered), Caller::Agent(_)) = (&reply, caller) {
            for order in registered.allowed.iter().chain(&registered.unknown) {
                if process.cluster.is_on(order.drive, registered.session) {
                    process.pace.sent(order.drive, now);
                }
            }
            let message = FromRegistry::Registered(registered.clone());
            self.hold(site, &ground, Held::ToAgent(registered.session, message));
        }
        for (session, order) in orders {
            let process = self.sites[site].process.as_mut().expect("still there");
            if process.cluster.is_on(order.drive, session) {
                process.pace.sent(order.drive, now);
            }
            let ground = process.cluster.ground_of_order(&order).and(decided.clone());
            let message = FromRegistry::Order(Box::new(order));
            self.hold(site, &ground, Held::ToAgent(session, message));
        }
        for (session, order) in volume_orders {
            let process = self.sites[site].process.as_mut().expect("still there");
            match &order {
                VolumeOrder::Label(order) if process.cluster.owed(order.drive).is_none() => {
                    process.pace.sent(order.drive, now);
                }
                VolumeOrder::Label(LabelOrder { drive, .. })
                | VolumeOrder::Use(UseOrder { drive, .. }) => process.pace.keep(*drive, now),
            }
            let ground = process.cluster.ground_of_volume_order(&order).and(decided.clone());
            let message = FromRegistry::Volume(Box::new(order));
            self.hold(site, &ground, Held::ToAgent(session, message));
        }
        if let Caller::Client { client, call } = caller {
            let volume = self.told_of_volume(site, &reply);
            self.hold(site, &ground, Held::Reply { client, call, reply, told, volume });
        }
    }

    pub(crate) fn hold(&mut self, site: usize, ground: &Ground, held: Held) {
        self.await_release(site, &held);
        let process = self.sites[site].process.as_mut().expect("it decided this");
        match &held {
            Held::ToAgent(session, FromRegistry::Registered(_)) => {
                process.parked.insert(*session, Vec::new());
            }
            Held::ToAgent(_, _) => {}
            Held::Reply { call, .. } => drop(process.unanswered.insert(*call)),
        }
        if let Some(free) = process.hold(ground, held) {
            self.let_out(site, free);
        }
    }

    /// The store has something more: lets out what waited for that.
    pub(crate) fn written(&mut self, site: usize, ready: Vec<Held>) {
        let process = self.sites[site].process.as_mut().expect("it has had this written");
        if !std::mem::replace(&mut process.serving, true) {
            note!(self, "registry {site}: serves");
        }
        for held in ready {
            let crash = self.scenario.release_crash;
            if !self.trouble_over && self.may_crash(site) && self.rng.chance(crash) {
                self.fault(Fault::RegistryCrashBetweenReleases);
                self.crash_registry(site);
                return;
            }
            self.let_out(site, held);
        }
        self.turn_ends(site);
    }

    fn let_out(&mut self, site: usize, held: Held) {
        let process = self.sites[site].process.as_mut().expect("it decided this");
        match held {
            Held::ToAgent(session, message @ FromRegistry::Registered(_)) => {
                let parked = process.parked.remove(&session);
                self.tell_agent(site, session, message);
                for message in parked.unwrap_or_default() {
                    self.tell_agent(site, session, message);
                }
            }
            Held::ToAgent(session, message) => match process.parked.get_mut(&session) {
                Some(parked) => {
                    parked.push(message);
                    self.fault(Fault::OrderParked);
                }
                None => self.tell_agent(site, session, message),
            },
            Held::Reply { client, call, reply, told, volume } => {
                process.unanswered.remove(&call);
                if let Some(volume) = &volume {
                    self.volume_told(site, volume);
                }
                for told in &told {
                    self.told(site, told);
                    if self.scenario.kind == Kind::Isolation && told.changed {
                        let Told { drive, generation, .. } = *told;
                        self.after(CALM_LIMIT, Event::Deadline { site, drive, generation });
                    }
                }
                let pause = self.latency();
                self.after(pause, Event::Answered { client, call, reply: Some(reply), volume });
            }
        }
    }

    fn tell_agent(&mut self, site: usize, session: SessionNumber, message: FromRegistry) {
        let process = self.sites[site].process.as_ref().expect("it speaks");
        let Some(id) = process.sessions.get(&session).copied() else { return };
        match &message {
            FromRegistry::Order(order) => self.order_leaves(site, session, order),
            FromRegistry::Registered(registered) => {
                for order in registered.allowed.iter().chain(&registered.unknown) {
                    self.order_leaves(site, session, order);
                }
            }
            FromRegistry::Volume(order) => self.volume_order_leaves(site, session, order),
            FromRegistry::HangUp => {}
        }
        self.send_down(id, message);
    }
}
