//! What must be so when all trouble has been over for a while: registry and agents agree, every drive is as wished,
//! and where it is not a true reason is told (2 and 10).

use hotbay_core::cluster::{Drive, DriveRecord, State};
use hotbay_core::cms::Reason;
use hotbay_core::message::Obstacle;
use hotbay_core::order::Generation;

use super::Invariant;
use crate::machine::short;
use crate::registry::{Process, Site};
use crate::store::Store;
use crate::world::World;

impl World {
    pub(crate) fn settled(&mut self) {
        let found = (0..self.machines.len()).find_map(|machine| self.machine_unsettled(machine));
        let found = found.or_else(|| self.volumes_unsettled());
        if let Some(what) = found.or_else(|| self.sites.iter().find_map(names_unknown)) {
            self.breaks(Invariant::Unsettled, what);
        }
    }

    /// What is wrong with a machine, or with a drive of it.
    fn machine_unsettled(&self, machine: usize) -> Option<String> {
        let there = &self.machines[machine];
        let name = &there.name;
        let Some(process) = &there.process else {
            return Some(format!("{name} has no agent"));
        };
        let Some(registry) = &self.sites[there.site].process else {
            return Some(format!("registry {} is not there", there.site));
        };
        // A host that was purged may have left its name to a machine that came without its past.
        let named = registry.cluster.nodes().filter(|node| node.record.name == *name);
        let known = named.max_by_key(|node| node.session.is_some());
        let session = known.and_then(|node| node.session).map(|session| session.number);
        let over = session.and_then(|number| registry.sessions.get(&number));
        let agreed = over.is_some() && over == process.connection.as_ref();
        if !agreed {
            // Whoever is turned away for a cause stays away; the cause was checked when it was given.
            let turned_away = self.ledger.refusals.contains_key(&machine);
            let what = format!("{name} and registry {} do not agree on a session", there.site);
            return (!turned_away).then_some(what);
        }
        let drives = known.into_iter().flat_map(|node| &node.drives);
        let drives = drives.filter_map(|id| registry.cluster.drive(*id));
        let wrong = drives.filter_map(|drive| self.drive_unsettled(machine, registry, drive));
        // Known limit: an order for a drive that never got its label, given by a registry that has forgotten it since,
        // stays in force on the agent; the registry knows the drive under another id, and tells that this is refused.
        let forgetful = self.scenario.forked();
        let unknown =
            process.open.keys().filter(|id| !forgetful && registry.cluster.drive(**id).is_none());
        let unknown = unknown.map(|id| format!("{name} has {} open for nobody", short(*id)));
        // No two agents have one drive: what was taken over, or has moved, is open where it is now and nowhere else.
        let others = process.open.keys().filter(|id| !forgetful && !self.holds(machine, **id));
        let others = others.map(|id| format!("{name} has {} open for another", short(*id)));
        wrong.chain(unknown).chain(others).next()
    }

    fn drive_unsettled(&self, machine: usize, registry: &Process, drive: &Drive) -> Option<String> {
        let process = self.machines[machine].process.as_ref()?;
        let (id, state) = (drive.record.id, drive.record.state);
        let open = process.open.contains_key(&id);
        let text = |why: String| Some(format!("{} is {state}: {why}", short(id)));
        if let Some(reason) = registry.cluster.waiting_for(id) {
            let told = format!("it is said to wait: {reason}");
            return if self.justified(machine, drive, &reason) { None } else { text(told) };
        }
        match (state, open) {
            (State::Attached, true) | (State::Unknown | State::Detached, false) => None,
            (_, true) => text("it is open".to_owned()),
            (_, false) => text("it is not open, and nothing is said".to_owned()),
        }
    }

    /// Whether the label has another node's name and was not released there: only a person may have it taken over.
    fn held_elsewhere(&self, machine: usize, drive: &Drive) -> bool {
        let disk = self.disk_with(machine, &drive.record.observed.evidence);
        let label = disk.and_then(|disk| self.disks[disk].label.seen());
        label.is_some_and(|label| label.in_operation && label.node != drive.record.node)
    }

    /// Whether a volume on a drive is mapped on a machine.
    fn is_mapped(&self, machine: usize, drive: &Drive) -> bool {
        let disk = self.disk_with(machine, &drive.record.observed.evidence);
        self.machines[machine].mapped.values().any(|mapping| Some(mapping.disk) == disk)
    }

    /// Whether what the registry says a drive waits for is true now.
    fn justified(&self, machine: usize, drive: &Drive, reason: &Reason) -> bool {
        let evidence = &drive.record.observed.evidence;
        match reason {
            Reason::Obstacle(Obstacle::DeviceMissing) => {
                self.disk_with(machine, evidence).is_none()
            }
            // Two registries give one drive two ids; the label keeps one of them.
            Reason::Obstacle(Obstacle::NotOurs { .. }) => {
                self.scenario.forked() || self.held_elsewhere(machine, drive)
            }
            // A registry that has forgotten volumes, or gave up their host, wants the drive closed all the same.
            Reason::Obstacle(Obstacle::InUse { .. }) => {
                let disk = self.disk_with(machine, evidence);
                let used = disk.is_some_and(|disk| self.disks[disk].label.used().next().is_some());
                used && (self.scenario.forked() || self.scenario.purges)
            }
            Reason::Refused(_) => self.scenario.forked(),
            Reason::RegistryRewound => self.scenario.forked(),
            // Until a person says that the host is back nothing of it is opened. Of two registries one may know the
            // drive by other evidence; then its order to close is refused, and the drive stays as the other wants it.
            Reason::Purged => {
                let process = self.machines[machine].process.as_ref();
                let open =
                    process.is_some_and(|process| process.open.contains_key(&drive.record.id));
                !open || self.is_mapped(machine, drive) || self.scenario.forked()
            }
            // Volumes that were given up with their host may still be mapped there, and nobody takes them away.
            Reason::Obstacle(Obstacle::Blocked { .. }) => {
                self.scenario.purges && self.is_mapped(machine, drive)
            }
            // Whatever stood in the way is gone, and agent and registry have a session.
            Reason::Obstacle(_) | Reason::AgentUnreachable | Reason::WaitingForAgent => false,
            // These answer a request; nothing waits for them.
            _ => false,
        }
    }
}

/// A record that names another which is not there: part of an action that nobody has finished.
fn names_unknown(site: &Site) -> Option<String> {
    // Who went back in time has forgotten records that others name.
    if site.forked {
        return None;
    }
    let Store { nodes, drives, volumes, attachments, .. } = &site.store;
    let attachment = attachments.values().find(|record| !volumes.contains_key(&record.volume));
    if let Some(record) = attachment {
        return Some(format!("attachment {} is of a volume that is gone", record.id));
    }
    // One that nothing was ever wanted of belongs to whoever is seen to have it; this one was not seen since.
    let wanted = drives.values().filter(|record| record.generation > Generation::ZERO);
    let homeless = wanted.into_iter().find(|record| !nodes.contains_key(&record.node));
    let homeless = homeless.map(|record| format!("{} is of no node", short(record.id)));
    let volumes_of =
        |record: &DriveRecord| record.volumes.keys().any(|id| !volumes.contains_key(id));
    let nobodys = drives.values().find(|record| volumes_of(record));
    homeless.or_else(|| nobodys.map(|record| format!("{} has nobody's place", short(record.id))))
}
