//! What registry and agent say to each other, as values. The wire format of them is in `api`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device::{LabelSeen, Observed};
use crate::evidence::Evidence;
use crate::ids::{
    ClusterId, DriveId, Incarnation, MachineId, NodeId, NodeName, SessionNumber, VolumeId,
};
use crate::node_labels::NodeLabels;
use crate::order::{Generation, Goal, OrderId, Ordered, Stamp, Term};
use crate::volume::orders::Grant;
use crate::wipe::Wipe;

/// Registry to agent: attach or detach one drive.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Order {
    pub drive: DriveId,
    pub ordered: Ordered,
    /// The start of the agent that the order is meant for.
    pub incarnation: Incarnation,
    /// What the registry knew of the drive when it decided.
    pub evidence: Evidence,
    /// Take the drive even if its label is held by another node.
    pub take_over: bool,
    /// What on the drive may be wiped, if anything.
    pub wipe: Option<Wipe>,
    /// The volumes on it are not this node's any more, because it was purged or the drive is another's: it is to be
    /// closed although its label has them, unless one of them is mapped.
    pub given_up: bool,
}

impl Order {
    pub const fn id(&self) -> OrderId {
        OrderId::new(self.drive, self.ordered.stamp)
    }
}

/// Agent to registry: what became of an order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Answer {
    pub drive: DriveId,
    pub ordered: Ordered,
    /// The start of the agent that answers.
    pub incarnation: Incarnation,
    pub result: AnswerResult,
}

impl Answer {
    /// The order that is answered.
    pub const fn order(&self) -> OrderId {
        OrderId::new(self.drive, self.ordered.stamp)
    }
}

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AnswerResult {
    /// Attach: the drive is open. Detach: the drive is closed, and that is proved.
    Done,
    /// Not yet. The agent goes on by itself and answers again.
    Waiting(Obstacle),
    Refused(OrderRefused),
}

impl std::fmt::Display for AnswerResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Waiting(obstacle) => write!(f, "waiting: {obstacle}"),
            Self::Refused(refused) => write!(f, "refused: {refused}"),
        }
    }
}

/// What an agent waits for before it can carry out an order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "obstacle")]
pub enum Obstacle {
    /// The device is not on the machine.
    DeviceMissing,
    /// Several devices have the drive's evidence, and none or several its label.
    LooksAlike { paths: Vec<String> },
    /// The device cannot be opened, or its label not be read or written.
    AttachFailed { error: String },
    /// The label or the device says that it is not ours to take.
    NotOurs { why: String },
    /// Volumes are on the drive, so it is not closed.
    InUse { volumes: Vec<String> },
    /// Something has the drive open, mapped or mounted.
    Blocked { by: Vec<String> },
    /// The machine does not let the agent look.
    CannotProve { why: String },
    /// Another process may still write to the drive.
    Quarantined { why: String },
    /// The agent's own record cannot be written.
    RecordUnwritable { error: String },
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DeviceMissing => f.write_str("the drive is not on the machine"),
            Self::LooksAlike { paths } => write!(
                f,
                "{} cannot be told apart, and one of them is it; take the others out",
                paths.join(" and ")
            ),
            Self::AttachFailed { error } => write!(f, "it cannot be attached: {error}"),
            Self::NotOurs { why } => write!(f, "it is not taken: {why}"),
            Self::InUse { volumes } => {
                write!(f, "volumes are on it: {}; move or delete them first", volumes.join(", "))
            }
            Self::Blocked { by } => write!(f, "still in use by {}", by.join(", ")),
            Self::CannotProve { why } => write!(f, "the close cannot be proved: {why}"),
            Self::Quarantined { why } => write!(f, "quarantined: {why}"),
            Self::RecordUnwritable { error } => {
                write!(f, "the agent cannot write its record: {error}")
            }
        }
    }
}

/// Why an agent refuses an order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "refused")]
pub enum OrderRefused {
    /// Older than one already seen.
    Stale { seen: Stamp },
    /// Of another term than the one accepted at registration.
    ForeignTerm { accepted: Option<Term> },
    /// For another start of the agent.
    ForeignIncarnation,
    /// The same generation was seen with another goal: two registries, or one that went back in time.
    GoalConflict { seen: Ordered },
    /// The device that the order would reach is not the one that it was decided on.
    Evidence,
}

impl std::fmt::Display for OrderRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stale { seen } => write!(f, "older than an order already seen ({seen})"),
            Self::ForeignTerm { accepted: Some(term) } => {
                write!(f, "of another term than the one accepted ({term})")
            }
            Self::ForeignTerm { accepted: None } => f.write_str("before any registration"),
            Self::ForeignIncarnation => f.write_str("for an earlier start of the agent"),
            Self::GoalConflict { seen } => {
                write!(f, "contradicts {} of {}, already seen", seen.goal, seen.stamp)
            }
            Self::Evidence => {
                f.write_str("the device there is not the drive that the order was decided on")
            }
        }
    }
}

/// Agent to registry: the first message of a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Registration {
    /// The node's id, if it has been told one before.
    pub node: Option<NodeId>,
    pub name: NodeName,
    pub machine: MachineId,
    pub incarnation: Incarnation,
    /// The cluster that the node belongs to, if it has been told before.
    pub cluster: Option<ClusterId>,
    /// The newest term that the agent has accepted.
    pub newest_term: Option<Term>,
    pub record: RecordHealth,
    /// Every drive that the agent has a record of, or that carries a label of its cluster and node.
    pub drives: Vec<DriveReport>,
    /// Every device on the machine.
    pub devices: Vec<Observed>,
    /// What is not as it should be there.
    pub conditions: Vec<NodeCondition>,
    /// The labels that its configuration gives it: for a node that is new.
    pub labels: NodeLabels,
    /// The newest use of each volume that the agent has seen.
    pub uses: Vec<UseReport>,
    /// The node has device-mapper: volumes on its block devices may have several pieces.
    pub device_mapper: bool,
    pub program: Box<AgentProgram>,
}

/// The program that registers. For people; nothing is decided by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct AgentProgram {
    /// Its release; none of one that does not say so.
    pub version: Option<AgentVersion>,
    /// Where its connection comes from. The registry sees that, the agent does not say it. None on a Unix socket.
    pub address: Option<IpAddr>,
}

/// The release of an agent, such as `0.1.0`. It is shown wherever its node is: one short word.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentVersion(Box<str>);

/// Why a text is not the release of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} is not a release: 1 to 64 letters, digits, '.', '-', '+', '_' and '~' are expected"
)]
pub struct NotAVersion {
    text: String,
}

impl FromStr for AgentVersion {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b".-+_~".contains(&b);
        match (1..=64).contains(&text.len()) && text.bytes().all(is_plain) {
            true => Ok(Self(text.into())),
            false => Err(NotAVersion { text: text.chars().take(80).collect() }),
        }
    }
}

impl fmt::Display for AgentVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an agent knows about the use of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UseReport {
    pub volume: VolumeId,
    pub grant: Grant,
}

/// Something about a node, beside its drives, that its agent wants people to know.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "condition")]
pub enum NodeCondition {
    /// The file with the node's filters cannot be used. What is wrong, with the file and the line, and what counts
    /// until that is put right.
    FiltersInvalid { why: String },
}

impl NodeCondition {
    /// The name by which people and programs know it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::FiltersInvalid { .. } => "FiltersInvalid",
        }
    }
}

impl std::fmt::Display for NodeCondition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::FiltersInvalid { why } => f.write_str(why),
        }
    }
}

/// In which state an agent found its record when it started.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "record")]
pub enum RecordHealth {
    Usable,
    /// There was none.
    Absent,
    /// There was one, but it cannot be believed.
    Damaged {
        why: String,
    },
}

/// What an agent knows about one drive.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DriveReport {
    pub drive: DriveId,
    /// The newest order seen, from the agent's record.
    pub seen: Option<Ordered>,
    /// What the drive is known by, from the agent's record; empty without one.
    pub evidence: Evidence,
    /// What the label says, if the drive has one of this cluster.
    pub label: Option<LabelSeen>,
    /// The agent has the drive open, or is about to.
    pub open: bool,
}

impl DriveReport {
    /// The highest generation, with its goal, that the machine gives evidence of: by record or by label.
    pub fn newest(&self) -> Option<(Generation, Goal)> {
        let record = self.seen.map(|seen| (seen.stamp.generation, seen.goal));
        let label = self.label.map(|label| {
            (label.generation, if label.in_operation { Goal::Attach } else { Goal::Detach })
        });
        match (record, label) {
            (Some(record), Some(label)) if label.0 > record.0 => Some(label),
            (Some(record), _) => Some(record),
            (None, label) => label,
        }
    }
}

/// Registry to agent: the answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Registered {
    pub session: SessionNumber,
    pub cluster: ClusterId,
    pub node: NodeId,
    pub term: Term,
    /// Drives that the agent attaches; on the wire `AllowedDevices`.
    pub allowed: Vec<Order>,
    /// Drives that the agent detaches; on the wire `UnknownDevices`.
    pub unknown: Vec<Order>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_one_short_word() {
        for good in ["0.1.0", "1.2.3-rc.4+5", "1~beta_2", &"9".repeat(64)] {
            assert_eq!(good.parse::<AgentVersion>().unwrap().to_string(), good);
        }
        for bad in ["", " ", "1.2 3", "1.2\n", "\x1b[2J", "é", &"9".repeat(65)] {
            assert!(bad.parse::<AgentVersion>().is_err(), "{bad:?} was taken");
        }
    }
}
