//! The drives that are open, and the steps on them. Whatever may wait for a drive is done by a child process.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use hotbay_core::agent::{AttachWork, Event, Identity};
use hotbay_core::device::{DeviceKind, LabelSeen};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{DriveId, VolumeId};
use hotbay_core::label::change::{Basis, LabelTold};
use hotbay_core::label::extents::{Extent, Use, VolumeName, in_conflict};
use hotbay_core::label::update::Want;
use hotbay_core::message::Obstacle;
use hotbay_core::order::Generation;
use hotbay_core::volume::orders::{LabelOrder, LabelResult};
use hotbay_core::volume::{Epoch, Segment};
use hotbay_host::KernelId;
use hotbay_host::proof::{Blocker, Proof};
use hotbay_host::worker::{
    Attach, AttachError, Attached, ChangeLabel, Detach, Detached, Done, LabelChangeError,
    LabelWant, NotStarted, Request, Response, Running, WorkerError, Workers,
};
use tokio::sync::mpsc;

use crate::volumes::Placed;

/// After so long a step counts as stuck, and the registry is told; the step goes on.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// The pause before a child is asked for again when none can be had.
const NO_CHILD_PAUSE: Duration = Duration::from_millis(500);
/// How fast the places of deleted volumes are zeroed: volumes on the same drive want some of it, too.
const ERASE_BYTES_PER_SECOND: u64 = 1 << 30;

/// What a step came to.
#[derive(Debug)]
pub(crate) enum StepEnd {
    /// The descriptor goes into the table before the machine hears of it.
    Opened {
        drive: DriveId,
        descriptor: OwnedFd,
        id: KernelId,
        label: LabelSeen,
        told: LabelTold,
    },
    /// The label of an open drive says this now.
    Relabelled {
        drive: DriveId,
        label: LabelSeen,
        told: LabelTold,
    },
    /// A change of a label ended; without `told`, what it says is as it was, or not known.
    LabelChanged {
        drive: DriveId,
        told: Option<LabelTold>,
        result: LabelResult,
    },
    /// A detach was refused: the descriptor goes back into the table.
    StillOpen {
        drive: DriveId,
        descriptor: OwnedFd,
        id: KernelId,
        obstacle: Obstacle,
    },
    Event(Event),
}

/// A drive as a step needs to know it.
#[derive(Debug, Clone)]
pub(crate) struct Where {
    pub(crate) path: String,
    pub(crate) kind: DeviceKind,
    pub(crate) evidence: Evidence,
}

/// The open drives.
#[derive(Debug)]
pub(crate) struct Drives {
    workers: Workers,
    open: BTreeMap<DriveId, Open>,
    /// What is on the labels of the open drives.
    labels: BTreeMap<DriveId, LabelTold>,
    ends: mpsc::Sender<StepEnd>,
}

/// Names of volumes, by which people know what keeps a drive open.
type Names = BTreeMap<VolumeId, VolumeName>;

#[derive(Debug)]
struct Open {
    descriptor: OwnedFd,
    id: KernelId,
}

impl Drives {
    pub(crate) fn new(workers: Workers, ends: mpsc::Sender<StepEnd>) -> Self {
        Self { workers, open: BTreeMap::new(), labels: BTreeMap::new(), ends }
    }

    /// Takes over a descriptor that a child opened.
    pub(crate) fn opened(&mut self, drive: DriveId, descriptor: OwnedFd, id: KernelId) {
        let replaced = self.open.insert(drive, Open { descriptor, id });
        assert!(replaced.is_none(), "a drive is opened once");
    }

    /// Takes note of what is on a label.
    pub(crate) fn labelled(&mut self, drive: DriveId, told: LabelTold) {
        self.labels.insert(drive, told);
    }

    /// What is on the label of an open drive.
    pub(crate) fn label(&self, drive: DriveId) -> Option<&LabelTold> {
        self.labels.get(&drive).filter(|_| self.open.contains_key(&drive))
    }

    /// The place of a volume on the drive that has it, if that is open. None as well if parts of it overlap others:
    /// then nothing of it is shown to anybody.
    pub(crate) fn place_of(&self, volume: VolumeId) -> Option<Placed> {
        let is_its = |extent: &&Extent| extent.volume == volume && extent.usage == Use::Used;
        let holds = |told: &&LabelTold| told.extents.iter().any(|extent| is_its(&extent));
        let (drive, told) = self.labels.iter().find(|(_, told)| holds(told))?;
        if in_conflict(&told.extents).any(|conflicting| conflicting == volume) {
            return None;
        }
        let mut extents: Vec<_> = told.extents.iter().filter(is_its).collect();
        extents.sort_by_key(|extent| extent.part);
        let part = |extent: &&Extent| Segment {
            start_bytes: extent.start_bytes,
            length_bytes: extent.length_bytes,
        };
        let parts = extents.iter().map(part).collect();
        let formatted = extents.iter().any(|extent| extent.formatted);
        let descriptor = self.open.get(drive)?.descriptor.try_clone().ok()?;
        Some(Placed { descriptor, parts, formatted })
    }

    /// On which label an open drive has a volume; changes whenever anything about that does.
    pub(crate) fn standing(&self, volume: VolumeId) -> Option<(DriveId, Basis)> {
        let is_its = |extent: &Extent| extent.volume == volume && extent.usage == Use::Used;
        let holds = |told: &LabelTold| told.extents.iter().any(is_its);
        let open = self.labels.iter().filter(|(drive, _)| self.open.contains_key(drive));
        open.into_iter().find(|(_, told)| holds(told)).map(|(drive, told)| (*drive, told.basis))
    }

    /// Whether the label of an open drive says that a volume on it has had a filesystem.
    pub(crate) fn is_formatted(&self, drive: DriveId, volume: VolumeId) -> bool {
        let extents = self.labels.get(&drive).map(|told| told.extents.as_slice());
        let mut its = extents.unwrap_or_default().iter().filter(|extent| extent.volume == volume);
        its.any(|extent| extent.formatted)
    }

    /// Changes the label of an open drive.
    pub(crate) fn change_label(
        &self,
        order: LabelOrder,
        at: Where,
        identity: Identity,
        generation: Generation,
    ) {
        let LabelOrder { drive, basis, changes, .. } = order;
        let open = self.open.get(&drive).expect("only an open drive gets another label");
        let copy = match open.descriptor.try_clone() {
            Ok(copy) => copy,
            Err(error) => {
                let error = format!("its descriptor cannot be copied: {error}");
                let result = LabelResult::Failed { error };
                self.end(StepEnd::LabelChanged { drive, told: None, result });
                return;
            }
        };
        let Where { path, kind, evidence } = at;
        let held = LabelWant(Want {
            cluster: identity.cluster,
            drive,
            node: identity.node,
            generation,
            in_operation: true,
            take_over: false,
        });
        let erase_bytes_per_second = Some(ERASE_BYTES_PER_SECOND);
        let request = Request::ChangeLabel(ChangeLabel {
            path,
            kind,
            evidence,
            held,
            basis,
            changes,
            erase_bytes_per_second,
        });
        self.spawn(drive, request, vec![copy], move |outcome| label_changed(drive, outcome));
    }

    /// The open drives that are gone from the machine.
    pub(crate) fn gone(&self) -> Vec<DriveId> {
        let gone = self.open.iter().filter(|(_, open)| hotbay_host::scan::is_gone(open.id));
        gone.map(|(drive, _)| *drive).collect()
    }

    pub(crate) fn attach(&self, work: AttachWork, at: Where, identity: Identity) {
        let drive = work.drive;
        if !work.wipe.is_empty() {
            let (path, lost) = (&work.path, hotbay_core::wipe::listed(&work.wipe));
            tracing::warn!(%drive, "{path} may be wiped to be attached: {lost}");
        }
        let request = Request::Attach(attach(&work, at, identity));
        self.spawn(drive, request, Vec::new(), move |outcome| match outcome {
            Ok(Done { response: Response::Attached(Ok(attached)), mut descriptors, .. })
                if descriptors.len() == 1 =>
            {
                let Attached { id, label, told } = attached;
                let descriptor = descriptors.remove(0);
                StepEnd::Opened { drive, descriptor, id, label, told }
            }
            other => attach_failed(drive, other),
        });
    }

    /// Brings the label of an open drive up to date.
    pub(crate) fn relabel(&self, work: AttachWork, at: Where, identity: Identity) {
        let drive = work.drive;
        let request = Request::Relabel(attach(&work, at, identity));
        let open = self.open.get(&drive).expect("only an open drive gets a new label");
        let copy = match open.descriptor.try_clone() {
            Ok(copy) => copy,
            Err(error) => {
                let error = format!("its descriptor cannot be copied: {error}");
                let result = Err(Obstacle::AttachFailed { error });
                self.end(StepEnd::Event(Event::Attached { drive, result }));
                return;
            }
        };
        self.spawn(drive, request, vec![copy], move |outcome| match outcome {
            Ok(Done { response: Response::Attached(Ok(attached)), .. }) => {
                let Attached { label, told, .. } = attached;
                StepEnd::Relabelled { drive, label, told }
            }
            other => attach_failed(drive, other),
        });
    }

    /// Closes an open drive and proves it; one whose volumes were given up also with them on it. The descriptor is the
    /// child's from here on, unless it gives it back.
    pub(crate) fn detach(
        &mut self,
        drive: DriveId,
        at: Where,
        identity: Identity,
        (generation, given_up): (Generation, bool),
    ) {
        let Open { descriptor, id } =
            self.open.remove(&drive).expect("only an open drive is closed");
        let release = release(drive, identity, generation);
        let Where { path, kind, evidence } = at;
        let known = Some(id);
        let even_with_volumes = given_up;
        let request = Detach { path, kind, evidence, known, release, even_with_volumes };
        let request = Request::Detach(request);
        let names = self.names_on(drive);
        self.spawn(drive, request, vec![descriptor], move |mut outcome| {
            let refused = outcome.as_mut().ok().and_then(|done| {
                let obstacle = in_use(&done.response, &names)?;
                (done.descriptors.len() == 1).then(|| (done.descriptors.remove(0), obstacle))
            });
            match refused {
                Some((descriptor, obstacle)) => {
                    StepEnd::StillOpen { drive, descriptor, id, obstacle }
                }
                None => proved(drive, outcome, &names),
            }
        });
    }

    /// Releases the label of a closed drive, if it is not released, and proves that the drive is closed.
    pub(crate) fn prove(
        &self,
        drive: DriveId,
        at: Where,
        identity: Identity,
        (generation, given_up): (Generation, bool),
    ) {
        let release = release(drive, identity, generation);
        let Where { path, kind, evidence } = at;
        let known = None;
        let even_with_volumes = given_up;
        let request = Detach { path, kind, evidence, known, release, even_with_volumes };
        let request = Request::Detach(request);
        let names = self.names_on(drive);
        self.spawn(drive, request, Vec::new(), move |outcome| proved(drive, outcome, &names));
    }

    /// What people call the volumes on a drive.
    fn names_on(&self, drive: DriveId) -> Names {
        let extents = self.labels.get(&drive).into_iter().flat_map(|told| &told.extents);
        extents.map(|extent| (extent.volume, extent.name.clone())).collect()
    }

    /// Ends a proof that cannot even be begun.
    pub(crate) fn not_proved(&self, drive: DriveId, obstacle: Obstacle) {
        let result = Err(obstacle);
        self.end(StepEnd::Event(Event::Closed { drive, label: None, result }));
    }

    /// Gives every descriptor to children, so that a drive that hangs does not keep this process from ending.
    pub(crate) fn let_go(&mut self) {
        for (_, open) in std::mem::take(&mut self.open) {
            self.workers.close(vec![open.descriptor]);
        }
    }

    fn end(&self, end: StepEnd) {
        let ends = self.ends.clone();
        tokio::spawn(async move { ends.send(end).await });
    }

    fn spawn(
        &self,
        drive: DriveId,
        request: Request,
        descriptors: Vec<OwnedFd>,
        finish: impl FnOnce(Result<Done, WorkerError>) -> StepEnd + Send + 'static,
    ) {
        let (workers, ends) = (self.workers.clone(), self.ends.clone());
        tokio::spawn(async move {
            let mut running = start(&workers, drive, request, descriptors, &ends).await;
            let outcome = match tokio::time::timeout(STUCK_AFTER, &mut running).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    let why = format!(
                        "process {} has waited for the drive for {} s",
                        running.pid(),
                        STUCK_AFTER.as_secs()
                    );
                    tracing::warn!(%drive, "{why}");
                    let obstacle = Obstacle::Quarantined { why };
                    // The agent is ending if nobody listens.
                    drop(ends.send(StepEnd::Event(Event::Stuck { drive, obstacle })).await);
                    running.await
                }
            };
            for warning in outcome.iter().flat_map(|done| &done.warnings) {
                tracing::warn!(%drive, "{warning}");
            }
            drop(ends.send(finish(outcome)).await);
        });
    }
}

/// Gets a child for the request, however long it takes: the descriptors must not be closed here.
async fn start(
    workers: &Workers,
    drive: DriveId,
    request: Request,
    mut descriptors: Vec<OwnedFd>,
    ends: &mpsc::Sender<StepEnd>,
) -> Running {
    loop {
        match workers.start(request.clone(), descriptors) {
            Ok(running) => return running,
            Err(NotStarted { why, descriptors: kept }) => {
                descriptors = kept;
                tracing::error!(%drive, "no child process for a step on the drive: {why}");
                let obstacle = Obstacle::Quarantined { why: why.to_string() };
                drop(ends.send(StepEnd::Event(Event::Stuck { drive, obstacle })).await);
                tokio::time::sleep(NO_CHILD_PAUSE).await;
            }
        }
    }
}

fn attach(work: &AttachWork, at: Where, identity: Identity) -> Attach {
    let Where { path, kind, evidence } = at;
    let want = LabelWant(Want {
        cluster: identity.cluster,
        drive: work.drive,
        node: identity.node,
        generation: work.generation,
        in_operation: work.in_operation,
        take_over: work.take_over,
    });
    Attach { path, kind, evidence, want, wipe: work.wipe.clone() }
}

fn release(drive: DriveId, identity: Identity, generation: Generation) -> Option<LabelWant> {
    Some(LabelWant(Want {
        cluster: identity.cluster,
        drive,
        node: identity.node,
        generation,
        in_operation: false,
        take_over: false,
    }))
}

fn attach_failed(drive: DriveId, outcome: Result<Done, WorkerError>) -> StepEnd {
    let obstacle = match outcome {
        Ok(Done { response: Response::Attached(Err(error)), .. }) => match error {
            AttachError::Missing { .. } => Obstacle::DeviceMissing,
            AttachError::LockedBy { .. } => Obstacle::Quarantined { why: error.to_string() },
            AttachError::Busy { by } => {
                Obstacle::Blocked { by: by.iter().map(ToString::to_string).collect() }
            }
            AttachError::OtherDrive { .. }
            | AttachError::NoProof { .. }
            | AttachError::NotOurs { .. } => Obstacle::NotOurs { why: error.to_string() },
            AttachError::Failed { .. } => Obstacle::AttachFailed { error: error.to_string() },
        },
        Ok(Done { response, .. }) => {
            Obstacle::AttachFailed { error: format!("the child answered {response:?}") }
        }
        Err(error) => Obstacle::AttachFailed { error: error.to_string() },
    };
    StepEnd::Event(Event::Attached { drive, result: Err(obstacle) })
}

fn label_changed(drive: DriveId, outcome: Result<Done, WorkerError>) -> StepEnd {
    let (told, result) = match outcome {
        Ok(Done { response: Response::LabelChanged(Ok(told)), .. }) => {
            let now = told.basis;
            (Some(told), LabelResult::Done { now })
        }
        Ok(Done { response: Response::LabelChanged(Err(error)), .. }) => match error {
            LabelChangeError::Refused { why, now } => {
                let result = LabelResult::Refused { why: why.to_string(), told: now.clone() };
                (Some(now), result)
            }
            LabelChangeError::Mapped { uses } => {
                let uses = uses.into_iter();
                let uses = uses.map(|(volume, epoch)| (volume, Epoch::from_number(epoch)));
                (None, LabelResult::InUse { uses: uses.collect() })
            }
            error @ (LabelChangeError::NotHeld { .. }
            | LabelChangeError::Missing { .. }
            | LabelChangeError::OtherDrive { .. }
            | LabelChangeError::LockedBy { .. }
            | LabelChangeError::Failed { .. }) => {
                (None, LabelResult::Failed { error: error.to_string() })
            }
        },
        Ok(Done { response, .. }) => {
            (None, LabelResult::Failed { error: format!("the child answered {response:?}") })
        }
        Err(error) => (None, LabelResult::Failed { error: error.to_string() }),
    };
    StepEnd::LabelChanged { drive, told, result }
}

fn proved(drive: DriveId, outcome: Result<Done, WorkerError>, names: &Names) -> StepEnd {
    let mut label = None;
    let result = match outcome {
        Ok(Done { response: Response::Detached(detached), .. }) => {
            let Detached { label: seen, label_not_updated, proof } = detached;
            label = seen;
            if let Some(why) = label_not_updated {
                tracing::warn!(%drive, "its label does not say that it is released: {why}");
            }
            match proof {
                Proof::Proved => Ok(()),
                Proof::Blocked { by } => {
                    Err(Obstacle::Blocked { by: by.iter().map(ToString::to_string).collect() })
                }
                Proof::CannotProve { why } => Err(Obstacle::CannotProve { why }),
            }
        }
        Ok(Done { response, .. }) => Err(in_use(&response, names).unwrap_or_else(|| {
            Obstacle::CannotProve { why: format!("the child answered {response:?}") }
        })),
        // A child that died has closed what it had; whether that is proved is asked again.
        Err(error) => Err(Obstacle::CannotProve { why: error.to_string() }),
    };
    StepEnd::Event(Event::Closed { drive, label, result })
}

/// Why a child has not closed a drive.
fn in_use(response: &Response, names: &Names) -> Option<Obstacle> {
    let in_words = |blocker: &Blocker| match blocker {
        Blocker::Mapping { volume, path } if names.contains_key(volume) => {
            format!("volume {}, mapped at {path}", names[volume])
        }
        other => other.to_string(),
    };
    match response {
        Response::InUse { volumes } => Some(Obstacle::InUse { volumes: volumes.clone() }),
        Response::StillMapped { by } => {
            Some(Obstacle::Blocked { by: by.iter().map(in_words).collect() })
        }
        _ => None,
    }
}
