//! What the watches have told and nobody has settled yet: of each object the newest alone, so that it never holds more
//! than there are objects, and a watch never waits.
//!
//! Objects that are deleted and held by our finalizer are handed out by a way of their own. They must not wait for the
//! registry: while a definition is being deleted its store cannot write, and the definition goes only after they do.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
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

impl Listed {
    /// Whether an object that was seen before this list is gone.
    pub(super) fn lacks(&self, seen: &Seen) -> bool {
        seen.resource == self.resource && !self.uids.contains(&seen.entry.uid)
    }
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
    /// By uid.
    objects: HashMap<String, (Seen, bool)>,
    /// The uids of those, in the order of their first news: under a storm none is passed over.
    order: VecDeque<String>,
    lists: BTreeMap<Resource, Listed>,
    /// With the time of the news.
    to_release: BTreeMap<String, (Instant, Seen)>,
}

impl State {
    /// Newer news of an object takes the place of older.
    fn put(&mut self, seen: Seen, is_gone: bool) {
        let uid = seen.entry.uid.clone();
        if self.objects.insert(uid.clone(), (seen, is_gone)).is_none() {
            self.order.push_back(uid);
        }
    }

    fn take_first(&mut self) -> Option<(Seen, bool)> {
        let uid = self.order.pop_front()?;
        self.objects.remove(&uid)
    }

    /// What was told of objects before a list that does not have them: they are gone, with no event about it.
    fn drop_lacking(&mut self, listed: &Listed) {
        let Self { objects, order, .. } = self;
        objects.retain(|_, (seen, is_gone)| *is_gone || !listed.lacks(seen));
        order.retain(|uid| objects.contains_key(uid));
    }
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
        state.put(seen, is_gone);
        self.filled.notify_one();
    }

    /// Tells once more of an object, unless there is newer news of it. It is old news in any case: one that was deleted
    /// since is let go of all the same.
    pub(super) fn tell_again(&self, seen: Seen) {
        let mut state = self.state();
        if !state.objects.contains_key(&seen.entry.uid) {
            state.put(seen, false);
        }
        self.filled.notify_one();
    }

    /// An object could not be let go of: it is handed out again.
    pub(super) fn hold_again(&self, seen: Seen) {
        let uid = seen.entry.uid.clone();
        self.state().to_release.entry(uid).or_insert_with(|| (Instant::now(), seen));
        self.held.notify_one();
    }

    /// Tells that a list was read, before anything that its watch tells after it. A newer one says all that the one
    /// before did.
    pub(super) fn tell_listed(&self, listed: Listed) {
        let mut state = self.state();
        state.drop_lacking(&listed);
        state.lists.insert(listed.resource, listed);
        self.filled.notify_one();
    }

    /// The next things to settle, at most so many objects. Waits until there are any; may be cancelled.
    pub(super) async fn next(&self, most: usize) -> Batch {
        loop {
            {
                let mut state = self.state();
                let mut batch = Batch::default();
                while batch.objects.len() < most
                    && let Some(told) = state.take_first()
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

    fn named(uid: &str) -> Seen {
        let metadata = json!({ "name": uid, "uid": uid, "resourceVersion": "1" });
        Seen::of(Resource::Volume, json!({ "metadata": metadata })).unwrap()
    }

    /// Whatever the server calls it, and however often others are told of.
    #[tokio::test(start_paused = true)]
    async fn objects_are_handed_out_in_the_order_of_their_arrival() {
        let pending = Pending::default();
        for uid in ["z", "b", "a", "z"] {
            pending.tell(named(uid), false);
        }
        let uids = |batch: Batch| -> Vec<_> {
            batch.objects.into_iter().map(|(seen, _)| seen.entry.uid).collect()
        };
        assert_eq!(uids(pending.next(1).await), ["z"]);
        pending.tell(named("0"), false);
        pending.tell_again(named("z"));
        assert_eq!(uids(pending.next(3).await), ["b", "a", "0"]);
        assert_eq!(uids(pending.next(3).await), ["z"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_list_lacks_is_not_handed_out_unless_it_is_known_to_be_gone() {
        let pending = Pending::default();
        pending.tell(named("there"), false);
        pending.tell(named("lost"), false);
        pending.tell(named("deleted"), true);
        let uids = HashSet::from(["there".to_owned()]);
        pending.tell_listed(Listed { resource: Resource::Volume, version: 2, uids });
        pending.tell(named("new"), false);
        let expected = [(named("there"), false), (named("deleted"), true), (named("new"), false)];
        assert_eq!(pending.next(10).await.objects, expected);
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
