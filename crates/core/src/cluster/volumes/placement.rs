//! Where a volume goes: one pure function, for making one, for telling the room there is, and for explaining it.
//!
//! The least filled drive that fits, ties by id. A drive does not fit for a reason that has words.

use std::collections::BTreeSet;
use std::fmt;

use super::space::{MEDIA, Rank, ranks_of};
use crate::cluster::{Cluster, Contact, Drive, State};
use crate::device::{Denied, Media};
use crate::ids::{DriveId, NodeId, VolumeId};
use crate::volume::Segment;
use crate::volume::class::{Class, Sharing, Spread};
use crate::words::bytes;

/// What a place is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sought<'a> {
    pub bytes: u64,
    pub class: &'a Class,
    /// Whose volumes it should not be beside.
    pub group: Option<&'a str>,
    /// Where; empty: anywhere.
    pub nodes: &'a BTreeSet<NodeId>,
    /// Where best, in this order.
    pub preferred: &'a [NodeId],
}

/// Why a drive does not take a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    OtherNode,
    Cordoned,
    Denied(Vec<Denied>),
    NotInOperation { state: State },
    Leaving,
    AgentAway,
    LabelUnknown,
    LabelConflict,
    Shrunk,
    OtherMedia { has: Media, asked: Media },
    NoRoom { largest: u64, erasing: u64 },
    LabelFull,
    NotEmpty { volumes: usize },
    Exclusive { volume: String },
    SameGroup { volume: String, group: String },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherNode => f.write_str("on a node that was not asked for"),
            Self::Cordoned => f.write_str("its node is cordoned"),
            Self::Denied(denied) => {
                let words: Vec<_> = denied.iter().map(ToString::to_string).collect();
                write!(f, "not in operation ({})", words.join("; "))
            }
            Self::NotInOperation { state: State::Attaching } => f.write_str("not in operation yet"),
            Self::NotInOperation { state: State::Closing } => f.write_str("leaving operation"),
            Self::NotInOperation { .. } => f.write_str("not in operation"),
            Self::Leaving => f.write_str("its removal is wanted"),
            Self::AgentAway => f.write_str("its agent has not confirmed it"),
            Self::LabelUnknown => f.write_str("its agent has not told its label"),
            Self::LabelConflict => f.write_str("extents on its label overlap"),
            Self::Shrunk => f.write_str("smaller than it was"),
            Self::OtherMedia { has, asked } => write!(f, "{has}, {asked} asked for"),
            Self::NoRoom { largest, erasing: 0 } => {
                write!(f, "no room: {} in one piece at most", bytes(*largest))
            }
            Self::NoRoom { largest, erasing } => {
                let (largest, erasing) = (bytes(*largest), bytes(*erasing));
                write!(f, "no room: {largest} in one piece at most, and {erasing} being erased")
            }
            Self::LabelFull => f.write_str("its label has no line for one more extent"),
            Self::NotEmpty { volumes } => {
                write!(f, "not empty ({volumes} on it, a drive of its own asked for)")
            }
            Self::Exclusive { volume } => write!(f, "volume {volume} has it for itself"),
            Self::SameGroup { volume, .. } => {
                write!(f, "volume {volume} of the same group is on it (spread required)")
            }
        }
    }
}

/// What placement says of one drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    pub drive: DriveId,
    pub free_bytes: u64,
    /// Empty: it fits.
    pub unfit: Vec<Unfit>,
}

/// A place that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub drive: DriveId,
    pub segment: Segment,
}

/// The room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    pub bytes: u64,
    pub largest_bytes: u64,
}

impl Cluster {
    /// The place that a volume would get, if any.
    pub fn placement(&self, sought: &Sought<'_>) -> Option<Place> {
        for node in sought.preferred {
            let wanted = sought.nodes.is_empty() || sought.nodes.contains(node);
            if let Some(place) = wanted.then(|| self.place_on([*node].iter(), sought)).flatten() {
                return Some(place);
            }
        }
        if sought.nodes.is_empty() {
            self.best(|| self.all_by_fill(sought.class.media), sought)
        } else {
            self.place_on(sought.nodes.iter(), sought)
        }
    }

    /// Every drive, or those of the nodes that were asked for, with what speaks against it; best first.
    pub fn explain_placement(&self, sought: &Sought<'_>) -> (Option<Place>, Vec<Judged>) {
        let place = self.placement(sought);
        let mut judged: Vec<_> = self
            .drives
            .values()
            .filter(|drive| {
                self.nodes.get(&drive.record.node).is_some_and(|node| !node.record.purged)
            })
            .map(|drive| Judged {
                drive: drive.record.id,
                free_bytes: drive.free_bytes(),
                unfit: self.unfit(drive, sought, false),
            })
            .collect();
        let chosen = |judged: &Judged| place.is_some_and(|place| place.drive == judged.drive);
        judged.sort_by_key(|judged| {
            let drive = &self.drives[&judged.drive];
            (!chosen(judged), !judged.unfit.is_empty(), rank_of(drive), judged.drive)
        });
        (place, judged)
    }

    /// What is left for volumes of a class, on some nodes or on all.
    pub fn room(&self, sought: &Sought<'_>) -> Room {
        let smallest = Sought { bytes: 1, ..sought.clone() };
        let on = |node: &NodeId| self.nodes.get(node).into_iter().flat_map(|node| &node.drives);
        let drives: Vec<_> = if sought.nodes.is_empty() {
            self.by_fill.iter().map(|(_, _, id)| *id).collect()
        } else {
            sought.nodes.iter().flat_map(on).copied().collect()
        };
        let fitting = drives.iter().map(|id| &self.drives[id]);
        let fitting = fitting.filter(|drive| self.unfit(drive, &smallest, true).is_empty());
        fitting.fold(Room::default(), |room, drive| Room {
            bytes: room.bytes + drive.free_bytes(),
            largest_bytes: room.largest_bytes.max(drive.largest_gap()),
        })
    }

    fn place_on<'a>(
        &self,
        nodes: impl Iterator<Item = &'a NodeId>,
        sought: &Sought<'_>,
    ) -> Option<Place> {
        let known = nodes.filter_map(|node| self.nodes.get(node));
        let drives = known.flat_map(|node| &node.drives).map(|id| &self.drives[id]);
        let mut ranked: Vec<_> = drives.filter_map(rank_of).collect();
        ranked.sort_unstable_by_key(|(_, fill, id)| (*fill, *id));
        self.best(|| ranked.iter().copied(), sought)
    }

    /// The first that fits; if a group is only to be spread where it can be, then beside its own rather than nowhere.
    fn best<I: Iterator<Item = Rank>>(
        &self,
        ranked: impl Fn() -> I,
        sought: &Sought<'_>,
    ) -> Option<Place> {
        let first = |spread: Spread| {
            let class = Class { spread, ..sought.class.clone() };
            let sought = Sought { class: &class, ..sought.clone() };
            let mut fitting = ranked().filter_map(|(_, _, id)| self.place(id, &sought));
            fitting.next()
        };
        match sought.class.spread {
            Spread::Preferred => first(Spread::Required).or_else(|| first(Spread::None)),
            Spread::None | Spread::Required => first(sought.class.spread),
        }
    }

    fn place(&self, id: DriveId, sought: &Sought<'_>) -> Option<Place> {
        let drive = &self.drives[&id];
        if !self.unfit(drive, sought, true).is_empty() {
            return None;
        }
        let gap = drive.gaps().find(|gap| gap.length_bytes >= sought.bytes)?;
        let segment = Segment { start_bytes: gap.start_bytes, length_bytes: sought.bytes };
        Some(Place { drive: id, segment })
    }

    /// All drives with a label that is known, the least filled first; of one media, or of all.
    fn all_by_fill(&self, media: Option<Media>) -> impl Iterator<Item = Rank> + '_ {
        let wanted = MEDIA.into_iter().filter(move |one| media.is_none_or(|media| media == *one));
        let mut ranges: Vec<_> =
            wanted.map(|media| self.by_fill.range(ranks_of(media)).copied().peekable()).collect();
        std::iter::from_fn(move || {
            let next = ranges.iter_mut().filter_map(|range| {
                let (_, fill, id) = range.peek().copied()?;
                Some(((fill, id), range))
            });
            next.min_by_key(|(at, _)| *at)?.1.next()
        })
    }

    /// What speaks against a drive; with `first`, no more than one reason is looked for.
    fn unfit(&self, drive: &Drive, sought: &Sought<'_>, first: bool) -> Vec<Unfit> {
        let checks: [&dyn Fn() -> Option<Unfit>; 5] = [
            &|| self.out_of_operation(drive),
            &|| self.is_cordoned(drive.record.node).then_some(Unfit::Cordoned),
            &|| elsewhere(drive, sought),
            &|| no_room(drive, sought),
            &|| self.bad_company(drive, sought),
        ];
        let found = checks.iter().filter_map(|check| check());
        if first { found.take(1).collect() } else { found.collect() }
    }

    fn out_of_operation(&self, drive: &Drive) -> Option<Unfit> {
        let record = &drive.record;
        match record.state {
            State::Unknown if !record.observed.denied.is_empty() => {
                Some(Unfit::Denied(record.observed.denied.clone()))
            }
            State::Unknown | State::Attaching | State::Closing | State::Detached => {
                Some(Unfit::NotInOperation { state: record.state })
            }
            State::Attached if record.removal_wanted => Some(Unfit::Leaving),
            State::Attached if drive.contact != Contact::Confirmed => Some(Unfit::AgentAway),
            State::Attached => match &drive.space {
                None => Some(Unfit::LabelUnknown),
                Some(space) if space.conflicts() => Some(Unfit::LabelConflict),
                Some(_) => self.shrunk(record.id).map(|_| Unfit::Shrunk),
            },
        }
    }

    fn bad_company(&self, drive: &Drive, sought: &Sought<'_>) -> Option<Unfit> {
        let on_it = self.volumes_on(drive.record.id);
        if sought.class.sharing == Sharing::Exclusive {
            let dirty = drive.space.as_ref().map_or(0, |space| space.dirty_bytes());
            if !on_it.is_empty() || dirty > 0 {
                return Some(Unfit::NotEmpty { volumes: on_it.len() });
            }
        }
        let alone = drive.record.volumes.iter().find(|(_, at)| at.exclusive);
        if let Some((volume, _)) = alone {
            return Some(Unfit::Exclusive { volume: self.volume_name(*volume) });
        }
        let group = sought.group.filter(|_| sought.class.spread == Spread::Required)?;
        let same = on_it.iter().find(|volume| self.group_of(**volume).as_deref() == Some(group))?;
        Some(Unfit::SameGroup { volume: self.volume_name(*same), group: group.to_owned() })
    }

    fn group_of(&self, volume: VolumeId) -> Option<String> {
        let record = &self.volumes.get(&volume)?.record;
        crate::volume::class::group(&record.class, record.claim.as_ref())
    }
}

fn rank_of(drive: &Drive) -> Option<Rank> {
    drive.space.as_ref().map(|space| space.rank)
}

fn elsewhere(drive: &Drive, sought: &Sought<'_>) -> Option<Unfit> {
    if !sought.nodes.is_empty() && !sought.nodes.contains(&drive.record.node) {
        return Some(Unfit::OtherNode);
    }
    let (has, asked) = (drive.record.observed.media, sought.class.media?);
    (has != asked).then_some(Unfit::OtherMedia { has, asked })
}

fn no_room(drive: &Drive, sought: &Sought<'_>) -> Option<Unfit> {
    let erasing = drive.space.as_ref()?.dirty_bytes();
    let largest = drive.largest_gap();
    if largest < sought.bytes {
        return Some(Unfit::NoRoom { largest, erasing });
    }
    (!drive.has_line()).then_some(Unfit::LabelFull)
}
