//! The devices of the machine as they were last seen: from outside, through sysfs and the mount table, and from inside,
//! by a child that read them. What both come to is what the agent hears of.
//!
//! A device is read only when it is new or when what is on it may be another thing now. A drive that is out of
//! operation is not read at all, not even to look: whoever took it out may be working on it.

use std::collections::{BTreeMap, BTreeSet};

use hotbay_core::device::DeviceNumber;
use hotbay_core::discovery::queue::{DeviceKey, Run};
use hotbay_core::discovery::triage::Change;
use hotbay_core::discovery::{Needs, Probes};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::ClusterId;
use hotbay_host::KernelId;
use hotbay_host::scan::{self, Candidate, Inside, MountedNow};

use super::Located;
use super::labels::Looked;
use super::read::{ReadEnd, Unfinished, is_alone};
use super::seen::{Reading, Seen};

/// So many devices are read at a time. Each has a time to answer in, which many children at once would take from each
/// other; one that hangs gives its place back when its time is over.
const MOST_READ_AT_ONCE: usize = 8;

/// The mappings among the drives are those that join the paths to one, unless a person has named another.
const MAPPINGS: &str = "/dev/dm-";

/// A device that is as it was is not read.
const IF_CHANGED: Needs = Needs { now: Probes::NONE, if_changed: Probes::ALL };

/// What the agent knows and discovery must know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Context {
    /// The cluster that the machine belongs to.
    pub(crate) ours: Option<ClusterId>,
    /// Drives that must not be opened.
    pub(crate) left_alone: Vec<Evidence>,
    /// Paths whose look of this number must be repeated.
    pub(crate) doubts: BTreeMap<String, u64>,
    /// How often the agent has made something else of the device at a path.
    pub(crate) remade: BTreeMap<String, u64>,
}

/// What is known of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) devices: Vec<Looked>,
    /// The paths of devices that cannot be told from others yet, or hang before they could be. Each may be a drive that
    /// is known: it must be taken neither for a new one nor for gone.
    pub(crate) hanging: Vec<String>,
}

/// What a listing of the machine gives: by path, with the bay that was named for it.
pub(super) type Listed = BTreeMap<String, Located>;

/// What a look at one device came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Same,
    /// It differs so that it is read, which was not called for before.
    ToBeRead,
    /// Another device than before, or one with other parts.
    Other,
    /// The device that stands for all paths to a drive is another now: each of them is a drive now, or no longer.
    OtherPaths,
    /// It is not one that is looked for.
    NoDrive,
}

#[derive(Debug, Default)]
pub(super) struct Inventory {
    context: Context,
    seen: BTreeMap<String, Seen>,
    paths: BTreeMap<DeviceNumber, String>,
    /// The number of the last look at any device.
    looks: u64,
    /// How many mount tables were taken note of.
    mount_tables: u64,
    /// While the machine is listed: what was looked at since that began.
    since_listing: Option<BTreeSet<DeviceNumber>>,
    changed: bool,
}

impl Inventory {
    /// The machine is listed from now on.
    pub(super) fn listing(&mut self) {
        self.since_listing = Some(BTreeSet::new());
    }

    /// The machine was listed: what is not there has gone, and what differs is looked at.
    ///
    /// The listing may have come by a device before an event told of it, and end after the look that the event called
    /// for. So it does not count for devices that were looked at meanwhile; gives them, to be looked at once more.
    pub(super) fn listed(&mut self, listed: Listed) -> Vec<Run> {
        let newer = self.since_listing.take().unwrap_or_default();
        let counts =
            |candidate: &Candidate| number_of(candidate).is_none_or(|it| !newer.contains(&it));
        let is_gone = |(path, seen): &(&String, &Seen)| {
            !listed.contains_key(*path) && counts(&seen.candidate)
        };
        let gone: Vec<_> = self.seen.iter().filter(is_gone).map(|(path, _)| path.clone()).collect();
        for path in gone {
            self.forget(&path);
        }
        for (bay, candidate) in listed.into_values().filter(|(_, it)| counts(it)) {
            self.update(bay, candidate, IF_CHANGED);
        }
        let again = |number: &DeviceNumber| Run {
            device: self.key(*number),
            change: Change::Changed,
            needs: IF_CHANGED,
        };
        newer.iter().map(again).collect()
    }

    fn looked_at(&mut self, number: DeviceNumber) {
        if let Some(looked_at) = &mut self.since_listing {
            looked_at.insert(number);
        }
    }

    /// Looks at size and flags of a device that is known, if that is all that is needed. False: more is.
    pub(super) fn probe_quickly(&mut self, run: Run) -> bool {
        self.looked_at(run.device.number);
        let Needs { now, if_changed } = run.needs;
        let quick = run.change == Change::Changed
            && Candidate::QUICK.contains(now)
            && Candidate::QUICK.contains(if_changed);
        let path = self.paths.get(&run.device.number).filter(|_| quick);
        let Some(seen) = path.and_then(|path| self.seen.get_mut(path)) else { return false };
        let same_device =
            run.device.sequence.is_none() || run.device.sequence == seen.candidate.sequence;
        let before = seen.candidate.size_bytes;
        if !same_device || before == 0 {
            return false;
        }
        let other = seen.candidate.read_quickly(now);
        // What comes and goes with the medium is more than its size.
        if seen.candidate.size_bytes == 0 {
            seen.candidate.size_bytes = before;
            return false;
        }
        if other {
            self.changed |= seen.tell(self.context.ours);
        }
        true
    }

    /// A device was looked at from outside.
    pub(super) fn probed(&mut self, run: Run, candidate: Option<Located>) -> Outcome {
        self.looked_at(run.device.number);
        let known = self.paths.get(&run.device.number).cloned();
        match (candidate, known) {
            (Some((bay, candidate)), known) => {
                if let Some(path) = known.filter(|path| *path != candidate.path) {
                    self.forget(&path);
                }
                let before = self.seen.get(&candidate.path).map(|seen| &seen.candidate);
                let other_paths =
                    candidate.path.starts_with(MAPPINGS) && before != Some(&candidate);
                let outcome = self.update(bay, candidate, run.needs);
                if other_paths { Outcome::OtherPaths } else { outcome }
            }
            (None, Some(path)) => {
                self.forget(&path);
                if path.starts_with(MAPPINGS) { Outcome::OtherPaths } else { Outcome::Other }
            }
            (None, None) => Outcome::NoDrive,
        }
    }

    /// The mount table was read.
    pub(super) fn mounted(&mut self, now: &MountedNow) {
        self.mount_tables += 1;
        for seen in self.seen.values_mut() {
            if seen.candidate.read_mounts(now) {
                self.changed |= seen.tell(self.context.ours);
            }
        }
    }

    pub(super) fn mount_tables(&self) -> u64 {
        self.mount_tables
    }

    /// Plain files were written to.
    pub(super) fn written(&mut self, files: &BTreeSet<KernelId>) {
        let written = |seen: &&mut Seen| files.contains(&seen.candidate.id);
        self.seen.values_mut().filter(written).for_each(Seen::read_again);
    }

    /// A device was read. Gives the child that was too late, with the number of the look that it is to end.
    pub(super) fn read(&mut self, end: ReadEnd) -> Option<(u64, Candidate, Unfinished)> {
        let ReadEnd { candidate, inside, unfinished, took: _ } = end;
        let seen = self.seen.get_mut(&candidate.path)?;
        let again = seen.reading == Reading::RunningThenAgain || !seen.is(&candidate);
        seen.reading = if again { Reading::Due } else { Reading::Idle };
        if !seen.is(&candidate) {
            return None;
        }
        self.looks += 1;
        seen.look = self.looks;
        seen.inside = Some(seen.as_it_was_known(inside));
        seen.unfinished = unfinished.as_ref().map(|_| self.looks);
        seen.loops_unclear &= again;
        self.changed |= seen.tell(self.context.ours);
        unfinished.map(|unfinished| (self.looks, candidate, unfinished))
    }

    /// A child that was too late has answered.
    pub(super) fn read_late(&mut self, look: u64, end: ReadEnd) {
        let ReadEnd { candidate, inside, unfinished: _, took: _ } = end;
        let Some(seen) = self.seen.get_mut(&candidate.path) else { return };
        if seen.unfinished != Some(look) {
            return;
        }
        seen.unfinished = None;
        self.looks += 1;
        seen.look = self.looks;
        seen.inside = Some(seen.as_it_was_known(inside));
        seen.tell(self.context.ours);
        // That it has answered is news by itself: it may have been any drive until now.
        self.changed = true;
    }

    /// Has those devices read again that could not be read: nothing tells when they can be.
    pub(super) fn read_failed_again(&mut self) {
        let failed = |seen: &&mut Seen| {
            seen.unfinished.is_none() && seen.inside.as_ref().is_some_and(Inside::is_doubtful)
        };
        self.seen.values_mut().filter(failed).for_each(Seen::read_again);
    }

    /// A device had gone by the time it was read, whatever is at its path now. Gives the number to look at, unless what
    /// is there is known already.
    pub(super) fn read_in_vain(&mut self, candidate: &Candidate) -> Option<DeviceNumber> {
        let seen = self.seen.get_mut(&candidate.path)?;
        let again = seen.reading == Reading::RunningThenAgain || !seen.is(candidate);
        seen.reading = if again { Reading::Due } else { Reading::Idle };
        number_of(candidate).filter(|_| !again)
    }

    /// The agent knows or wants something else.
    pub(super) fn take_context(&mut self, context: Context) {
        let other_cluster = self.context.ours != context.ours;
        let before = std::mem::replace(&mut self.context, context);
        for (path, seen) in &mut self.seen {
            let unread = match &seen.inside {
                Some(Inside::NotOpened(evidence)) => !is_alone(&self.context.left_alone, evidence),
                Some(Inside::Seen(_) | Inside::Unread { .. }) | None => false,
            };
            let remade = self.context.remade.get(path) != before.remade.get(path);
            if unread || remade || self.context.doubts.get(path) == Some(&seen.look) {
                seen.read_again();
            }
            if other_cluster {
                self.changed |= seen.tell(self.context.ours);
            }
        }
    }

    /// The devices that a child is to read now. They count as being read. The others wait until one of them was.
    pub(super) fn due_to_be_read(&mut self) -> Vec<Candidate> {
        let running = self.seen.values().filter(|seen| seen.is_being_read()).count();
        let mut due = Vec::new();
        for seen in self.seen.values_mut() {
            let is_due = seen.reading == Reading::Due && seen.unfinished.is_none();
            if is_due && running + due.len() < MOST_READ_AT_ONCE {
                seen.reading = Reading::Running;
                due.push(seen.candidate.clone());
            }
        }
        due
    }

    /// What is known, if that is something else than the last time.
    pub(super) fn changed(&mut self) -> Option<Found> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let (hanging, known): (Vec<_>, Vec<_>) =
            self.seen.values().partition(|seen| seen.may_be_any());
        Some(Found {
            devices: known.into_iter().filter_map(|seen| seen.told.clone()).collect(),
            hanging: hanging.into_iter().map(|seen| seen.candidate.path.clone()).collect(),
        })
    }

    /// The drives that a device stands on, or stood on until it went.
    pub(super) fn drives_under(&self, number: DeviceNumber) -> BTreeSet<DeviceNumber> {
        let mut under = scan::below(number);
        under.retain(|number| self.paths.contains_key(number));
        let name = scan::name_of(number);
        let stood = |candidate: &Candidate| match &name {
            Some(name) => candidate.carries(name),
            None => candidate.stack.iter().any(|(_, above)| *above == number),
        };
        let numbers = self.seen.values().filter(|seen| stood(&seen.candidate));
        under.extend(numbers.filter_map(|seen| number_of(&seen.candidate)));
        under
    }

    pub(super) fn key(&self, number: DeviceNumber) -> DeviceKey {
        let seen = self.paths.get(&number).and_then(|path| self.seen.get(path));
        DeviceKey { number, sequence: seen.and_then(|seen| seen.candidate.sequence) }
    }

    /// How many devices a child hangs on.
    pub(super) fn quarantined(&self) -> usize {
        self.seen.values().filter(|seen| seen.unfinished.is_some()).count()
    }

    /// Which devices are known.
    pub(super) fn keys(&self) -> impl Iterator<Item = DeviceKey> {
        self.paths.keys().map(|number| self.key(*number))
    }

    /// The devices that are known, for whoever watches them.
    pub(super) fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        self.seen.values().map(|seen| &seen.candidate)
    }

    fn update(&mut self, bay: Option<String>, candidate: Candidate, needs: Needs) -> Outcome {
        if let Some(number) = number_of(&candidate) {
            self.paths.insert(number, candidate.path.clone());
        }
        let Some(seen) = self.seen.get_mut(&candidate.path) else {
            self.seen.insert(candidate.path.clone(), Seen::new(bay, candidate));
            self.changed = true;
            return Outcome::Other;
        };
        let (same_device, same) = (seen.is(&candidate), seen.candidate == candidate);
        let names = |candidate: &Candidate| {
            candidate.partitions.iter().map(|part| part.name.clone()).collect::<Vec<_>>()
        };
        let other_parts = names(&seen.candidate) != names(&candidate);
        let other_medium = (seen.candidate.size_bytes == 0) != (candidate.size_bytes == 0);
        let other_loops = seen.has_label() && seen.candidate.loops != candidate.loops;
        let gone = number_of(&seen.candidate).filter(|_| seen.candidate.id != candidate.id);
        (seen.bay, seen.candidate) = (bay, candidate);
        if let Some(number) = gone {
            self.paths.remove(&number);
        }
        if !same_device {
            seen.inside = None;
            // Whoever waits for the device that was there does not wait for this one.
            seen.unfinished = None;
            seen.read_again();
            self.changed = true;
            return Outcome::Other;
        }
        if other_medium {
            // What was read of it before is over: it is told again when it was read again, as a whole.
            seen.inside = None;
        }
        seen.loops_unclear |= other_loops;
        let read = other_medium
            || other_loops
            || needs.now.intersects(Probes::INSIDE)
            || (!same && needs.if_changed.intersects(Probes::INSIDE));
        if read {
            seen.read_again();
        }
        if !same {
            self.changed |= seen.tell(self.context.ours);
        }
        match (other_parts, read && !needs.now.intersects(Probes::INSIDE)) {
            (true, _) => Outcome::Other,
            (false, true) => Outcome::ToBeRead,
            (false, false) => Outcome::Same,
        }
    }

    fn forget(&mut self, path: &str) {
        if let Some(seen) = self.seen.remove(path) {
            if let Some(number) = number_of(&seen.candidate) {
                self.paths.remove(&number);
            }
            self.changed = true;
        }
    }
}

fn number_of(candidate: &Candidate) -> Option<DeviceNumber> {
    match candidate.id {
        KernelId::Block(number) => Some(number),
        KernelId::File { .. } => None,
    }
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
pub(super) mod tests;
