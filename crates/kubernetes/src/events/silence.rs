//! An agent that is gone may only start anew. That its node has lost it is published when it stays away; the log of the
//! controller has it at once.

use std::collections::BTreeMap;
use std::time::Duration;

use hotbay_core::cluster::About;
use hotbay_core::ids::NodeId;
use hotbay_registry::Recorded;
use tokio::time::Instant;

/// As long as the node itself is said to be ready, for the same reason.
const HOLD: Duration = Duration::from_secs(5);
const LOST: &str = "AgentSilent";
const BACK: &str = "AgentRegistered";

/// Nodes whose agents are gone, with what is to be told of it and when.
#[derive(Debug, Default)]
pub(super) struct Silences(BTreeMap<NodeId, (Instant, Recorded)>);

impl Silences {
    /// Keeps back what may be over in a moment.
    pub(super) fn pass(&mut self, event: Recorded, now: Instant) -> Option<Recorded> {
        let About::Node(node) = event.notice.about else { return Some(event) };
        match event.notice.reason {
            LOST => {
                self.0.insert(node, (now + HOLD, event));
                None
            }
            BACK => {
                self.0.remove(&node);
                Some(event)
            }
            _ => Some(event),
        }
    }

    /// What is to be told by now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Recorded> {
        let due = self.0.extract_if(.., |_, (at, _)| *at <= now);
        due.map(|(_, (_, event))| event).collect()
    }

    /// When something is due next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|(at, _)| *at).min()
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::cluster::Notice;

    use super::*;

    fn event(number: u64, reason: &'static str, node: u128) -> Recorded {
        let about = About::Node(NodeId::from_bits(node));
        let notice = Notice { warning: true, reason, about, text: String::new(), order: None };
        Recorded { number, wall_ms: 0, notice }
    }

    #[test]
    fn only_an_agent_that_stays_away_is_told() {
        let mut silences = Silences::default();
        let now = Instant::now();
        assert!(silences.pass(event(1, LOST, 1), now).is_none());
        assert!(silences.pass(event(2, LOST, 2), now).is_none());
        assert!(silences.pass(event(3, BACK, 1), now).is_some());
        assert!(silences.pass(event(4, "FiltersInvalid", 2), now).is_some());
        assert_eq!((silences.due(now).len(), silences.next()), (0, Some(now + HOLD)));
        let due: Vec<_> = silences.due(now + HOLD).iter().map(|event| event.number).collect();
        assert_eq!((due, silences.next()), (vec![2], None));
    }
}
