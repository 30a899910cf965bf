//! Orders about volumes: labels of open drives are told and changed, and uses end.

use hotbay_api::convert::FromAgent;
use hotbay_core::agent::{Effect, Event};
use hotbay_core::ids::{DriveId, VolumeId};
use hotbay_core::order::Generation;
use hotbay_core::volume::Epoch;
use hotbay_core::volume::orders::LabelOrder;

use super::Shell;
use super::marks::Mark;
use crate::drives::StepEnd;
use crate::volumes::{Found, Lookup, Question};

impl Shell {
    /// Carries out what the machine says about volumes.
    pub(super) fn perform_for_volumes(&mut self, effect: Effect) {
        match effect {
            Effect::ChangeLabel { generation, order } => self.change_label(order, generation),
            Effect::TellLabel(drive) => self.tell_label(drive),
            Effect::SendLabel(answer) => self.tell(FromAgent::LabelAnswer(answer)),
            Effect::SendUse(answer) => {
                let (volume, epoch, granted) = (answer.volume, answer.epoch, answer.granted);
                tracing::info!(%volume, %epoch, granted, "answering about a use: {:?}", answer.result);
                self.tell(FromAgent::UseAnswer(answer));
            }
            Effect::EndUse { volume, epoch } => self.end_use(volume, epoch),
            other => unreachable!("not about volumes: {other:?}"),
        }
    }

    fn change_label(&mut self, order: LabelOrder, generation: Generation) {
        let (drive, changes) = (order.drive, order.changes.len());
        tracing::debug!(%drive, sequence = order.basis.sequence, changes, "changing its label");
        let identity = self.identity().expect("an order names the cluster");
        let at = self.place_of(drive);
        self.drives.change_label(order, at, identity, generation);
    }

    fn tell_label(&mut self, drive: DriveId) {
        if let Some(told) = self.drives.label(drive).cloned() {
            self.tell(FromAgent::LabelTold { drive, told });
        }
    }

    fn end_use(&self, volume: VolumeId, epoch: Epoch) {
        let (platform, ends) = (self.platform.clone(), self.ends.clone());
        tokio::spawn(async move {
            let result = platform.children.end_use(volume).await;
            platform.end_staging(volume).await;
            let end = StepEnd::Event(Event::UseEnded { volume, epoch, result });
            // The agent is ending if nobody listens.
            drop(ends.send(end).await);
        });
    }

    pub(super) fn answer(&mut self, question: Question) {
        match question {
            Question::Look(question) => self.look_up(question),
            Question::Formatted { volume, reply } => {
                self.marks.push(Mark { volume, reply });
                self.write_marks();
            }
        }
    }

    /// What this loop knows of a volume.
    fn look_up(&self, question: Lookup) {
        let Lookup { volume, reply } = question;
        let node = self.identity().map(|identity| identity.node);
        let memory = volume.and_then(|volume| self.agent.record().volumes.get(&volume));
        let grant = memory.map(|memory| memory.grant);
        let placed = volume.and_then(|volume| self.drives.place_of(volume));
        let settling = memory.is_some_and(|memory| self.is_settling(memory.drive));
        // Whoever asked may have gone.
        drop(reply.send(Found { node, grant, placed, settling }));
    }
}
