//! Whoever uses a volume on a machine: it is mapped while the agent grants it, written into, and taken away again.

use hotbay_core::agent::Event as Happens;
use hotbay_core::ids::VolumeId;
use hotbay_core::label::extents::ALIGNMENT_BYTES;
use hotbay_core::volume::{Epoch, Segment};

use crate::fault::Fault;
use crate::log::note;
use crate::world::World;

/// A volume that is reached on a machine. It outlives the agent, but not the power, nor the drive.
#[derive(Debug, Clone)]
pub(crate) struct Mapping {
    pub(crate) epoch: Epoch,
    pub(crate) disk: usize,
    pub(crate) segments: Vec<Segment>,
}

impl World {
    /// The users of a client's volumes write into them.
    pub(crate) fn users_write(&mut self, client: usize) {
        let owned = self.clients[client].owned.clone();
        for (volume, machine) in owned.iter().filter_map(|one| Some((one.id, one.attached?))) {
            self.map(machine, volume);
            let Some(mapping) = self.machines[machine].mapped.get(&volume).cloned() else {
                continue;
            };
            self.user_writes(volume, &mapping);
        }
    }

    /// Maps a volume where the agent's record grants it, or takes note that it has grown.
    fn map(&mut self, machine: usize, volume: VolumeId) {
        let there = &self.machines[machine];
        let Some(process) = &there.process else { return };
        // What is being taken back is not given again, though that may not be on disk yet.
        let known = process.agent.record().volumes.get(&volume);
        let stored = there.stored().and_then(|record| record.volumes.get(&volume));
        let granted = stored.filter(|stored| Some(*stored) == known && stored.grant.granted);
        let Some(memory) = granted else { return };
        let open = process.open.get(&memory.drive).copied();
        let Some(disk) = open.filter(|disk| there.bays.contains(&Some(*disk))) else { return };
        let label = &self.disks[disk].label;
        let (epoch, drive) = (memory.grant.epoch, memory.drive);
        // Of a drive that was out meanwhile the label may be another's by now.
        if label.seen().is_none_or(|seen| {
            let identity = process.agent.record().identity;
            seen.drive != drive || Some(seen.node) != identity.map(|identity| identity.node)
        }) {
            return;
        }
        let of_volume = label.used().filter(|extent| extent.volume == volume);
        let segments: Vec<_> = of_volume
            .map(|extent| Segment {
                start_bytes: extent.start_bytes,
                length_bytes: extent.length_bytes,
            })
            .collect();
        let mapped = there.mapped.get(&volume).map(|mapping| mapping.epoch);
        self.may_be_mapped(machine, volume, (epoch, mapped), &segments);
        if mapped.is_none() {
            note!(self, "{}: {volume} is mapped, epoch {epoch}", self.machines[machine].name);
        }
        let mapping = Mapping { epoch, disk, segments };
        self.machines[machine].mapped.insert(volume, mapping);
    }

    fn user_writes(&mut self, volume: VolumeId, mapping: &Mapping) {
        for Segment { start_bytes, length_bytes } in &mapping.segments {
            let (first, mibs) = (start_bytes / ALIGNMENT_BYTES, length_bytes / ALIGNMENT_BYTES);
            let some = self.rng.between(0, mibs - 1);
            for mib in [0, some, mibs - 1] {
                let before = self.disks[mapping.disk].label.user_writes(first + mib, volume);
                self.read_before_write(volume, before);
            }
        }
        self.fault(Fault::VolumeWritten);
    }

    /// Nothing uses a volume any more, or something still does.
    pub(crate) fn use_ends(&mut self, machine: usize, volume: VolumeId, epoch: Epoch) {
        let mapped = self.machines[machine].mapped.contains_key(&volume);
        let result = if mapped && !self.trouble_over && self.rng.chance(300) {
            self.fault(Fault::UseStillThere);
            Err("still mounted".to_owned())
        } else {
            let mapped = &mut self.machines[machine].mapped;
            // A later use has nothing to do with it.
            if mapped.get(&volume).is_some_and(|mapping| mapping.epoch <= epoch) {
                mapped.remove(&volume);
            }
            Ok(())
        };
        self.step_agent(machine, Happens::UseEnded { volume, epoch, result });
    }
}
