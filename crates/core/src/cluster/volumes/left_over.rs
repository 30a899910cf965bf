//! What a registry before left behind that nobody else finishes: a store that keeps each record by itself may have any
//! first part of an action, and one that others write to may have a part that came too late.
//!
//! - Of a volume that was deleted the place goes before the record does. What is found without a place has none on a
//!   label either; were its drive unknown, its extent would be shown as an orphan and kept.
//! - Of two volumes of one name, the one that is pending without a place was never told to anybody: it was written
//!   late, when the next registry had made the other.
//! - Of a purge the host's record goes first. Its drives are given up as it would have done.
//!
//! Noted when the records come into memory, and forgotten with the first agent that registers.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cluster, Effects, Volume, VolumeState};

impl Cluster {
    pub(in crate::cluster) fn note_left_over(&mut self) {
        let (unplaced, others): (Vec<&Volume>, Vec<&Volume>) =
            self.volumes.values().partition(|volume| is_unplaced(volume));
        let half_deleted = others.iter().filter(|volume| {
            let state = volume.record.state;
            volume.drive.is_none() && matches!(state, VolumeState::Deleting | VolumeState::Deleted)
        });
        let mut left_over: BTreeSet<_> = half_deleted.map(|volume| volume.record.id).collect();
        let lasting = others.iter().filter(|volume| volume.record.state != VolumeState::Deleted);
        // Backwards, so that the first of several has the name, as it does everywhere.
        let owners: BTreeMap<_, _> =
            lasting.rev().map(|volume| (&volume.record.name, volume.record.id)).collect();
        for volume in unplaced {
            let name = &volume.record.name;
            if let Some(owner) = owners.get(name) {
                // Whichever of the two came into memory first.
                self.volume_by_name.insert(name.clone(), *owner);
                left_over.insert(volume.record.id);
            }
        }
        self.left_over = left_over;
    }

    pub(in crate::cluster) fn finish_left_over(&mut self, now_ms: u64, effects: &mut Effects) {
        self.finish_purges(now_ms, effects);
        for id in std::mem::take(&mut self.left_over) {
            let unused = |volume: &Volume| volume.drive.is_none() && volume.attachments.is_empty();
            if self.volumes.get(&id).is_some_and(unused) {
                self.forget_volume(id, effects);
            }
        }
    }
}

/// Nothing of it is anywhere but its record.
fn is_unplaced(volume: &Volume) -> bool {
    volume.drive.is_none() && volume.record.state == VolumeState::Pending
}
