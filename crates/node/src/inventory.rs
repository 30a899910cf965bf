//! Which devices the machine has, asked again every few seconds; a device is opened only when it is new or has changed.
//!
//! A drive that is out of operation is not opened at all, not even to look: whoever took it out may be working on it.

use std::collections::BTreeMap;
use std::time::Duration;

use hotbay_core::device::{Denied, Observed};
use hotbay_core::evidence::{Comparison, Evidence};
use hotbay_core::ids::ClusterId;
use hotbay_host::scan::{self, Candidate, Selection};
use hotbay_host::worker::{Done, Request, Response, Running, Workers};
use tokio::task::JoinSet;

use crate::labels::{How, Looked};

/// How long a device may take to be looked at before the rest of the machine goes on without it.
const LOOK_LIMIT: Duration = Duration::from_secs(3);

/// One thing to look for: a path or pattern, and the bay that what it finds is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub bay: Option<String>,
    pub pattern: String,
}

impl std::str::FromStr for Place {
    type Err = std::convert::Infallible;

    /// `PATTERN`, or `BAY=PATTERN` where the pattern is a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |bay: &str| {
            (1..=32).contains(&bay.len())
                && bay.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        Ok(match text.split_once('=') {
            Some((bay, pattern)) if plain(bay) => {
                Self { bay: Some(bay.to_owned()), pattern: pattern.to_owned() }
            }
            Some(_) | None => Self { bay: None, pattern: text.to_owned() },
        })
    }
}

/// What was found so far.
#[derive(Debug)]
pub(crate) struct Inventory {
    workers: Workers,
    /// Empty: all drives of the machine.
    places: Vec<Place>,
    seen: BTreeMap<String, Seen>,
}

/// What a look at the machine came to.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) devices: Vec<Looked>,
    /// The paths of devices that hang before they could be told from others. Each may be a drive that is known: it must
    /// be taken neither for a new one nor for gone.
    pub(crate) hanging: Vec<String>,
}

#[derive(Debug)]
struct Seen {
    candidate: Candidate,
    observed: Observed,
    how: How,
    was_left_alone: bool,
    /// A child that hangs on the device. Until it ends the device is not looked at again.
    unfinished: Option<Running>,
}

impl Inventory {
    pub(crate) fn new(workers: Workers, places: Vec<Place>) -> Self {
        Self { workers, places, seen: BTreeMap::new() }
    }

    /// Looks at the machine. `left_alone` are drives that must not be opened. A machine that cannot be asked is
    /// unknown, which is not the same as empty: then what was known before stays.
    pub(crate) async fn look(&mut self, ours: Option<ClusterId>, left_alone: &[Evidence]) -> Found {
        let mut found = BTreeMap::new();
        for (bay, selection) in self.selections() {
            match tokio::task::spawn_blocking(move || scan::list(&selection)).await {
                Ok(Ok(candidates)) => {
                    for candidate in candidates {
                        found.entry(candidate.path.clone()).or_insert((bay.clone(), candidate));
                    }
                }
                Ok(Err(error)) => {
                    tracing::error!("the devices of this machine are unknown now: {error}");
                    return self.found();
                }
                Err(_) => return self.found(),
            }
        }
        self.seen.retain(|path, _| found.contains_key(path));
        let mut looks = JoinSet::new();
        for (path, (bay, candidate)) in found {
            if self.seen.get_mut(&path).is_some_and(|seen| seen.stays(&candidate, left_alone)) {
                continue;
            }
            let workers = self.workers.clone();
            let left_alone = left_alone.to_vec();
            looks.spawn(look_at(workers, bay, candidate, ours, left_alone));
        }
        while let Some(looked) = looks.join_next().await {
            let Ok(seen) = looked else { continue };
            self.seen.insert(seen.candidate.path.clone(), seen);
        }
        self.found()
    }

    /// Has a device read again at the next look.
    pub(crate) fn doubt(&mut self, path: &str) {
        self.seen.remove(path);
    }

    /// The devices as they were last seen.
    pub(crate) fn found(&self) -> Found {
        let (hanging, known): (Vec<_>, Vec<_>) = self
            .seen
            .values()
            .partition(|seen| seen.unfinished.is_some() && seen.observed.evidence.is_empty());
        Found {
            devices: known.into_iter().map(Seen::looked).collect(),
            hanging: hanging.into_iter().map(|seen| seen.candidate.path.clone()).collect(),
        }
    }

    fn selections(&self) -> Vec<(Option<String>, Selection)> {
        if self.places.is_empty() {
            return vec![(None, Selection::All)];
        }
        let one =
            |place: &Place| (place.bay.clone(), Selection::Patterns(vec![place.pattern.clone()]));
        self.places.iter().map(one).collect()
    }
}

impl Seen {
    /// Whether the device need not be looked at again. One that was left alone must be, once it is not any more.
    fn stays(&mut self, now: &Candidate, left_alone: &[Evidence]) -> bool {
        let hangs = self.unfinished.as_mut().is_some_and(|running| !running.is_finished());
        let as_before = self.candidate == *now && self.unfinished.is_none();
        let unread = self.was_left_alone && !is_alone(left_alone, &self.observed.evidence);
        let stays = hangs || (as_before && !unread);
        if stays {
            self.how = How::Unchanged;
        }
        stays
    }

    fn looked(&self) -> Looked {
        Looked { observed: self.observed.clone(), how: self.how }
    }
}

fn is_alone(left_alone: &[Evidence], evidence: &Evidence) -> bool {
    left_alone.iter().any(|known| known.compare(evidence) == Comparison::Same)
}

async fn look_at(
    workers: Workers,
    bay: Option<String>,
    candidate: Candidate,
    ours: Option<ClusterId>,
    left_alone: Vec<Evidence>,
) -> Seen {
    let mut how = How::Read;
    let (mut observed, unfinished) = match identify(&workers, &candidate).await {
        Identified::As(evidence) if is_alone(&left_alone, &evidence) => {
            how = How::LeftAlone;
            (scan::unlooked(&candidate, evidence), None)
        }
        // It may be one that must not be opened.
        Identified::Hangs(running) => {
            let mut observed = scan::unlooked(&candidate, candidate.evidence.clone());
            let error = format!("process {} waits for it", running.pid());
            observed.denied.push(Denied::Unreadable { error });
            (observed, Some(running))
        }
        Identified::As(_) | Identified::Unknown => {
            let observation = scan::observe(&workers, &candidate, ours, LOOK_LIMIT).await;
            (observation.observed, observation.unfinished)
        }
    };
    observed.bay = bay.or(observed.bay);
    let was_left_alone = how == How::LeftAlone;
    Seen { candidate, observed, how, was_left_alone, unfinished }
}

/// Which drive a device is, asked without opening it.
enum Identified {
    As(Evidence),
    /// Nothing tells it from another.
    Unknown,
    /// There was no answer in time.
    Hangs(Running),
}

async fn identify(workers: &Workers, candidate: &Candidate) -> Identified {
    let request = Request::Identify { path: candidate.path.clone() };
    let Ok(mut running) = workers.start(request, Vec::new()) else { return Identified::Unknown };
    match tokio::time::timeout(LOOK_LIMIT, &mut running).await {
        Err(_) => Identified::Hangs(running),
        Ok(Ok(Done { response: Response::Identified(Ok(evidence)), .. })) => {
            Identified::As(evidence)
        }
        Ok(Ok(_) | Err(_)) => Identified::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bay_is_named_before_a_path() {
        let place = |text: &str| text.parse::<Place>().unwrap();
        let of = |bay: Option<&str>, pattern: &str| Place {
            bay: bay.map(str::to_owned),
            pattern: pattern.to_owned(),
        };
        assert_eq!(place("0=/dev/loop3"), of(Some("0"), "/dev/loop3"));
        assert_eq!(place("/dev/nvme*n1"), of(None, "/dev/nvme*n1"));
        assert_eq!(place("/tmp/a=b"), of(None, "/tmp/a=b"));
        assert_eq!(place("=x"), of(None, "=x"));
    }
}
