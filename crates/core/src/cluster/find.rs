//! Which host or drive a text means. What fits nothing, or more than one thing, is refused and never guessed.

use super::Cluster;
use crate::cms::{Code, Reason, Target};
use crate::evidence::Evidence;
use crate::ids::{DriveId, NodeId};

/// Longest text that names a host or a drive.
const NAME_LIMIT: usize = 4_096;

/// The ends of a range of drives.
const LOWEST: DriveId = DriveId::from_bits(0);
const HIGHEST: DriveId = DriveId::from_bits(u128::MAX);

/// Nothing, or no one thing, is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmet {
    pub code: Code,
    pub reason: Reason,
}

impl Unmet {
    fn new(code: Code, reason: Reason) -> Self {
        Self { code, reason }
    }
}

impl Cluster {
    pub(super) fn host(&self, host: &str) -> Result<NodeId, Unmet> {
        well_formed("host", host)?;
        let missing = || Unmet::new(Code::NotFound, Reason::NoSuchHost { host: host.to_owned() });
        let name = host.parse().map_err(|_| missing())?;
        // A purged host is found by the name it had, as long as no other has taken it.
        let purged = || {
            let mut nodes = self.nodes.values().filter(|node| node.record.purged);
            nodes.find(|node| node.record.name == name).map(|node| node.record.id)
        };
        self.node_by_name.get(&name).copied().or_else(purged).ok_or_else(missing)
    }

    /// The one drive that a target means.
    pub fn find(&self, target: &Target) -> Result<DriveId, Unmet> {
        let Target { host, device } = target;
        well_formed("device", device)?;
        if let Some(newcomer) = self.newcomer(target) {
            let denied = self.conflict(newcomer);
            return Err(Unmet::new(Code::InvalidState, Reason::Denied(denied)));
        }
        if let Some(host) = host {
            return self.find_on(self.host(host)?, device);
        }
        if let Some(id) = self.drive_by_name.get(device) {
            return Ok(*id);
        }
        if let Some(id) = device.parse().ok().filter(|id| self.drives.contains_key(id)) {
            return Ok(id);
        }
        if let Some((host, rest)) = device.split_once(':')
            && let Ok(node) = self.host(host)
        {
            return self.find_on(node, rest);
        }
        let prefix = format!("serial:{device}/");
        let from_there = self.drives_by_fact.range((prefix.as_str().into(), LOWEST)..);
        let by_serial = from_there.take_while(|(fact, _)| fact.starts_with(&prefix));
        self.only_one(device, by_serial.map(|(_, id)| *id).collect())
    }

    /// The drives that have a fact of evidence, or had it once.
    pub(super) fn with_fact(&self, fact: String) -> impl Iterator<Item = DriveId> {
        let fact = fact.into_boxed_str();
        let with_it = self.drives_by_fact.range((fact.clone(), LOWEST)..=(fact, HIGHEST));
        with_it.map(|(_, id)| *id)
    }

    pub(super) fn note_facts(&mut self, id: DriveId, evidence: &Evidence) {
        let facts = evidence.facts().into_iter();
        self.drives_by_fact.extend(facts.map(|fact| (fact.into_boxed_str(), id)));
    }

    fn find_on(&self, node: NodeId, device: &str) -> Result<DriveId, Unmet> {
        let bay = device.strip_prefix("bay-").unwrap_or(device);
        let fits = |id: &DriveId| {
            let record = &self.drives[id].record;
            let observed = &record.observed;
            observed.path == device
                || observed.bay.as_deref() == Some(bay)
                || record.name == device
                || observed.evidence.serial.as_deref() == Some(device)
        };
        let fitting: Vec<_> = self.nodes[&node].drives.iter().copied().filter(fits).collect();
        // A path or bay is where a drive is now: one that has left it makes way for one that is there.
        let present = |id: &DriveId| self.drives[id].present;
        let there: Vec<_> = fitting.iter().copied().filter(present).collect();
        self.only_one(device, if there.is_empty() { fitting } else { there })
    }

    fn only_one(&self, device: &str, fitting: Vec<DriveId>) -> Result<DriveId, Unmet> {
        let device = device.to_owned();
        match fitting.as_slice() {
            [one] => Ok(*one),
            [] => Err(Unmet::new(Code::NotFound, Reason::NoSuchDrive { device })),
            several => {
                let names = several.iter().map(|id| self.drives[id].record.name.clone());
                let fitting = names.collect();
                Err(Unmet::new(Code::Argument, Reason::Ambiguous { device, fitting }))
            }
        }
    }
}

fn well_formed(what: &'static str, text: &str) -> Result<(), Unmet> {
    let problem = if text.is_empty() {
        "is not given"
    } else if text.len() > NAME_LIMIT {
        "is too long"
    } else if text.chars().any(char::is_control) {
        "contains control characters"
    } else {
        return Ok(());
    };
    Err(Unmet::new(Code::Argument, Reason::Malformed { what, problem }))
}
