//! As much of an API server as the store can tell from a real one: versions, the status subresource, finalizers,
//! preconditions. What it gets wrong, `k8s_store` finds.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube_client::Client;
use kube_client::client::Body;
use serde_json::{Value, json};

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
}

type Answered = (u16, Value);

impl Fake {
    pub(crate) fn client(&self) -> Client {
        let state = Arc::clone(&self.state);
        let service = tower::service_fn(move |request: Request<Body>| {
            let state = Arc::clone(&state);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, body) =
                    state.lock().unwrap().answer(&parts.method, parts.uri.path(), body);
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    pub(crate) fn set_definitions(&self, there: bool) {
        let mut state = self.state.lock().unwrap();
        state.without_definitions = !there;
        if !there {
            state.objects.clear();
        }
    }
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
    fn answer(&mut self, method: &Method, path: &str, body: Value) -> Answered {
        let parts: Vec<_> =
            path.trim_start_matches("/apis/hotbay.dev/v1alpha1/").split('/').collect();
        if self.without_definitions {
            return not_found();
        }
        let at = |name: &str| (parts[0].to_owned(), name.to_owned());
        match (method.as_str(), &parts[1..]) {
            ("GET", []) => {
                let items = self.objects.iter().filter(|(key, _)| key.0 == parts[0]);
                let items: Vec<_> = items.map(|(_, object)| object).collect();
                (200, json!({ "items": items, "metadata": {} }))
            }
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
        object["status"] = old["status"].clone();
        for field in ["uid", "deletionTimestamp", "generation"] {
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
            self.objects.insert(at, object.clone());
        } else {
            self.objects.remove(&at);
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
        (200, json!({ "kind": "Status", "status": "Success" }))
    }
}
