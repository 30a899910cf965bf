//! Volumes that only a label knows, as after a registry went back in time or its records were lost. They are kept and
//! shown; one that somebody asks to use, or to delete, gets a record again, made from what the label says.

use super::super::records::{Allocation, VolumeRecord, Write};
use super::super::{About, Cluster, Effects, Notice};
use super::VolumeRefused;
use crate::ids::{DriveId, NodeId, VolumeId};
use crate::label::extents::Extent;

impl Cluster {
    /// Volumes that labels have and no record knows, with the drive of each.
    pub fn orphans(&self) -> impl Iterator<Item = (DriveId, &Extent)> {
        let told = self.by_fill.iter().map(|(_, _, id)| &self.drives[id]);
        let used = told.flat_map(|drive| {
            let space = drive.space.iter().flat_map(|space| space.used());
            space.map(|extent| (drive.record.id, extent))
        });
        used.filter(|(_, extent)| extent.part == 0 && !self.volumes.contains_key(&extent.volume))
    }

    /// One of them.
    pub fn orphan(&self, id: VolumeId) -> Option<(DriveId, &Extent)> {
        self.orphans().find(|(_, extent)| extent.volume == id)
    }

    /// A node is to use a volume: one that only a label knows gets its record. Refused before anything is changed.
    pub(super) fn know_for_use(
        &mut self,
        id: VolumeId,
        node: NodeId,
        now_ms: u64,
        effects: &mut Effects,
    ) -> Result<(), VolumeRefused> {
        if self.volumes.contains_key(&id) {
            return Ok(());
        }
        let Some((drive, extent)) = self.orphan(id) else {
            return Err(VolumeRefused::NoSuchVolume);
        };
        if self.nodes.get(&node).is_none_or(|node| node.record.purged) {
            return Err(VolumeRefused::NoSuchNode);
        }
        let on = self.drives[&drive].record.node;
        if on != node {
            return Err(VolumeRefused::OnOtherNode { node: self.node_name(on) });
        }
        if let Some(there) = self.volume_by_name(&extent.name) {
            let difference =
                format!("its id is {}, and that of the one on the drive {id}", there.record.id);
            return Err(VolumeRefused::NameTaken { name: extent.name.clone(), difference });
        }
        let text = format!(
            "Volume {} is known again from the label of {}; its record was missing.",
            extent.name,
            self.describe(drive)
        );
        self.make_known(id, now_ms, effects);
        effects.notices.push(Notice::warning("VolumeRecordMissing", About::Volume(id), text));
        Ok(())
    }

    /// Makes a record for a volume that only a label knows. False: no label does.
    pub(super) fn make_known(&mut self, id: VolumeId, now_ms: u64, effects: &mut Effects) -> bool {
        let Some((drive, extent)) = self.orphan(id) else { return false };
        let parts = self.parts_on_label(drive, id);
        let record = VolumeRecord::of_label(extent, &parts, now_ms);
        effects.writes.push(Write::Volume(Box::new(record.clone())));
        self.insert_volume(record);
        // It begins anew, above whatever its agent was granted: the uses that are still on record are over.
        let over = self.kept_uses.remove(&id).into_iter().flatten();
        effects.writes.extend(over.map(Write::AttachmentGone));
        self.allocate(id, drive, Allocation { parts, exclusive: false }, effects);
        true
    }
}
