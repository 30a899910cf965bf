//! One look at the devices of this machine, as its agent would look, without a registry and without an agent:
//! `hotbay node scan`.

use std::path::Path;
use std::time::Duration;

use hotbay_core::agent::RecordFound;
use hotbay_core::device::Observed;
use hotbay_core::ids::ClusterId;
use hotbay_host::scan::{self, Candidate, ScanError};
use hotbay_host::worker::Workers;
use thiserror::Error;
use tokio::task::JoinSet;

use crate::discovery::{Place, selections};
use crate::state_dir::StateDir;

/// How long one device may take; the others do not wait for it.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Most devices that are looked at at the same time.
const AT_ONCE: usize = 32;

/// Why the devices are unknown.
#[derive(Debug, Error)]
pub enum SurveyError {
    #[error("the devices of this machine cannot be listed")]
    List(#[from] ScanError),
    #[error("a look at the devices was cut off")]
    CutOff(#[from] tokio::task::JoinError),
}

/// The cluster that the agent with this folder belongs to, if it has joined one and the folder can be read.
pub fn cluster_of(data_dir: &Path) -> Option<ClusterId> {
    let identity = match StateDir::as_it_is(data_dir).load() {
        RecordFound::Usable(record) => record.identity,
        RecordFound::Absent(kept) | RecordFound::Damaged { kept, .. } => {
            kept.map(|kept| kept.identity)
        }
    };
    identity.map(|identity| identity.cluster)
}

/// Looks at every device in these places, or at all drives of the machine, sorted by path. Opens each for reading, for
/// a moment, and writes nothing.
pub async fn survey(
    workers: &Workers,
    places: &[Place],
    ours: Option<ClusterId>,
) -> Result<Vec<Observed>, SurveyError> {
    let mut found: Vec<(Option<String>, Candidate)> = Vec::new();
    for (bay, selection) in selections(places) {
        let listed = tokio::task::spawn_blocking(move || scan::list(&selection)).await??;
        for candidate in listed {
            if !found.iter().any(|(_, known)| known.id == candidate.id) {
                found.push((bay.clone(), candidate));
            }
        }
    }
    let mut waiting = found.into_iter();
    let mut looks = JoinSet::new();
    let mut devices = Vec::new();
    loop {
        for (bay, candidate) in waiting.by_ref().take(AT_ONCE - looks.len()) {
            looks.spawn(look(workers.clone(), bay, candidate, ours));
        }
        match looks.join_next().await {
            Some(observed) => devices.push(observed?),
            None => break,
        }
    }
    devices.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(devices)
}

async fn look(
    workers: Workers,
    bay: Option<String>,
    candidate: Candidate,
    ours: Option<ClusterId>,
) -> Observed {
    // A child that hangs ends with this program, as soon as it wakes up.
    let mut observed = scan::observe(&workers, &candidate, ours, LOOK_LIMIT).await.observed;
    observed.bay = bay.or(observed.bay);
    observed
}
