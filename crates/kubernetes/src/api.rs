//! One call to the Kubernetes API server, with a limit on its time. What an answer means is decided in
//! [`crate::store`].

use std::time::Duration;

use http::{Method, Request, header};
use http_body_util::{BodyExt, Limited};
use kube_client::Client;
use kube_client::client::Body;
use serde_json::Value;
use thiserror::Error;

/// The longest that a call may take. A busy etcd answers in less.
const CALL_TIME: Duration = Duration::from_secs(10);

/// The longest answer that is read: one page of a list.
const ANSWER_MAX_BYTES: usize = 256 << 20;

/// Why nobody knows what became of a call.
#[derive(Debug, Error)]
pub(crate) enum CallError {
    #[error("no answer within {} s", CALL_TIME.as_secs())]
    TimedOut,
    #[error("the connection to the API server failed")]
    Connection(#[source] Box<kube_client::Error>),
    #[error("the answer of the API server was cut off")]
    CutOff(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the API server answered {code}: {words}")]
    Failed { code: u16, words: String },
    #[error("{object} is changed by others again and again")]
    Contended { object: String },
}

/// What the server said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    /// An object, a list or a `Status`; null if it was no JSON.
    pub(crate) body: Value,
    pub(crate) retry_after: Option<Duration>,
}

impl Answer {
    /// The server's own words on what is wrong.
    pub(crate) fn words(&self) -> String {
        let words = self.body["message"].as_str().unwrap_or("it does not say why");
        hotbay_core::words::plain(words)
    }
}

/// Speaks to the API server.
#[derive(Clone)]
pub(crate) struct Api {
    client: Client,
}

impl Api {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Answer, CallError> {
        self.call(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.call(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.call(Method::PUT, path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.call(Method::DELETE, path, Some(body)).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, CallError> {
        let answered = tokio::time::timeout(CALL_TIME, self.exchange(method, path, body)).await;
        answered.map_err(|_| CallError::TimedOut)?
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, CallError> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.map(|body| body.to_string().into_bytes()).unwrap_or_default()))
            .expect("paths are made of names that Kubernetes takes");
        let answer = self
            .client
            .send(request)
            .await
            .map_err(|error| CallError::Connection(Box::new(error)))?;
        let code = answer.status().as_u16();
        let retry_after = answer.headers().get(header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        let body = Limited::new(answer.into_body(), ANSWER_MAX_BYTES).collect().await;
        let body = body.map_err(CallError::CutOff)?.to_bytes();
        let body = match serde_json::from_slice(&body) {
            Ok(body) => body,
            Err(error) if code < 300 => return Err(CallError::CutOff(error.into())),
            // What stands before the server, such as a proxy, answers in plain words.
            Err(_) => Value::Null,
        };
        Ok(Answer { code, body, retry_after: retry_after.map(Duration::from_secs) })
    }
}
