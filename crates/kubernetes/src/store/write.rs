//! One write to one object: until it is durable, refused, or has failed too often.
//!
//! ```text
//!  no object ── POST ──▶ object without status ── PUT status ──▶ durable
//!     ▲ 404                 ▲  ▲                     │
//!     └─────────────────────┴──┴── 409: GET, judge ──┘
//! ```
//!
//! A record that is about to be followed by another travels with the POST, and is durable with it ([`crate::first`]).
//!
//! A call whose outcome is unknown is made again as it was: it names the version that it replaces, so it cannot be done
//! twice, and if it was done the conflict tells, and what is there is read back and compared.

use std::time::{Duration, Instant};

use hotbay_api::kinds::API_VERSION;
use hotbay_core::order::Term;
use hotbay_registry::{Key, StoreError};
use serde_json::{Value, json};

use super::entry::{Entry, Judged, finalizers, judge};
use crate::client::{Answer, CallError, Client, LONGEST_ASKED};
use crate::first;
use crate::object::{self, Checksum};
use crate::resource::{FINALIZER, MANAGER, Resource};
use crate::view::SPEC_APPLIED;

/// How many calls one write may take. A new object takes two, and each surprise up to two more.
const CALLS: u32 = 12;

/// After this long a failed call is not made again here: those above hear of it, and try again.
const WRITE_TIME: Duration = Duration::from_secs(20);

/// The pause after a failed call; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What is to be at a key.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) key: Key,
    pub(super) to: Target,
    pub(super) ours: Option<Term>,
}

#[derive(Debug)]
pub(super) enum Target {
    Status {
        status: Value,
        checksum: Checksum,
        /// The generation of the spec that was last taken notice of, where somebody has.
        observed: Option<i64>,
        /// If there is no object yet: the names to try, and its spec.
        names: Vec<String>,
        spec: Value,
        /// The record goes with the object, if that has to be made.
        travels: bool,
    },
    Gone,
}

/// What became of a write: the object as it is known now, also after a failure.
pub(super) struct Outcome {
    pub(super) key: Key,
    pub(super) entry: Option<Entry>,
    pub(super) result: Result<(), StoreError>,
}

pub(super) struct Writing {
    api: Client,
    wanted: Wanted,
    entry: Option<Entry>,
    /// The newest version of any object that was known when this began.
    newest: u64,
    checkpoint: fn(&'static str),
    /// The whole object as it was after it was deleted, held by its finalizers.
    held: Option<Value>,
    /// Which of the names is tried.
    name_at: usize,
    calls: u32,
    failures: u32,
    began: Instant,
}

/// Whether to go on.
enum Next {
    Again,
    Done,
}

impl Writing {
    pub(super) fn new(
        api: Client,
        wanted: Wanted,
        entry: Option<Entry>,
        newest: u64,
        checkpoint: fn(&'static str),
    ) -> Self {
        let (held, began) = (None, Instant::now());
        let (name_at, calls, failures) = (0, 0, 0);
        Self { api, wanted, entry, newest, checkpoint, held, name_at, calls, failures, began }
    }

    pub(super) async fn run(mut self) -> Outcome {
        let result = loop {
            // Calls that succeed and lead nowhere: others undo what they do.
            if self.calls >= 2 * CALLS {
                let (action, object) = ("write", self.object());
                let source = CallError::Contended { object: object.clone() }.into();
                break Err(StoreError::Unreachable { action, object, source });
            }
            match self.step().await {
                Ok(Next::Again) => {}
                Ok(Next::Done) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        Outcome { key: self.wanted.key, entry: self.entry, result }
    }

    fn resource(&self) -> Resource {
        Resource::of(self.wanted.key.kind)
    }

    async fn step(&mut self) -> Result<Next, StoreError> {
        match (&self.wanted.to, &self.entry) {
            (Target::Status { .. }, None) => self.create().await,
            (Target::Status { .. }, Some(entry))
                if self.resource().has_finalizer() && !entry.has_finalizer && !entry.is_deleted =>
            {
                self.set_finalizer(true).await
            }
            (Target::Status { .. }, Some(_)) => self.put_status().await,
            (Target::Gone, None) => Ok(Next::Done),
            (Target::Gone, Some(entry)) if !entry.is_deleted => self.delete().await,
            (Target::Gone, Some(entry)) if entry.has_finalizer => self.set_finalizer(false).await,
            (Target::Gone, Some(entry)) if entry.checksum.is_some() => self.clear_status().await,
            // Held by somebody else's finalizer, with nothing of ours left in it.
            (Target::Gone, Some(_)) => {
                self.entry = None;
                Ok(Next::Done)
            }
        }
    }

    /// The name of the object: the one it has, or the one that is tried.
    fn name(&self) -> String {
        match (&self.entry, &self.wanted.to) {
            (Some(entry), _) => entry.name.clone(),
            (None, Target::Status { names, .. }) => {
                let last = names.len().saturating_sub(1);
                names.get(self.name_at.min(last)).cloned().unwrap_or_default()
            }
            (None, Target::Gone) => String::new(),
        }
    }

    fn path(&self) -> String {
        format!("{}/{}", self.resource().path(), self.name())
    }

    fn object(&self) -> String {
        format!("{}/{}", self.resource().plural(), self.name())
    }

    async fn create(&mut self) -> Result<Next, StoreError> {
        let Target::Status { spec, status, travels, .. } = &self.wanted.to else {
            return Ok(Next::Done);
        };
        let (resource, name) = (self.resource(), self.name());
        let Wanted { key, ours, .. } = self.wanted;
        let first = travels.then(|| first::annotation(key, ours, &status["record"], &name));
        let body = object::new(resource, &name, ours, spec, first.flatten());
        let path = format!("{}?fieldManager={MANAGER}", resource.path());
        (self.checkpoint)("object-begun");
        let answered = self.api.post(&path, &body).await;
        let Some(answer) = self.counted("create", answered).await? else { return Ok(Next::Again) };
        match answer.code {
            200..=299 => {
                self.take_written(&answer.body)?;
                (self.checkpoint)("object-made");
                // The spec is our own: it has been taken notice of. What was noticed of another one is past.
                let generation = answer.body["metadata"]["generation"].as_i64();
                if let Some(entry) = &mut self.entry {
                    entry.observed = generation;
                }
                if let Target::Status { status, observed, .. } = &mut self.wanted.to {
                    *observed = None;
                    if let Some(conditions) = status["conditions"].as_array_mut() {
                        conditions.retain(|condition| condition["type"] != SPEC_APPLIED);
                    }
                }
                Ok(if self.is_there() { Next::Done } else { Next::Again })
            }
            409 => self.look("create").await,
            404 => Err(self.refused("create", unknown_kind(resource))),
            _ => Err(self.refused("create", not_taken(answer.words()))),
        }
    }

    async fn put_status(&mut self) -> Result<Next, StoreError> {
        let Some(status) = self.status() else { return Ok(Next::Done) };
        self.put("/status", &status).await
    }

    /// The status to write.
    fn status(&self) -> Option<Value> {
        let (Target::Status { status, observed, .. }, Some(entry)) = (&self.wanted.to, &self.entry)
        else {
            return None;
        };
        let mut status = status.clone();
        observe(&mut status, entry.observed.max(*observed));
        Some(status)
    }

    /// So that what is held by another's finalizer is no record any more.
    async fn clear_status(&mut self) -> Result<Next, StoreError> {
        self.put("/status", &json!({})).await
    }

    async fn put(&mut self, below: &str, status: &Value) -> Result<Next, StoreError> {
        let Some(entry) = &self.entry else { return Ok(Next::Done) };
        let Entry { name, uid, version, .. } = entry;
        let body = object::with_status(self.resource(), name, uid, version, status);
        let answered = self.api.put(&format!("{}{below}", self.path()), &body).await;
        let Some(answer) = self.counted("write", answered).await? else { return Ok(Next::Again) };
        match answer.code {
            200..=299 => {
                self.take_written(&answer.body)?;
                match self.wanted.to {
                    Target::Status { .. } if self.is_there() => Ok(Next::Done),
                    Target::Status { .. } => Err(self.refused("write", not_kept(self.resource()))),
                    Target::Gone => Ok(Next::Again),
                }
            }
            409 => self.look("write").await,
            404 => {
                self.entry = None;
                Ok(Next::Again)
            }
            _ => Err(self.refused("write", answer.words())),
        }
    }

    /// Whether the object has what is wanted in it.
    fn is_there(&self) -> bool {
        match (&self.wanted.to, &self.entry) {
            (Target::Status { checksum, .. }, Some(entry)) => entry.checksum == Some(*checksum),
            (Target::Status { .. }, None) | (Target::Gone, Some(_)) => false,
            (Target::Gone, None) => true,
        }
    }

    async fn delete(&mut self) -> Result<Next, StoreError> {
        let Some(Entry { uid, version, .. }) = &self.entry else { return Ok(Next::Done) };
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": { "uid": uid, "resourceVersion": version },
        });
        let answered = self.api.delete(&self.path(), &body).await;
        let Some(answer) = self.counted("delete", answered).await? else { return Ok(Next::Again) };
        match answer.code {
            // With a finalizer the answer is the object as it is held; without one, a word of success.
            200..=299 if answer.body["metadata"]["deletionTimestamp"].is_null() => {
                self.entry = None;
                Ok(Next::Done)
            }
            200..=299 => {
                self.take(&answer.body);
                self.held = Some(answer.body);
                Ok(Next::Again)
            }
            404 => {
                self.entry = None;
                Ok(Next::Done)
            }
            409 => self.look("delete").await,
            _ => Err(self.refused("delete", answer.words())),
        }
    }

    /// Sets or takes away our finalizer. It is the one thing outside of the status that is written: what else people
    /// have put there is read and written back.
    async fn set_finalizer(&mut self, wanted: bool) -> Result<Next, StoreError> {
        let mut found = match self.held.take() {
            Some(held) => held,
            None => {
                let answered = self.api.get(&self.path()).await;
                let Some(answer) = self.counted("read", answered).await? else {
                    return Ok(Next::Again);
                };
                let Some(found) = self.judged("read", answer)? else { return Ok(Next::Again) };
                found
            }
        };
        let ours = finalizers(&found).any(|name| name == FINALIZER);
        if ours == wanted {
            return Ok(Next::Again);
        }
        let others = finalizers(&found).filter(|name| *name != FINALIZER).map(str::to_owned);
        let all: Vec<_> = others.chain(wanted.then(|| FINALIZER.to_owned())).collect();
        found["metadata"]["finalizers"] = json!(all);
        let answered = self.api.put(&self.path(), &found).await;
        let Some(answer) = self.counted("write", answered).await? else { return Ok(Next::Again) };
        match answer.code {
            // The last finalizer of a deleted object: the answer shows it once more, and it is gone.
            200..=299 if !wanted && all.is_empty() => {
                self.entry = None;
                Ok(Next::Done)
            }
            200..=299 => {
                self.take(&answer.body);
                Ok(Next::Again)
            }
            404 => {
                self.entry = None;
                Ok(Next::Again)
            }
            409 => self.look("write").await,
            _ => Err(self.refused("write", answer.words())),
        }
    }

    /// After a conflict: reads what is there, and decides what that means.
    async fn look(&mut self, action: &'static str) -> Result<Next, StoreError> {
        let answered = self.api.get(&self.path()).await;
        let Some(answer) = self.counted("read", answered).await? else { return Ok(Next::Again) };
        let found = self.judged(action, answer)?;
        // The record alone does not tell: people may have changed what is shown of it.
        let as_wanted = match (&found, self.status()) {
            (Some(found), Some(status)) => found["status"] == status || self.is_first(found),
            (None, _) | (_, None) => true,
        };
        Ok(if self.is_there() && as_wanted { Next::Done } else { Next::Again })
    }

    /// Whether the record has come with the object, as it was to.
    fn is_first(&self, found: &Value) -> bool {
        matches!(self.wanted.to, Target::Status { travels: true, .. }) && found["status"].is_null()
    }

    /// Takes in an object that was read; gives it back if it is ours to change.
    fn judged(
        &mut self,
        action: &'static str,
        answer: Answer,
    ) -> Result<Option<Value>, StoreError> {
        match answer.code {
            200..=299 => {}
            404 => {
                self.entry = None;
                return Ok(None);
            }
            _ => return Err(self.refused(action, answer.words())),
        }
        let checksum = match &self.wanted.to {
            Target::Status { checksum, .. } => Some(*checksum),
            Target::Gone => None,
        };
        let known = self.entry.as_ref();
        match judge(self.wanted.key, &answer.body, known, checksum, self.wanted.ours) {
            Judged::Written(entry) | Judged::WriteOver(entry) => {
                self.entry = Some(entry);
                Ok(Some(answer.body))
            }
            Judged::NotOurs => {
                self.entry = None;
                self.name_at += 1;
                let names = match &self.wanted.to {
                    Target::Status { names, .. } => names.len(),
                    Target::Gone => return Ok(None),
                };
                if self.name_at < names {
                    return Ok(None);
                }
                let what = "every name that it could have is taken by another object";
                Err(self.refused(action, what.to_owned()))
            }
            Judged::Lost(error) => Err(error),
        }
    }

    fn take(&mut self, object: &Value) {
        let observed = self.entry.as_ref().and_then(|entry| entry.observed);
        self.entry = Entry::of(self.resource(), object, self.wanted.ours).map(|mut entry| {
            entry.observed = entry.observed.or(observed);
            entry
        });
    }

    /// Takes in what the server answered to a write. One that changed something has a newer version than all that was
    /// known before, or else the server's own store has gone back in time.
    fn take_written(&mut self, object: &Value) -> Result<(), StoreError> {
        let before = self.entry.as_ref().map(|entry| entry.version.clone());
        self.take(object);
        match &self.entry {
            Some(now) if Some(&now.version) != before.as_ref() && now.number() <= self.newest => {
                Err(StoreError::WentBack { object: self.object() })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Counts a call. Gives the answer if it is one to act on; `None` after a pause: call again.
    async fn counted(
        &mut self,
        action: &'static str,
        answered: Result<Answer, CallError>,
    ) -> Result<Option<Answer>, StoreError> {
        self.calls += 1;
        let (error, ask) = match answered {
            Ok(answer) if answer.code == 429 || answer.code >= 500 => {
                let words = answer.words();
                (CallError::Failed { code: answer.code, words }, answer.retry_after)
            }
            Ok(answer) if self.calls >= CALLS && answer.code == 409 => {
                (CallError::Contended { object: self.object() }, None)
            }
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => (error, None),
        };
        if self.calls >= CALLS || self.began.elapsed() >= WRITE_TIME {
            let object = self.object();
            return Err(StoreError::Unreachable { action, object, source: error.into() });
        }
        let pause = match ask {
            Some(asked) => asked.min(LONGEST_ASKED),
            None => {
                FIRST_PAUSE.saturating_mul(2u32.saturating_pow(self.failures)).min(LONGEST_PAUSE)
            }
        };
        self.failures += 1;
        tracing::debug!(object = self.object(), action, "calling again: {error}");
        tokio::time::sleep(pause).await;
        Ok(None)
    }

    fn refused(&self, action: &'static str, what: String) -> StoreError {
        StoreError::Refused { action, object: self.object(), what }
    }
}

/// Says in a status, and in its conditions, which generation of the spec was taken notice of.
fn observe(status: &mut Value, observed: Option<i64>) {
    let Some(observed) = observed else { return };
    status["observedGeneration"] = json!(observed);
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        condition["observedGeneration"] = json!(observed);
    }
}

/// The words for a server without our definitions.
pub(crate) fn unknown_kind(resource: Resource) -> String {
    format!("it knows no {} of {API_VERSION}; {APPLY}", resource.kind())
}

/// The words for an object that the server does not take. While a definition is being deleted it takes none of that
/// kind.
fn not_taken(words: String) -> String {
    if words.contains("custom resource definition is terminating") {
        return format!("{words}; when it is gone, {APPLY}");
    }
    words
}

/// The words for a server with definitions that leave out a part of the status.
fn not_kept(resource: Resource) -> String {
    format!("its definition of {} does not keep all of the status; {APPLY}", resource.kind())
}

/// Whoever made those that are there, Helm as a rule, is not asked.
const APPLY: &str = "apply the definitions of this release:  \
                     hotbay crd | kubectl apply --server-side --force-conflicts -f -";

#[cfg(test)]
mod tests {
    use super::*;

    /// As kube-apiserver says it, for a moment longer than the definition is there.
    #[test]
    fn a_definition_that_is_being_deleted_is_no_lack_of_rights() {
        let server = "drives.hotbay.dev \"d-1\" is forbidden: create not allowed while custom resource definition is \
                      terminating";
        let words = not_taken(server.to_owned());
        assert!(words.starts_with(server) && words.contains("hotbay crd"), "{words}");
        assert_eq!(not_taken("forbidden".to_owned()), "forbidden");
    }
}
