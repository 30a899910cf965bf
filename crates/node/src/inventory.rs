//! Which devices the machine has, asked again every few seconds; a device is opened only when it is new or has changed.
//!
//! A drive that is out of operation is not opened at all, not even to look: whoever took it out may be working on it.

use std::collections::BTreeMap;
use std::time::Duration;

use hotbay_core::device::Observed;
use hotbay_core::evidence::{Comparison, Evidence};
use hotbay_core::ids::ClusterId;
use hotbay_host::scan::{self, Candidate, Selection};
use hotbay_host::worker::{Running, Workers};
use tokio::task::JoinSet;

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

#[derive(Debug)]
struct Seen {
    candidate: Candidate,
    observed: Observed,
    /// A child that hangs on the device. Until it ends the device is not looked at again.
    unfinished: Option<Running>,
}

impl Inventory {
    pub(crate) fn new(workers: Workers, places: Vec<Place>) -> Self {
        Self { workers, places, seen: BTreeMap::new() }
    }

    /// Looks at the machine. `left_alone` are drives that must not be opened. A machine that cannot be asked is
    /// unknown, which is not the same as empty: then what was known before stays.
    pub(crate) async fn look(
        &mut self,
        ours: Option<ClusterId>,
        left_alone: &[Evidence],
    ) -> Vec<Observed> {
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
                    return self.observed();
                }
                Err(_) => return self.observed(),
            }
        }
        self.seen.retain(|path, _| found.contains_key(path));
        let mut looks = JoinSet::new();
        for (path, (bay, candidate)) in found {
            if self.seen.get_mut(&path).is_some_and(|seen| seen.stays(&candidate)) {
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
        self.observed()
    }

    /// The devices as they were last seen. One that hangs before it could be told from others is left out: it may be a
    /// drive that is known, and must not be taken for a new one.
    pub(crate) fn observed(&self) -> Vec<Observed> {
        let unidentified =
            |seen: &&Seen| seen.unfinished.is_some() && seen.observed.evidence.is_empty();
        let known = self.seen.values().filter(|seen| !unidentified(seen));
        known.map(|seen| seen.observed.clone()).collect()
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
    /// Whether the device need not be looked at again.
    fn stays(&mut self, now: &Candidate) -> bool {
        let hangs = self.unfinished.as_mut().is_some_and(|running| !running.is_finished());
        hangs || (self.candidate == *now && self.unfinished.is_none())
    }
}

async fn look_at(
    workers: Workers,
    bay: Option<String>,
    candidate: Candidate,
    ours: Option<ClusterId>,
    left_alone: Vec<Evidence>,
) -> Seen {
    let identified = scan::identify(&workers, &candidate, LOOK_LIMIT).await;
    let alone = |evidence: &&Evidence| {
        left_alone.iter().any(|known| known.compare(evidence) == Comparison::Same)
    };
    let (mut observed, unfinished) = match identified.as_ref().filter(alone) {
        Some(evidence) => (scan::unlooked(&candidate, evidence.clone()), None),
        None => {
            let observation = scan::observe(&workers, &candidate, ours, LOOK_LIMIT).await;
            (observation.observed, observation.unfinished)
        }
    };
    observed.bay = bay.or(observed.bay);
    Seen { candidate, observed, unfinished }
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
