//! A volume grows on its drive: where it is, if there is room behind it; else by more pieces of the same drive, where
//! the node can join them. Only device-mapper can, and only on drives that are block devices of their own.

use super::super::{Cluster, Contact, Drive, Effects, State};
use super::VolumeRefused;
use crate::cluster::VolumeState;
use crate::device::DeviceKind;
use crate::ids::VolumeId;
use crate::volume::{MOST_PARTS, Segment, Size};
use crate::words::bytes;

impl Cluster {
    pub(super) fn expand_volume(
        &mut self,
        id: VolumeId,
        size: Size,
        effects: &mut Effects,
    ) -> Result<(), VolumeRefused> {
        let volume = self.volumes.get(&id).ok_or(VolumeRefused::NoSuchVolume)?;
        let has = volume.record.size_bytes;
        if volume.record.state != VolumeState::Created {
            return Err(VolumeRefused::WrongState { state: volume.record.state });
        }
        if let Some(most) = size.limit_bytes.filter(|most| has > *most) {
            return Err(VolumeRefused::TooLarge { has, most });
        }
        if has >= size.bytes {
            return Ok(());
        }
        let drive_id =
            volume.drive.ok_or(VolumeRefused::WrongState { state: VolumeState::Lost })?;
        let refuse = |why: String| VolumeRefused::CannotGrow { asked: size.bytes, why };
        let drive = &self.drives[&drive_id];
        if drive.record.state != State::Attached || drive.contact != Contact::Confirmed {
            return Err(refuse("its drive does not answer now".into()));
        }
        let parts = &drive.record.volumes[&id].parts;
        let placed: u64 = parts.iter().map(|part| part.length_bytes).sum();
        // An earlier call may have decided it already, and more than that.
        if placed < size.bytes {
            let grown = grown(drive, parts, size.bytes - placed, self.joins_pieces(drive));
            let grown = grown.map_err(refuse)?;
            self.change_drive(drive_id, effects, |record| {
                record.volumes.get_mut(&id).expect("looked up above").parts = grown;
            });
            self.rank(drive_id);
        }
        self.order_label(drive_id, effects);
        Ok(())
    }

    /// Whether a volume on this drive may have several pieces.
    fn joins_pieces(&self, drive: &Drive) -> bool {
        let session = self.nodes.get(&drive.record.node).and_then(|node| node.session);
        drive.record.observed.kind == DeviceKind::Block
            && session.is_some_and(|session| session.device_mapper)
    }
}

/// The pieces of a volume that is to have `more`; or why it cannot. What it has stays where it is. The room behind it
/// is taken first, for it costs no line of the label, then the largest gaps, so that the pieces are few.
fn grown(
    drive: &Drive,
    parts: &[Segment],
    more: u64,
    joins_pieces: bool,
) -> Result<Vec<Segment>, String> {
    let mut grown = parts.to_vec();
    let last = grown.last_mut().expect("a place has a part");
    let (behind, mut gaps): (Vec<_>, Vec<_>) =
        drive.gaps().partition(|gap| gap.start_bytes == last.end_bytes());
    let room = behind.first().map_or(0, |gap| gap.length_bytes);
    if room < more && !joins_pieces {
        return Err(format!(
            "there is room for {} behind it on its drive, and more than one piece of a drive is joined only where the \
             node has device-mapper",
            bytes(room)
        ));
    }
    let mut missing = more - room.min(more);
    last.length_bytes += room.min(more);
    gaps.sort_by_key(|gap| (std::cmp::Reverse(gap.length_bytes), gap.start_bytes));
    for gap in gaps {
        if missing == 0 {
            break;
        }
        let length_bytes = gap.length_bytes.min(missing);
        grown.push(Segment { length_bytes, ..gap });
        missing -= length_bytes;
    }
    if missing > 0 {
        return Err(format!("there is room for {} on its drive", bytes(drive.free_bytes())));
    }
    let new = grown.len() - parts.len();
    if grown.len() > MOST_PARTS || new > drive.lines_left() {
        return Err(format!(
            "the room on its drive is in too many pieces: {new} more would be needed, and the label has {} lines left",
            drive.lines_left()
        ));
    }
    Ok(grown)
}

#[cfg(test)]
#[path = "expand_tests.rs"]
mod tests;
