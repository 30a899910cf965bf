//! As much of an API server as the store can tell from a real one: versions, the status subresource, finalizers,
//! preconditions, watches. What it gets wrong, `k8s_store` and `k8s_people` find.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use hotbay_kubernetes::client::{Call, Client, Reply, Sending, Transport};
use http::{Method, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::faults::reply;

#[derive(Clone, Default)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    version: u64,
    /// By plural and name.
    objects: BTreeMap<(String, String), Value>,
    without_definitions: bool,
    /// All that happened: version, plural, and the line that tells it.
    history: Vec<(u64, String, Bytes)>,
    /// What happened up to this version is forgotten.
    forgotten: u64,
    watchers: Vec<(String, UnboundedSender<Bytes>)>,
    /// The rest of lists that were asked for in pages, each with the version that it is of: the token is its place.
    rests: Vec<(u64, Vec<Value>)>,
}

/// What a server held at one moment.
pub(crate) struct Backup {
    version: u64,
    objects: BTreeMap<(String, String), Value>,
}

/// An answer that goes on.
struct Lines(UnboundedReceiver<Bytes>);

impl Body for Lines {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.0.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

type Answered = (u16, Value);

impl Fake {
    pub(crate) fn client(&self) -> Client {
        Client::over(self.clone())
    }

    pub(crate) fn set_definitions(&self, there: bool) {
        let mut state = self.state.lock().unwrap();
        state.without_definitions = !there;
        if !there {
            for (at, object) in std::mem::take(&mut state.objects) {
                state.tell("DELETED", &at.0, object);
            }
            state.watchers.clear();
        }
    }

    /// Ends every watch. If `forget`, what happened so far cannot be watched from any more.
    #[allow(dead_code, reason = "for tests that watch")]
    pub(crate) fn cut_watches(&self, forget: bool) {
        let mut state = self.state.lock().unwrap();
        state.watchers.clear();
        if forget {
            state.forgotten = state.version;
        }
    }

    /// All that is there, as a backup has it.
    #[allow(dead_code, reason = "for tests that go back in time")]
    pub(crate) fn save(&self) -> Backup {
        let state = self.state.lock().unwrap();
        Backup { version: state.version, objects: state.objects.clone() }
    }

    /// Puts everything back. Versions go on from there, and are given out a second time.
    #[allow(dead_code, reason = "for tests that go back in time")]
    pub(crate) fn restore(&self, backup: Backup) {
        let mut state = self.state.lock().unwrap();
        state.watchers.clear();
        state.history.clear();
        Backup { version: state.version, objects: state.objects } = backup;
    }

    /// Somebody writes a record of so many levels, as kubectl could: this server itself would not read it.
    #[allow(dead_code, reason = "for tests of what is too deep")]
    pub(crate) fn deepen(&self, plural: &str, name: &str, levels: usize) {
        let mut state = self.state.lock().unwrap();
        let at = (plural.to_owned(), name.to_owned());
        let old = state.objects[&at].clone();
        let mut object = old.clone();
        object["status"]["record"] = (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }));
        assert_eq!(state.keep(at, old, object).0, 200);
    }

    /// Deletes what is there without a word to those who watch.
    #[allow(dead_code, reason = "for tests that watch")]
    pub(crate) fn lose(&self, plural: &str) {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        state.objects.retain(|at, _| at.0 != plural);
    }
}

impl Transport for Fake {
    fn send(&self, call: Call) -> Sending {
        let state = Arc::clone(&self.state);
        Box::pin(async move {
            let (parts, body) = call.into_parts();
            let Ok(body) = body.collect().await;
            let body = serde_json::from_slice(&body.to_bytes()).unwrap_or(Value::Null);
            if let Some(reply) = state.lock().unwrap().watch(&parts.uri) {
                return Ok(reply);
            }
            let body = managed(&parts.uri, body);
            let mut state = state.lock().unwrap();
            let (code, mut body) = state.answer(&parts.method, parts.uri.path(), body);
            if code == 200 && parts.method == Method::GET && body["items"].is_array() {
                state.cut_to_page(parts.uri.query().unwrap_or_default(), &mut body);
            }
            Ok(reply(code, &body))
        })
    }
}

/// A new object with the note who set its annotations.
fn managed(uri: &http::Uri, mut body: Value) -> Value {
    let query = uri.query().unwrap_or_default();
    if let Some(manager) = query.strip_prefix("fieldManager=") {
        let names = body["metadata"]["annotations"].as_object().into_iter().flatten();
        let fields: Map<_, _> = names.map(|(name, _)| (format!("f:{name}"), json!({}))).collect();
        let fields = json!({ "f:metadata": { "f:annotations": fields } });
        let note = json!({ "manager": manager, "operation": "Update", "fieldsV1": fields });
        body["metadata"]["managedFields"] = json!([note]);
    } else if let Some(metadata) = body["metadata"].as_object_mut() {
        // As a copy that kubectl shows, and takes.
        metadata.remove("managedFields");
    }
    body
}

fn refusal(code: u16, reason: &str) -> Answered {
    (code, json!({ "kind": "Status", "reason": reason, "message": reason }))
}

fn not_found() -> Answered {
    refusal(404, "NotFound")
}

fn conflict() -> Answered {
    refusal(409, "Conflict")
}

impl State {
    /// Begins a watch, if that is asked for.
    fn watch(&mut self, uri: &http::Uri) -> Option<Reply> {
        let query = uri.query().filter(|query| query.contains("watch=1"))?;
        if self.without_definitions && uri.path().starts_with("/apis/hotbay.dev") {
            return None;
        }
        let since = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
        let since: u64 = since.and_then(|since| since.parse().ok()).unwrap_or(0);
        let plural = uri.path().rsplit('/').next().unwrap().to_owned();
        let (tell, lines) = unbounded_channel();
        if since < self.forgotten {
            let gone = json!({ "type": "ERROR", "object": refusal(410, "Expired").1 });
            tell.send(format!("{gone}\n").into()).unwrap();
        } else {
            let later = self.history.iter().filter(|told| told.0 > since && told.1 == plural);
            later.for_each(|(_, _, line)| tell.send(line.clone()).unwrap());
            self.watchers.push((plural, tell));
        }
        Some(Response::new(Lines(lines).boxed_unsync()))
    }

    fn tell(&mut self, what: &str, plural: &str, mut object: Value) {
        // A version of its own also has what is gone.
        if what == "DELETED" {
            object["metadata"]["resourceVersion"] = self.next_version();
        }
        let line = Bytes::from(format!("{}\n", json!({ "type": what, "object": object })));
        self.watchers.retain(|(of, tell)| of != plural || tell.send(line.clone()).is_ok());
        self.history.push((self.version, plural.to_owned(), line));
    }

    fn answer(&mut self, method: &Method, path: &str, body: Value) -> Answered {
        let ours = path.strip_prefix("/apis/hotbay.dev/v1alpha1/");
        let events = path.strip_prefix("/apis/events.k8s.io/v1/namespaces/default/");
        let others = events.or(path.strip_prefix("/api/v1/"));
        let Some(path) = ours.or(others) else { return not_found() };
        let parts: Vec<_> = path.split('/').collect();
        if events.is_some() && method == Method::PUT && !self.may_replace_event(parts[1], &body) {
            return refusal(422, "Invalid");
        }
        if self.without_definitions && ours.is_some() {
            return not_found();
        }
        let at = |name: &str| (parts[0].to_owned(), name.to_owned());
        match (method.as_str(), &parts[1..]) {
            ("GET", []) => {
                let items = self.objects.iter().filter(|(key, _)| key.0 == parts[0]);
                let items: Vec<_> = items.map(|(_, object)| object).collect();
                let version = self.version.to_string();
                (200, json!({ "items": items, "metadata": { "resourceVersion": version } }))
            }
            ("GET", ["kube-system"]) => (200, json!({ "metadata": { "uid": "uid-0" } })),
            ("GET", [name]) => match self.objects.get(&at(name)) {
                Some(object) => (200, object.clone()),
                None => not_found(),
            },
            ("POST", []) => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                self.create(at(name), body)
            }
            ("PUT", [name]) => self.replace(at(name), body),
            ("PUT", [name, "status"]) => self.replace_status(at(name), body),
            ("DELETE", [name]) => self.delete(at(name), &body),
            _ => refusal(405, "MethodNotAllowed"),
        }
    }

    /// Of an event only the count may change, and that is one of many.
    fn may_replace_event(&self, name: &str, event: &Value) -> bool {
        let Some(old) = self.objects.get(&("events".to_owned(), name.to_owned())) else {
            return true;
        };
        let fixed = ["reason", "note", "type", "action", "regarding", "eventTime"];
        let is_timed = event["series"]["lastObservedTime"].is_string();
        let counts = is_timed && event["series"]["count"].as_u64().is_some_and(|count| count > 1);
        counts && fixed.iter().all(|field| event[*field] == old[*field])
    }

    /// Leaves of a list what was asked for. All its pages are of the same moment.
    fn cut_to_page(&mut self, query: &str, list: &mut Value) {
        let asked = |name: &str| query.split('&').find_map(|part| part.strip_prefix(name));
        let Some(limit) = asked("limit=").and_then(|limit| limit.parse().ok()) else { return };
        // The first page may be asked for with a token that is empty.
        let token = asked("continue=").filter(|token| !token.is_empty());
        let (version, mut items) = match token.map(|token| token.parse::<usize>()) {
            Some(token) => self.rests[token.unwrap()].clone(),
            None => (self.version, list["items"].as_array().cloned().unwrap_or_default()),
        };
        list["metadata"] = json!({ "resourceVersion": version.to_string() });
        if items.len() > limit {
            let rest = items.split_off(limit);
            list["metadata"]["continue"] = json!(self.rests.len().to_string());
            self.rests.push((version, rest));
        }
        list["items"] = json!(items);
    }

    fn next_version(&mut self) -> Value {
        self.version += 1;
        json!(self.version.to_string())
    }

    fn create(&mut self, at: (String, String), mut object: Value) -> Answered {
        if self.objects.contains_key(&at) {
            return refusal(409, "AlreadyExists");
        }
        object.as_object_mut().unwrap().remove("status");
        let version = self.next_version();
        object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        object["metadata"]["resourceVersion"] = version;
        object["metadata"]["generation"] = json!(1);
        self.tell("ADDED", &at.0, object.clone());
        self.objects.insert(at, object.clone());
        (201, object)
    }

    /// The object, if it is the one that was meant.
    fn meant(&self, at: &(String, String), metadata: &Value) -> Result<Value, Answered> {
        let Some(object) = self.objects.get(at) else { return Err(not_found()) };
        for field in ["uid", "resourceVersion"] {
            if !metadata[field].is_null() && metadata[field] != object["metadata"][field] {
                return Err(conflict());
            }
        }
        Ok(object.clone())
    }

    fn replace(&mut self, at: (String, String), mut object: Value) -> Answered {
        let old = match self.meant(&at, &object["metadata"]) {
            Ok(old) => old,
            Err(refused) => return refused,
        };
        match old.get("status") {
            Some(status) => object["status"] = status.clone(),
            None => drop(object.as_object_mut().unwrap().remove("status")),
        }
        for field in ["uid", "deletionTimestamp", "generation", "managedFields"] {
            object["metadata"][field] = old["metadata"][field].clone();
        }
        if object["spec"] != old["spec"] {
            let generation = old["metadata"]["generation"].as_u64().unwrap() + 1;
            object["metadata"]["generation"] = json!(generation);
        }
        self.keep(at, old, object)
    }

    fn replace_status(&mut self, at: (String, String), body: Value) -> Answered {
        let old = match self.meant(&at, &body["metadata"]) {
            Ok(old) => old,
            Err(refused) => return refused,
        };
        let mut object = old.clone();
        object["status"] = body["status"].clone();
        self.keep(at, old, object)
    }

    fn keep(&mut self, at: (String, String), old: Value, mut object: Value) -> Answered {
        if object == old {
            return (200, object);
        }
        object["metadata"]["resourceVersion"] = self.next_version();
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if object["metadata"]["deletionTimestamp"].is_null() || held {
            self.tell("MODIFIED", &at.0, object.clone());
            self.objects.insert(at, object.clone());
        } else {
            self.objects.remove(&at);
            self.tell("DELETED", &at.0, object.clone());
        }
        (200, object)
    }

    fn delete(&mut self, at: (String, String), options: &Value) -> Answered {
        let old = match self.meant(&at, &options["preconditions"]) {
            Ok(old) => old,
            Err(refused) => return refused,
        };
        if old["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty()) {
            let mut object = old.clone();
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            return self.keep(at, old, object);
        }
        self.objects.remove(&at);
        self.tell("DELETED", &at.0, old);
        (200, json!({ "kind": "Status", "status": "Success" }))
    }
}
