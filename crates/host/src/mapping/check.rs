//! What may be mapped at all, and whether a mapping that is there is the one that is wanted.

use hotbay_core::label::Found;
use hotbay_core::label::extents::{ALIGNMENT_BYTES, Extent, Use, in_conflict};

use super::error::failed;
use super::{MOST_PARTS, Mapping, MappingError, OpenDrive, Segment, Wanted};
use crate::kernel_id::KernelId;
use crate::label;
use crate::worker::{is_current, sectors};

/// Refuses what is not, part for part, what the label of the drive gives to the volume.
///
/// Nothing else keeps a mistaken request from showing one volume's bytes to the user of another.
pub(super) fn wanted(wanted: &Wanted, drive: &OpenDrive) -> Result<(), MappingError> {
    let parts = &wanted.parts;
    if parts.is_empty() || parts.len() > MOST_PARTS {
        return Err(MappingError::Parts { parts: parts.len() });
    }
    if !is_current(&drive.file, drive.id) {
        return Err(MappingError::DriveGone);
    }
    let reading = failed("read the drive's label");
    let sectors = sectors(&drive.file, drive.id).map_err(&reading)?;
    let end_bytes = label::Sectors::size_bytes(&sectors);
    if let Some(part) = parts.iter().find(|part| !is_in_place(part, end_bytes)) {
        return Err(MappingError::OutOfPlace { part: *part });
    }
    let extents = match label::read_whole(&sectors).map_err(&reading)? {
        (Found::Valid { .. }, extents) => extents,
        (Found::Absent | Found::Damaged | Found::UnknownVersion(_), _) => vec![],
    };
    on_label(wanted, &extents)
}

fn is_in_place(part: &Segment, end_bytes: u64) -> bool {
    let whole = |bytes: u64| bytes.is_multiple_of(ALIGNMENT_BYTES);
    let end = part.start_bytes.checked_add(part.length_bytes);
    whole(part.start_bytes)
        && whole(part.length_bytes)
        && part.length_bytes > 0
        && end.is_some_and(|end| end <= end_bytes)
}

fn on_label(wanted: &Wanted, extents: &[Extent]) -> Result<(), MappingError> {
    let volume = wanted.volume;
    if in_conflict(extents).any(|clashing| clashing == volume) {
        return Err(MappingError::LabelConflict { volume });
    }
    let mut of_volume: Vec<&Extent> = extents
        .iter()
        .filter(|extent| extent.volume == volume && extent.usage == Use::Used)
        .collect();
    of_volume.sort_by_key(|extent| extent.part);
    let labelled = of_volume.iter().map(|extent| Segment {
        start_bytes: extent.start_bytes,
        length_bytes: extent.length_bytes,
    });
    if labelled.eq(wanted.parts.iter().copied()) {
        Ok(())
    } else {
        Err(MappingError::NotOnLabel { volume })
    }
}

/// In what a mapping is not the one that is wanted; the epoch aside.
pub(super) fn difference(
    found: &Mapping,
    wanted: &Wanted,
    drive: KernelId,
) -> Option<&'static str> {
    if found.fenced {
        return Some("fenced");
    }
    if found.leaving {
        return Some("about to go away with its last user");
    }
    if found.drive != Some(drive) {
        return Some("on another drive");
    }
    if found.read_only != wanted.read_only {
        return Some(if found.read_only { "read-only" } else { "writable" });
    }
    (found.parts != wanted.parts).then_some("with other parts")
}

/// Refuses what would not only add to a mapping.
pub(super) fn growth(
    found: &Mapping,
    wanted: &Wanted,
    drive: KernelId,
) -> Result<(), MappingError> {
    let as_it_is = Wanted { parts: found.parts.clone(), ..wanted.clone() };
    if let Some(difference) = difference(found, &as_it_is, drive) {
        let found = Box::new(found.clone());
        return Err(MappingError::OtherMapping { difference: difference.to_owned(), found });
    }
    let total = |parts: &[Segment]| -> u64 {
        parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.length_bytes))
    };
    let has_bytes = total(&found.parts);
    if total(&wanted.parts) < has_bytes {
        return Err(MappingError::Shrink { volume: wanted.volume, has_bytes });
    }
    // What the volume has already must stay where it is, byte for byte; only the last part may have grown.
    let kept = found.parts.iter().zip(&wanted.parts).enumerate().all(|(at, (old, new))| {
        let may_be_longer = at + 1 == found.parts.len();
        old.start_bytes == new.start_bytes
            && (old.length_bytes == new.length_bytes
                || may_be_longer && old.length_bytes < new.length_bytes)
    });
    if kept && wanted.parts.len() >= found.parts.len() {
        return Ok(());
    }
    let found = Box::new(found.clone());
    Err(MappingError::OtherMapping { difference: "with other parts".to_owned(), found })
}
