//! How each volume is staged on this machine: itself, or a dummy because it could not be reached.
//!
//! One staging is one truth. It is on disk before anything is done by it; publish follows it; it changes at the next
//! stage, or at a publish that finds the volume dead. The calls of CSI write it, one at a time for a volume; the
//! agent's loop reads it, tells the registry, and looks again and again whether what was dead answers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hotbay_core::ids::{DriveId, VolumeId};
use hotbay_core::label::change::Basis;
use hotbay_core::volume::Epoch;
use hotbay_core::volume::orders::{StagedAs, VolumeReport};
use hotbay_csi::platform::{Failure, FailureKind};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::state_dir::{Found, StateDir, StateDirError};

/// The folder of the records below the agent's own.
const FOLDER: &str = "stagings";
/// How often a volume is looked at that could not be reached and whose drive is open.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// What is on disk of one volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Staging {
    /// Of the use under which it was staged.
    pub(crate) epoch: Epoch,
    pub(crate) block: bool,
    pub(crate) shows: Shows,
    /// The stage got to its end.
    pub(crate) done: bool,
}

/// What pods get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "shows")]
pub(crate) enum Shows {
    Real,
    Fake {
        reason: String,
        /// Its filesystem is the reason: that the device answers is not enough then.
        filesystem: bool,
        /// The dummy of a block volume.
        device: Option<String>,
    },
}

#[derive(Debug)]
struct Held {
    staging: Staging,
    /// Why a dummy's volume does not answer now.
    inaccessible: Option<String>,
    /// The label that it was last looked for on, and when.
    looked: Option<((DriveId, Basis), Instant)>,
    looking: bool,
}

impl Held {
    fn new(staging: Staging) -> Self {
        let inaccessible = match &staging.shows {
            Shows::Real => None,
            Shows::Fake { reason, .. } => Some(reason.clone()),
        };
        Self { staging, inaccessible, looked: None, looking: false }
    }
}

#[derive(Debug)]
struct Shared {
    folder: StateDir,
    held: Mutex<BTreeMap<VolumeId, Held>>,
    /// Records that cannot be read: nobody knows what pods got.
    damaged: Mutex<BTreeSet<VolumeId>>,
    changed: watch::Sender<u64>,
}

/// All stagings of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Stagings {
    shared: Arc<Shared>,
}

impl Stagings {
    /// Reads what earlier starts have left.
    pub(crate) fn open(
        data_dir: &Path,
        checkpoint: fn(&'static str),
    ) -> Result<Self, StateDirError> {
        let folder = StateDir::open(&data_dir.join(FOLDER), checkpoint)?;
        let (mut held, mut damaged) = (BTreeMap::new(), BTreeSet::new());
        for name in folder.names()? {
            let Ok(volume) = name.parse::<VolumeId>() else { continue };
            match folder.read::<Staging>(&name) {
                Found::Value(staging) => {
                    held.insert(volume, Held::new(staging));
                }
                Found::Nothing => {}
                Found::Damaged(why) => {
                    tracing::error!(%volume, "the record of its staging is damaged: {why}");
                    damaged.insert(volume);
                }
            }
        }
        let (held, damaged) = (Mutex::new(held), Mutex::new(damaged));
        let (changed, _) = watch::channel(0);
        Ok(Self { shared: Arc::new(Shared { folder, held, damaged, changed }) })
    }

    /// Wakes whoever tells the registry.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// How a volume is staged; none if it is not, or was by a program that kept no records.
    pub(super) fn get(&self, volume: VolumeId) -> Result<Option<Staging>, Failure> {
        if lock(&self.shared.damaged).contains(&volume) {
            let words = "the record of its staging is damaged: unstage it and stage it again";
            return Err(Failure::new(FailureKind::Unavailable, words));
        }
        Ok(lock(&self.shared.held).get(&volume).map(|held| held.staging.clone()))
    }

    /// Writes how a volume is staged; on disk when it returns.
    pub(super) async fn put(&self, volume: VolumeId, staging: Staging) -> Result<(), Failure> {
        let (shared, written) = (self.shared.clone(), staging.clone());
        let writing = move || shared.folder.write(&volume.to_string(), &written);
        blocking(writing).await?;
        lock(&self.shared.damaged).remove(&volume);
        lock(&self.shared.held).insert(volume, Held::new(staging));
        self.wake();
        Ok(())
    }

    /// Forgets a volume; lasts when it returns.
    pub(super) async fn forget(&self, volume: VolumeId) -> Result<(), Failure> {
        let shared = self.shared.clone();
        blocking(move || shared.folder.remove(&volume.to_string())).await?;
        lock(&self.shared.damaged).remove(&volume);
        if lock(&self.shared.held).remove(&volume).is_some() {
            self.wake();
        }
        Ok(())
    }

    /// Every volume whose record says that pods get a dummy.
    pub(crate) fn fakes(&self) -> Vec<VolumeId> {
        let held = lock(&self.shared.held);
        let fakes = held.iter().filter(|(_, held)| held.staging.shows != Shows::Real);
        fakes.map(|(volume, _)| *volume).collect()
    }

    /// What the registry is to know, of all of them. None: it is being staged.
    pub(crate) fn reports(&self) -> BTreeMap<VolumeId, Option<VolumeReport>> {
        let held = lock(&self.shared.held);
        let report = |(volume, held): (&VolumeId, &Held)| {
            let Staging { epoch, shows, done, .. } = &held.staging;
            let access = match shows {
                Shows::Real => StagedAs::Real,
                Shows::Fake { reason, device, .. } => {
                    StagedAs::Fake { device: device.clone(), reason: reason.clone() }
                }
            };
            let (epoch, inaccessible) = (*epoch, held.inaccessible.clone());
            let report = VolumeReport { volume: *volume, epoch, access, inaccessible };
            (*volume, done.then_some(report))
        };
        held.iter().map(report).collect()
    }

    /// Takes note of where a dummy's volume is now. True: it is to be looked at, and [`Self::looked`] waited for.
    pub(crate) fn stands(&self, volume: VolumeId, on: Option<(DriveId, Basis)>) -> bool {
        let mut all = lock(&self.shared.held);
        let Some(held) = all.get_mut(&volume) else { return false };
        let Shows::Fake { filesystem, .. } = held.staging.shows else { return false };
        let Some(on) = on else {
            held.looked = None;
            if held.inaccessible.is_none() {
                held.inaccessible = Some("its drive is not open on this node".to_owned());
                drop(all);
                self.wake();
            }
            return false;
        };
        let recent = held.looked.is_some_and(|(label, when)| {
            label == on && (held.inaccessible.is_none() || when.elapsed() < LOOK_EVERY)
        });
        if filesystem || held.looking || recent {
            return false;
        }
        held.looking = true;
        held.looked = Some((on, Instant::now()));
        true
    }

    /// What a look at a dummy's volume has found: nothing wrong, or what.
    pub(crate) fn looked(&self, volume: VolumeId, wrong: Option<String>) {
        let mut all = lock(&self.shared.held);
        let Some(held) = all.get_mut(&volume) else { return };
        held.looking = false;
        let there = held.looked.is_some();
        if matches!(held.staging.shows, Shows::Fake { .. }) && there && held.inaccessible != wrong {
            held.inaccessible = wrong;
            drop(all);
            self.wake();
        }
    }

    fn wake(&self) {
        self.shared.changed.send_modify(|number| *number = number.wrapping_add(1));
    }
}

/// A holder that panicked has left whole values.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

async fn blocking(
    work: impl FnOnce() -> Result<(), StateDirError> + Send + 'static,
) -> Result<(), Failure> {
    let failed = |words: String| Failure::new(FailureKind::Unavailable, words);
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            Err(failed(format!("{error}: {}", cause.unwrap_or_default())))
        }
        Err(_) => Err(failed("the agent stops; call again".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId::from_bits(7);
    const ON: (DriveId, Basis) = (DriveId::from_bits(1), Basis { sequence: 1, checksum: 0 });

    fn fake(filesystem: bool) -> Staging {
        let shows = Shows::Fake { reason: "gone".into(), filesystem, device: None };
        Staging { epoch: Epoch::from_number(3), block: false, shows, done: true }
    }

    fn said(stagings: &Stagings) -> Option<String> {
        stagings.reports()[&VOLUME].clone().unwrap().inaccessible
    }

    #[tokio::test]
    async fn a_staging_outlives_the_agent_and_damage_is_not_absence() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Stagings::open(dir.path(), |_| {}).unwrap();
        let stagings = open();
        assert_eq!(stagings.get(VOLUME).unwrap(), None);
        stagings.put(VOLUME, fake(false)).await.unwrap();
        assert_eq!(open().get(VOLUME).unwrap(), Some(fake(false)));
        assert_eq!(open().fakes(), [VOLUME]);
        let file = dir.path().join(FOLDER).join(VOLUME.to_string());
        std::fs::write(&file, b"half a li").unwrap();
        let damaged = open();
        assert!(damaged.get(VOLUME).is_err());
        damaged.put(VOLUME, fake(false)).await.unwrap();
        assert_eq!(damaged.get(VOLUME).unwrap(), Some(fake(false)), "staged again");
        damaged.forget(VOLUME).await.unwrap();
        damaged.forget(VOLUME).await.unwrap();
        assert!(!file.exists());
        assert_eq!(open().get(VOLUME).unwrap(), None);
    }

    #[tokio::test]
    async fn a_volume_answers_when_it_was_read_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let stagings = Stagings::open(dir.path(), |_| {}).unwrap();
        stagings.put(VOLUME, fake(false)).await.unwrap();
        assert!(!stagings.stands(VOLUME, None));
        assert_eq!(said(&stagings).as_deref(), Some("gone"));
        assert!(stagings.stands(VOLUME, Some(ON)));
        assert!(!stagings.stands(VOLUME, Some(ON)), "one look at a time");
        stagings.looked(VOLUME, Some("a read failed".into()));
        assert_eq!(said(&stagings).as_deref(), Some("a read failed"));
        assert!(!stagings.stands(VOLUME, Some(ON)), "not at once again");
        let other = (ON.0, Basis { sequence: 2, checksum: 0 });
        assert!(stagings.stands(VOLUME, Some(other)), "another label");
        stagings.looked(VOLUME, None);
        assert_eq!(said(&stagings), None);
        assert!(!stagings.stands(VOLUME, Some(other)));
        stagings.stands(VOLUME, None);
        assert!(said(&stagings).is_some(), "gone again");
    }

    #[tokio::test]
    async fn a_damaged_filesystem_is_not_made_good_by_a_drive_that_answers() {
        let dir = tempfile::tempdir().unwrap();
        let stagings = Stagings::open(dir.path(), |_| {}).unwrap();
        stagings.put(VOLUME, fake(true)).await.unwrap();
        assert!(!stagings.stands(VOLUME, Some(ON)));
        assert_eq!(said(&stagings).as_deref(), Some("gone"));
        let staging = Staging { shows: Shows::Real, done: false, ..fake(true) };
        stagings.put(VOLUME, staging).await.unwrap();
        assert_eq!(stagings.reports()[&VOLUME], None, "it is being staged");
    }
}
