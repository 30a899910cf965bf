//! What an agent keeps on its own disk: goals and orders, never results.
//!
//! It is written before the agent acts. What it says is what the agent opens at its next start, registry or not, and
//! what makes a late order harmless after a restart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::evidence::Evidence;
use crate::ids::{ClusterId, DriveId, NodeId, VolumeId};
use crate::order::{Generation, Ordered, Term};
use crate::volume::orders::Grant;
use crate::wipe::Wipe;

/// Which node of which cluster this is. Kept apart from the rest, so that a damaged record leaves it readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    pub cluster: ClusterId,
    pub node: NodeId,
}

/// What outlives the loss of the record, because it is kept apart from it. The term tells a registry that the agent has
/// served another one: no label does, on a drive that was never opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kept {
    pub identity: Identity,
    /// The newest term accepted, written before the record that has it.
    pub term: Option<Term>,
}

/// The agent's memory over restarts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct AgentRecord {
    pub identity: Option<Identity>,
    /// The newest term accepted. Per agent, not per drive: a registry speaks for all drives or for none.
    pub term: Option<Term>,
    pub drives: BTreeMap<DriveId, DriveMemory>,
    /// The newest use of each volume that was seen.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<VolumeId, UseMemory>,
}

/// What is remembered of the use of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UseMemory {
    /// The drive that the volume is on.
    pub drive: DriveId,
    pub grant: Grant,
}

/// What is remembered of one drive.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DriveMemory {
    /// The newest order seen, also one refused for its content.
    pub seen: Ordered,
    /// The order in force.
    pub in_force: Option<Ordered>,
    pub evidence: Evidence,
    pub take_over: bool,
    /// What the attach in force may wipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wipe: Option<Wipe>,
    /// The generation whose permission to wipe is used up: the drive was attached under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wiped: Option<Generation>,
    /// The order in force closes the drive although its label has volumes: they were given up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub given_up: bool,
}

impl AgentRecord {
    /// All that is remembered without a record.
    pub(super) fn of_kept(kept: Option<Kept>) -> Self {
        Self {
            identity: kept.map(|kept| kept.identity),
            term: kept.and_then(|kept| kept.term),
            ..Self::default()
        }
    }
}

/// What an agent found on its disk when it started.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RecordFound {
    Usable(AgentRecord),
    /// No record; what is kept apart from it may still be there.
    Absent(Option<Kept>),
    /// A record that cannot be believed. It is told apart from none, and reported.
    Damaged {
        kept: Option<Kept>,
        why: String,
    },
}
