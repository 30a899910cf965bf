//! Wishes: what people ask for by a spec is asked of the registry, as the API would, and what it says to that stands in
//! a condition of the object.
//!
//! A spec is looked at once, when its generation is above the one that was last taken notice of: re-applying an old
//! manifest turns nothing back. What takes time is asked for again until it is done, as programs do.

use std::collections::HashMap;

use hotbay_core::cluster::{Cluster, State, VolumeRequest};
use hotbay_core::cms::{Action, Code, Outcome};
use hotbay_core::ids::{DriveId, NodeId};
use hotbay_registry::{CallError, Key, Kind, Registry};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use super::asks::{Ask, Subject, ask, ask_again};
use super::seen::Seen;
use super::{Stopped, Surroundings, WHO, decided, patiently};
use crate::resource::Resource;
use crate::store::Objects;
use crate::store::objects::Noticed;
use crate::view::{SPEC_APPLIED, condition};

/// What is not done is asked for again after a tenth of the time that it has taken, but within these.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(10);

/// How many are asked for again in one go; the others come next.
const AGAIN_MOST: usize = 100;

/// Volumes that are named as standing in the way.
const NAMED_MOST: usize = 5;

/// When to ask again for what was first asked for then.
pub(super) fn next_time(since: Instant, latest: Duration) -> Instant {
    Instant::now() + (since.elapsed() / 10).clamp(SOONEST, latest)
}

/// Of what is to be asked for again at its time, that which is due and is asked for now. Who has waited longest comes
/// first: however many wishes there are, none is passed over.
pub(super) fn due_now<T>(waiting: impl Iterator<Item = (Instant, T)>) -> Vec<T> {
    let now = Instant::now();
    let mut due: Vec<_> = waiting.filter(|(due, _)| *due <= now).collect();
    due.sort_by_key(|(due, _)| *due);
    due.into_iter().take(AGAIN_MOST).map(|(_, what)| what).collect()
}

/// The answer to a wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) is_done: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

/// A wish that takes time.
#[derive(Debug)]
struct Open {
    /// Of the object whose spec it is.
    uid: String,
    actions: Vec<Action>,
    generation: i64,
    since: Instant,
    due: Instant,
}

/// Why a spec is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    New,
    Again,
}

/// Wishes by the specs of objects that have a record.
pub(super) struct Wishes {
    registry: Registry,
    objects: Objects,
    surroundings: Surroundings,
    open: HashMap<Key, Open>,
    /// The specs of nodes as they were acted on, by uid: they have more than one wish in them.
    specs: HashMap<String, Value>,
}

impl Wishes {
    pub(super) fn new(registry: Registry, objects: Objects, surroundings: Surroundings) -> Self {
        Self { registry, objects, surroundings, open: HashMap::new(), specs: HashMap::new() }
    }

    /// The object is gone.
    pub(super) fn forget(&mut self, uid: &str) {
        self.specs.remove(uid);
    }

    /// Whether the spec of an object is new, or was last answered by another controller and is not done.
    fn is_due(&self, key: Key, seen: &Seen) -> Option<Due> {
        let noticed = self.objects.noticed(key);
        let in_status = self.objects.get(key).and_then(|entry| entry.observed);
        let observed = in_status.max(noticed.as_ref().map(|noticed| noticed.observed))?;
        match seen.generation > observed {
            true => Some(Due::New),
            false if self.open.contains_key(&key) => None,
            false => waits(noticed.as_ref()).then_some(Due::Again),
        }
    }

    /// Whether there is something to ask for by the spec of an object. Then its record must be known for a look.
    pub(super) fn is_to_be_looked_at(&mut self, key: Key, seen: &Seen) -> bool {
        let due = self.is_due(key, seen);
        // What was refused as a whole was not acted on: all of it counts once it is mended.
        if due != Some(Due::New) && !is_refused(self.objects.noticed(key).as_ref()) {
            self.remember(seen);
        }
        due.is_some()
    }

    fn remember(&mut self, seen: &Seen) {
        if seen.resource == Resource::StorageNode {
            self.specs.insert(seen.entry.uid.clone(), seen.spec.clone());
        }
    }

    /// Looks at the spec of an object. Says whether there is an answer to write.
    pub(super) async fn look(
        &mut self,
        key: Key,
        seen: &Seen,
        subject: &Subject,
    ) -> Result<bool, Stopped> {
        let Some(due) = self.is_due(key, seen) else { return Ok(false) };
        let uid = &seen.entry.uid;
        // A removal that is not done goes on being asked for, whatever else the new spec changes.
        if self.open.remove(&key).is_some()
            && let Some(before) = self.specs.get_mut(uid).and_then(Value::as_object_mut)
        {
            before.remove("inOperation");
        }
        let asked = match due {
            Due::New => ask(&seen.spec, self.specs.get(uid), subject),
            Due::Again => ask_again(&seen.spec, subject),
        };
        if !matches!(asked, Ask::Refused(..)) {
            self.remember(seen);
        }
        let told = match asked {
            Ask::Nothing => None,
            Ask::Refused(code, message) => {
                Some(Told { is_done: false, reason: code.to_string(), message })
            }
            Ask::Act(actions) => {
                let now = Instant::now();
                let open = Open {
                    uid: uid.clone(),
                    actions,
                    generation: seen.generation,
                    since: now,
                    due: now,
                };
                Some(self.act(key, open).await?)
            }
            Ask::Expand(volume, size) => {
                Some(self.expand(VolumeRequest::Expand { volume, size }).await?)
            }
        };
        Ok(self.notice(key, seen.generation, told))
    }

    /// Asks again for what is not done yet. Gives the objects whose answers have changed.
    pub(super) async fn ask_again(&mut self) -> Result<Vec<Key>, Stopped> {
        let mut changed = Vec::new();
        for key in due_now(self.open.iter().map(|(key, open)| (open.due, *key))) {
            let Some(open) = self.open.remove(&key) else { continue };
            // Its object was deleted, and the wish with it.
            if self.objects.get(key).is_none_or(|entry| entry.uid != open.uid) {
                continue;
            }
            let generation = open.generation;
            let read = || self.registry.read_around(move |cluster| still_stands(cluster, key));
            let told = match patiently(read).await? {
                None => continue,
                Some(true) => self.act(key, open).await?,
                Some(false) => Told {
                    is_done: false,
                    reason: "Superseded".to_owned(),
                    message: "something else was asked for since; to ask again, change the spec"
                        .to_owned(),
                },
            };
            if self.notice(key, generation, Some(told)) {
                changed.push(key);
            }
        }
        Ok(changed)
    }

    async fn expand(&self, request: VolumeRequest) -> Result<Told, Stopped> {
        let ask = async || match self.registry.request(request.clone(), WHO.to_owned()).await {
            Err(CallError::Refused(refused)) => Ok(Err(refused)),
            answer => answer.map(|_| Ok(())),
        };
        Ok(match decided(ask).await? {
            Ok(Ok(())) | Err(_) => done("it grows"),
            Ok(Err(refused)) => Told {
                is_done: false,
                reason: Code::InvalidState.to_string(),
                message: refused.to_string(),
            },
        })
    }

    /// Asks, and keeps in mind what is not done yet.
    async fn act(&mut self, key: Key, open: Open) -> Result<Told, Stopped> {
        let removes = open.actions.iter().any(is_removal);
        let act = || self.registry.act(open.actions.clone(), WHO.to_owned(), false);
        let outcomes = match decided(act).await? {
            Ok(outcomes) => outcomes,
            // Nobody else's wish waits for that.
            Err(message) => {
                let due = next_time(open.since, LATEST);
                self.open.insert(key, Open { due, ..open });
                return Ok(Told { is_done: false, reason: Code::TryAgain.to_string(), message });
            }
        };
        let worst = outcomes.iter().max_by_key(|outcome| outcome.code).cloned();
        let Some(worst) = worst else { return Ok(done("nothing was to be done")) };
        if worst.code == Code::TryAgain {
            let due = next_time(open.since, LATEST);
            let left = open.actions.iter().zip(&outcomes);
            let left = left.filter(|(_, outcome)| outcome.code == Code::TryAgain);
            let actions = left.map(|(action, _)| action.clone()).collect();
            self.open.insert(key, Open { due, actions, ..open });
        }
        let is_done = matches!(worst.code, Code::Ok | Code::Already);
        let reason = worst.code.to_string();
        let read = || {
            let worst = worst.clone();
            self.registry.read_around(move |cluster| message(cluster, &worst))
        };
        let message = match patiently(read).await? {
            words if words.is_empty() => plain_words(worst.code, removes).to_owned(),
            words => words,
        };
        Ok(Told { is_done, reason, message })
    }

    /// Has an answer stand in the status. Says whether it is a new one.
    fn notice(&self, key: Key, generation: i64, told: Option<Told>) -> bool {
        let before = self.objects.noticed(key);
        let now_ms = (self.surroundings.wall_ms)();
        let condition = told.map(|told| {
            let earlier = before.as_ref().and_then(|noticed| noticed.condition.as_ref());
            told.condition(SPEC_APPLIED, generation, earlier, now_ms)
        });
        let noticed = Noticed { observed: generation, condition };
        let is_new = before.as_ref() != Some(&noticed);
        if is_new {
            self.objects.notice(key, noticed);
        }
        is_new
    }
}

impl Told {
    /// As a condition. Its time is that of the last change of its status.
    pub(super) fn condition(
        &self,
        kind: &str,
        generation: i64,
        earlier: Option<&Value>,
        now_ms: u64,
    ) -> Value {
        let mut condition = condition(kind, self.is_done, &self.reason, &self.message, now_ms);
        condition["observedGeneration"] = json!(generation);
        if let Some(earlier) = earlier.filter(|earlier| earlier["status"] == condition["status"]) {
            condition["lastTransitionTime"] = earlier["lastTransitionTime"].clone();
        }
        condition
    }
}

fn done(message: &str) -> Told {
    Told { is_done: true, reason: Code::Ok.to_string(), message: message.to_owned() }
}

/// Whether an answer says that it is to be asked for again.
fn waits(noticed: Option<&Noticed>) -> bool {
    is_answered(noticed, Code::TryAgain)
}

/// Whether an answer says that the spec makes no sense.
fn is_refused(noticed: Option<&Noticed>) -> bool {
    is_answered(noticed, Code::Argument)
}

fn is_answered(noticed: Option<&Noticed>, code: Code) -> bool {
    let condition = noticed.and_then(|noticed| noticed.condition.as_ref());
    condition.is_some_and(|condition| condition["reason"] == code.as_str())
}

/// Whether a removal that was asked for has not been taken back since; nothing if there is no such thing any more.
fn still_stands(cluster: &Cluster, key: Key) -> Option<bool> {
    let leaves = |id: DriveId| {
        let record = &cluster.drive(id)?.record;
        Some(match record.state {
            State::Unknown | State::Closing | State::Detached => true,
            State::Attaching | State::Attached => record.removal_wanted,
        })
    };
    match key.kind {
        Kind::Drive => leaves(DriveId::from_bits(key.id)),
        Kind::Node => {
            let node = cluster.node(NodeId::from_bits(key.id))?;
            Some(node.drives.iter().all(|id| leaves(*id).unwrap_or(true)))
        }
        Kind::Registry | Kind::Volume | Kind::Attachment => None,
    }
}

/// The reasons of an outcome, in words; may be none.
fn message(cluster: &Cluster, outcome: &Outcome) -> String {
    let mut parts: Vec<String> = outcome.reasons.iter().map(ToString::to_string).collect();
    if !outcome.dependent.is_empty() {
        let named = outcome.dependent.iter().take(NAMED_MOST).map(|id| cluster.volume_name(*id));
        let mut volumes = named.collect::<Vec<_>>().join(", ");
        if outcome.dependent.len() > NAMED_MOST {
            volumes = format!("{volumes} and {} more", outcome.dependent.len() - NAMED_MOST);
        }
        parts.push(format!("to be deleted or moved first: {volumes}"));
    }
    let name = |id: Option<DriveId>| {
        let drive = id.and_then(|id| cluster.drive(id));
        drive.map_or_else(|| "a drive".to_owned(), |drive| drive.record.name.clone())
    };
    let worse = outcome.drives.iter().filter(|drive| drive.code > Code::Already);
    for drive in worse.take(NAMED_MOST) {
        let why: Vec<_> = drive.reasons.iter().map(ToString::to_string).collect();
        parts.push(format!("{}: {} {}", name(drive.drive), drive.code, why.join(", ")));
    }
    parts.join("; ")
}

fn is_removal(action: &Action) -> bool {
    matches!(action, Action::RemoveDevice(_) | Action::RemoveHost { .. })
}

/// For an outcome that does not say more.
fn plain_words(code: Code, removes: bool) -> &'static str {
    match code {
        Code::Ok | Code::Already if removes => {
            "it is out of operation and closed, and that is proved"
        }
        Code::Ok => "it was asked for; the other conditions show how far it is",
        Code::Already => "it was so already",
        Code::TryAgain => "it is under way",
        Code::InvalidState | Code::NotFound | Code::Argument => "it cannot be done",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: what was due was taken in the order of a hash map. With more wishes than are asked for in one go,
    /// those that came first in it were asked for again and again, and some others never.
    #[tokio::test(start_paused = true)]
    async fn of_many_wishes_none_is_passed_over() {
        let began = Instant::now();
        let wishes = 35 * AGAIN_MOST;
        let mut waiting: HashMap<_, _> = (0..wishes).map(|wish| (wish, (began, 0))).collect();
        for round in 1..=105 {
            let asked = due_now(waiting.iter().map(|(wish, (due, _))| (*due, *wish)));
            assert_eq!(asked.len(), AGAIN_MOST);
            for wish in asked {
                let times = waiting[&wish].1 + 1;
                waiting.insert(wish, (next_time(began, LATEST), times));
            }
            let (least, most) = (round / 35, (round + 34) / 35);
            assert!(waiting.values().all(|(_, times)| (least..=most).contains(times)), "{round}");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }
}
