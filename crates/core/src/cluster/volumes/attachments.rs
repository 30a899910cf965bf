//! Who may use a volume. A use is granted under an epoch, and counts when the agent has it on its own disk.

use std::collections::BTreeSet;

use super::super::records::{AttachmentRecord, AttachmentState, VolumeState};
use super::super::{About, Cluster, Effects, Notice, Refused, Write};
use super::VolumeRefused;
use crate::ids::{AttachmentId, DriveId, NodeId, SessionNumber, VolumeId};
use crate::message::UseReport;
use crate::volume::Epoch;
use crate::volume::orders::{Grant, StagedAs, UseAnswer, UseOrder, UseResult, VolumeOrder};

/// A volume on a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attachment {
    pub record: AttachmentRecord,
    /// The agent has confirmed it in this session.
    pub(super) confirmed: bool,
    /// What the agent waits for, or why it refuses.
    pub waits: Option<String>,
    /// How the agent has staged it, if it has said so since this registry started.
    pub staged: Option<StagedAs>,
    /// Why the agent cannot reach it, if it said so.
    pub(super) inaccessible: Option<String>,
}

impl Attachment {
    /// The agent must say again that it keeps the grant.
    pub(in crate::cluster) fn unconfirm(&mut self) {
        self.confirmed = false;
    }
}

impl Cluster {
    pub(super) fn attach_volume(
        &mut self,
        id: AttachmentId,
        (volume_id, node): (VolumeId, NodeId),
        read_only: bool,
        now_ms: u64,
        effects: &mut Effects,
    ) -> Result<(), VolumeRefused> {
        let volume = self.volumes.get(&volume_id).ok_or(VolumeRefused::NoSuchVolume)?;
        let known = self.nodes.get(&node).filter(|node| !node.record.purged);
        let name = known.ok_or(VolumeRefused::NoSuchNode)?.record.name.clone();
        // A pod that is to start although its volume is dead gets a use of what is lost as well.
        let covered = volume.record.state == VolumeState::Lost
            && volume.drive.is_some()
            && volume.ignores_if_inaccessible();
        if volume.record.state != VolumeState::Created && !covered {
            return Err(VolumeRefused::WrongState { state: volume.record.state });
        }
        let on = volume.drive.map(|drive| self.drives[&drive].record.node);
        if let Some(on) = on.filter(|on| *on != node) {
            return Err(VolumeRefused::OnOtherNode { node: self.node_name(on) });
        }
        if self.rewound(node) {
            return Err(VolumeRefused::Rewound { node: name });
        }
        if let Some(other) = volume.attachments.keys().find(|other| **other != node) {
            return Err(VolumeRefused::InUse { node: self.node_name(*other) });
        }
        match volume.attachments.get(&node).map(|there| there.record.clone()) {
            Some(there) if there.state == AttachmentState::Detaching => {
                return Err(VolumeRefused::InUse { node: name });
            }
            Some(there) if there.read_only == read_only => {}
            // The same use, with other rights: the agent hears of it under the same epoch.
            Some(there) => {
                self.put_attachment(AttachmentRecord { read_only, ..there }, effects);
            }
            None => {
                let epoch = volume.record.epoch.next();
                self.change_volume(volume_id, effects, |record| record.epoch = epoch);
                let record = AttachmentRecord {
                    id,
                    volume: volume_id,
                    node,
                    epoch,
                    state: AttachmentState::Attaching,
                    read_only,
                    since_ms: now_ms,
                };
                self.put_attachment(record, effects);
            }
        }
        self.order_use(volume_id, node, effects);
        Ok(())
    }

    pub(super) fn detach_volume(
        &mut self,
        volume_id: VolumeId,
        node: Option<NodeId>,
        now_ms: u64,
        effects: &mut Effects,
    ) -> Result<(), VolumeRefused> {
        // Nothing is attached of what is not there.
        let Some(volume) = self.volumes.get(&volume_id) else { return Ok(()) };
        let meant = |on: &&NodeId| node.is_none_or(|node| node == **on);
        let nodes: Vec<_> = volume.attachments.keys().filter(meant).copied().collect();
        for node in nodes {
            let record = self.volumes[&volume_id].attachments[&node].record.clone();
            if record.state != AttachmentState::Detaching {
                let state = AttachmentState::Detaching;
                self.put_attachment(
                    AttachmentRecord { state, since_ms: now_ms, ..record },
                    effects,
                );
            }
            // A machine that was given up uses nothing any more.
            if self.nodes.get(&node).is_none_or(|node| node.record.purged) {
                self.drop_attachment(volume_id, node, effects);
            } else {
                self.order_use(volume_id, node, effects);
            }
        }
        Ok(())
    }

    pub(in crate::cluster) fn use_answer(
        &mut self,
        session: SessionNumber,
        answer: UseAnswer,
        now_ms: u64,
    ) -> Result<Effects, Refused> {
        let node = self.speaker(session)?;
        let current = self.nodes.get(&node).and_then(|node| node.session);
        let current = current.ok_or(Refused::OldSession)?;
        let UseAnswer { volume, incarnation, epoch, granted, result } = answer;
        if incarnation == current.incarnation && !granted && self.fenced(volume, node, epoch) {
            return Ok(self.fence_answer(volume, result));
        }
        let there =
            self.volumes.get_mut(&volume).and_then(|known| known.attachments.get_mut(&node));
        let there = there.ok_or(Refused::StaleAnswer)?;
        let wanted = there.record.state != AttachmentState::Detaching;
        if incarnation != current.incarnation || epoch != there.record.epoch || granted != wanted {
            return Err(Refused::StaleAnswer);
        }
        let mut effects = Effects::default();
        match result {
            UseResult::Done => {
                there.confirmed = true;
                there.waits = None;
                match there.record.state {
                    AttachmentState::Attaching => {
                        let state = AttachmentState::Attached;
                        let record =
                            AttachmentRecord { state, since_ms: now_ms, ..there.record.clone() };
                        let text = format!(
                            "Volume {} may be used on {}.",
                            self.volume_name(volume),
                            self.node_name(node)
                        );
                        effects.notices.push(Notice::plain(
                            "VolumeAttached",
                            About::Volume(volume),
                            text,
                        ));
                        self.put_attachment(record, &mut effects);
                        self.confirm(volume, node);
                    }
                    AttachmentState::Attached => {}
                    AttachmentState::Detaching => self.drop_attachment(volume, node, &mut effects),
                }
            }
            UseResult::Waiting { why } => there.waits = Some(why),
            UseResult::Refused { why, seen } => {
                there.waits = Some(why);
                self.use_above(volume, node, seen, &mut effects);
            }
        }
        Ok(effects)
    }

    /// Takes over what a node knows of the use of a volume: no later one gets a number that it has seen, and one that
    /// it was granted and this registry has forgotten is on record again, under `id` if it has to be made.
    pub(in crate::cluster) fn adopt_use(
        &mut self,
        id: AttachmentId,
        node: NodeId,
        seen: &UseReport,
        now_ms: u64,
        effects: &mut Effects,
    ) {
        let UseReport { volume: volume_id, grant } = *seen;
        let Some(volume) = self.volumes.get(&volume_id) else { return };
        let ours = volume.record.epoch;
        let reached = volume.drive.is_some_and(|drive| self.drives[&drive].record.node == node);
        let there = volume.attachments.get(&node).map(|there| there.record.clone());
        if grant.epoch > ours {
            self.change_volume(volume_id, effects, |record| record.epoch = grant.epoch);
        }
        let outdated = there.as_ref().is_some_and(|there| there.epoch > grant.epoch);
        if grant.epoch < ours || outdated || !reached {
            return;
        }
        let state = match (&there, grant.granted) {
            (None, false) => return,
            (Some(_), false) => AttachmentState::Detaching,
            (Some(there), true) if there.epoch == grant.epoch => there.state,
            (Some(_) | None, true) => AttachmentState::Attached,
        };
        let record = AttachmentRecord {
            id: there.map_or(id, |there| there.id),
            volume: volume_id,
            node,
            epoch: grant.epoch,
            state,
            read_only: grant.read_only,
            since_ms: now_ms,
        };
        self.put_attachment(record, effects);
    }

    /// The agent has seen uses that this registry has forgotten: its own begin above them.
    fn use_above(&mut self, id: VolumeId, node: NodeId, seen: Epoch, effects: &mut Effects) {
        let known = self.volumes.get(&id).expect("only known volumes are attached");
        let record = known.attachments[&node].record.clone();
        let epoch = seen.next().max(known.record.epoch);
        if record.epoch >= epoch {
            return;
        }
        self.change_volume(id, effects, |record| record.epoch = epoch);
        self.put_attachment(AttachmentRecord { epoch, ..record }, effects);
        self.order_use(id, node, effects);
    }

    /// A volume is to be freed, and its agent says that it may be used: that use is taken back first.
    pub(super) fn take_back(&mut self, volume: VolumeId, epoch: Epoch, effects: &mut Effects) {
        let Some(known) = self.volumes.get_mut(&volume) else { return };
        known.fence = Some(epoch);
        effects.volume_orders.extend(
            self.fence_order(volume).map(|(session, order)| (session, VolumeOrder::Use(order))),
        );
    }

    fn fenced(&self, volume: VolumeId, node: NodeId, epoch: Epoch) -> bool {
        let Some(known) = self.volumes.get(&volume).filter(|known| known.fence == Some(epoch))
        else {
            return false;
        };
        known.drive.is_some_and(|drive| self.drives[&drive].record.node == node)
    }

    /// Nothing uses it any more: it is freed now. Or something still does, and the drive's label has to wait.
    fn fence_answer(&mut self, volume: VolumeId, result: UseResult) -> Effects {
        let mut effects = Effects::default();
        let drive = self.volumes[&volume].drive.expect("it is fenced on its drive");
        match result {
            UseResult::Done => {
                self.volumes.get_mut(&volume).expect("it is fenced").fence = None;
                self.order_label(drive, &mut effects);
            }
            UseResult::Waiting { why } | UseResult::Refused { why, .. } => {
                let why = format!("volume {} is still in use: {why}", self.volume_name(volume));
                self.note_trouble(drive, why, &mut effects);
            }
        }
        effects
    }

    fn fence_order(&self, volume: VolumeId) -> Option<(SessionNumber, UseOrder)> {
        let known = self.volumes.get(&volume)?;
        let (epoch, drive) = (known.fence?, known.drive?);
        let there = self.nodes.get(&self.drives[&drive].record.node)?;
        let session = there.session.filter(|_| there.rewound.is_empty())?;
        let grant =
            Grant { epoch, granted: false, read_only: false, ignore_if_inaccessible: false };
        let (term, incarnation) = (self.term(), session.incarnation);
        Some((session.number, UseOrder { volume, drive, term, incarnation, grant }))
    }

    /// What agents still owe about the use of the volumes on a drive.
    pub fn owed_uses(&self, drive: DriveId) -> Vec<(SessionNumber, UseOrder)> {
        let Some(drive) = self.drives.get(&drive) else { return Vec::new() };
        let volumes = drive.record.volumes.keys().filter_map(|id| self.volumes.get(id));
        let owed = volumes.flat_map(|volume| {
            let open = volume.attachments.iter().filter(|(_, attachment)| !attachment.confirmed);
            let open = open.filter_map(|(node, _)| self.use_order(volume.record.id, *node));
            open.chain(self.fence_order(volume.record.id))
        });
        owed.collect()
    }

    /// The rights of a volume's use have changed: whoever uses it is told.
    pub(super) fn order_use_again(&mut self, volume: VolumeId, effects: &mut Effects) {
        let nodes: Vec<_> = self.volumes[&volume].attachments.keys().copied().collect();
        for node in nodes {
            self.order_use(volume, node, effects);
        }
    }

    /// After a registration the agent hears again what it may use, also of drives that have left it.
    pub(in crate::cluster) fn order_uses_on(&mut self, node: NodeId, effects: &mut Effects) {
        let orders = self.uses_on(node).filter_map(|volume| self.use_order(volume, node));
        let orders = orders.map(|(session, order)| (session, VolumeOrder::Use(order)));
        effects.volume_orders.extend(orders);
    }

    /// The agent of a node is gone: what it said holds no more.
    pub(in crate::cluster) fn forget_uses_on(&mut self, node: NodeId) {
        let used: Vec<_> = self.uses_on(node).collect();
        for volume in used {
            let known = self.volumes.get_mut(&volume);
            if let Some(there) = known.and_then(|known| known.attachments.get_mut(&node)) {
                there.unconfirm();
            }
        }
        for drive in self.nodes.get(&node).into_iter().flat_map(|node| &node.drives) {
            for volume in self.drives[drive].record.volumes.keys() {
                if let Some(known) = self.volumes.get_mut(volume) {
                    known.fence = None;
                }
            }
        }
    }

    pub(in crate::cluster) fn uses_on(&self, node: NodeId) -> impl Iterator<Item = VolumeId> {
        let all = (node, VolumeId::from_bits(0))..=(node, VolumeId::from_bits(u128::MAX));
        self.uses.range(all).map(|(_, volume)| *volume)
    }

    fn order_use(&mut self, volume: VolumeId, node: NodeId, effects: &mut Effects) {
        if let Some(there) =
            self.volumes.get_mut(&volume).and_then(|known| known.attachments.get_mut(&node))
        {
            there.confirmed = false;
        }
        if let Some((session, order)) = self.use_order(volume, node) {
            effects.volume_orders.push((session, VolumeOrder::Use(order)));
        }
    }

    fn use_order(&self, volume: VolumeId, node: NodeId) -> Option<(SessionNumber, UseOrder)> {
        let known = self.volumes.get(&volume)?;
        let record = &known.attachments.get(&node)?.record;
        let there = self.nodes.get(&node)?;
        let session = there.session.filter(|_| there.rewound.is_empty())?;
        let grant = Grant {
            epoch: record.epoch,
            granted: record.state != AttachmentState::Detaching,
            read_only: record.read_only,
            ignore_if_inaccessible: known.ignores_if_inaccessible(),
        };
        let (term, incarnation) = (self.term(), session.incarnation);
        let order = UseOrder { volume, drive: known.drive?, term, incarnation, grant };
        Some((session.number, order))
    }

    pub(in crate::cluster) fn insert_attachment(&mut self, record: AttachmentRecord) {
        let Some(volume) = self.volumes.get_mut(&record.volume) else {
            self.kept_uses.entry(record.volume).or_default().push(record.id);
            return;
        };
        self.uses.insert((record.node, record.volume));
        // A store that keeps each record by itself may have the next use of a node already, and still the one before,
        // whose end was told: that one is over.
        let newer = |before: &Attachment| before.record.epoch > record.epoch;
        if volume.attachments.get(&record.node).is_some_and(newer) {
            return;
        }
        let before = volume.attachments.remove(&record.node);
        let before = before.filter(|before| before.record.epoch == record.epoch);
        let (staged, inaccessible) =
            before.map(|before| (before.staged, before.inaccessible)).unwrap_or_default();
        let attachment = Attachment { confirmed: false, waits: None, staged, inaccessible, record };
        volume.attachments.insert(attachment.record.node, attachment);
    }

    /// Of the uses that a store held when this came into memory, those that are over, and that nobody ends any more:
    /// a store that keeps each record by itself may have them. Another use of the same volume and node has taken their
    /// place, or the volume was deleted. One that has a place on a drive was not: only its record is missing, and may
    /// be put back before another registry starts. The uses are over when it is known again without that.
    pub fn uses_over(&self, held: &[AttachmentRecord]) -> Vec<AttachmentId> {
        let placed = || self.drives.values().flat_map(|drive| drive.record.volumes.keys());
        let has_unknown = held.iter().any(|record| !self.volumes.contains_key(&record.volume));
        let placed: BTreeSet<_> = has_unknown.then(placed).into_iter().flatten().collect();
        let is_over = |record: &&AttachmentRecord| match self.volumes.get(&record.volume) {
            Some(volume) => {
                let there = volume.attachments.get(&record.node);
                there.is_none_or(|there| there.record.id != record.id)
            }
            None => !placed.contains(&record.volume),
        };
        held.iter().filter(is_over).map(|record| record.id).collect()
    }

    fn put_attachment(&mut self, record: AttachmentRecord, effects: &mut Effects) {
        effects.writes.push(Write::Attachment(record.clone()));
        self.insert_attachment(record);
    }

    fn confirm(&mut self, volume: VolumeId, node: NodeId) {
        let known =
            self.volumes.get_mut(&volume).and_then(|known| known.attachments.get_mut(&node));
        if let Some(attachment) = known {
            attachment.confirmed = true;
        }
    }

    fn drop_attachment(&mut self, volume: VolumeId, node: NodeId, effects: &mut Effects) {
        let known = self.volumes.get_mut(&volume).expect("only known volumes are attached");
        if let Some(attachment) = known.attachments.remove(&node) {
            self.uses.remove(&(node, volume));
            known.over.insert(node, attachment.record.id);
            effects.writes.push(Write::AttachmentGone(attachment.record.id));
        }
        self.forget_fake_device(volume, effects);
        self.found_unused(volume, effects);
    }
}
