//! What the registry's memory says now, read in parts: whoever decides must not wait for long. Only what there is
//! something to say of is taken along, and what something is said of already.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hotbay_control::conditions::{self, Told};
use hotbay_core::cluster::{self, AttachmentState, Cluster, Newcomer};
use hotbay_core::cms::Reason;
use hotbay_core::ids::{DriveId, NodeId, SessionNumber, VolumeId};
use hotbay_core::message::{AgentProgram, Obstacle};
use hotbay_core::volume::orders::StagedAs;
use hotbay_registry::{Key, Kind, Registry};

use crate::people::{Stopped, patiently};
use crate::view::INACCESSIBLE;

/// Nodes, with their drives, and volumes, with their attachments, that are looked at in one go.
const NODES_AT_ONCE: usize = 256;
const VOLUMES_AT_ONCE: usize = 1_000;

/// Something is waited for.
pub(super) const WAITING: &str = "Waiting";
/// A device is not on its machine.
pub(super) const MISSING: &str = "Missing";
/// What an agent has to say: without it nobody knows whether that still holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) kind: &'static str,
    pub(super) reason: &'static str,
}

/// Pods have a dummy in the place of a volume.
pub(super) const FAKE_ATTACH: Known = Known { kind: "FakeAttach", reason: "DummyStaged" };
const UNREACHABLE: Known = Known { kind: INACCESSIBLE, reason: "Unreachable" };
/// Of the use of a volume.
pub(super) const OF_A_USE: [Known; 2] = [FAKE_ATTACH, UNREACHABLE];
/// A device somewhere cannot be told from the drive.
pub(super) const IDENTITY_CONFLICT: Known =
    Known { kind: "IdentityConflict", reason: "LooksAlike" };

impl Known {
    fn told(self, message: String) -> Told {
        Told { kind: self.kind, reason: self.reason, message }
    }
}

/// A node as it is.
#[derive(Debug, Clone)]
pub(super) struct NodeSeen {
    pub(super) id: NodeId,
    pub(super) name: String,
    pub(super) session: Option<SessionNumber>,
    pub(super) incarnation: Option<String>,
    /// The agent that registered last, if one has since this leader leads.
    pub(super) program: Option<AgentProgram>,
    pub(super) silent_since_ms: Option<u64>,
    pub(super) duplicate_ms: Option<u64>,
    pub(super) purged: bool,
    pub(super) is_rewound: bool,
    pub(super) told: Vec<Told>,
    pub(super) drives: usize,
    pub(super) in_operation: usize,
    /// Why it cannot be forgotten, if that was asked.
    pub(super) keeps: Vec<String>,
}

/// A drive, a volume or an attachment of which there is something to say, or was.
#[derive(Debug, Clone)]
pub(super) struct ThingSeen {
    pub(super) key: Key,
    /// Whose agent knows of it.
    pub(super) node: Option<NodeId>,
    pub(super) told: Vec<Told>,
}

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) nodes: Vec<NodeSeen>,
    pub(super) things: Vec<ThingSeen>,
    /// The nodes that know more than the registry, by name.
    pub(super) rewound: Vec<String>,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub(super) struct Question {
    /// Also drives, volumes and attachments.
    pub(super) things: bool,
    /// Something is said of these already.
    pub(super) said: Arc<HashSet<Key>>,
    /// Of these it is asked why they cannot be forgotten.
    pub(super) gone: Arc<HashSet<NodeId>>,
}

/// Looks at everything, part by part.
pub(super) async fn look(registry: &Registry, question: &Question) -> Result<Seen, Stopped> {
    let mut seen = Seen::default();
    let rewound = |cluster: &Cluster| {
        cluster.rewound_nodes().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    };
    seen.rewound = patiently(|| registry.read_around(rewound)).await?;
    let mut after = None;
    loop {
        let read = || {
            let question = question.clone();
            registry.read_around(move |cluster| nodes(cluster, after, &question))
        };
        let (nodes, things) = patiently(read).await?;
        let Some(last) = nodes.last() else { break };
        after = Some(last.id);
        seen.nodes.extend(nodes);
        seen.things.extend(things);
    }
    let mut after = question.things.then_some(None);
    while let Some(from) = after {
        let read = || {
            let question = question.clone();
            registry.read_around(move |cluster| volumes(cluster, from, &question))
        };
        let (last, things) = patiently(read).await?;
        after = last.map(Some);
        seen.things.extend(things);
    }
    Ok(seen)
}

fn nodes(
    cluster: &Cluster,
    after: Option<NodeId>,
    question: &Question,
) -> (Vec<NodeSeen>, Vec<ThingSeen>) {
    let (mut nodes, mut things) = (Vec::new(), Vec::new());
    let alike: Alike<'_> = cluster.newcomers().map(|newcomer| (newcomer.like, newcomer)).collect();
    for known in cluster.nodes_after(after).take(NODES_AT_ONCE) {
        nodes.push(node(cluster, known, question));
        if question.things {
            let drives = known.drives.iter().map(|id| drive(cluster, known, *id, &alike));
            things.extend(drives.filter(|seen| is_worth_it(seen, question)));
        }
    }
    (nodes, things)
}

fn is_worth_it(seen: &ThingSeen, question: &Question) -> bool {
    !seen.told.is_empty() || question.said.contains(&seen.key)
}

fn node(cluster: &Cluster, known: &cluster::Node, question: &Question) -> NodeSeen {
    let record = &known.record;
    let keeps = match question.gone.contains(&record.id) {
        true => cluster.keeps_host(record.id).iter().map(ToString::to_string).collect(),
        false => Vec::new(),
    };
    let has_registered = known.session.is_some() || known.silent_since_ms.is_some();
    NodeSeen {
        id: record.id,
        name: record.name.to_string(),
        session: known.session.map(|session| session.number),
        incarnation: known.session.map(|session| session.incarnation.to_string()),
        program: has_registered.then(|| known.program.clone()),
        silent_since_ms: known.silent_since_ms,
        duplicate_ms: known.duplicate_ms,
        purged: record.purged,
        is_rewound: !known.rewound.is_empty(),
        told: conditions::of_node(cluster, known),
        drives: known.drives.len(),
        in_operation: known.drives.iter().filter(|id| cluster.in_operation(**id)).count(),
        keeps,
    }
}

/// The devices that look like a drive.
type Alike<'a> = HashMap<DriveId, &'a Newcomer>;

fn drive(cluster: &Cluster, node: &cluster::Node, id: DriveId, alike: &Alike<'_>) -> ThingSeen {
    let mut told = conditions::of_drive(cluster, id);
    if let Some(why) = cluster.waiting_for(id) {
        told.push(Told { kind: WAITING, reason: word(&why), message: why.to_string() });
    }
    let is_present = cluster.drive(id).is_none_or(|drive| drive.present);
    if node.session.is_some() && !is_present {
        let message = "the device is not on its machine".to_owned();
        told.push(Told { kind: MISSING, reason: "NotReported", message });
    }
    if let Some(newcomer) = alike.get(&id) {
        let at = cluster.node(newcomer.node).map(|node| node.record.name.to_string());
        let message = format!(
            "{}:{} looks like it and is left alone; hotbay drive explain says what to do",
            at.unwrap_or_default(),
            newcomer.device.path
        );
        told.push(IDENTITY_CONFLICT.told(message));
    }
    let key = Key { kind: Kind::Drive, id: id.to_bits() };
    ThingSeen { key, node: Some(node.record.id), told }
}

/// The next volumes, and after which one to go on.
fn volumes(
    cluster: &Cluster,
    after: Option<VolumeId>,
    question: &Question,
) -> (Option<VolumeId>, Vec<ThingSeen>) {
    let (mut last, mut things) = (None, Vec::new());
    for known in cluster.volumes_after(after).take(VOLUMES_AT_ONCE) {
        last = Some(known.record.id);
        let seen = std::iter::once(volume(cluster, known)).chain(attachments(cluster, known));
        things.extend(seen.filter(|seen| is_worth_it(seen, question)));
    }
    (last, things)
}

fn volume(cluster: &Cluster, known: &cluster::Volume) -> ThingSeen {
    let node = known.drive.and_then(|id| cluster.drive(id)).map(|drive| drive.record.node);
    // That it is lost follows from its record.
    let told = conditions::of_volume(cluster, known).into_iter().filter(|told| told.kind != "Lost");
    let told = told.map(|told| match told.kind {
        "Pending" | "Deleting" => Told { kind: WAITING, ..told },
        _ => told,
    });
    let key = Key { kind: Kind::Volume, id: known.record.id.to_bits() };
    ThingSeen { key, node, told: told.collect() }
}

fn attachments<'a>(
    cluster: &'a Cluster,
    known: &'a cluster::Volume,
) -> impl Iterator<Item = ThingSeen> + 'a {
    known.attachments.values().map(|attachment| {
        let record = &attachment.record;
        let not_yet = || "the node's agent has not answered".to_owned();
        let told = match record.state {
            AttachmentState::Attached => inaccessible(cluster, known, record.node),
            AttachmentState::Attaching | AttachmentState::Detaching => {
                let message = attachment.waits.clone().unwrap_or_else(not_yet);
                Some(Told { kind: WAITING, reason: "WaitingForAgent", message })
            }
        };
        let told = told.into_iter().chain(attachment.staged.as_ref().and_then(fake));
        let key = Key { kind: Kind::Attachment, id: record.id.to_bits() };
        ThingSeen { key, node: Some(record.node), told: told.collect() }
    })
}

/// Why a node that may use a volume cannot reach it. An agent that was not heard since this leader leads has said
/// nothing of its drives: they are not missing for that.
fn inaccessible(cluster: &Cluster, known: &cluster::Volume, node: NodeId) -> Option<Told> {
    let agent = cluster.node(node)?;
    let is_heard = agent.session.is_some() || agent.silent_since_ms.is_some();
    let message = is_heard.then(|| cluster.inaccessible(known, node)).flatten()?;
    Some(UNREACHABLE.told(message))
}

/// That pods have a dummy. It stays with them when the volume can be reached again, until they end.
fn fake(staged: &StagedAs) -> Option<Told> {
    match staged {
        StagedAs::Fake { reason, .. } => {
            Some(FAKE_ATTACH.told(format!("pods have a dummy in its place, since: {reason}")))
        }
        StagedAs::Real | StagedAs::Unstaged => None,
    }
}

/// What is waited for, in one word.
fn word(reason: &Reason) -> &'static str {
    match reason {
        Reason::AgentUnreachable => "AgentUnreachable",
        Reason::WaitingForAgent => "WaitingForAgent",
        Reason::RegistryRewound => "RegistryRewound",
        Reason::Purged => "Purged",
        Reason::Refused(_) => "AgentRefuses",
        Reason::Obstacle(Obstacle::DeviceMissing) => "DeviceMissing",
        Reason::Obstacle(Obstacle::LooksAlike { .. }) => "LooksAlike",
        Reason::Obstacle(Obstacle::AttachFailed { .. }) => "AttachFailed",
        Reason::Obstacle(Obstacle::NotOurs { .. }) => "NotOurs",
        Reason::Obstacle(Obstacle::InUse { .. }) => "InUse",
        Reason::Obstacle(Obstacle::Blocked { .. }) => "Blocked",
        Reason::Obstacle(Obstacle::CannotProve { .. }) => "CannotProve",
        Reason::Obstacle(Obstacle::Quarantined { .. }) => "Quarantined",
        Reason::Obstacle(Obstacle::RecordUnwritable { .. }) => "RecordUnwritable",
        _ => "NotAsWished",
    }
}
