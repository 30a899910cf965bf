//! What the watches have told and nobody has settled yet: of each object the newest alone, so that it never holds more
//! than there are objects, and a watch never waits.
//!
//! Objects that are deleted and held by our finalizer are handed out by a way of their own. They must not wait for the
//! registry: while a definition is being deleted its store cannot write, and the definition goes only after they do.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

use super::seen::Seen;
use crate::resource::Resource;

/// So long the store has to finish a deletion of its own, which shows for a moment like one by people.
const OWN_DELETION: Duration = Duration::from_secs(1);

/// A list that was read to its end.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) resource: Resource,
    pub(super) version: u64,
    /// Of all objects that there were at that version.
    pub(super) uids: HashSet<String>,
}

/// What is to be settled together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The objects, and whether they are gone.
    pub(super) objects: Vec<(Seen, bool)>,
    pub(super) lists: Vec<Listed>,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    state: Mutex<State>,
    filled: Notify,
    held: Notify,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, (Seen, bool)>,
    lists: BTreeMap<Resource, Listed>,
    /// With the time of the news.
    to_release: BTreeMap<String, (Instant, Seen)>,
}

impl Pending {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of an object. Each watch tells in order.
    pub(super) fn tell(&self, seen: Seen, is_gone: bool) {
        let mut state = self.state();
        let uid = seen.entry.uid.clone();
        if !is_gone && seen.entry.is_deleted && seen.entry.has_finalizer {
            state.to_release.insert(uid.clone(), (Instant::now(), seen.clone()));
            self.held.notify_one();
        } else {
            state.to_release.remove(&uid);
        }
        state.objects.insert(uid, (seen, is_gone));
        self.filled.notify_one();
    }

    /// Tells once more of an object, unless there is newer news of it. It is old news in any case: one that was deleted
    /// since is let go of all the same.
    pub(super) fn tell_again(&self, seen: Seen) {
        let uid = seen.entry.uid.clone();
        self.state().objects.entry(uid).or_insert((seen, false));
        self.filled.notify_one();
    }

    /// An object could not be let go of: it is handed out again.
    pub(super) fn hold_again(&self, seen: Seen) {
        let uid = seen.entry.uid.clone();
        self.state().to_release.entry(uid).or_insert_with(|| (Instant::now(), seen));
        self.held.notify_one();
    }

    /// Tells that a list was read. A newer one says all that the one before did.
    pub(super) fn tell_listed(&self, listed: Listed) {
        self.state().lists.insert(listed.resource, listed);
        self.filled.notify_one();
    }

    /// The next things to settle, at most so many objects. Waits until there are any; may be cancelled.
    pub(super) async fn next(&self, most: usize) -> Batch {
        loop {
            {
                let mut state = self.state();
                let mut batch = Batch::default();
                while batch.objects.len() < most
                    && let Some((_, told)) = state.objects.pop_first()
                {
                    batch.objects.push(told);
                }
                batch.lists = std::mem::take(&mut state.lists).into_values().collect();
                if !batch.objects.is_empty() || !batch.lists.is_empty() {
                    return batch;
                }
            }
            self.filled.notified().await;
        }
    }

    /// The objects to let go of: those that are still there after the store had its time. May be cancelled.
    pub(super) async fn next_to_release(&self) -> Vec<Seen> {
        loop {
            let is_empty = {
                let mut state = self.state();
                let due = |(since, _): &(Instant, Seen)| since.elapsed() >= OWN_DELETION;
                let held = state.to_release.extract_if(.., |_, held| due(held));
                let held: Vec<_> = held.map(|(_, (_, seen))| seen).collect();
                if !held.is_empty() {
                    return held;
                }
                state.to_release.is_empty()
            };
            if is_empty {
                self.held.notified().await;
            }
            tokio::time::sleep(OWN_DELETION).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(version: u64, is_deleted: bool) -> Seen {
        let mut object = json!({
            "metadata": { "name": "v", "uid": "u", "resourceVersion": version.to_string(),
                          "finalizers": ["hotbay.dev/controller"] },
        });
        if is_deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Seen::of(Resource::Volume, object).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_of_each_object_is_handed_out_once() {
        let pending = Pending::default();
        pending.tell(seen(1, false), false);
        pending.tell(seen(2, false), false);
        pending.tell_again(seen(1, false));
        let batch = pending.next(10).await;
        assert_eq!(batch.objects, [(seen(2, false), false)]);
        let next = tokio::time::timeout(OWN_DELETION, pending.next(10));
        assert!(next.await.is_err());
    }

    /// The store takes the finalizer off what it deletes: nobody else needs to.
    #[tokio::test(start_paused = true)]
    async fn what_goes_by_itself_is_not_let_go_of() {
        let pending = Pending::default();
        pending.tell(seen(1, true), false);
        pending.tell(seen(2, true), true);
        let next = tokio::time::timeout(10 * OWN_DELETION, pending.next_to_release());
        assert!(next.await.is_err());
        pending.tell(seen(3, true), false);
        assert_eq!(pending.next_to_release().await, [seen(3, true)]);
        // Also if it is looked at again as it was before.
        pending.tell(seen(3, true), false);
        pending.next(10).await;
        pending.tell_again(seen(1, false));
        assert_eq!(pending.next_to_release().await, [seen(3, true)]);
        // Also while nobody has settled what was told of it.
        pending.hold_again(seen(3, true));
        assert_eq!(pending.next_to_release().await, [seen(3, true)]);
    }
}
