//! One device as it was last seen, and whether it is to be read again.

use hotbay_core::ids::ClusterId;
use hotbay_host::scan::{self, Candidate, Inside};
use hotbay_host::worker::LabelLook;

use super::labels::Looked;

#[derive(Debug)]
pub(super) struct Seen {
    pub(super) bay: Option<String>,
    pub(super) candidate: Candidate,
    pub(super) reading: Reading,
    pub(super) inside: Option<Inside>,
    /// The number of the look that `inside` comes from.
    pub(super) look: u64,
    /// What was last told. While another device at the same path is read for the first time, what was there before.
    pub(super) told: Option<Looked>,
    /// The look whose child has not answered yet. Until it does the device is not read again.
    pub(super) unfinished: Option<u64>,
    /// Other loop devices are over it, and only a look can tell whether they are those of its volumes. Until then
    /// nothing is told of it: a pod that starts changes no drive.
    pub(super) loops_unclear: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    Idle,
    Due,
    Running,
    /// What is on it may have changed since the child began to read.
    RunningThenAgain,
}

impl Seen {
    pub(super) fn new(bay: Option<String>, candidate: Candidate) -> Self {
        Self {
            bay,
            candidate,
            reading: Reading::Due,
            inside: None,
            look: 0,
            told: None,
            unfinished: None,
            loops_unclear: false,
        }
    }

    /// Whether a label of ours was read on it, so that volumes may be on it.
    pub(super) fn has_label(&self) -> bool {
        match &self.inside {
            Some(Inside::Seen(Ok(looked))) => matches!(looked.label, LabelLook::Valid(_)),
            Some(Inside::Seen(Err(_)) | Inside::Unread { .. } | Inside::NotOpened(_)) | None => {
                false
            }
        }
    }

    /// Whether it is that very device, whatever has become of it.
    pub(super) fn is(&self, other: &Candidate) -> bool {
        (self.candidate.id, self.candidate.sequence) == (other.id, other.sequence)
    }

    pub(super) fn is_being_read(&self) -> bool {
        match self.reading {
            Reading::Idle | Reading::Due => false,
            Reading::Running | Reading::RunningThenAgain => true,
        }
    }

    pub(super) fn read_again(&mut self) {
        self.reading = match self.reading {
            Reading::Idle | Reading::Due => Reading::Due,
            Reading::Running | Reading::RunningThenAgain => Reading::RunningThenAgain,
        };
    }

    /// A device of which nothing was found out this time is still the drive that it was found to be before.
    pub(super) fn as_it_was_known(&self, inside: Inside) -> Inside {
        let Candidate { id, sequence, .. } = self.candidate;
        let before = self
            .told
            .as_ref()
            .filter(|told| told.device == (id, sequence) && !told.observed.evidence.is_empty());
        match (inside, before) {
            (Inside::Seen(Err(error)), Some(told)) => {
                let evidence = told.observed.evidence.clone();
                match told.left_alone {
                    true => Inside::NotOpened(evidence),
                    false => Inside::Unread { evidence, error },
                }
            }
            (inside, _) => inside,
        }
    }

    /// Puts together what is known, and says whether that is something else than was told.
    pub(super) fn tell(&mut self, ours: Option<ClusterId>) -> bool {
        let Some(inside) = self.inside.as_ref().filter(|_| !self.loops_unclear) else {
            return false;
        };
        let mut observed = scan::compose(&self.candidate, inside, ours);
        observed.bay = self.bay.clone().or(observed.bay);
        let Candidate { id, sequence, .. } = self.candidate;
        let left_alone = matches!(inside, Inside::NotOpened(_));
        let now = Looked { observed, device: (id, sequence), look: self.look, left_alone };
        let other = self.told.as_ref().is_none_or(|told| !told.says_the_same(&now));
        self.told = Some(now);
        other
    }

    /// Whether it cannot be told from others, so that it may be any drive.
    pub(super) fn may_be_any(&self) -> bool {
        let nameless =
            |told: &Looked| self.unfinished.is_some() && told.observed.evidence.is_empty();
        self.told.as_ref().is_none_or(nameless)
    }
}
