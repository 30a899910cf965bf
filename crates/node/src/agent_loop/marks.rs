//! Volumes that have a filesystem: the label of their drive is to say so before anybody writes into it. A stage waits
//! for that, so that no later one makes another over it.

use hotbay_core::agent::Event;
use hotbay_core::ids::{DriveId, VolumeId};
use hotbay_core::volume::orders::LabelResult;
use tokio::sync::oneshot;

use super::Shell;

/// A stage that waits. One for each call at most: whoever gives up drops its end.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) volume: VolumeId,
    pub(super) reply: oneshot::Sender<Result<(), String>>,
}

impl Shell {
    /// Answers what is on a label, and has the next one written, where nothing else is under way on its drive. Called
    /// after every step.
    pub(super) fn write_marks(&mut self) {
        for mark in std::mem::take(&mut self.marks) {
            if mark.reply.is_closed() {
                continue;
            }
            let volume = mark.volume;
            match self.drives.standing(volume) {
                None => {
                    let why = "its drive is not open, or has it no more".to_owned();
                    drop(mark.reply.send(Err(why)));
                }
                Some((drive, _)) if self.drives.is_formatted(drive, volume) => {
                    drop(mark.reply.send(Ok(())));
                }
                Some((drive, basis)) => {
                    self.marks.push(mark);
                    let effects = self.agent.step(Event::Formatted { drive, volume, basis });
                    self.perform(effects);
                }
            }
        }
    }

    /// A label could not be changed: whoever waits for one on that drive calls again.
    pub(super) fn note_failed_marks(&mut self, drive: DriveId, result: &LabelResult) {
        let why = match result {
            LabelResult::Done { .. } | LabelResult::InUse { .. } => return,
            LabelResult::Refused { why, .. } => why,
            LabelResult::Failed { error } => error,
        };
        for mark in std::mem::take(&mut self.marks) {
            match self.drives.standing(mark.volume) {
                Some((on, _)) if on == drive => drop(mark.reply.send(Err(why.clone()))),
                Some(_) | None => self.marks.push(mark),
            }
        }
    }
}
