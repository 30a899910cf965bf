//! A machine that has gone and left nothing behind: its records go, as if it had never registered. For one that takes
//! drives in operation or volumes with it there is [`super::purge`].
//!
//! Nothing is lost by it. A drive that was in operation once knows its id and generation by its label, and its agent by
//! its own record: if they come back the drive is made again, above both, and is closed and proved closed once more.
//! The drives are written before the node: what is left after a part of it is a node with fewer drives, which can be
//! forgotten again.

use std::fmt;

use super::records::Write;
use super::{About, Cluster, Effects, Notice, State};
use crate::cms::{Code, Outcome, Reason};
use crate::ids::{DriveId, NodeId};

/// Why a host is not forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Kept {
    AgentConnected,
    /// Its record says which certificates were revoked.
    Revoked,
    /// Its agent knows more than this registry.
    RegistryRewound,
    DrivesInOperation {
        drives: Vec<String>,
    },
    /// Volumes are on its drives.
    VolumesThere {
        volumes: Vec<String>,
    },
    /// It may use volumes, on its own drives or elsewhere.
    UsesVolumes {
        volumes: Vec<String>,
    },
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AgentConnected => f.write_str("its agent is connected"),
            Self::Revoked => f.write_str(
                "it was purged, and its record keeps the certificates revoked that it had before",
            ),
            Self::RegistryRewound => {
                f.write_str("its agent knows newer orders than this registry (RegistryRewound)")
            }
            Self::DrivesInOperation { drives } => {
                write!(f, "drives of it are in operation: {}", few(drives))
            }
            Self::VolumesThere { volumes } => write!(f, "volumes are on it: {}", few(volumes)),
            Self::UsesVolumes { volumes } => {
                write!(f, "volumes are attached to it: {}", few(volumes))
            }
        }
    }
}

/// So many names are told one by one.
const NAMED_MOST: usize = 8;

fn few(names: &[String]) -> String {
    let (named, more) = names.split_at(names.len().min(NAMED_MOST));
    match more.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

impl Cluster {
    /// Why a host cannot be forgotten, all of it; empty if it can.
    pub fn keeps_host(&self, id: NodeId) -> Vec<Kept> {
        let Some(node) = self.nodes.get(&id) else { return Vec::new() };
        let mut reasons = Vec::new();
        // Its record says which certificates do not count any more. Without it they would.
        if node.record.purged || !node.record.revoked.is_empty() {
            reasons.push(Kept::Revoked);
        }
        if node.session.is_some() {
            reasons.push(Kept::AgentConnected);
        }
        // It is there, and knows more than this registry: a person has to look first.
        if !node.rewound.is_empty() || self.heard.contains_key(&node.record.name) {
            reasons.push(Kept::RegistryRewound);
        }
        let in_operation = |id: &&DriveId| match self.drives[*id].record.state {
            State::Attaching | State::Attached | State::Closing => true,
            State::Unknown | State::Detached => false,
        };
        let name = |id: &DriveId| self.drives[id].record.name.clone();
        let drives: Vec<_> = node.drives.iter().filter(in_operation).map(name).collect();
        if !drives.is_empty() {
            reasons.push(Kept::DrivesInOperation { drives });
        }
        let on_it = node.drives.iter().flat_map(|id| self.volumes_on(*id));
        let volumes: Vec<_> = on_it.map(|id| self.volume_name(id)).collect();
        if !volumes.is_empty() {
            reasons.push(Kept::VolumesThere { volumes });
        }
        let used: Vec<_> = self.uses_on(id).map(|id| self.volume_name(id)).collect();
        if !used.is_empty() {
            reasons.push(Kept::UsesVolumes { volumes: used });
        }
        reasons
    }

    /// Forgets a host, if nothing of it is needed any more.
    pub(super) fn forget_host(
        &mut self,
        id: NodeId,
        asked_by: &str,
        effects: &mut Effects,
    ) -> Outcome {
        let keeps = self.keeps_host(id);
        if !keeps.is_empty() {
            let reasons = keeps.into_iter().map(Reason::Kept).collect();
            let on_it = self.nodes[&id].drives.iter().flat_map(|id| self.volumes_on(*id));
            let dependent = on_it.chain(self.uses_on(id)).collect();
            return Outcome { reasons, dependent, ..Outcome::new(Code::InvalidState) };
        }
        self.drop_newcomers_on(id);
        // A drive of it that is in another machine by now belongs there.
        self.nodes.get_mut(&id).expect("looked up above").record.purged = true;
        self.take_drives_for_gone(id);
        self.settle_newcomers(effects);
        let node = self.nodes.remove(&id).expect("looked up above");
        let mut outcome = Outcome::new(Code::Ok);
        // Also what a drive was once known by; so all are looked at, once for the host.
        self.drives_by_fact.retain(|(_, id)| !node.drives.contains(id));
        for drive in node.drives {
            self.forget_drive(drive);
            effects.writes.push(Write::DriveGone(drive));
            outcome.drives.push(Outcome { drive: Some(drive), ..Outcome::new(Code::Ok) });
        }
        effects.writes.push(Write::NodeGone(id));
        let name = node.record.name;
        self.node_by_name.remove(&name);
        self.sessions.retain(|_, speaker| *speaker != id);
        let text = format!(
            "Host {name} is forgotten with {} drives, asked by {asked_by}: none was in operation. If it comes back, it \
             is a new one.",
            outcome.drives.len()
        );
        // Of the host itself nobody could be told any more.
        effects.notices.push(Notice::plain("HostForgotten", About::Registry, text));
        outcome
    }

    fn forget_drive(&mut self, id: DriveId) {
        self.forget_label(id);
        // What still looks like it could not be told from it. It is reported anew as what it is.
        self.newcomers.retain(|_, newcomer| newcomer.like != id);
        let drive = self.drives.remove(&id).expect("nodes list known drives");
        self.drive_by_name.remove(&drive.record.name);
    }
}

#[cfg(test)]
#[path = "forget_tests.rs"]
mod tests;
