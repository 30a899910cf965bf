//! Labels against records: the label is the truth about which extents are used, the registry about what is wanted.
//!
//! | on the label | in the records | what follows |
//! |---|---|---|
//! | yes | Pending | it is Created |
//! | yes | Deleting | the label is told to free it |
//! | yes | nothing | kept, counted as used, shown as an orphan, never freed unasked |
//! | no | Pending | ordered again |
//! | another volume in its place | Pending | given up: whoever wants it asks again |
//! | no | Created | Lost; never made again |
//! | other pieces of it | Created | the label's are taken, and no growth over another volume is owed any more |
//! | no | Deleting | withdrawn, by raising the sequence, then gone |
//! | overlapping | | no new volumes on the drive, and none of these is mapped |
//!
//! One label order is under way for a drive at a time. It holds all that is owed by then.

use super::super::records::{Allocation, VolumeRecord, VolumeState};
use super::super::{About, Cluster, Contact, Drive, Effects, Notice, Refused, State};
use super::space::{Erased, OnLabel, Space};
use crate::ids::{DriveId, SessionNumber, VolumeId};
use crate::label::change::{Change, LabelTold, MOST_CHANGES, applied};
use crate::label::extents::{Extent, Use};
use crate::volume::Segment;
use crate::volume::class::Erase;
use crate::volume::orders::{LabelAnswer, LabelOrder, LabelResult, VolumeOrder};

/// What a label has of a volume.
#[derive(Clone, Copy)]
struct Seen {
    /// Every part of it.
    whole: bool,
    used: bool,
    dirty: bool,
    used_bytes: u64,
    /// It is not there, and something else is where it was to be.
    displaced: bool,
}

impl Seen {
    fn of(space: &Space, on_label: OnLabel<'_, '_>, volume: VolumeId, parts: &[Segment]) -> Self {
        let used = on_label.is_used();
        Self {
            whole: (0..parts.len()).all(|part| on_label.part(part).is_some()),
            used,
            dirty: on_label.is_dirty(),
            used_bytes: on_label.used_bytes(),
            displaced: !used && parts.iter().any(|part| space.has_another(volume, *part)),
        }
    }
}

impl Cluster {
    /// An agent tells the label of a drive that it has open.
    pub(in crate::cluster) fn label_told(
        &mut self,
        session: SessionNumber,
        id: DriveId,
        told: LabelTold,
        now_ms: u64,
    ) -> Result<Effects, Refused> {
        self.check_speaker(session, id)?;
        let mut effects = Effects::default();
        if self.is_purged(self.drives[&id].record.node) {
            // What was given up is not taken back, until a person says that the host is back.
            return Ok(effects);
        }
        self.note_label(id, told);
        self.hold_against_records(id, &[], now_ms, &mut effects);
        self.order_label(id, &mut effects);
        Ok(effects)
    }

    pub(in crate::cluster) fn label_answer(
        &mut self,
        session: SessionNumber,
        answer: LabelAnswer,
        now_ms: u64,
    ) -> Result<Effects, Refused> {
        let LabelAnswer { drive: id, incarnation, on, changes, result } = answer;
        self.check_speaker(session, id)?;
        let current = self.nodes[&self.drives[&id].record.node].session;
        if current.is_none_or(|current| current.incarnation != incarnation) {
            return Err(Refused::StaleAnswer);
        }
        let drive = self.drives.get_mut(&id).expect("checked above");
        let space = drive.space.as_mut().ok_or(Refused::StaleAnswer)?;
        let order = space.ordered.take_if(|order| order.basis == on).ok_or(Refused::StaleAnswer)?;
        // An order that came twice may be answered late, when another has been decided on the same label. If it was
        // carried out that is true all the same, and the other one will be refused.
        if order.changes != changes && !matches!(result, LabelResult::Done { .. }) {
            space.ordered = Some(order);
            return Err(Refused::StaleAnswer);
        }
        let mut effects = Effects::default();
        match result {
            LabelResult::Done { now } => {
                // The same function as on the agent's side, on the same label: it gives the same.
                let changed = applied(&space.extents, &changes, space.limit_bytes);
                space.extents = changed.map_err(|_| Refused::StaleAnswer)?.extents;
                space.erased = space.erased.after(&changes);
                space.basis = now;
                space.trouble = None;
                self.rank(id);
                self.hold_against_records(id, &changes, now_ms, &mut effects);
                self.order_label(id, &mut effects);
            }
            LabelResult::Refused { why, told } => {
                let same = told.basis == space.basis;
                self.note_label(id, told);
                self.hold_against_records(id, &[], now_ms, &mut effects);
                if same {
                    // The same label would refuse the same order: it is not given again before something changes.
                    self.note_trouble(id, why, &mut effects);
                } else {
                    self.order_label(id, &mut effects);
                }
            }
            LabelResult::Failed { error } => {
                // Still owed: it is sent again, and refused then if it was carried out after all.
                space.ordered = Some(order);
                self.note_trouble(id, error, &mut effects);
                // Whoever deletes one waits no longer for a drive that does not let itself be written.
                let placed = self.drives[&id].record.volumes.keys().copied();
                let known: Vec<_> =
                    placed.filter(|volume| self.volumes.contains_key(volume)).collect();
                for volume in known {
                    self.give_up_on_the_dead(volume, id, &mut effects);
                }
            }
            LabelResult::InUse { uses } => {
                for (volume, epoch) in uses {
                    self.take_back(volume, epoch, &mut effects);
                }
                self.order_label(id, &mut effects);
            }
        }
        Ok(effects)
    }

    /// Why the label of a drive is not as it should be; told once.
    pub(super) fn note_trouble(&mut self, id: DriveId, why: String, effects: &mut Effects) {
        let text = format!("The label of {} cannot be changed: {why}.", self.describe(id));
        let drive = self.drives.get_mut(&id).expect("only known drives have labels");
        let Some(space) = &mut drive.space else { return };
        if space.trouble.as_ref() != Some(&why) {
            space.trouble = Some(why);
            effects.notices.push(Notice::warning("LabelStuck", About::Drive(id), text));
        }
    }

    /// The label order that the agent of a drive has not answered.
    pub(super) fn owed_label(&self, id: DriveId) -> Option<(SessionNumber, LabelOrder)> {
        let drive = self.drives.get(&id).filter(|drive| in_operation(drive))?;
        let ordered = drive.space.as_ref()?.ordered.clone()?;
        let node = self.nodes.get(&drive.record.node)?;
        let session = node.session.filter(|_| node.rewound.is_empty())?;
        Some((session.number, ordered))
    }

    fn next_label_order(&self, id: DriveId) -> Option<(SessionNumber, LabelOrder)> {
        let drive = self.drives.get(&id)?;
        let space = drive.space.as_ref().filter(|space| space.ordered.is_none())?;
        let node = self.nodes.get(&drive.record.node)?;
        let session = node.session.filter(|_| node.rewound.is_empty())?;
        let changes = if in_operation(drive) && !space.conflicts() {
            self.owed_changes(id)
        } else {
            Vec::new()
        };
        let (term, incarnation, basis) = (self.term(), session.incarnation, space.basis);
        let order = LabelOrder { drive: id, term, incarnation, basis, changes };
        (!order.changes.is_empty()).then_some((session.number, order))
    }

    /// Gives the next label order, if one is owed and none is under way.
    pub(in crate::cluster) fn order_label(&mut self, id: DriveId, effects: &mut Effects) {
        let Some((session, order)) = self.next_label_order(id) else { return };
        let drive = self.drives.get_mut(&id).expect("looked up above");
        drive.space.as_mut().expect("looked up above").ordered = Some(order.clone());
        effects.volume_orders.push((session, VolumeOrder::Label(order)));
    }

    fn owed_changes(&self, id: DriveId) -> Vec<Change> {
        let drive = &self.drives[&id];
        let Some(space) = &drive.space else { return Vec::new() };
        let lines = space.by_volume();
        let mut changes = Vec::new();
        for (volume, at) in &drive.record.volumes {
            let Some(known) = self.volumes.get(volume) else { continue };
            let on_label = lines.of(*volume);
            match known.record.state {
                VolumeState::Pending | VolumeState::Created => {
                    let owed = |(number, part): (usize, &Segment)| match on_label.part(number) {
                        // It would have the whole order refused, now and ever again.
                        None if space.has_another(*volume, *part) => None,
                        None => Some(Change::Place(extent(&known.record, number, *part))),
                        Some(there) if there.length_bytes < part.length_bytes => {
                            Some(Change::Grow {
                                volume: *volume,
                                part: there.part,
                                length_bytes: part.length_bytes,
                            })
                        }
                        Some(_) => None,
                    };
                    changes.extend(at.parts.iter().enumerate().filter_map(owed));
                }
                VolumeState::Deleting | VolumeState::Deleted if known.fence.is_some() => {}
                VolumeState::Deleting | VolumeState::Deleted if on_label.is_used() => {
                    changes.push(Change::Free { volume: *volume });
                }
                // An order to place it may still be under way: the sequence that rises refuses it for good.
                VolumeState::Deleting | VolumeState::Deleted if !on_label.is_dirty() => {
                    changes.push(Change::Withdraw { volume: *volume });
                }
                VolumeState::Deleting | VolumeState::Deleted | VolumeState::Lost => {}
            }
        }
        changes.truncate(MOST_CHANGES);
        // A drive that is to leave keeps nobody waiting, but a volume that waits for its erasure keeps the drive.
        let due = |volume: &VolumeId| {
            !drive.record.removal_wanted || drive.record.volumes.contains_key(volume)
        };
        // With nothing else to do, every turn is its own.
        let whole = Erased::TURN_BYTES;
        let turn = if changes.is_empty() { whole } else { space.erased.left_bytes() };
        match erase_step(&space.extents, turn, due) {
            Some(erase) => vec![erase],
            None => changes,
        }
    }

    /// Draws from a label what the table above says. `done` is what was just changed on it.
    fn hold_against_records(
        &mut self,
        id: DriveId,
        done: &[Change],
        now_ms: u64,
        effects: &mut Effects,
    ) {
        self.take_back_what_is_found(id, now_ms, effects);
        self.take_pieces_as_they_are(id, effects);
        let drive = &self.drives[&id];
        let space = drive.space.as_ref().expect("a label was told");
        let lines = space.by_volume();
        let seen = |(volume, at): (&VolumeId, &Allocation)| {
            (*volume, Seen::of(space, lines.of(*volume), *volume, &at.parts))
        };
        let placed: Vec<_> = drive.record.volumes.iter().map(seen).collect();
        for (volume, seen) in placed {
            self.hold_against_record(id, volume, seen, done, now_ms, effects);
        }
    }

    fn hold_against_record(
        &mut self,
        id: DriveId,
        volume: VolumeId,
        seen: Seen,
        done: &[Change],
        now_ms: u64,
        effects: &mut Effects,
    ) {
        let Seen { whole, used, dirty, used_bytes: on_label, displaced } = seen;
        let Some(known) = self.volumes.get(&volume) else {
            // Written for a volume that never was: the store keeps what was written before a crash.
            self.deallocate(volume, id, effects);
            return;
        };
        let (name, state) = (known.record.name.clone(), known.record.state);
        match state {
            VolumeState::Pending if whole => {
                let text = format!("Volume {name} is made, on {}.", self.describe(id));
                effects.notices.push(Notice::plain("VolumeCreated", About::Volume(volume), text));
                self.change_volume(volume, effects, |record| {
                    record.state = VolumeState::Created;
                    record.size_bytes = on_label;
                    record.since_ms = now_ms;
                });
            }
            VolumeState::Pending if displaced => {
                // Only a registry that was restored has decided so. Nobody was told that it is made.
                let text = format!(
                    "Volume {name} is not made: something else has its place on {}. Ask for it again.",
                    self.describe(id)
                );
                effects.notices.push(Notice::warning("PlacementLost", About::Volume(volume), text));
                self.change_volume(volume, effects, |record| {
                    record.state = VolumeState::Deleting;
                    record.since_ms = now_ms;
                });
            }
            VolumeState::Created if !used => {
                let text = format!(
                    "Volume {name} is lost: the label of {} does not have it. It is not made again.",
                    self.describe(id)
                );
                effects.notices.push(Notice::warning("VolumeLost", About::Volume(volume), text));
                self.change_volume(volume, effects, |record| {
                    record.state = VolumeState::Lost;
                    record.since_ms = now_ms;
                });
            }
            VolumeState::Created if on_label > known.record.size_bytes => {
                self.change_volume(volume, effects, |record| record.size_bytes = on_label);
            }
            VolumeState::Created if whole => self.found_unused(volume, effects),
            VolumeState::Lost if whole => {
                let text = format!("Volume {name} is found again, on {}.", self.describe(id));
                effects.notices.push(Notice::plain("VolumeFound", About::Volume(volume), text));
                self.change_volume(volume, effects, |record| {
                    record.state = VolumeState::Created;
                    record.since_ms = now_ms;
                });
            }
            VolumeState::Deleting | VolumeState::Deleted if !used => {
                let required = known.record.class.erase == Erase::Required;
                let withdrawn = done.contains(&Change::Withdraw { volume });
                let erased = done.iter().any(|change| {
                    matches!(change, Change::Erase { volume: erased, .. } if *erased == volume)
                });
                if withdrawn || erased && !dirty || dirty && !required {
                    self.deallocate(volume, id, effects);
                    self.forget_volume(volume, effects);
                }
            }
            VolumeState::Pending
            | VolumeState::Created
            | VolumeState::Deleting
            | VolumeState::Deleted
            | VolumeState::Lost => {}
        }
    }

    /// A volume that the registry knows and has no place for, and that is on this label, is there.
    fn take_back_what_is_found(&mut self, id: DriveId, now_ms: u64, effects: &mut Effects) {
        let space = self.drives[&id].space.as_ref().expect("a label was told");
        let known = |extent: &&Extent| {
            self.volumes.get(&extent.volume).is_some_and(|volume| volume.drive.is_none())
        };
        let found: Vec<VolumeId> = space.used().filter(known).map(|extent| extent.volume).collect();
        for volume in found {
            let parts = self.parts_on_label(id, volume);
            let space = self.drives[&id].space.as_ref().expect("a label was told");
            let seen = Seen::of(space, space.by_volume().of(volume), volume, &parts);
            let exclusive = false;
            self.allocate(volume, id, Allocation { parts, exclusive }, effects);
            self.hold_against_record(id, volume, seen, &[], now_ms, effects);
        }
    }

    /// A registry that was restored may have decided on other pieces of a volume than the label has by now.
    fn take_pieces_as_they_are(&mut self, id: DriveId, effects: &mut Effects) {
        let drive = &self.drives[&id];
        let space = drive.space.as_ref().expect("a label was told");
        let lines = space.by_volume();
        let made = |volume: &VolumeId| {
            self.volumes.get(volume).is_some_and(|known| known.record.state == VolumeState::Created)
        };
        let placed = drive.record.volumes.iter().filter(|(volume, _)| made(volume));
        let other = placed.filter_map(|(volume, at)| {
            let pieces = pieces_as_they_are(space, lines.of(*volume), *volume, &at.parts)?;
            Some((*volume, pieces))
        });
        let other: Vec<_> = other.collect();
        for (volume, pieces) in other {
            self.change_drive(id, effects, |record| {
                record.volumes.get_mut(&volume).expect("listed above").parts = pieces;
            });
            self.rank(id);
        }
    }

    pub(super) fn parts_on_label(&self, id: DriveId, volume: VolumeId) -> Vec<Segment> {
        let space = self.drives[&id].space.as_ref();
        let mut extents: Vec<_> = space
            .iter()
            .flat_map(|space| space.used())
            .filter(|extent| extent.volume == volume)
            .collect();
        extents.sort_by_key(|extent| extent.part);
        extents.into_iter().map(Extent::segment).collect()
    }

    /// Only the newest session of the node that a drive is on may speak of it.
    fn check_speaker(&self, session: SessionNumber, id: DriveId) -> Result<(), Refused> {
        let node = self.speaker(session)?;
        let drive = self.drives.get(&id).ok_or(Refused::NoSuchDrive)?;
        if drive.record.node == node { Ok(()) } else { Err(Refused::NoSuchDrive) }
    }
}

fn extent(record: &VolumeRecord, part: usize, at: Segment) -> Extent {
    Extent {
        volume: record.id,
        part: u32::try_from(part).expect("a volume has few parts"),
        start_bytes: at.start_bytes,
        length_bytes: at.length_bytes,
        usage: Use::Used,
        formatted: false,
        name: record.name.clone(),
        claim: record.claim.clone(),
    }
}

/// The pieces of a volume that is on a label: those of the label, and of what was decided beyond them what does not lie
/// over another volume. None if that is what was decided.
fn pieces_as_they_are(
    space: &Space,
    on_label: OnLabel<'_, '_>,
    volume: VolumeId,
    decided: &[Segment],
) -> Option<Vec<Segment>> {
    let there = |part: usize| on_label.part(part).map(Extent::segment);
    let lines = (0..).map_while(there).count();
    let free = |piece: &Segment| !space.has_another(volume, *piece);
    let piece = |part: usize| match (there(part), decided.get(part)) {
        // It is about to grow.
        (Some(there), Some(decided))
            if decided.start_bytes == there.start_bytes
                && decided.length_bytes > there.length_bytes
                && free(decided) =>
        {
            Some(*decided)
        }
        (Some(there), _) => Some(there),
        (None, decided) => decided.copied().filter(free),
    };
    // Without any it is lost, and that is for others to say.
    let pieces: Vec<_> = (0..lines.max(decided.len())).map_while(piece).collect();
    (lines > 0 && pieces != decided).then_some(pieces)
}

fn in_operation(drive: &Drive) -> bool {
    drive.record.state == State::Attached && drive.contact == Contact::Confirmed
}

/// The next piece to erase of the volumes whose turn it is, if there is one and this much may be.
fn erase_step(
    extents: &[Extent],
    most_bytes: u64,
    due: impl Fn(&VolumeId) -> bool,
) -> Option<Change> {
    let dirty = |extent: &&Extent| extent.usage == Use::Dirty && due(&extent.volume);
    let dirty = extents.iter().find(dirty).filter(|_| most_bytes > 0)?;
    Some(Change::Erase {
        volume: dirty.volume,
        part: dirty.part,
        length_bytes: dirty.length_bytes.min(most_bytes),
    })
}
