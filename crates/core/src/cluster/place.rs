//! Volumes on drives, as far as the life of a drive must know of them.

use super::{Allocation, Cluster, Contact, Effects, Refused, State};
use crate::ids::{DriveId, VolumeId};

impl Cluster {
    /// Puts a volume on a drive. Only a drive that is open, and wanted so, takes one.
    pub(super) fn place_by_hand(
        &mut self,
        volume: VolumeId,
        id: DriveId,
    ) -> Result<Effects, Refused> {
        let shrunk = self.shrunk_from(id).is_some();
        let drive = self.drives.get_mut(&id).ok_or(Refused::NoSuchDrive)?;
        let why = match drive.record.state {
            State::Attached if drive.record.removal_wanted => Some("its removal is wanted"),
            State::Attached if drive.contact != Contact::Confirmed => {
                Some("its agent has not confirmed it")
            }
            State::Attached if shrunk => Some("it is smaller than when it was added"),
            State::Attached => None,
            State::Unknown | State::Attaching | State::Closing | State::Detached => {
                Some("it is not in operation")
            }
        };
        if let Some(why) = why {
            return Err(Refused::TakesNoVolumes { why });
        }
        let mut effects = Effects::default();
        drive.change(&mut effects, |record| {
            record.volumes.insert(volume, Allocation::default());
        });
        Ok(effects)
    }

    /// Takes a volume off a drive. Off already is fine.
    pub(super) fn free(&mut self, volume: VolumeId, id: DriveId) -> Result<Effects, Refused> {
        let drive = self.drives.get_mut(&id).ok_or(Refused::NoSuchDrive)?;
        let mut effects = Effects::default();
        if drive.record.volumes.contains_key(&volume) {
            drive.change(&mut effects, |record| {
                record.volumes.remove(&volume);
            });
        }
        Ok(effects)
    }
}
