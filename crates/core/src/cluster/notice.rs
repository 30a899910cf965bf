//! What people may want to hear of: a sentence each, about one thing. They are kept and shown, and decide nothing.

use super::{Cluster, Effects};
use crate::ids::{DriveId, NodeId, VolumeId};
use crate::message::NodeCondition;
use crate::order::OrderId;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Notice {
    pub warning: bool,
    /// What happened, in one word, for programs.
    pub reason: &'static str,
    pub about: About,
    pub text: String,
    /// The order that was decided, confirmed or refused.
    pub order: Option<OrderId>,
}

/// What a notice is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum About {
    Drive(DriveId),
    Node(NodeId),
    Volume(VolumeId),
    /// The registry as a whole.
    Registry,
}

impl Notice {
    pub(super) fn plain(reason: &'static str, about: About, text: String) -> Self {
        Self { warning: false, reason, about, text, order: None }
    }

    pub(super) fn warning(reason: &'static str, about: About, text: String) -> Self {
        Self { warning: true, reason, about, text, order: None }
    }

    /// The same, about an order.
    pub(super) fn of(self, order: Option<OrderId>) -> Self {
        Self { order, ..self }
    }
}

impl Cluster {
    /// Keeps what an agent says is not as it should be, and tells what is new in that.
    pub(super) fn note_conditions(
        &mut self,
        id: NodeId,
        conditions: Vec<NodeCondition>,
        effects: &mut Effects,
    ) {
        let node = self.nodes.get_mut(&id).expect("only known nodes speak");
        let name = &node.record.name;
        let new = conditions.iter().filter(|condition| !node.conditions.contains(condition));
        for condition in new {
            let text = format!("{} on {name}: {condition}.", condition.name());
            effects.notices.push(Notice::warning("NodeCondition", About::Node(id), text));
        }
        let over = |before: &&NodeCondition| {
            !conditions.iter().any(|condition| condition.name() == before.name())
        };
        for condition in node.conditions.iter().filter(over) {
            let text = format!("{} on {name} is over.", condition.name());
            effects.notices.push(Notice::plain("NodeConditionOver", About::Node(id), text));
        }
        node.conditions = conditions;
    }

    /// A word for a drive in a sentence.
    pub(super) fn describe(&self, id: DriveId) -> String {
        let Some(drive) = self.drives.get(&id) else { return id.to_string() };
        let observed = &drive.record.observed;
        let node = self.nodes.get(&drive.record.node).map(|node| node.record.name.as_str());
        let place = observed.bay.as_ref().map_or(observed.path.clone(), |bay| format!("bay {bay}"));
        format!("Drive {} in {} {place}", drive.record.name, node.unwrap_or("no node"))
    }

    /// How long a drive has been in its state, in words; nothing if the clock went back meanwhile.
    pub(super) fn after(&self, id: DriveId, now_ms: u64) -> String {
        let since = self.drives.get(&id).map(|drive| drive.record.since_ms);
        match since.and_then(|since| now_ms.checked_sub(since)) {
            Some(ms) => format!(" after {}.{} s", ms / 1_000, ms % 1_000 / 100),
            None => String::new(),
        }
    }
}
