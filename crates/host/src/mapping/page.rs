//! A list of mappings in pieces that fit in a message.

use hotbay_core::ids::VolumeId;
use serde::{Deserialize, Serialize};

use super::Mapping;

/// What a piece may take, and what one mapping and one part of it take at most, as bytes of a message.
const PAGE_BYTES: usize = 48 << 10;
const MAPPING_BYTES: usize = 512;
const PART_BYTES: usize = 96;

/// Some of the mappings of a machine, ordered by volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingPage {
    pub mappings: Vec<Mapping>,
    /// There are more, behind the last volume of this page.
    pub more: bool,
}

/// The mappings behind `after`, as many as fit.
pub(crate) fn page(all: Vec<Mapping>, after: Option<VolumeId>) -> MappingPage {
    let mut room = PAGE_BYTES;
    let mut page = MappingPage { mappings: vec![], more: false };
    for mapping in all.into_iter().filter(|mapping| Some(mapping.volume) > after) {
        let cost = MAPPING_BYTES + mapping.parts.len() * PART_BYTES;
        // A volume is told in one page, should it ever be mapped twice.
        let begins = page.mappings.last().is_none_or(|last| last.volume != mapping.volume);
        if begins && cost > room {
            page.more = true;
            break;
        }
        room = room.saturating_sub(cost);
        page.mappings.push(mapping);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_id::{DeviceNumber, KernelId};
    use crate::mapping::{MOST_PARTS, MappingKind, Segment};

    fn longest(volume: u128, parts: usize) -> Mapping {
        Mapping {
            volume: VolumeId::from_bits(volume),
            epoch: u64::MAX,
            kind: MappingKind::DeviceMapper,
            path: "/dev/loop1048575".into(),
            number: DeviceNumber { major: u32::MAX, minor: u32::MAX },
            drive: Some(KernelId::File {
                on: DeviceNumber { major: u32::MAX, minor: u32::MAX },
                inode: u64::MAX,
            }),
            parts: vec![Segment { start_bytes: u64::MAX, length_bytes: u64::MAX }; parts],
            read_only: false,
            fenced: false,
            direct: false,
            leaving: false,
        }
    }

    #[test]
    fn every_mapping_is_told_once_and_no_page_is_too_long() {
        let parts = |volume| if volume % 50 == 0 { MOST_PARTS } else { 1 };
        let all: Vec<_> =
            (1..=500).map(|v| longest(v, parts(usize::try_from(v).unwrap()))).collect();
        let mut told = Vec::new();
        loop {
            let after = told.last().map(|mapping: &Mapping| mapping.volume);
            let page = page(all.clone(), after);
            assert!(serde_json::to_vec(&page).unwrap().len() < 60 << 10);
            let more = page.more;
            told.extend(page.mappings);
            if !more {
                break;
            }
        }
        assert_eq!(told, all);
        assert_eq!(page(all, Some(VolumeId::from_bits(500))).mappings, []);
    }
}
