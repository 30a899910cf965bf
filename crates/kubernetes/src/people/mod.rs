//! What people do to the objects, and what follows from it. The leading controller runs [`follow`] beside its registry.
//!
//! - [`watch`]: one watch per kind tells what happens; [`seen`]: an object, as far as it matters.
//! - [`mod@judge`]: what it means. Deleting is never consent, an edit of a status is nobody's decision.
//! - [`annotations`]: what people say of volumes, and volumes of themselves.
//! - [`wishes`]: what people want by a spec; [`unmet`]: what has no record yet; [`asks`]: both as the API would ask.
//! - [`calls`]: changes to objects that are not the store's; [`words`]: what people are told.
//! - [`patience`]: how the registry is asked.
//!
//! ```text
//!  API server ── watch (×5) ──▶ settle: wait for the registry, judge ──┬──▶ Registry::rewrite ──▶ store
//!                                                                      └──▶ calls ──▶ API server
//! ```
//!
//! Nothing here remembers the objects: what the store knows of them ([`Objects`]) is enough. A record is written only
//! through the registry, by the store.

mod annotations;
mod asks;
mod calls;
mod judge;
mod patience;
mod pending;
mod seen;
mod unmet;
mod watch;
mod wishes;
mod words;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hotbay_core::cluster::Notice;
use hotbay_registry::{Key, Kind, Registry};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use self::asks::Subject;
use self::calls::Change;
use self::judge::{Verdict, judge};
pub(crate) use self::patience::{Stopped, decided, patiently, write_again};
use self::pending::{Batch, Listed, Pending};
use self::seen::{Held, Seen};
use self::unmet::Unmet;
use self::wishes::Wishes;
use crate::client::{self, Client};
use crate::resource::Resource;
use crate::store::Objects;

/// Objects that are settled together, and how long a batch may grow.
const OBJECTS_IN_A_BATCH: usize = 1_024;
const LINGER: Duration = Duration::from_millis(50);

/// How long to wait with what could not be done.
const PAUSE: Duration = Duration::from_secs(1);

/// How long to wait before something is asked of the server again that it refused.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(30);

/// What could not be done waits for another try; more than this is left to the next list.
const WAITING_MOST: usize = 10_000;

/// What is told once of an object; after so many objects it may be told again.
const TOLD_MOST: usize = 10_000;

/// An object whose status others change all the time is repaired, and told of, no more often than this.
const REPAIRED_EVERY: Duration = Duration::from_secs(1);
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// So long an object may be without a status, while its first record is about to be followed by another.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// Who asks, as far as the registry is told: the server does not say which person it was.
const WHO: &str = "kubernetes";

/// What is needed from outside: no random numbers are drawn here, and no clock is read.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings {
    /// Draws an id.
    pub fresh: fn() -> u128,
    /// Wall time in Unix milliseconds, noted for people.
    pub wall_ms: fn() -> u64,
}

/// Follows what people do to the objects of a registry's records, until the registry ends. `objects` is what its
/// store knows.
pub async fn follow(
    client: Client,
    registry: Registry,
    objects: Objects,
    surroundings: Surroundings,
) {
    let news = Arc::new(Pending::default());
    // They end with this.
    let mut tasks = JoinSet::new();
    for resource in Resource::ALL {
        tasks.spawn(watch::watch(client.clone(), resource, Arc::clone(&news)));
    }
    tasks.spawn(release(client.clone(), Arc::clone(&news)));
    let mut changes = registry.changes();
    let ended = async { while changes.changed().await.is_ok() {} };
    let mut people = People {
        wishes: Wishes::new(registry.clone(), objects.clone(), surroundings),
        unmet: Unmet::new(registry.clone(), objects.clone(), surroundings),
        client,
        registry,
        objects,
        told: HashSet::new(),
        repaired: HashMap::new(),
        bare: HashMap::new(),
        waiting: HashMap::new(),
    };
    tokio::select! {
        Stopped = people.settle_all(&news) => {}
        () = ended => {}
        Some(task) = tasks.join_next() => task.expect("watches do not end, and do not panic"),
    }
}

/// Lets go of what was deleted and is held by our finalizer.
async fn release(client: Client, news: Arc<Pending>) {
    loop {
        let held = news.next_to_release().await;
        let changes = held.into_iter().map(|seen| (seen, Change::Release)).collect();
        for (seen, error) in calls::make_all(&client, changes).await {
            tracing::debug!(object = seen.object(), "cannot be let go of, trying again: {error}");
            news.hold_again(seen);
        }
    }
}

struct People {
    client: Client,
    registry: Registry,
    objects: Objects,
    wishes: Wishes,
    unmet: Unmet,
    /// Of these objects, by their uids, it was told what was done to them.
    told: HashSet<String>,
    /// When the status of an object was last repaired, and when that was last told, by uid.
    repaired: HashMap<String, (Instant, Instant)>,
    /// Objects that have no status, and when they were first seen so, by uid.
    bare: HashMap<String, Instant>,
    /// What could not be done, and when it is tried again, by uid.
    waiting: HashMap<String, (Instant, Seen)>,
}

impl People {
    /// Settles all that is told, until the registry ends.
    async fn settle_all(&mut self, news: &Pending) -> Stopped {
        let mut tick = tokio::time::interval(PAUSE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let settled = tokio::select! {
                batch = news.next(OBJECTS_IN_A_BATCH) => {
                    let settled = self.settle(batch).await;
                    // What happens together is settled together.
                    tokio::time::sleep(LINGER).await;
                    settled
                }
                _ = tick.tick() => self.settle_due(news).await,
            };
            if let Err(stopped) = settled {
                return stopped;
            }
        }
    }

    /// What could not be done is judged again, and what takes time asked for again.
    async fn settle_due(&mut self, news: &Pending) -> Result<(), Stopped> {
        let now = Instant::now();
        let due = self.waiting.extract_if(|_, (at, _)| *at <= now);
        due.for_each(|(_, (_, seen))| news.tell_again(seen));
        let changes = self.unmet.meet_again().await?;
        self.change(changes).await;
        let again = self.wishes.ask_again().await?;
        self.rewrite(again.into_iter().collect(), Vec::new()).await
    }

    async fn settle(&mut self, batch: Batch) -> Result<(), Stopped> {
        let Batch { objects, lists } = batch;
        // Before the objects, which are newer than the lists, or on them.
        for listed in &lists {
            self.unmet.forget_lacking(listed);
            self.waiting.retain(|_, (_, seen)| !listed.lacks(seen));
        }
        let missing = self.missing(&lists);
        let keys = objects.iter().filter_map(|(seen, _)| judge::key(seen, &self.objects));
        let keys: HashSet<_> = keys.chain(missing.iter().map(|(key, _)| *key)).collect();
        let present = self.present(keys).await?;
        let mut todo = Todo::default();
        for (seen, is_gone) in objects {
            let verdict = judge(&seen, is_gone, &self.objects, &present);
            self.carry_out(verdict, seen, &mut todo);
        }
        for (key, version) in missing.into_iter().filter(|(key, _)| present.contains(key)) {
            self.lost(key, version, &mut todo);
        }
        self.look(&mut todo).await?;
        for seen in std::mem::take(&mut todo.wishes) {
            todo.changes.extend(self.unmet.meet(seen).await?);
        }
        self.change(todo.changes).await;
        self.rewrite(todo.again, words::bounded(todo.notices)).await
    }

    /// Looks at what people wish and say by objects as we left them. Their records are read in one go: each read waits
    /// for the store.
    async fn look(&mut self, todo: &mut Todo) -> Result<(), Stopped> {
        let specs = std::mem::take(&mut todo.specs);
        let wished = specs.iter().filter(|(key, seen)| self.wishes.is_to_be_looked_at(*key, seen));
        let wished: Arc<[Key]> = wished.map(|(key, _)| *key).collect();
        let volumes = specs.iter().map(|(key, _)| *key).filter(|key| key.kind == Kind::Volume);
        let volumes: Arc<[Key]> = volumes.collect();
        if wished.is_empty() && volumes.is_empty() {
            return Ok(());
        }
        let read = || {
            let (wished, volumes) = (Arc::clone(&wished), Arc::clone(&volumes));
            self.registry.read_around(move |cluster| {
                let said = |key: &Key| Some((*key, annotations::of_record(cluster, *key)?));
                let said: HashMap<_, _> = volumes.iter().filter_map(said).collect();
                (Subject::of_all(cluster, &wished), said)
            })
        };
        let (subjects, mut said) = patiently(read).await?;
        for (key, seen) in specs {
            if let Some(subject) = subjects.get(&key)
                && self.wishes.look(key, &seen, subject).await?
            {
                todo.again.insert(key);
            }
            let Some(record) = said.remove(&key) else { continue };
            let looked = annotations::look(&self.registry, key, &seen, record).await?;
            todo.notices.extend(looked.notice);
            todo.changes.extend(looked.change.map(|change| (seen, change)));
        }
        Ok(())
    }

    /// The records whose objects a list did not have, with the list's version.
    fn missing(&self, lists: &[Listed]) -> Vec<(Key, u64)> {
        let of_list = |listed: &Listed| {
            let known = self.objects.of_kind(listed.resource.records());
            let gone = known.into_iter().filter(|(_, uid)| !listed.uids.contains(uid));
            gone.map(|(key, _)| (key, listed.version)).collect::<Vec<_>>()
        };
        lists.iter().flat_map(of_list).collect()
    }

    /// A list did not have the object of a record. One that was made after the list is there.
    fn lost(&mut self, key: Key, version: u64, todo: &mut Todo) {
        let Some(entry) = self.objects.get(key) else { return };
        if entry.version.parse().is_ok_and(|made: u64| made > version) {
            return;
        }
        if !self.told.remove(&entry.uid) {
            todo.notices.push(words::deleted(key, &entry.name));
        }
        todo.again.insert(key);
    }

    fn carry_out(&mut self, verdict: Verdict, seen: Seen, todo: &mut Todo) {
        let (name, uid) = (seen.entry.name.clone(), seen.entry.uid.clone());
        // This is newer than what could not be done, or could not be met, before.
        self.waiting.remove(&uid);
        if verdict != Verdict::Wish {
            self.unmet.forget(&uid);
        }
        match verdict {
            Verdict::Fine => {}
            Verdict::Ours(key) => {
                self.objects.refresh(key, &seen.entry);
                if seen.is_bare {
                    self.show(key, &seen, todo);
                }
                todo.specs.push((key, seen));
            }
            Verdict::Deleted(key) => {
                if !self.told.remove(&uid) {
                    todo.notices.push(words::deleted(key, &name));
                }
                todo.again.insert(key);
                self.forget(&uid);
            }
            // Its finalizer was taken off already; when it goes, it is written again.
            Verdict::Release(Some(key)) => {
                if self.tell_once(uid) {
                    todo.notices.push(words::deleted(key, &name));
                }
            }
            Verdict::Release(None) => {}
            Verdict::Bind(key) => {
                self.objects.refresh(key, &seen.entry);
                todo.changes.push((seen, Change::Bind));
            }
            Verdict::Edited(key) => self.repair(key, seen, todo),
            // What could not be written for a time is not waited for: its object may be half made by a write under way.
            Verdict::Remove if seen.held == Held::Nothing && !self.is_still_bare(&seen) => {}
            Verdict::Remove => {
                if self.tell_once(uid) {
                    todo.notices.push(words::unknown(Key::REGISTRY, &seen.object()));
                }
                todo.changes.push((seen, Change::Remove));
            }
            // The store finds out: if it is true, the lead is lost.
            Verdict::Deposed => drop(todo.again.insert(Key::REGISTRY)),
            Verdict::Copy => {
                if let Some(key) = judge::key(&seen, &self.objects)
                    && let Some(other) = self.objects.get(key)
                    && self.tell_once(uid)
                {
                    todo.notices.push(words::copy(key, &seen.object(), &other.name));
                }
            }
            Verdict::Strange => {
                if self.tell_once(uid) {
                    todo.notices.push(words::strange(&seen.object()));
                }
            }
            Verdict::Wish => todo.wishes.push(seen),
            Verdict::Forgotten => self.forget(&uid),
        }
    }

    /// An object has its record, and people see nothing of it yet. As a rule its next record is written in a moment.
    fn show(&mut self, key: Key, seen: &Seen, todo: &mut Todo) {
        if self.is_still_bare(seen) {
            todo.again.insert(key);
        }
    }

    /// Whether an object has been without a status for a moment. If not, it is judged again in a moment.
    fn is_still_bare(&mut self, seen: &Seen) -> bool {
        let now = Instant::now();
        if self.bare.len() >= TOLD_MOST {
            self.bare.clear();
        }
        let since = *self.bare.entry(seen.entry.uid.clone()).or_insert(now);
        if now - since >= SHOWN_AFTER {
            self.bare.remove(&seen.entry.uid);
            return true;
        }
        self.later(seen.clone(), SHOWN_AFTER);
        false
    }

    /// The status of an object was changed by others. They may do so again and again.
    fn repair(&mut self, key: Key, seen: Seen, todo: &mut Todo) {
        let (now, uid) = (Instant::now(), seen.entry.uid.clone());
        let last = self.repaired.get(&uid).copied();
        if last.is_some_and(|(repaired, _)| now - repaired < REPAIRED_EVERY) {
            self.later(seen, REPAIRED_EVERY);
            return;
        }
        let last_told = last.map(|(_, told)| told).filter(|told| now - *told < TOLD_EVERY);
        if last_told.is_none() {
            todo.notices.push(words::edited(key, &seen.entry.name));
        }
        if self.repaired.len() >= TOLD_MOST {
            self.repaired.clear();
        }
        self.repaired.insert(uid, (now, last_told.unwrap_or(now)));
        todo.again.insert(key);
    }

    /// Judges an object again after a pause.
    fn later(&mut self, seen: Seen, pause: Duration) {
        if self.waiting.len() < WAITING_MOST {
            self.waiting.insert(seen.entry.uid.clone(), (Instant::now() + pause, seen));
        }
    }

    fn forget(&mut self, uid: &str) {
        self.told.remove(uid);
        self.repaired.remove(uid);
        self.bare.remove(uid);
        self.wishes.forget(uid);
    }

    /// Whether it was not told before.
    fn tell_once(&mut self, uid: String) -> bool {
        if self.told.len() >= TOLD_MOST {
            self.told.clear();
        }
        self.told.insert(uid)
    }

    /// Makes changes; what fails is tried again later.
    async fn change(&mut self, changes: Vec<(Seen, Change)>) {
        for (seen, error) in calls::make_all(&self.client, changes).await {
            let object = seen.object();
            match error {
                // It is the object, or the rights, that are wrong: a person must look.
                client::CallError::Failed { code: 400..500, .. } => {
                    tracing::warn!(object, "cannot be changed, trying again: {error}");
                    self.later(seen, PAUSE_AFTER_REFUSAL);
                }
                error => {
                    tracing::debug!(object, "cannot be changed, trying again: {error}");
                    self.later(seen, PAUSE);
                }
            }
        }
    }

    /// Which of the records there are, once all that was decided before is durable.
    async fn present(&self, keys: HashSet<Key>) -> Result<HashSet<Key>, Stopped> {
        let keys: Vec<_> = keys.into_iter().collect();
        patiently(|| self.registry.present(keys.clone())).await
    }

    /// Has the records written again.
    async fn rewrite(&self, keys: HashSet<Key>, notices: Vec<Notice>) -> Result<(), Stopped> {
        write_again(&self.registry, &self.objects, keys, notices).await
    }
}

/// What is to be done after judging.
#[derive(Default)]
struct Todo {
    again: HashSet<Key>,
    notices: Vec<Notice>,
    changes: Vec<(Seen, Change)>,
    /// Objects whose specs are to be looked at.
    specs: Vec<(Key, Seen)>,
    /// Objects without a record.
    wishes: Vec<Seen>,
}
