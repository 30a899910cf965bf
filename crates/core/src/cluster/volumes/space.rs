//! What is known of the room on a drive: its label as the agent told it, and what was placed and is not on it yet.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::cluster::{Cluster, Drive};
use crate::device::Media;
use crate::ids::{DriveId, NodeId, VolumeId};
use crate::label::change::{Basis, Change, LabelTold};
use crate::label::extents::{Extent, FIRST_EXTENT_BYTES, MOST_EXTENTS, Use, in_conflict};
use crate::volume::Segment;
use crate::volume::orders::LabelOrder;

/// The label of a drive that is open.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Space {
    pub basis: Basis,
    pub extents: Vec<Extent>,
    pub limit_bytes: u64,
    /// The order that the agent was given and has not answered.
    pub(super) ordered: Option<LabelOrder>,
    /// What was erased since the label was last changed for anything else.
    pub(super) erased: Erased,
    /// Why the last order failed, for people.
    pub trouble: Option<String>,
    /// Where the drive stands in the index.
    pub(super) rank: Rank,
}

/// Erasing takes its turn with everything else: under a load that never ends, a drive would fill up with what nobody
/// may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Erased {
    bytes: u64,
    steps: u32,
}

impl Erased {
    /// What is erased in one turn: others wait no longer than this takes.
    pub(super) const TURN_BYTES: u64 = 64 << 20;
    const TURN_STEPS: u32 = 8;

    /// What is left of the turn.
    pub(super) fn left_bytes(self) -> u64 {
        if self.steps >= Self::TURN_STEPS { 0 } else { Self::TURN_BYTES.saturating_sub(self.bytes) }
    }

    /// Takes note of an order that was carried out.
    pub(super) fn after(self, changes: &[Change]) -> Self {
        match changes {
            [Change::Erase { length_bytes, .. }] => Self {
                bytes: self.bytes.saturating_add(*length_bytes),
                steps: self.steps.saturating_add(1),
            },
            _ => Self::default(),
        }
    }
}

/// How much of a drive is used, in parts of 2^20.
type Fill = u32;

/// A drive's place among all, the least filled of each media first.
pub(in crate::cluster) type Rank = (u8, Fill, DriveId);

/// All ranks of one media.
pub(super) fn ranks_of(media: Media) -> RangeInclusive<Rank> {
    let number = number(media);
    (number, 0, DriveId::from_bits(0))..=(number, Fill::MAX, DriveId::from_bits(u128::MAX))
}

/// Every media, in no order that would matter.
pub(super) const MEDIA: [Media; 5] =
    [Media::Nvme, Media::Ssd, Media::Hdd, Media::File, Media::Unknown];

const fn number(media: Media) -> u8 {
    match media {
        Media::Nvme => 0,
        Media::Ssd => 1,
        Media::Hdd => 2,
        Media::File => 3,
        Media::Unknown => 4,
    }
}

impl Space {
    /// Every volume that the label gives a place to, and whose place it is.
    pub(in crate::cluster) fn used(&self) -> impl Iterator<Item = &Extent> {
        self.extents.iter().filter(|extent| extent.usage == Use::Used)
    }

    /// What deleted volumes had and is not erased yet.
    pub fn dirty_bytes(&self) -> u64 {
        let dirty = self.extents.iter().filter(|extent| extent.usage == Use::Dirty);
        dirty.map(|extent| extent.length_bytes).sum()
    }

    pub(super) fn holds(&self, volume: VolumeId) -> bool {
        self.used().any(|extent| extent.volume == volume)
    }

    /// The table in the order of volumes, for whoever looks for many of them.
    pub(super) fn by_volume(&self) -> ByVolume<'_> {
        let mut lines: Vec<_> = self.extents.iter().collect();
        lines.sort_by_key(|extent| extent.volume);
        ByVolume(lines)
    }

    /// Whether the label has anything of another volume there.
    pub(super) fn has_another(&self, volume: VolumeId, at: Segment) -> bool {
        self.extents.iter().any(|extent| {
            extent.volume != volume
                && extent.start_bytes < at.end_bytes()
                && at.start_bytes < extent.end_bytes()
        })
    }

    pub(super) fn conflicts(&self) -> bool {
        in_conflict(&self.extents).next().is_some()
    }
}

/// The extents of a label, those of one volume beside each other.
pub(super) struct ByVolume<'a>(Vec<&'a Extent>);

impl<'a> ByVolume<'a> {
    /// What the label has of a volume.
    pub(super) fn of(&self, volume: VolumeId) -> OnLabel<'_, 'a> {
        let from = self.0.partition_point(|extent| extent.volume < volume);
        let many = self.0[from..].partition_point(|extent| extent.volume == volume);
        OnLabel(&self.0[from..from + many])
    }
}

/// The extents of one volume on a label.
#[derive(Clone, Copy)]
pub(super) struct OnLabel<'v, 'a>(&'v [&'a Extent]);

impl<'a> OnLabel<'_, 'a> {
    /// The extent that has this part of it, in use.
    pub(super) fn part(self, part: usize) -> Option<&'a Extent> {
        self.used().find(|extent| extent.part as usize == part)
    }

    pub(super) fn is_used(self) -> bool {
        self.used().next().is_some()
    }

    pub(super) fn is_dirty(self) -> bool {
        self.0.iter().any(|extent| extent.usage == Use::Dirty)
    }

    pub(super) fn used_bytes(self) -> u64 {
        self.used().map(|extent| extent.length_bytes).sum()
    }

    fn used(self) -> impl Iterator<Item = &'a Extent> {
        self.0.iter().copied().filter(|extent| extent.usage == Use::Used)
    }
}

impl Drive {
    /// What of the drive has an owner, on the label or by decision, in order. Most of it is there twice.
    fn occupied(&self) -> Vec<Segment> {
        let extents = self.space.iter().flat_map(|space| &space.extents);
        let on_label = extents.map(Extent::segment);
        let placed = self.record.volumes.values().flat_map(|at| at.parts.iter().copied());
        let mut all: Vec<Segment> = on_label.chain(placed).collect();
        all.sort_unstable();
        all
    }

    /// Where extents must end: by the label, and on the drive as it is now.
    fn limit_bytes(&self) -> u64 {
        let by_label = self.space.as_ref().map_or(0, |space| space.limit_bytes);
        by_label.min(self.record.observed.size_bytes)
    }

    /// The room between what is occupied, in order.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Segment> {
        let limit_bytes = self.limit_bytes();
        let occupied = if self.space.is_some() { self.occupied() } else { Vec::new() };
        let end = Segment { start_bytes: limit_bytes, length_bytes: 0 };
        let mut at = FIRST_EXTENT_BYTES;
        occupied.into_iter().chain([end]).filter_map(move |taken| {
            let (start_bytes, until) = (at, taken.start_bytes.min(limit_bytes));
            at = at.max(taken.end_bytes());
            let length_bytes = until.checked_sub(start_bytes).filter(|length| *length > 0)?;
            Some(Segment { start_bytes, length_bytes })
        })
    }

    /// The volumes of which a part lies behind the end that the drive has now.
    pub(in crate::cluster) fn beyond_end(&self) -> BTreeSet<VolumeId> {
        let size_bytes = self.record.observed.size_bytes;
        let extents = self.space.iter().flat_map(|space| space.used());
        let on_label = extents.filter(|extent| extent.end_bytes() > size_bytes);
        let placed = self
            .record
            .volumes
            .iter()
            .filter(|(_, at)| at.parts.iter().any(|part| part.end_bytes() > size_bytes));
        on_label.map(|extent| extent.volume).chain(placed.map(|(volume, _)| *volume)).collect()
    }

    /// What could be given to volumes.
    pub fn free_bytes(&self) -> u64 {
        self.gaps().map(|gap| gap.length_bytes).sum()
    }

    pub(super) fn largest_gap(&self) -> u64 {
        self.gaps().map(|gap| gap.length_bytes).max().unwrap_or(0)
    }

    /// Whether the label has a line left for one more extent.
    pub(super) fn has_line(&self) -> bool {
        let Some(space) = &self.space else { return false };
        let parts = self.record.volumes.values().map(|at| at.parts.len()).sum::<usize>();
        space.extents.len() + parts < MOST_EXTENTS || self.lines_left() > 0
    }

    /// How many more extents the label has lines for.
    pub(super) fn lines_left(&self) -> usize {
        let Some(space) = &self.space else { return 0 };
        let lines = space.by_volume();
        let waiting = self.record.volumes.iter().map(|(volume, at)| {
            let on_label = lines.of(*volume);
            (0..at.parts.len()).filter(|part| on_label.part(*part).is_none()).count()
        });
        MOST_EXTENTS.saturating_sub(space.extents.len() + waiting.sum::<usize>())
    }

    fn fill(&self) -> Fill {
        if self.space.is_none() {
            return 0;
        }
        let whole = self.limit_bytes().saturating_sub(FIRST_EXTENT_BYTES).max(1);
        let used = whole.saturating_sub(self.free_bytes());
        let share = (u128::from(used) << 20) / u128::from(whole);
        Fill::try_from(share).unwrap_or(Fill::MAX)
    }
}

impl Cluster {
    /// Takes note of a label. Orders that were decided on another one are over.
    pub(super) fn note_label(&mut self, id: DriveId, told: LabelTold) {
        let LabelTold { basis, extents, limit_bytes } = told;
        self.forget_label(id);
        let drive = self.drives.get_mut(&id).expect("only known drives have labels");
        let rank = (0, 0, id);
        let (ordered, erased, trouble) = (None, Erased::default(), None);
        let space = Space { basis, extents, limit_bytes, ordered, erased, trouble, rank };
        drive.space = Some(Box::new(space));
        self.rank(id);
    }

    /// The drive is not open any more, or nobody is there who would say.
    pub(in crate::cluster) fn forget_label(&mut self, id: DriveId) {
        let Some(drive) = self.drives.get_mut(&id) else { return };
        let Some(space) = drive.space.take() else { return };
        self.by_fill.remove(&space.rank);
    }

    /// Nothing counts that was told of the labels of a node's drives.
    pub(in crate::cluster) fn forget_labels_on(&mut self, node: NodeId) {
        let drives = self.nodes.get(&node).map(|node| node.drives.clone());
        for drive in drives.into_iter().flatten() {
            self.forget_label(drive);
        }
    }

    /// Puts a drive where it belongs in the index, after what is on it has changed.
    pub(in crate::cluster) fn rank(&mut self, id: DriveId) {
        let drive = self.drives.get_mut(&id).expect("only known drives have a place");
        let rank = (number(drive.record.observed.media), drive.fill(), id);
        let Some(space) = &mut drive.space else { return };
        let before = std::mem::replace(&mut space.rank, rank);
        if before != rank || !self.by_fill.contains(&rank) {
            self.by_fill.remove(&before);
            self.by_fill.insert(rank);
        }
    }
}
