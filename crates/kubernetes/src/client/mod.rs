//! Calls to the Kubernetes API server, with a limit on their time; objects are plain JSON. What an answer means is
//! decided by whoever asks.
//!
//! - [`server`]: where the server is, and who asks; from a pod's files or a kubeconfig.
//! - [`connection`]: HTTP/2 over TLS 1.3, dialled again when it breaks.
//! - [`watch`]: an answer without an end, event by event.
//! - [`pages`]: a list, page by page.
//! - [`depth`]: JSON, however deep it is.

mod connection;
mod depth;
pub(crate) mod pages;
pub mod server;
pub mod watch;

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use serde_json::Value;
use thiserror::Error;

use self::connection::Connection;
pub use self::server::{Server, ServerError};
pub use self::watch::{Watch, WatchEvent};

/// The longest that a call may take. A busy etcd answers in less.
const CALL_TIME: Duration = Duration::from_secs(10);

/// The longest pause that the server may ask for.
pub(crate) const LONGEST_ASKED: Duration = Duration::from_secs(30);

/// The longest answer that is read: a page of a list, or at least one object, of which etcd takes 1.5 MiB. Read as JSON
/// it may take ten times that, and whoever may write claims may fill hundreds of them.
const ANSWER_MAX_BYTES: usize = 16 << 20;

/// How objects are asked for: as they are, or without all but their metadata.
const AS_THEY_ARE: &str = "application/json";
const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json";
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json";

/// What goes wrong below HTTP.
pub type TransportError = Box<dyn Error + Send + Sync>;

/// A call on its way, and what comes back.
pub type Call = Request<Full<Bytes>>;
pub type Body = UnsyncBoxBody<Bytes, hyper::Error>;
pub type Reply = Response<Body>;
pub type Sending = Pin<Box<dyn Future<Output = Result<Reply, TransportError>> + Send>>;

/// What carries calls to the server; the path is all of the address that they name.
pub trait Transport: Send + Sync + 'static {
    fn send(&self, call: Call) -> Sending;
}

/// Why nobody knows what became of a call.
#[derive(Debug, Error)]
pub enum CallError {
    #[error("no answer within {} s", CALL_TIME.as_secs())]
    TimedOut,
    #[error("the connection to the API server failed")]
    Connection(#[source] TransportError),
    #[error("the answer of the API server was cut off")]
    CutOff(#[source] TransportError),
    #[error("the API server answered {code}: {words}")]
    Failed { code: u16, words: String },
    #[error("{object} is changed by others again and again")]
    Contended { object: String },
    /// Nothing was sent: a name in it is none that Kubernetes takes.
    #[error("{path:?} is no path of a call")]
    NoPath {
        path: String,
        #[source]
        source: http::Error,
    },
}

/// What the server said.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    /// An object, a list or a `Status`; null if it was no JSON.
    pub body: Value,
    pub retry_after: Option<Duration>,
}

impl Answer {
    /// The server's own words on what is wrong.
    pub fn words(&self) -> String {
        let words = self.body["message"].as_str().unwrap_or("it does not say why");
        hotbay_core::words::plain(words)
    }

    /// The body, if the call was done.
    pub fn done(self) -> Result<Value, CallError> {
        if self.code < 300 {
            return Ok(self.body);
        }
        Err(CallError::Failed { code: self.code, words: self.words() })
    }
}

/// Speaks to the API server. Its connection lives on the runtime of its first call.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
}

impl Client {
    /// Nothing is dialled yet.
    pub fn new(server: Server) -> Self {
        Self::over(Connection::new(server))
    }

    pub fn over(transport: impl Transport) -> Self {
        Self { transport: Arc::new(transport) }
    }

    pub async fn get(&self, path: &str) -> Result<Answer, CallError> {
        self.call(Method::GET, path, None).await
    }

    /// A page of metadata alone, for kinds whose objects are large. A server that knows no such thing sends all of it.
    pub async fn get_metadata(&self, path: &str) -> Result<Answer, CallError> {
        let exchange = self.exchange(Method::GET, path, METADATA_LIST, None);
        tokio::time::timeout(CALL_TIME, exchange).await.map_err(|_| CallError::TimedOut)?
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.call(Method::POST, path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.call(Method::PUT, path, Some(body)).await
    }

    pub async fn delete(&self, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.call(Method::DELETE, path, Some(body)).await
    }

    /// As it comes, for one that passes calls on.
    pub fn send(&self, call: Call) -> Sending {
        self.transport.send(call)
    }

    /// One call with its whole answer.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, CallError> {
        let exchange = self.exchange(method, path, AS_THEY_ARE, body);
        let answered = tokio::time::timeout(CALL_TIME, exchange).await;
        answered.map_err(|_| CallError::TimedOut)?
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        body: Option<&Value>,
    ) -> Result<Answer, CallError> {
        let call = request(method, path, accept, body)?;
        let reply = self.send(call).await.map_err(CallError::Connection)?;
        let code = reply.status().as_u16();
        let retry_after = reply.headers().get(header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        let body = Limited::new(reply.into_body(), ANSWER_MAX_BYTES).collect().await;
        let body = body.map_err(CallError::CutOff)?.to_bytes();
        let body = match depth::read(&body) {
            Ok(body) => body,
            Err(error) if code < 300 => return Err(CallError::CutOff(error.into())),
            // What stands before the server, such as a proxy, answers in plain words.
            Err(_) => Value::Null,
        };
        Ok(Answer { code, body, retry_after: retry_after.map(Duration::from_secs) })
    }
}

/// Paths hold names from outside, and whoever makes one should have looked at them: what is refused here is less than
/// what the server would take for something else.
fn request(
    method: Method,
    path: &str,
    accept: &'static str,
    body: Option<&Value>,
) -> Result<Call, CallError> {
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::ACCEPT, accept)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|source| CallError::NoPath { path: path.to_owned(), source })
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Transport for Nobody {
        fn send(&self, call: Call) -> Sending {
            Box::pin(async move { Err(format!("{} was sent", call.uri()).into()) })
        }
    }

    /// A claim of a tenant named the volume `a b`, and whoever followed the claims was gone, without a word.
    #[tokio::test]
    async fn what_is_no_path_is_refused_in_words() {
        let client = Client::over(Nobody);
        let called = client.get("/api/v1/persistentvolumes/a b").await.unwrap_err();
        assert!(matches!(called, CallError::NoPath { .. }), "{called}");
        let watched = client.watch("/api/v1/no\nodes", "1").await.unwrap_err();
        assert!(matches!(watched, CallError::NoPath { .. }), "{watched}");
        let sent = client.get("/api/v1/nodes").await.unwrap_err();
        assert!(matches!(sent, CallError::Connection(_)), "{sent}");
    }
}
