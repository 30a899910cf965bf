//! How a registry gone back in time is noticed: an agent that registers knows what its records do not.

use super::Cluster;
use super::adopt::Heard;
use super::records::AttachmentState;
use crate::ids::{DriveId, NodeId, VolumeId};
use crate::message::{DriveReport, Registration, UseReport};
use crate::order::{Generation, Goal, Term};
use crate::rules::Rule;
use crate::volume::Epoch;

/// One thing that an agent knows and a registry gone back in time does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Difference {
    /// The agent has accepted a term that this registry never reigned under.
    UnknownTerm { accepted: Term, ours: Term },
    /// The agent has seen a higher generation.
    Generation { drive: DriveId, theirs: Generation, ours: Generation },
    /// The agent has seen the same generation with another goal.
    Goal { drive: DriveId, generation: Generation, theirs: Goal },
    /// The agent has seen a later use of a volume.
    Epoch { volume: VolumeId, theirs: Epoch, ours: Epoch },
    /// The agent was told to end the use of a volume that this registry still grants.
    UseEnded { volume: VolumeId, epoch: Epoch },
}

impl Cluster {
    /// What the agent knows and this registry does not.
    pub(super) fn differences(&self, registration: &Registration) -> Vec<Difference> {
        let mut differences = Vec::new();
        let foreign = |term: &Term| !self.registry.has_reigned_under(term);
        if let Some(accepted) = registration.newest_term.filter(foreign)
            && self.rules.hold(Rule::RewoundTerm)
        {
            differences.push(Difference::UnknownTerm { accepted, ours: self.term() });
        }
        for report in &registration.drives {
            let Some((theirs, goal)) = report.newest() else { continue };
            let Some(drive) = self.drives.get(&report.drive) else {
                // It is made again, if it is on the machine and known by no other id. Else it would stay open under
                // an id that nobody knows, until a person has adopted what the node says.
                let lost = report.open
                    && !self.given_up.contains(&report.drive)
                    && self.lost_device(report, &registration.devices).is_none();
                if lost && self.rules.hold(Rule::RewoundGeneration) {
                    let (drive, ours) = (report.drive, Generation::ZERO);
                    differences.push(Difference::Generation { drive, theirs, ours });
                }
                continue;
            };
            let ours = drive.record.generation;
            if theirs > ours && self.rules.hold(Rule::RewoundGeneration) {
                differences.push(Difference::Generation { drive: report.drive, theirs, ours });
            }
            if theirs == ours
                && goal != drive.record.state.goal()
                && self.rules.hold(Rule::RewoundGoal)
            {
                let generation = ours;
                let drive = report.drive;
                differences.push(Difference::Goal { drive, generation, theirs: goal });
            }
        }
        let node = registration.node;
        differences.extend(registration.uses.iter().filter_map(|seen| self.later_use(node, seen)));
        differences
    }

    fn later_use(&self, node: Option<NodeId>, seen: &UseReport) -> Option<Difference> {
        // One that only a label knows was granted to nobody here.
        let volume = self.volumes.get(&seen.volume)?;
        let (theirs, ours) = (seen.grant.epoch, volume.record.epoch);
        if theirs > ours {
            return Some(Difference::Epoch { volume: seen.volume, theirs, ours });
        }
        let granted = &volume.attachments.get(&node?)?.record;
        let taken_back = granted.state != AttachmentState::Detaching
            && granted.epoch == theirs
            && !seen.grant.granted;
        taken_back.then_some(Difference::UseEnded { volume: seen.volume, epoch: theirs })
    }

    /// Keeps what a node said that knows more, for the person who decides.
    pub(super) fn remember(
        &mut self,
        node: Option<NodeId>,
        registration: &Registration,
        differences: Vec<Difference>,
    ) {
        let newest = |report: &DriveReport| {
            report.newest().map(|(generation, goal)| (report.drive, generation, goal))
        };
        let heard = Heard {
            differences,
            node,
            newest_term: registration.newest_term,
            uses: registration.uses.clone(),
            drives: registration.drives.iter().filter_map(newest).collect(),
        };
        self.heard.insert(registration.name.clone(), heard);
    }
}

#[cfg(test)]
#[path = "rewound_tests.rs"]
mod tests;
