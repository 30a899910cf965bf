//! What must hold of volumes: at every change of a label, at every use, at every answer to a client, and in the end.

use std::ops::Range;

use hotbay_core::cluster::{AttachmentState, Cluster, Contact, Drive, State, Volume, VolumeState};
use hotbay_core::ids::{SessionNumber, VolumeId};
use hotbay_core::label::change::{Change, Changed};
use hotbay_core::label::extents::{Use, in_conflict};
use hotbay_core::order::Goal;
use hotbay_core::volume::orders::{LabelOrder, UseAnswer, UseOrder, UseResult, VolumeOrder};
use hotbay_core::volume::{Epoch, Segment};

use super::Invariant;
use super::pace::{ORDERS_IN_A_MINUTE, Recent};
use crate::fault::Fault;
use crate::machine::short;
use crate::volumes::{Seen, VolumeTold};
use crate::world::World;

impl World {
    /// A label is about to change, and an erase to begin: 5, 6 and 8.
    pub(crate) fn label_may_change(&mut self, disk: usize, order: &LabelOrder, made: &Changed) {
        for change in &order.changes {
            match change {
                Change::Place(extent) => {
                    if extent.part > 0 {
                        self.fault(Fault::VolumeInPieces);
                    }
                    let piece = extent.start_bytes..extent.end_bytes();
                    self.given_out_clean(disk, extent.volume, piece);
                }
                Change::Grow { volume, part, length_bytes } => {
                    let label = &self.disks[disk].label;
                    let grown = label
                        .used()
                        .find(|extent| extent.volume == *volume && extent.part == *part);
                    if let Some(extent) = grown {
                        let start = extent.start_bytes;
                        let piece = extent.end_bytes()..start + length_bytes;
                        self.given_out_clean(disk, *volume, piece);
                    }
                }
                Change::Free { volume } | Change::Withdraw { volume } => {
                    self.taken_from(disk, *volume);
                }
                // No agent here makes filesystems.
                Change::Formatted { .. } => {}
                Change::Erase { volume, .. } => {
                    if let Some(range) = made.erase.clone() {
                        self.erased(disk, *volume, range);
                    }
                }
            }
        }
        if in_conflict(&made.extents).next().is_some() {
            let what = format!("extents on {} overlap", short(order.drive));
            self.breaks(Invariant::TwoOwners, what);
        }
    }

    /// What a volume gets is zero, and nobody reaches into it (8).
    fn given_out_clean(&mut self, disk: usize, volume: VolumeId, piece: Range<u64>) {
        let owner = self.disks[disk].label.owners(piece.clone()).next();
        if let Some(other) = owner {
            let what = format!("{volume} gets bytes {piece:?} with data of {other}");
            self.breaks(Invariant::OldData, what);
        }
        let over = |segment: &Segment| {
            segment.start_bytes < piece.end && piece.start < segment.end_bytes()
        };
        let mapped = self.machines.iter().flat_map(|machine| &machine.mapped);
        let other = mapped
            .filter(|(other, mapping)| **other != volume && mapping.disk == disk)
            .find(|(_, mapping)| mapping.segments.iter().any(over));
        if let Some((other, _)) = other {
            let what = format!("{volume} gets bytes {piece:?}, which {other} is written to");
            self.breaks(Invariant::TwoOwners, what);
        }
    }

    /// A volume is taken off a label: somebody wanted that, and nobody uses it (6, 8).
    fn taken_from(&mut self, disk: usize, volume: VolumeId) {
        if self.disks[disk].label.bytes_of(volume) == 0 {
            return;
        }
        if self.ledger.kept.contains_key(&volume) {
            let what = format!("{volume} is freed, and nobody asked for that");
            self.breaks(Invariant::VolumeDestroyed, what);
        }
        let user = self.machines.iter().find(|machine| {
            machine.mapped.get(&volume).is_some_and(|mapping| mapping.disk == disk)
        });
        if let Some(user) = user {
            let what = format!("{volume} is freed while {} uses it", user.name);
            self.breaks(Invariant::FreedInUse, what);
        }
    }

    /// Zeroed is only what the label calls dirty and of the volume named (8).
    fn erased(&mut self, disk: usize, volume: VolumeId, range: Range<u64>) {
        let label = &self.disks[disk].label;
        let dirty = label.extents.iter().any(|extent| {
            extent.volume == volume
                && extent.usage == Use::Dirty
                && extent.start_bytes <= range.start
                && range.end <= extent.end_bytes()
        });
        let other = label.owners(range.clone()).find(|owner| *owner != volume);
        if !dirty || other.is_some() {
            let what = format!("bytes {range:?} are erased for {volume}, and are of {other:?}");
            self.breaks(Invariant::ErasedOther, what);
        }
    }

    /// A user writes where it reads zeroes, or its own (8).
    pub(crate) fn read_before_write(&mut self, volume: VolumeId, before: Option<VolumeId>) {
        if let Some(other) = before.filter(|other| *other != volume) {
            let what = format!("{volume} finds bytes of {other}");
            self.breaks(Invariant::OldData, what);
        }
    }

    /// A volume is about to be reached on a machine: 6 and 7.
    pub(crate) fn may_be_mapped(
        &mut self,
        machine: usize,
        volume: VolumeId,
        (epoch, before): (Epoch, Option<Epoch>),
        segments: &[Segment],
    ) {
        if segments.is_empty() && self.ledger.kept.contains_key(&volume) {
            let what = format!("{volume} is granted, and not on the label");
            self.breaks(Invariant::NotOnLabel, what);
        }
        let mut others = self.machines.iter().enumerate().filter(|(other, _)| *other != machine);
        if let Some((_, other)) = others.find(|(_, other)| other.mapped.contains_key(&volume)) {
            let what = format!("{volume} is in use on {} as well", other.name);
            self.breaks(Invariant::TwoWriters, what);
        }
        let newest = self.ledger.epochs.entry(volume).or_default();
        let older = epoch < *newest || before.is_some_and(|before| epoch < before);
        *newest = epoch.max(*newest);
        if older {
            let what = format!("{volume} is used under epoch {epoch} after a later one");
            self.breaks(Invariant::TwoWriters, what);
        }
    }

    /// An agent answers about a use: a grant is on its disk, and what was taken back is used no more (6, 7).
    pub(crate) fn answers_about_use(&mut self, machine: usize, answer: &UseAnswer) {
        let UseAnswer { volume, epoch, granted, .. } = *answer;
        if answer.result != UseResult::Done {
            return;
        }
        let there = &self.machines[machine];
        let mapped = there.mapped.get(&volume);
        if !granted && mapped.is_some_and(|mapping| mapping.epoch <= epoch) {
            let what = format!("{volume} is said to be unused, epoch {epoch}");
            return self.breaks(Invariant::TwoWriters, what);
        }
        let saved = there.stored().and_then(|record| record.volumes.get(&volume));
        let saved = saved.is_some_and(|memory| memory.grant.epoch >= epoch);
        if granted && !saved {
            let what = format!("the use of {volume} under epoch {epoch}");
            self.breaks(Invariant::AnsweredBeforeSaved, what);
        }
    }

    /// A client asks for its volume to be deleted.
    pub(crate) fn may_go(&mut self, volume: VolumeId) {
        self.ledger.kept.remove(&volume);
        self.ledger.given_back.insert(volume);
        self.ledger.volumes.values_mut().for_each(|volumes| {
            volumes.remove(&volume);
        });
    }

    /// A client is told of a volume: what is Created is on record, and on its drive's label (7).
    pub(crate) fn volume_told(&mut self, site: usize, told: &VolumeTold) {
        let VolumeTold::There(seen) = told else { return };
        let Seen { volume, state, size_bytes, drive, attachments } = seen;
        let known = self.sites[site].process.as_ref().and_then(|it| it.cluster.volume(*volume));
        // A use may have been asked for since this was decided.
        if attachments.is_empty() && known.is_some_and(|known| known.attachments.is_empty()) {
            self.ledger.unused.insert((site, *volume));
        }
        let (VolumeState::Created, Some(drive)) = (*state, *drive) else { return };
        // What was told before the deletion was asked for may be heard after it.
        if self.ledger.given_back.contains(volume) {
            return;
        }
        let durable = self.sites[site].store.volumes.get(volume);
        if durable.is_none_or(|record| record.size_bytes < *size_bytes) {
            self.breaks(Invariant::Forgotten, format!("{volume} was told to be made"));
        }
        let on_label = |disk: &crate::drive::Disk| disk.label.bytes_of(*volume) >= *size_bytes;
        if !self.disks.iter().any(on_label) {
            let what = format!("{volume} with {size_bytes} bytes, on {}", short(drive));
            self.breaks(Invariant::NotOnLabel, what);
        }
        self.ledger.kept.insert(*volume, *size_bytes);
        // A host that was given up is closed whatever it is found to have.
        let cluster = self.sites[site].process.as_ref().map(|process| &process.cluster);
        let known = cluster.and_then(|cluster| cluster.drive(drive));
        if let Some(known) = known.filter(|drive| drive.record.state.goal() == Goal::Attach) {
            let told = self.ledger.volumes.entry(drive).or_default();
            told.entry(*volume).or_insert(known.record.generation);
        }
    }

    /// An order about volumes leaves the registry: not too often while nothing has changed.
    pub(crate) fn volume_order_leaves(
        &mut self,
        site: usize,
        session: SessionNumber,
        order: &VolumeOrder,
    ) {
        self.volume_order_is_durable(site, order);
        let reign = self.sites[site].process.as_ref().expect("it sends").reign;
        let (about, number) = match order {
            VolumeOrder::Label(order) => ((order.drive, None), order.basis.sequence),
            VolumeOrder::Use(UseOrder { drive, volume, grant, .. }) => {
                ((*drive, Some(*volume)), grant.epoch.get() * 2 + u64::from(grant.granted))
            }
        };
        let key = (number, reign, session.get());
        let recent = self.ledger.volume_orders.entry((site, about));
        let count = recent.or_insert_with(|| Recent::new(key)).count(key, self.now);
        // Every request that is repeated has the use ordered again, besides the registry's own pace.
        // What was asked for while a record could not be written leaves all at once.
        let most = match (about.1, self.scenario.records) {
            (None, _) => ORDERS_IN_A_MINUTE,
            (Some(_), None) => 60,
            (Some(_), Some(_)) => 120,
        };
        if count > most {
            let what = format!("{count} orders in a minute about volumes on {}", short(about.0));
            self.breaks(Invariant::HotLoop, what);
        }
    }

    /// What an order about volumes rests on is durable: that a volume may go, that a use is granted (7).
    fn volume_order_is_durable(&mut self, site: usize, order: &VolumeOrder) {
        let volumes = &self.sites[site].store.volumes;
        let forgotten = match order {
            VolumeOrder::Label(order) => order.changes.iter().find_map(|change| match change {
                Change::Free { volume } | Change::Withdraw { volume } => {
                    let state = volumes.get(volume).map(|record| record.state)?;
                    let goes = matches!(state, VolumeState::Deleting | VolumeState::Deleted);
                    (!goes).then_some(*volume)
                }
                Change::Place(_)
                | Change::Grow { .. }
                | Change::Erase { .. }
                | Change::Formatted { .. } => None,
            }),
            VolumeOrder::Use(UseOrder { volume, grant, .. }) => {
                // What is taken back may be a use that the registry has forgotten.
                let durable = volumes.get(volume).map(|record| record.epoch);
                durable
                    .filter(|_| grant.granted)
                    .filter(|durable| *durable < grant.epoch)
                    .map(|_| *volume)
            }
        };
        if let Some(volume) = forgotten {
            let what = format!("{volume} is ordered about before that is on record: {order:?}");
            self.breaks(Invariant::Forgotten, what);
        }
    }

    /// The registry hears of a use: what it orders about the label from here on follows from something new.
    pub(crate) fn use_is_answered(&mut self, site: usize, volume: VolumeId) {
        let cluster = self.sites[site].process.as_ref().map(|process| &process.cluster);
        let drive = cluster.and_then(|cluster| cluster.volume(volume)?.drive);
        if let Some(drive) = drive {
            self.ledger.volume_orders.remove(&(site, (drive, None)));
        }
    }

    /// What is not as it should be with volumes, when all trouble has been over for a while (7, 10).
    pub(super) fn volumes_unsettled(&self) -> Option<String> {
        let lost = self.ledger.kept.iter().find(|(volume, bytes)| {
            !self.disks.iter().any(|disk| disk.label.bytes_of(**volume) >= **bytes)
        });
        if let Some((volume, bytes)) = lost {
            return Some(format!("{volume} with {bytes} bytes is on no label"));
        }
        let clusters = self.sites.iter().filter_map(|site| Some(&site.process.as_ref()?.cluster));
        clusters.into_iter().find_map(|cluster| {
            let volumes = cluster.volumes_after(None);
            let volume = volumes.filter_map(|volume| self.volume_unsettled(cluster, volume)).next();
            volume
                .or_else(|| cluster.drives().find_map(|drive| self.label_unsettled(cluster, drive)))
        })
    }

    fn volume_unsettled(&self, cluster: &Cluster, volume: &Volume) -> Option<String> {
        let (id, state) = (volume.record.id, volume.record.state);
        let text = |why: &str| Some(format!("volume {id} is {state}: {why}"));
        let drive = volume.drive.and_then(|drive| cluster.drive(drive));
        let waits = drive.is_some_and(|drive| waits(cluster, drive));
        for (node, attachment) in &volume.attachments {
            let away = cluster.node(*node).is_none_or(|node| {
                node.session.is_none() || !node.rewound.is_empty() || node.record.purged
            });
            let said = away || attachment.waits.is_some() || drive.is_none();
            if attachment.record.state != AttachmentState::Attached && !said {
                return text("its use is neither granted nor over, and nothing is said");
            }
        }
        match state {
            VolumeState::Created => None,
            VolumeState::Lost if self.scenario.forked() || self.scenario.purges => None,
            VolumeState::Lost => text("nobody took it away"),
            // Of an action that a crash cut short the first record may be there alone. Nobody was told of it, unless by
            // another registry, and who asked asks again: with that it is placed. Clients are silent by now.
            VolumeState::Pending
                if drive.is_none()
                    && self.scenario.records.is_some()
                    && (self.scenario.forked() || !self.ledger.kept.contains_key(&id)) =>
            {
                None
            }
            // What a registry before has half deleted goes when an agent registers; none does while all know more than
            // this registry.
            VolumeState::Deleting | VolumeState::Deleted
                if drive.is_none()
                    && self.scenario.forked()
                    && cluster.nodes().all(|node| node.session.is_none()) =>
            {
                None
            }
            VolumeState::Pending | VolumeState::Deleting | VolumeState::Deleted => {
                if drive.is_none() {
                    return text("it has no drive");
                }
                if waits { None } else { text("nothing is said") }
            }
        }
    }

    /// Whether what the registry knows of a label is not what is on it, or owed still.
    fn label_unsettled(&self, cluster: &Cluster, drive: &Drive) -> Option<String> {
        let id = drive.record.id;
        // Of one that was pulled its agent knows the label as it was.
        if waits(cluster, drive) || drive.record.state != State::Attached || !drive.present {
            return None;
        }
        let space = drive.space.as_ref()?;
        let on_disk = self.disks.iter().filter_map(|disk| disk.label.told());
        let mut of_drive = on_disk.filter(|told| told.basis == space.basis);
        if !of_drive.any(|told| told.extents == space.extents) {
            return Some(format!("the label of {} is not what the registry knows", short(id)));
        }
        if !cluster.owed_volume_orders(id).is_empty() {
            return Some(format!("something about volumes is owed on {}", short(id)));
        }
        let dirty = space.dirty_bytes() > 0 && !drive.record.removal_wanted;
        dirty.then(|| format!("{} is not erased", short(id)))
    }
}

/// Whether there is a reason, told to people, why nothing becomes of a drive's volumes.
fn waits(cluster: &Cluster, drive: &Drive) -> bool {
    let node = cluster.node(drive.record.node);
    let away = node.is_none_or(|node| node.session.is_none() || !node.rewound.is_empty());
    let in_operation = drive.record.state == State::Attached && drive.contact == Contact::Confirmed;
    let trouble = drive.space.as_ref().is_some_and(|space| space.trouble.is_some());
    away || !in_operation || trouble
}
