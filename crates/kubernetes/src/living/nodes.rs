//! What is said of nodes: whether they are ready, when they were last heard, and what is to become of one whose
//! Kubernetes Node is gone.
//!
//! ```text
//!  Node seen ── gone from a complete list ──▶ KubernetesNodeGone ── grace time ──▶ forgotten
//!      ▲                                            │    ▲               │
//!      └──────────────── there again ───────────────┘    └─ still needed ┘
//! ```
//!
//! An agent that has just gone may only start anew: its node is said to be ready for a short while longer, so that
//! such a start costs no write.
//!
//! Only a machine whose Node was once seen can lose it: that is noted in its status (`kubernetesNode`), for the leaders
//! to come. One that joined from outside the cluster never had any. The grace time runs on this leader's own clock,
//! from when it has first not found the Node.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use hotbay_core::ids::{NodeId, SessionNumber};
use hotbay_core::message::AgentProgram;
use hotbay_registry::{Key, Kind};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use super::Times;
use super::look::NodeSeen;
use super::machines::Machines;
use super::sayings::{Next, Wanted, next};
use crate::store::beside::Said;
use crate::view::timestamp;

/// Whether the agent is connected, and all is well.
const READY: &str = "Ready";
/// The Kubernetes Node of the machine is gone.
const NODE_GONE: &str = "KubernetesNodeGone";
/// Another machine says that it is this one.
const DUPLICATE: &str = "DuplicateNode";

/// Another machine that does not try again for so long is gone.
const DUPLICATE_TIME: Duration = Duration::from_secs(120);

/// What this leader has seen of the connection of a node.
#[derive(Debug)]
struct Connection {
    session: Option<SessionNumber>,
    since: Instant,
    /// It was heard since this leader leads.
    is_heard: bool,
    next_beat: Instant,
    duplicate: Option<(u64, Instant)>,
}

/// What is known of the nodes beside what is said of them.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    connections: HashMap<NodeId, Connection>,
    gone_since: HashMap<NodeId, Instant>,
}

/// What follows for one node.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Not known yet: this leader has not led for long enough.
    Wait,
    Say(Next),
    /// Its Kubernetes Node is gone for long enough, and nothing of it is needed.
    Forget,
}

pub(super) fn key(id: NodeId) -> Key {
    Key { kind: Kind::Node, id: id.to_bits() }
}

/// The nodes that were seen as Kubernetes Nodes once, and are none any more. Without a complete list nobody knows.
pub(super) fn gone(machines: &Machines, said: &HashMap<Key, Said>) -> HashSet<NodeId> {
    let Some(names) = machines else { return HashSet::new() };
    let nodes = said.iter().filter(|(key, _)| key.kind == Kind::Node);
    let is_gone = |(_, said): &(&Key, &Said)| {
        let name = said.fields.get("kubernetesNode").and_then(Value::as_str);
        name.is_some_and(|name| !names.contains(name))
    };
    nodes.filter(is_gone).map(|(key, _)| NodeId::from_bits(key.id)).collect()
}

impl Nodes {
    /// Takes in what is seen of the connections.
    pub(super) fn meet(&mut self, nodes: &[NodeSeen], said: &HashMap<Key, Said>, times: &Times) {
        let now = Instant::now();
        let there: HashSet<_> = nodes.iter().map(|node| node.id).collect();
        self.connections.retain(|id, _| there.contains(id));
        self.gone_since.retain(|id, _| there.contains(id));
        for node in nodes {
            let known = self.connections.entry(node.id).or_insert_with(|| {
                let has_beaten = said
                    .get(&key(node.id))
                    .is_some_and(|said| said.fields.contains_key("lastHeartbeat"));
                // Those that a leader before has written of are spread over the time between two writes.
                let next_beat = if has_beaten { now + spread(node.id, times.beat) } else { now };
                let session = node.session;
                Connection { session, since: now, is_heard: false, next_beat, duplicate: None }
            });
            if known.session != node.session {
                (known.session, known.since) = (node.session, now);
            }
            // It may have come and gone since it was last looked.
            let has_spoken = node.session.is_some() || node.silent_since_ms.is_some();
            known.is_heard |= has_spoken || node.is_rewound;
            known.duplicate = node.duplicate_ms.map(|last| match known.duplicate {
                Some((same, since)) if same == last => (same, since),
                Some(_) | None => (last, now),
            });
        }
    }

    /// Takes in whose Kubernetes Nodes are gone.
    pub(super) fn meet_machines(&mut self, nodes: &[NodeSeen], gone: &HashSet<NodeId>) {
        for node in nodes {
            if gone.contains(&node.id) && !node.purged {
                self.gone_since.entry(node.id).or_insert_with(Instant::now);
            } else {
                self.gone_since.remove(&node.id);
            }
        }
    }

    /// Whether what is known of the things on a node counts: its agent is there and has had the time to speak, or is
    /// away for longer than a start of it takes.
    pub(super) fn is_settled(&self, node: NodeId, times: &Times) -> bool {
        self.connections.get(&node).is_some_and(|known| match known.session {
            Some(_) => known.since.elapsed() >= times.settle,
            None => known.since.elapsed() >= times.away,
        })
    }

    /// Whether its agent has spoken since this leader leads.
    pub(super) fn is_heard(&self, node: NodeId) -> bool {
        self.connections.get(&node).is_some_and(|known| known.is_heard)
    }

    /// When something of it is to be looked at again, though nothing happens. What has come since it was last `looked`
    /// is due at once.
    pub(super) fn next_look(&self, times: &Times, looked: Instant) -> Option<Instant> {
        let settles = self.connections.values().map(|known| match known.session {
            Some(_) => known.since + times.settle,
            None if known.is_heard => known.since + times.away,
            None => known.since + times.heard.min(times.away),
        });
        let away = self.connections.values().map(|known| known.since + times.away);
        let gone = self.gone_since.values().map(|since| *since + times.gone);
        let duplicates = self.connections.values().filter_map(|known| known.duplicate);
        let duplicates = duplicates.map(|(_, since)| since + DUPLICATE_TIME);
        let silent = self.connections.values().filter(|known| known.session.is_none());
        let held = silent.map(|known| known.since + times.hold);
        let all = settles.chain(away).chain(gone).chain(duplicates).chain(held);
        all.filter(|at| *at > looked).min()
    }

    /// Whether a node that is connected is to say so again.
    pub(super) fn is_beat_due(&self) -> bool {
        let now = Instant::now();
        self.connections.values().any(|known| known.session.is_some() && known.next_beat <= now)
    }

    /// What is to be said of a node, or done about it.
    pub(super) fn judge(
        &mut self,
        node: &NodeSeen,
        machines: &Machines,
        before: Option<&Said>,
        times: &Times,
        now_ms: u64,
        may_reword: bool,
    ) -> Verdict {
        let gone = self.gone_since.get(&node.id).map(|since| since.elapsed() >= times.gone);
        let Some(known) = self.connections.get_mut(&node.id) else { return Verdict::Wait };
        if !known.is_heard && !node.purged && known.since.elapsed() < times.heard {
            return Verdict::Wait;
        }
        if gone == Some(true) && node.keeps.is_empty() {
            return Verdict::Forget;
        }
        let may_come_back = may_come_back(node, known, before, times);
        let ready = ready(node, node.session.is_some() || may_come_back);
        let is_ready = ready.holds;
        let mut wanted = vec![ready];
        wanted.extend(node.told.iter().cloned().map(Wanted::from));
        wanted.extend(gone.map(|is_over| node_gone(node, is_over)));
        if known.duplicate.is_some_and(|(_, since)| since.elapsed() < DUPLICATE_TIME) {
            wanted.push(Wanted {
                kind: DUPLICATE,
                holds: true,
                reason: "OtherMachine",
                message: "another machine asks to be this node, and is refused".to_owned(),
            });
        }
        let mut fields = BTreeMap::from([
            ("ready", json!(is_ready)),
            ("drives", json!(node.drives)),
            ("drivesInOperation", json!(node.in_operation)),
        ]);
        let is_machine = machines.as_ref().is_some_and(|names| names.contains(&node.name));
        let noted = before.and_then(|said| said.fields.get("kubernetesNode")).cloned();
        let machine = if is_machine { Some(json!(node.name)) } else { noted };
        fields.extend(machine.map(|name| ("kubernetesNode", name)));
        fields.extend(program(node, before));
        let along = heartbeat(node, may_come_back, before, now_ms);
        let mut next = next(before, wanted, fields, along, may_reword, now_ms);
        next.is_new |= node.session.is_some() && known.next_beat <= Instant::now();
        if next.is_new {
            known.next_beat = Instant::now() + times.beat;
        }
        Verdict::Say(next)
    }
}

/// A part of a time that is always the same for one node.
fn spread(id: NodeId, time: Duration) -> Duration {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(id);
    time * u32::from(u16::try_from(hash >> 48).unwrap_or(u16::MAX)) / (1 << 16)
}

/// Whether a node that was said to be ready has lost its agent only just now. Whatever else is wrong with it is told at
/// once: that does not go by a new start of the agent.
fn may_come_back(
    node: &NodeSeen,
    known: &Connection,
    before: Option<&Said>,
    times: &Times,
) -> bool {
    let was_ready = before.and_then(|said| said.get(READY)).is_some_and(|ready| ready.holds);
    node.session.is_none() && was_ready && known.is_heard && known.since.elapsed() < times.hold
}

fn ready(node: &NodeSeen, is_there: bool) -> Wanted {
    let (holds, reason, message) = if node.purged {
        (
            false,
            "Purged",
            "it was given up; if its machine is back:  hotbay host add HOST --returned",
        )
    } else if node.is_rewound {
        (false, "RegistryRewound", "its agent knows newer orders than this registry, and gets none")
    } else if is_there {
        (true, "AgentConnected", "its agent is connected")
    } else {
        (false, "AgentUnreachable", "its agent cannot be reached")
    };
    Wanted { kind: READY, holds, reason, message: message.to_owned() }
}

fn node_gone(node: &NodeSeen, is_over: bool) -> Wanted {
    let (reason, message) = match (is_over, node.keeps.is_empty()) {
        (false, true) => (
            "GraceTime",
            "its Kubernetes Node is gone; it is forgotten after the grace time".to_owned(),
        ),
        (_, false) => {
            let name = &node.name;
            let keeps = node.keeps.join("; ");
            let message = format!(
                "its Kubernetes Node is gone, and it is kept: {keeps}. To take its drives out of operation:  hotbay \
                 host remove {name} ; to give up a machine that is gone with them:  hotbay host purge {name}"
            );
            ("StillNeeded", message)
        }
        (true, true) => ("Forgetting", "its Kubernetes Node is gone".to_owned()),
    };
    Wanted { kind: NODE_GONE, holds: true, reason, message }
}

/// The release of its agent, and where that comes from. One that is away is no other one: what was noted stands until
/// the next one has registered.
fn program(node: &NodeSeen, before: Option<&Said>) -> BTreeMap<&'static str, Value> {
    let noted = |field: &str| before.and_then(|said| said.fields.get(field)).cloned();
    let [version, address] = match &node.program {
        None => ["version", "address"].map(noted),
        Some(AgentProgram { version, address }) => [
            version.as_ref().map(|version| json!(version.to_string())),
            address.map(|address| json!(address.to_string())),
        ],
    };
    let fields = [("version", version), ("address", address)];
    fields.into_iter().filter_map(|(field, value)| Some((field, value?))).collect()
}

/// When it was last heard, and the start of its agent: they go with a write and cause none.
fn heartbeat(
    node: &NodeSeen,
    may_come_back: bool,
    before: Option<&Said>,
    now_ms: u64,
) -> BTreeMap<&'static str, Value> {
    let noted = |field: &str| before.and_then(|said| said.fields.get(field)).cloned();
    let last = match node.session {
        Some(_) => Some(json!(timestamp(now_ms))),
        None => {
            node.silent_since_ms.map(|ms| json!(timestamp(ms))).or_else(|| noted("lastHeartbeat"))
        }
    };
    let incarnation = match &node.incarnation {
        Some(incarnation) => Some(json!(incarnation)),
        // That it is gone would be news.
        None if may_come_back => noted("incarnation"),
        None => None,
    };
    let along = [("lastHeartbeat", last), ("incarnation", incarnation)];
    along.into_iter().filter_map(|(field, value)| Some((field, value?))).collect()
}
