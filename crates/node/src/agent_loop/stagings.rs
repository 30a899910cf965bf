//! Stagings and the registry: it is told how volumes are staged, and when one that pods have a dummy of answers again.

use std::collections::BTreeMap;

use hotbay_api::convert::FromAgent;
use hotbay_core::agent::Located;
use hotbay_core::ids::DriveId;
use hotbay_core::volume::orders::{StagedAs, VolumeReport};

use super::Shell;
use crate::volumes::Platform;

impl Shell {
    /// A session begins: the registry hears of every staging, and of those that have ended meanwhile.
    pub(super) fn tell_all_stagings(&mut self) {
        let there = self.platform.stagings.reports();
        let ended = std::mem::take(&mut self.told_stagings).into_iter();
        let ended: BTreeMap<_, _> =
            ended.filter(|(volume, _)| !there.contains_key(volume)).collect();
        self.told_stagings = ended;
        self.tell_stagings();
    }

    /// Tells what has changed. Without a session nothing: all is told at the beginning of the next.
    pub(super) fn tell_stagings(&mut self) {
        if self.agent.session().is_none() {
            return;
        }
        let there = self.platform.stagings.reports();
        let ended: Vec<_> = self
            .told_stagings
            .keys()
            .filter(|volume| !there.contains_key(volume))
            .copied()
            .collect();
        for volume in ended {
            let told = self.told_stagings.remove(&volume).expect("its key was just seen");
            let report = VolumeReport { access: StagedAs::Unstaged, ..told };
            self.tell(FromAgent::VolumeReport(report));
        }
        for report in there.into_values().flatten() {
            if self.told_stagings.get(&report.volume) != Some(&report) {
                self.told_stagings.insert(report.volume, report.clone());
                self.tell(FromAgent::VolumeReport(report));
            }
        }
    }

    /// Looks whether volumes that pods have a dummy of answer again: when their drive or its label has changed, and
    /// else now and then.
    pub(super) fn look_at_the_dead(&self) {
        for volume in self.platform.stagings.fakes() {
            if !self.platform.stagings.stands(volume, self.drives.standing(volume)) {
                continue;
            }
            let Platform { children, stagings, .. } = self.platform.clone();
            let placed = self.drives.place_of(volume);
            tokio::spawn(async move {
                let wrong = match placed {
                    Some(placed) => {
                        let parts = placed.parts.clone();
                        children.read_in_the_end(volume, parts, placed.descriptor).await.err()
                    }
                    None => Some("its drive, or its place on it, cannot be used".to_owned()),
                };
                stagings.looked(volume, wrong);
            });
        }
    }

    /// Whether it is too early to say that a drive is not open: a step is under way, or a device that does not answer
    /// may be it.
    pub(super) fn is_settling(&self, drive: DriveId) -> bool {
        let may_hang =
            !self.hanging.is_empty() && matches!(self.agent.locate(drive), Located::Nowhere);
        self.agent.is_settling(drive) || may_hang
    }
}
