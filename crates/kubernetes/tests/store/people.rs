//! What others do to the objects while a store uses them: a person with kubectl, another controller, a clean-up.

use std::future::Future;

use hotbay_kubernetes::client::Client;
use http::Method;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::Server;

const ALL: &str = "/apis/hotbay.dev/v1alpha1";
pub(crate) const PLURALS: [&str; 5] =
    ["registries", "storagenodes", "drives", "volumes", "attachments"];

pub(crate) struct People {
    runtime: Runtime,
    client: Client,
    server: Server,
}

impl People {
    pub(crate) fn on(server: &Server) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let client = {
            let _on_it = runtime.enter();
            server.client()
        };
        Self { runtime, client, server: server.clone() }
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    pub(crate) fn call(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let path = format!("{ALL}/{path}");
        let answer = self.wait(self.client.call(method, &path, Some(body))).unwrap();
        (answer.code, answer.body)
    }

    pub(crate) fn succeed(&self, method: Method, path: &str, body: &Value) -> Value {
        let (code, answer) = self.call(method, path, body);
        assert!(code < 300, "{path}: {code} {answer}");
        answer
    }

    pub(crate) fn list(&self, plural: &str) -> Vec<Value> {
        let list = self.succeed(Method::GET, plural, &Value::Null);
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// How many objects there are, of all kinds.
    pub(crate) fn count(&self) -> usize {
        PLURALS.iter().map(|plural| self.list(plural).len()).sum()
    }

    /// The one object of a kind.
    pub(crate) fn only(&self, plural: &str) -> Value {
        let mut all = self.list(plural);
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    pub(crate) fn named(&self, plural: &str, name: &str) -> Value {
        self.succeed(Method::GET, &format!("{plural}/{name}"), &Value::Null)
    }

    fn path_of_only(&self, plural: &str) -> String {
        format!("{plural}/{}", self.only(plural)["metadata"]["name"].as_str().unwrap())
    }

    pub(crate) fn create(&self, plural: &str, kind: &str, name: &str, spec: Value) {
        let object = json!({
            "apiVersion": "hotbay.dev/v1alpha1",
            "kind": kind,
            "metadata": { "name": name },
            "spec": spec,
        });
        self.succeed(Method::POST, plural, &object);
    }

    pub(crate) fn edit(&self, plural: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.only(plural);
        change(&mut object);
        self.succeed(Method::PUT, &self.path_of_only(plural), &object);
    }

    pub(crate) fn edit_status(&self, plural: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.only(plural);
        change(&mut object);
        self.succeed(Method::PUT, &format!("{}/status", self.path_of_only(plural)), &object);
    }

    pub(crate) fn delete(&self, plural: &str) {
        self.succeed(Method::DELETE, &self.path_of_only(plural), &json!({}));
    }

    pub(crate) fn delete_definitions(&self) {
        self.server.set_definitions(false);
    }

    pub(crate) fn restore_definitions(&self) {
        self.server.set_definitions(true);
    }
}
