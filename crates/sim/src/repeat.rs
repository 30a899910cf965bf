//! The registry's repetitions: what an agent has not answered is sent again, at the pace that core keeps.

use hotbay_core::pace::{Monotonic, REPEATED_AT_ONCE};

use crate::check::Invariant;
use crate::network::FromRegistry;
use crate::registry::Held;
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
            if let Some((session, order)) = owed {
                let message = FromRegistry::Order(Box::new(order));
                self.hold(site, Held::ToAgent(session, message));
            }
            for (session, order) in volumes {
                self.hold(site, Held::ToAgent(session, FromRegistry::Volume(Box::new(order))));
            }
        }
        self.turn_ends(site);
    }
}
