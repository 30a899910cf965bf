//! An answer without an end: what happens to the objects of a list, one line of JSON for each event.

use std::time::Duration;

use http::Method;
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use super::{AS_THEY_ARE, Body, CallError, Client, METADATA, depth, request};

/// The longest object is far below it: etcd takes 1.5 MiB.
const LINE_MAX_BYTES: usize = 16 << 20;

/// How long the server may take to begin, and to say why it does not. Keep-alives of the connection watch over the
/// rest.
const BEGIN_TIME: Duration = Duration::from_secs(10);

/// As many of its words are read.
const WORDS_MAX_BYTES: usize = 64 << 10;

/// What happened to an object.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent {
    Added(Value),
    Modified(Value),
    /// The object as it was last.
    Deleted(Value),
    /// Nothing happened up to this version.
    Bookmark(Value),
    /// The watch cannot go on from where it was, most often because that is too long ago: list again.
    Expired(String),
}

/// A running watch.
pub struct Watch {
    body: Body,
    read: Vec<u8>,
}

impl Client {
    /// Watches a list from a version on; `path` may have a query already.
    pub async fn watch(&self, path: &str, version: &str) -> Result<Watch, CallError> {
        self.watch_as(path, version, AS_THEY_ARE).await
    }

    /// The same, with the metadata of the objects alone.
    pub async fn watch_metadata(&self, path: &str, version: &str) -> Result<Watch, CallError> {
        self.watch_as(path, version, METADATA).await
    }

    async fn watch_as(
        &self,
        path: &str,
        version: &str,
        accept: &'static str,
    ) -> Result<Watch, CallError> {
        let joint = if path.contains('?') { '&' } else { '?' };
        let query = format!("watch=1&allowWatchBookmarks=true&resourceVersion={version}");
        let path = format!("{path}{joint}{query}");
        let call = request(Method::GET, &path, accept, None)?;
        let reply = tokio::time::timeout(BEGIN_TIME, self.send(call)).await;
        let reply = reply.map_err(|_| CallError::TimedOut)?.map_err(CallError::Connection)?;
        let code = reply.status().as_u16();
        if code >= 300 {
            return Err(CallError::Failed { code, words: words(reply.into_body()).await });
        }
        Ok(Watch { body: reply.into_body(), read: Vec::new() })
    }
}

impl Watch {
    /// The next event; none when the server ends the watch, as it does from time to time. May be cancelled.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, CallError> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return event(&line).map(Some);
            }
            if self.read.len() > LINE_MAX_BYTES {
                return Err(CallError::CutOff("an event has no end".into()));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Ok(data) = frame.map_err(|error| CallError::CutOff(error.into()))?.into_data() {
                self.read.extend_from_slice(&data);
            }
        }
    }
}

/// Why the server does not begin a watch. What stands before it may never end its answer, and the code alone tells
/// what to do.
async fn words(body: Body) -> String {
    let read = Limited::new(body, WORDS_MAX_BYTES).collect();
    match tokio::time::timeout(BEGIN_TIME, read).await {
        Ok(Ok(words)) => hotbay_core::words::plain(&String::from_utf8_lossy(&words.to_bytes())),
        Ok(Err(_)) | Err(_) => "why could not be read".to_owned(),
    }
}

fn event(line: &[u8]) -> Result<WatchEvent, CallError> {
    let mut told = depth::read(line).map_err(|error| CallError::CutOff(error.into()))?;
    let object = told["object"].take();
    match told["type"].as_str() {
        Some("ADDED") => Ok(WatchEvent::Added(object)),
        Some("MODIFIED") => Ok(WatchEvent::Modified(object)),
        Some("DELETED") => Ok(WatchEvent::Deleted(object)),
        Some("BOOKMARK") => Ok(WatchEvent::Bookmark(object)),
        Some("ERROR") => {
            let words = object["message"].as_str().unwrap_or("it does not say why");
            Ok(WatchEvent::Expired(hotbay_core::words::plain(words)))
        }
        other => Err(CallError::CutOff(format!("an event of type {other:?}").into())),
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http::Response;
    use hyper::body::{Bytes, Frame};

    use super::*;
    use crate::client::{Call, Sending, Transport};

    /// Answers that something is gone, and does not end: it says nothing at all, or too much.
    #[derive(Clone, Copy)]
    struct Endless {
        is_silent: bool,
    }

    impl hyper::body::Body for Endless {
        type Data = Bytes;
        type Error = hyper::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
            match self.is_silent {
                true => Poll::Pending,
                false => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 1 << 10]))))),
            }
        }
    }

    impl Transport for Endless {
        fn send(&self, _: Call) -> Sending {
            let body = BodyExt::boxed_unsync(*self);
            Box::pin(async { Ok(Response::builder().status(410).body(body).unwrap()) })
        }
    }

    /// A proxy answered and did not end its answer: whoever watched waited for it, and what people did to these objects
    /// was not seen any more, without a word.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_without_an_end_is_a_refusal() {
        for is_silent in [true, false] {
            let client = Client::over(Endless { is_silent });
            let watch = tokio::time::timeout(2 * BEGIN_TIME, client.watch("/api/v1/nodes", "1"));
            let refused = watch.await.expect("it is not waited for").unwrap_err();
            assert!(matches!(refused, CallError::Failed { code: 410, .. }), "{refused}");
        }
    }
}
