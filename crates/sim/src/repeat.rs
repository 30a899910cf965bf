//! The registry's repetitions: what an agent has not answered is sent again, at the pace that core keeps.

use hotbay_core::cluster::Ground;
use hotbay_core::ids::SessionNumber;
use hotbay_core::pace::{Monotonic, REPEATED_AT_ONCE};

use crate::check::Invariant;
use crate::network::FromRegistry;
use crate::release::Held;
use crate::world::World;

impl World {
    pub(crate) fn repeat_orders(&mut self, site: usize, reign: u64) {
        let now = self.now;
        let Some(process) = self.process(site, reign) else { return };
        if process.timer == Some(now) {
            process.timer = None;
        }
        let due = process.pace.due(Monotonic(now - process.started));
        if due.len() > REPEATED_AT_ONCE {
            let what = format!("{} orders repeated at one moment", due.len());
            self.breaks(Invariant::HotLoop, what);
            return;
        }
        for drive in due {
            let process = self.sites[site].process.as_mut().expect("looked at above");
            let owed = process.cluster.owed(drive);
            let volumes = process.cluster.owed_volume_orders(drive);
            if owed.is_none() && volumes.is_empty() {
                process.pace.forget(drive);
            }
            // While the store fails nothing leaves, and repetitions would only pile up behind the gate.
            if process.failing {
                continue;
            }
            let attach = owed.map(|(session, order)| {
                let ground = process.cluster.ground_of_order(&order);
                (session, ground, FromRegistry::Order(Box::new(order)))
            });
            let volumes = volumes.into_iter().map(|(session, order)| {
                let ground = process.cluster.ground_of_volume_order(&order);
                (session, ground, FromRegistry::Volume(Box::new(order)))
            });
            let orders: Vec<_> = attach.into_iter().chain(volumes).collect();
            for (session, ground, message) in orders {
                if !self.is_held(site, session, &ground, &message) {
                    self.hold(site, &ground, Held::ToAgent(session, message));
                }
            }
        }
        self.turn_ends(site);
    }

    /// Whether a repetition would wait behind the gate together with what it repeats, or for the answer to the
    /// registration. Of those a record that cannot be written would let out all at once.
    fn is_held(
        &mut self,
        site: usize,
        session: SessionNumber,
        ground: &Ground,
        message: &FromRegistry,
    ) -> bool {
        let process = self.sites[site].process.as_mut().expect("it repeats");
        let alike = |held: &Held| match (held, message) {
            (Held::ToAgent(to, FromRegistry::Order(held)), FromRegistry::Order(order)) => {
                *to == session && held == order
            }
            (Held::ToAgent(to, FromRegistry::Volume(held)), FromRegistry::Volume(order)) => {
                *to == session && held == order
            }
            _ => false,
        };
        let Ground::These(keys) = ground else { unreachable!("an order rests on few records") };
        process.parked.contains_key(&session)
            || keys.iter().any(|key| process.gate.waiting_for(key).any(|held| alike(held)))
    }
}
