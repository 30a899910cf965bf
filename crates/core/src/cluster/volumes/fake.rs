//! Fake attach: what the registry makes of agents that staged a dummy because a volume could not be reached.
//!
//! ```text
//!                 Fake: FakeAttachInvolved                 the device answers: restart the pod
//!   OPERATIVE ─────────────────────────────▶ MISSING ──────────────────────────────▶ OPERATIVE
//!   (no annotation)                      fake-attach: yes                         fake-attach: yes
//!        ▲                                                                               │
//!        └────────────────────── Real: FakeAttachCleared ────────────────────────────────┘
//! ```
//!
//! The agent's reports are levels, not edges: each says how it is, and the same one again changes nothing.

use super::super::records::VolumeState;
use super::super::{About, Cluster, Contact, Effects, Notice, Refused, State};
use super::Volume;
use crate::ids::{NodeId, SessionNumber, VolumeId};
use crate::volume::orders::{StagedAs, VolumeReport};
use crate::volume::{FAKE_ATTACH, FAKE_DEVICE, IGNORE_IF_INACCESSIBLE, Operational};

/// What stands in `fake-attach`.
const YES: &str = "yes";

impl Volume {
    /// Whether a pod is to start although this volume is dead: by its annotation, or else by its class.
    pub fn ignores_if_inaccessible(&self) -> bool {
        let annotated = self.record.annotations.get(IGNORE_IF_INACCESSIBLE);
        annotated.map_or(self.record.class.ignore_if_inaccessible, |value| value == YES)
    }

    /// Whether its last staging was a dummy.
    pub fn is_faked(&self) -> bool {
        self.record.annotations.contains_key(FAKE_ATTACH)
    }
}

impl Cluster {
    /// Why a node that a volume is attached to cannot reach it; `None` if it can, as far as is known.
    pub fn inaccessible(&self, volume: &Volume, node: NodeId) -> Option<String> {
        let attachment = volume.attachments.get(&node)?;
        if let Some(why) = &attachment.inaccessible {
            return Some(why.clone());
        }
        if volume.record.state == VolumeState::Lost {
            return Some("the label of its drive does not have it".to_owned());
        }
        let drive = self.drives.get(&volume.drive?)?;
        let (name, state) = (&drive.record.name, drive.record.state);
        if state != State::Attached {
            return Some(format!("its drive {name} is not in operation: {state}"));
        }
        (!drive.present).then(|| format!("its drive {name} is missing"))
    }

    pub(in crate::cluster) fn volume_report(
        &mut self,
        session: SessionNumber,
        report: VolumeReport,
    ) -> Result<Effects, Refused> {
        let node = self.speaker(session)?;
        let VolumeReport { volume: id, epoch, access, inaccessible } = report;
        // Of a use that is over, or of a volume that is gone, nothing follows any more.
        let known = self.volumes.get_mut(&id).and_then(|known| known.attachments.get_mut(&node));
        let there = known.filter(|there| there.record.epoch == epoch);
        let there = there.ok_or(Refused::StaleAnswer)?;
        there.staged = Some(access.clone());
        there.inaccessible.clone_from(&inaccessible);
        let mut effects = Effects::default();
        match access {
            StagedAs::Fake { device, reason } => {
                self.note_fake(id, node, device, &reason, &mut effects);
                self.note_answering(id, inaccessible.as_deref(), &mut effects);
            }
            StagedAs::Real => self.clear_fake(id, node, &mut effects),
            // What the last staging was stays to be seen until the next one.
            StagedAs::Unstaged => self.forget_fake_device(id, &mut effects),
        }
        Ok(effects)
    }

    fn note_fake(
        &mut self,
        id: VolumeId,
        node: NodeId,
        device: Option<String>,
        reason: &str,
        effects: &mut Effects,
    ) {
        if !self.volumes[&id].is_faked() {
            let text = format!(
                "FakeAttachInvolved: volume {} cannot be reached on {}: {reason}. Its pod gets a dummy; what is \
                 written to that is lost.",
                self.volume_name(id),
                self.node_name(node)
            );
            effects.notices.push(Notice::warning("FakeAttachInvolved", About::Volume(id), text));
        }
        self.annotate_fake(id, FAKE_ATTACH, Some(YES.to_owned()), effects);
        self.annotate_fake(id, FAKE_DEVICE, device, effects);
    }

    fn clear_fake(&mut self, id: VolumeId, node: NodeId, effects: &mut Effects) {
        if self.volumes[&id].is_faked() {
            let text = format!(
                "FakeAttachCleared: volume {} is itself again on {}.",
                self.volume_name(id),
                self.node_name(node)
            );
            effects.notices.push(Notice::plain("FakeAttachCleared", About::Volume(id), text));
        }
        self.annotate_fake(id, FAKE_ATTACH, None, effects);
        self.annotate_fake(id, FAKE_DEVICE, None, effects);
        if !self.volumes[&id].record.operational.is_operative() {
            self.change_volume(id, effects, |record| record.operational = Operational::Operative);
        }
    }

    /// The device of a volume that pods have a dummy of does not answer, or answers again.
    fn note_answering(&mut self, id: VolumeId, why_not: Option<&str>, effects: &mut Effects) {
        let now = match why_not {
            Some(_) => Operational::Missing,
            None => Operational::Operative,
        };
        if self.volumes[&id].record.operational == now {
            return;
        }
        let name = self.volume_name(id);
        let notice = match why_not {
            Some(why) => Notice::warning(
                "VolumeMissing",
                About::Volume(id),
                format!("Volume {name} is {now}: it cannot be reached: {why}."),
            ),
            None => Notice::plain(
                "VolumeReachable",
                About::Volume(id),
                format!(
                    "Volume {name} is {now}: it answers again. Its pod still has the dummy: restart the pod to give \
                     it the volume."
                ),
            ),
        };
        effects.notices.push(notice);
        self.change_volume(id, effects, |record| record.operational = now);
    }

    /// A volume that is missing and that no node uses: nobody looks at it, so its drive's word is taken.
    pub(super) fn found_unused(&mut self, id: VolumeId, effects: &mut Effects) {
        let Some(known) = self.volumes.get(&id) else { return };
        let missing = known.record.operational == Operational::Missing;
        let in_place = known.record.state == VolumeState::Created && known.attachments.is_empty();
        let drive = known.drive.and_then(|drive| self.drives.get(&drive));
        let answers = drive.is_some_and(|drive| {
            let open = drive.record.state == State::Attached && drive.contact == Contact::Confirmed;
            let labelled = drive.space.as_ref().is_some_and(|space| space.holds(id));
            open && drive.present && labelled
        });
        if missing && in_place && answers {
            let text =
                format!("Volume {} is OPERATIVE: its drive is there again.", self.volume_name(id));
            effects.notices.push(Notice::plain("VolumeReachable", About::Volume(id), text));
            self.change_volume(id, effects, |record| record.operational = Operational::Operative);
        }
    }

    /// The device of the dummy goes with the staging.
    pub(super) fn forget_fake_device(&mut self, id: VolumeId, effects: &mut Effects) {
        self.annotate_fake(id, FAKE_DEVICE, None, effects);
    }

    fn annotate_fake(
        &mut self,
        id: VolumeId,
        key: &str,
        value: Option<String>,
        effects: &mut Effects,
    ) {
        if self.volumes[&id].record.annotations.get(key) == value.as_ref() {
            return;
        }
        self.change_volume(id, effects, |record| {
            match value {
                Some(value) => record.annotations.insert(key.to_owned(), value),
                None => record.annotations.remove(key),
            };
        });
    }
}
