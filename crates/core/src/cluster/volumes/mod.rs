//! The life of a volume: asked for, placed, on its drive's label, used, deleted.
//!
//! ```text
//!   Create            the label has it          Delete               the label has it not
//!  ───────▶ Pending ────────────────▶ Created ────────▶ Deleting ─────────────────────▶ gone
//!              │                        │  ▲               │
//!              └── Delete ──▶ Deleting  ▼  │               └─ its drive is dead ──▶ Deleted ──▶ gone when it answers
//!                                       Lost: the label has it not; found again if it has
//! ```
//!
//! The drive's record decides where a volume is, the label whether it is there ([`labels`]); who may use it is decided
//! in [`attachments`]; what pods get while it cannot be reached is noted in [`fake`]; how it grows is in [`expand`];
//! what only a label knows is in [`orphans`]; what a registry before did not finish in [`left_over`].

mod attachments;
mod expand;
mod fake;
#[cfg(test)]
mod fake_tests;
mod labels;
mod left_over;
#[cfg(test)]
mod orphan_tests;
mod orphans;
mod placement;
#[cfg(test)]
mod size_tests;
mod space;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trouble_tests;

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

pub use attachments::Attachment;
pub use placement::{Judged, Place, Room, Sought, Unfit};
pub(super) use space::Rank;
pub use space::Space;

use super::records::{Allocation, VolumeRecord, VolumeState, Write};
use super::{About, Cluster, Effects, Notice, Reply, State};
use crate::ids::{AttachmentId, DriveId, NodeId, NodeName, SessionNumber, VolumeId};
use crate::label::extents::VolumeName;
use crate::volume::class::{self, Erase, Sharing};
use crate::volume::orders::VolumeOrder;
use crate::volume::{Epoch, FAKE_ATTACH, FAKE_DEVICE, Operational, Size, Wish};
use crate::words::bytes;

/// Annotations of a volume take no more room than this, keys and values together.
const MOST_ANNOTATION_BYTES: usize = 64 << 10;

/// What somebody asks of volumes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VolumeRequest {
    /// `id` is freshly drawn, for a volume that is new.
    Create {
        id: VolumeId,
        wish: Box<Wish>,
    },
    Delete {
        volume: VolumeId,
    },
    Expand {
        volume: VolumeId,
        size: Size,
    },
    /// A node is to use it. `id` is freshly drawn, for an attachment that is new.
    Attach {
        id: AttachmentId,
        volume: VolumeId,
        node: NodeId,
        read_only: bool,
    },
    /// A node, or any, is to use it no more.
    Detach {
        volume: VolumeId,
        node: Option<NodeId>,
    },
    /// Annotations are set, or, without a value, removed.
    Annotate {
        volume: VolumeId,
        changes: BTreeMap<String, Option<String>>,
    },
}

/// Why a request about volumes is refused. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
pub enum VolumeRefused {
    #[error("there is no such volume")]
    NoSuchVolume,
    #[error("there is no such node")]
    NoSuchNode,
    #[error("a volume {name} is there already, and it is another one: {difference}")]
    NameTaken { name: VolumeName, difference: String },
    #[error("no drive takes {}: {why}", bytes(*.asked))]
    NoPlace { asked: u64, why: String },
    #[error("it is in use on {node}")]
    InUse { node: NodeName },
    #[error("it is reached on {node} alone, where its drive is")]
    OnOtherNode { node: NodeName },
    #[error("it is {state}")]
    WrongState { state: VolumeState },
    #[error("it cannot grow to {}: {why}", bytes(*.asked))]
    CannotGrow { asked: u64, why: String },
    #[error("it has {}, which is more than {} and cannot become less", bytes(*.has), bytes(*.most))]
    TooLarge { has: u64, most: u64 },
    #[error("its annotations would have {bytes} bytes: {MOST_ANNOTATION_BYTES} are allowed")]
    Annotations { bytes: usize },
    #[error("the annotation {key} is kept by Hotbay itself; it shows what agents report")]
    KeptAnnotation { key: String },
    #[error("node {node} knows more than this registry: `hotbay registry adopt` shows what")]
    Rewound { node: NodeName },
}

/// A volume: its record, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Volume {
    pub record: VolumeRecord,
    /// The drive whose record has a place for it.
    pub drive: Option<DriveId>,
    pub attachments: BTreeMap<NodeId, Attachment>,
    /// Of each node the last use that is over. Whoever is told so is told when its record is gone.
    pub(super) over: BTreeMap<NodeId, AttachmentId>,
    /// It is to be freed, and its agent says that it may still be used, by a use that the registry does not know: that
    /// one is taken back first.
    fence: Option<Epoch>,
}

impl Cluster {
    pub fn volume(&self, id: VolumeId) -> Option<&Volume> {
        self.volumes.get(&id)
    }

    /// Every volume after one, in the order of their ids.
    pub fn volumes_after(&self, after: Option<VolumeId>) -> impl Iterator<Item = &Volume> {
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.volumes.range((from, std::ops::Bound::Unbounded)).map(|(_, volume)| volume)
    }

    pub fn volume_by_name(&self, name: &VolumeName) -> Option<&Volume> {
        self.volume_by_name.get(name).map(|id| &self.volumes[id])
    }

    /// Every volume that a drive has a place for: by decision, or by its label.
    pub fn volumes_on(&self, id: DriveId) -> BTreeSet<VolumeId> {
        let Some(drive) = self.drives.get(&id) else { return BTreeSet::new() };
        let on_label =
            drive.space.iter().flat_map(|space| space.used()).map(|extent| extent.volume);
        drive.record.volumes.keys().copied().chain(on_label).collect()
    }

    /// What people call a volume; one that only a label knows is called as the label says.
    pub fn volume_name(&self, id: VolumeId) -> String {
        if let Some(volume) = self.volumes.get(&id) {
            return volume.record.name.to_string();
        }
        let on_label = self.orphans().find(|(_, extent)| extent.volume == id);
        on_label.map_or_else(|| id.to_string(), |(_, extent)| extent.name.to_string())
    }

    /// What the agent of a drive has not yet answered about its volumes.
    pub fn owed_volume_orders(&self, drive: DriveId) -> Vec<(SessionNumber, VolumeOrder)> {
        let label = self.owed_label(drive).into_iter();
        let label = label.map(|(session, order)| (session, VolumeOrder::Label(order)));
        let uses = self.owed_uses(drive).into_iter();
        label.chain(uses.map(|(session, order)| (session, VolumeOrder::Use(order)))).collect()
    }

    pub(super) fn request(
        &mut self,
        request: VolumeRequest,
        asked_by: &str,
        now_ms: u64,
    ) -> Result<Effects, VolumeRefused> {
        let mut effects = Effects::default();
        let id = match request {
            VolumeRequest::Create { id, wish } => {
                self.create_volume(id, *wish, asked_by, now_ms, &mut effects)?
            }
            VolumeRequest::Delete { volume } => {
                self.delete_volume(volume, asked_by, now_ms, &mut effects)?;
                volume
            }
            VolumeRequest::Expand { volume, size } => {
                self.expand_volume(volume, size, &mut effects)?;
                volume
            }
            VolumeRequest::Attach { id, volume, node, read_only } => {
                self.know_for_use(volume, node, now_ms, &mut effects)?;
                self.attach_volume(id, (volume, node), read_only, now_ms, &mut effects)?;
                volume
            }
            VolumeRequest::Detach { volume, node } => {
                self.detach_volume(volume, node, now_ms, &mut effects)?;
                volume
            }
            VolumeRequest::Annotate { volume, changes } => {
                self.annotate_volume(volume, changes, &mut effects)?;
                volume
            }
        };
        effects.reply = Reply::Volume(id);
        Ok(effects)
    }

    fn create_volume(
        &mut self,
        id: VolumeId,
        wish: Wish,
        asked_by: &str,
        now_ms: u64,
        effects: &mut Effects,
    ) -> Result<VolumeId, VolumeRefused> {
        let mut unplaced = None;
        if let Some(there) = self.volume_by_name(&wish.name) {
            if let Some(difference) = difference(&there.record, &wish) {
                return Err(VolumeRefused::NameTaken { name: wish.name, difference });
            }
            // Of this very action a registry may have kept the first record alone, and ended.
            if there.drive.is_some() || there.record.state != VolumeState::Pending {
                return Ok(there.record.id);
            }
            unplaced = Some(there.record.id);
        }
        let group = class::group(&wish.class, wish.claim.as_ref());
        let sought = Sought {
            bytes: wish.size.bytes,
            class: &wish.class,
            group: group.as_deref(),
            nodes: &wish.nodes,
            preferred: &wish.preferred,
        };
        let Some(Place { drive, segment }) = self.placement(&sought) else {
            return Err(VolumeRefused::NoPlace {
                asked: wish.size.bytes,
                why: self.why_not(&sought),
            });
        };
        let exclusive = wish.class.sharing == Sharing::Exclusive;
        let allocation = Allocation { parts: vec![segment], exclusive };
        if let Some(id) = unplaced {
            self.allocate(id, drive, allocation, effects);
            self.order_label(drive, effects);
            return Ok(id);
        }
        let record = VolumeRecord {
            id,
            name: wish.name,
            size_bytes: wish.size.bytes,
            state: VolumeState::Pending,
            epoch: Epoch::default(),
            annotations: BTreeMap::new(),
            operational: Operational::default(),
            class: wish.class,
            parameters: wish.parameters,
            claim: wish.claim,
            since_ms: now_ms,
            asked_by: asked_by.to_owned(),
        };
        // The volume first: one without a place is harmless, a place without its volume would be nobody's.
        effects.writes.push(Write::Volume(Box::new(record.clone())));
        self.insert_volume(record);
        self.allocate(id, drive, allocation, effects);
        self.order_label(drive, effects);
        Ok(id)
    }

    fn delete_volume(
        &mut self,
        id: VolumeId,
        asked_by: &str,
        now_ms: u64,
        effects: &mut Effects,
    ) -> Result<(), VolumeRefused> {
        if !self.volumes.contains_key(&id) && !self.make_known(id, now_ms, effects) {
            return Err(VolumeRefused::NoSuchVolume);
        }
        let volume = &self.volumes[&id];
        if let Some(node) = volume.attachments.keys().next() {
            return Err(VolumeRefused::InUse { node: self.node_name(*node) });
        }
        match volume.record.state {
            VolumeState::Deleting | VolumeState::Deleted => {}
            VolumeState::Pending | VolumeState::Created | VolumeState::Lost => {
                let text =
                    format!("Volume {} is deleted, asked by {asked_by}.", volume.record.name);
                effects.notices.push(Notice::plain("DeleteRequested", About::Volume(id), text));
                self.change_volume(id, effects, |record| {
                    record.state = VolumeState::Deleting;
                    record.since_ms = now_ms;
                    asked_by.clone_into(&mut record.asked_by);
                });
            }
        }
        match self.volumes[&id].drive {
            None => self.forget_volume(id, effects),
            Some(drive) => {
                self.give_up_on_the_dead(id, drive, effects);
                self.order_label(drive, effects);
            }
        }
        Ok(())
    }

    /// A drive that is gone or does not let itself be written must not keep its volumes alive: the recorded wish takes
    /// the place of the label, until the drive answers again.
    fn give_up_on_the_dead(&mut self, id: VolumeId, drive: DriveId, effects: &mut Effects) {
        let dead = {
            let drive = &self.drives[&drive];
            let agent_there =
                self.nodes.get(&drive.record.node).is_some_and(|node| node.session.is_some());
            let closed = matches!(drive.record.state, State::Unknown | State::Detached);
            let broken = drive.space.as_ref().is_some_and(|space| space.trouble.is_some());
            closed || agent_there && (!drive.present || broken)
        };
        let required = self.volumes[&id].record.class.erase == Erase::Required;
        if dead && !required && self.volumes[&id].record.state == VolumeState::Deleting {
            let text = format!(
                "Volume {} is deleted: its drive does not answer, so that its label was not updated and nothing was \
                 erased.",
                self.volume_name(id)
            );
            effects.notices.push(Notice::warning("VolumeDeletedUnerased", About::Volume(id), text));
            self.change_volume(id, effects, |record| record.state = VolumeState::Deleted);
            self.volume_by_name.remove(&self.volumes[&id].record.name);
        }
    }

    fn annotate_volume(
        &mut self,
        id: VolumeId,
        changes: BTreeMap<String, Option<String>>,
        effects: &mut Effects,
    ) -> Result<(), VolumeRefused> {
        let volume = self.volumes.get(&id).ok_or(VolumeRefused::NoSuchVolume)?;
        let mut annotations = volume.record.annotations.clone();
        for (key, value) in changes {
            let same = annotations.get(&key) == value.as_ref();
            if !same && [FAKE_ATTACH, FAKE_DEVICE].contains(&key.as_str()) {
                return Err(VolumeRefused::KeptAnnotation { key });
            }
            match value {
                Some(value) => annotations.insert(key, value),
                None => annotations.remove(&key),
            };
        }
        let bytes = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > MOST_ANNOTATION_BYTES {
            return Err(VolumeRefused::Annotations { bytes });
        }
        if annotations != volume.record.annotations {
            self.change_volume(id, effects, |record| record.annotations = annotations);
            self.order_use_again(id, effects);
        }
        Ok(())
    }

    /// Why no drive takes a volume, in a line: each reason with how many drives it holds for.
    fn why_not(&self, sought: &Sought<'_>) -> String {
        let (_, judged) = self.explain_placement(sought);
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for judged in judged {
            let reason = judged.unfit.first().map(ToString::to_string).unwrap_or_default();
            *reasons.entry(reason).or_default() += 1;
        }
        if reasons.is_empty() {
            return "there are no drives".into();
        }
        let mut counted: Vec<_> = reasons.into_iter().collect();
        counted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let told = counted.iter().take(4).map(|(reason, count)| match count {
            1 => format!("1 drive: {reason}"),
            count => format!("{count} drives: {reason}"),
        });
        told.collect::<Vec<_>>().join("; ")
    }

    fn allocate(&mut self, id: VolumeId, drive: DriveId, at: Allocation, effects: &mut Effects) {
        self.change_drive(drive, effects, |record| {
            record.volumes.insert(id, at);
        });
        self.rank(drive);
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.drive = Some(drive);
        }
    }

    /// Takes a volume's place off its drive.
    fn deallocate(&mut self, id: VolumeId, drive: DriveId, effects: &mut Effects) {
        self.change_drive(drive, effects, |record| {
            record.volumes.remove(&id);
        });
        self.rank(drive);
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.drive = None;
        }
    }

    /// The volumes of drives that were given up: nobody will ever reach them. They are told as lost until deleted.
    pub(super) fn lose_volumes(&mut self, drive: DriveId, now_ms: u64, effects: &mut Effects) {
        let ids: Vec<_> = self.drives[&drive].record.volumes.keys().copied().collect();
        for id in ids {
            let Some(volume) = self.volumes.get_mut(&id) else { continue };
            volume.drive = None;
            for (node, attachment) in std::mem::take(&mut volume.attachments) {
                self.uses.remove(&(node, id));
                volume.over.insert(node, attachment.record.id);
                effects.writes.push(Write::AttachmentGone(attachment.record.id));
            }
            match volume.record.state {
                VolumeState::Deleting | VolumeState::Deleted => self.forget_volume(id, effects),
                VolumeState::Pending | VolumeState::Created | VolumeState::Lost => {
                    self.change_volume(id, effects, |record| {
                        record.state = VolumeState::Lost;
                        record.since_ms = now_ms;
                    });
                }
            }
        }
    }

    pub(super) fn insert_volume(&mut self, record: VolumeRecord) {
        // One that is deleted for all who used it leaves its name to another; one that a label brings back takes none.
        if record.state != VolumeState::Deleted {
            self.volume_by_name.entry(record.name.clone()).or_insert(record.id);
        }
        let (attachments, over) = (BTreeMap::new(), BTreeMap::new());
        let volume = Volume { drive: None, attachments, over, fence: None, record };
        self.volumes.insert(volume.record.id, volume);
    }

    /// Nothing is left of it.
    fn forget_volume(&mut self, id: VolumeId, effects: &mut Effects) {
        if let Some(volume) = self.volumes.remove(&id) {
            if self.volume_by_name.get(&volume.record.name) == Some(&id) {
                self.volume_by_name.remove(&volume.record.name);
            }
            effects.writes.push(Write::VolumeGone(id));
        }
    }

    fn change_volume(
        &mut self,
        id: VolumeId,
        effects: &mut Effects,
        change: impl FnOnce(&mut VolumeRecord),
    ) {
        let volume = self.volumes.get_mut(&id).expect("only known volumes change");
        change(&mut volume.record);
        effects.writes.push(Write::Volume(Box::new(volume.record.clone())));
    }

    fn node_name(&self, id: NodeId) -> NodeName {
        let node = self.nodes.get(&id).expect("only known nodes are named");
        node.record.name.clone()
    }
}

/// What tells the volume that is there from the one that is asked for under its name.
fn difference(there: &VolumeRecord, wish: &Wish) -> Option<String> {
    if !wish.size.fits(there.size_bytes) {
        return Some(format!("it has {}", bytes(there.size_bytes)));
    }
    if there.parameters != wish.parameters {
        return Some("it was made with other parameters".into());
    }
    matches!(there.state, VolumeState::Deleting | VolumeState::Deleted)
        .then(|| "it is being deleted".into())
}
