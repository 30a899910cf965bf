//! A list, page by page, on a server that does not answer each call: the store reads all objects so before it leads,
//! and each watch before it begins.
//!
//! The pages are all of one moment. Each is asked for again for a while, so that a long list comes to its end also
//! where some calls are refused. What is told in pages cannot be taken back: whoever reads them is told when the
//! server no longer keeps the moment, and the list begins anew.

use std::time::Duration;

use serde_json::Value;

use super::{Answer, CallError, Client, LONGEST_ASKED};

/// Objects in one answer.
const LIMIT: usize = 500;

/// How often the call for one page is made again. A server that has too much to do lets a page through now and then:
/// each one counts anew, or a long list would never end.
const FAILURES: u32 = 8;

/// The pause after a failed call, if the server does not ask for another one.
const PAUSE: Duration = Duration::from_millis(250);

/// How often a list is begun anew because its moment is no longer kept.
const RESTARTS: u32 = 3;

/// A list that is being read.
#[derive(Debug)]
pub(crate) struct Pages<'a> {
    client: &'a Client,
    path: String,
    of_metadata: bool,
    /// Where the next page begins.
    place: Place,
    /// As many objects are asked for.
    limit: usize,
    failures: u32,
    restarts: u32,
}

#[derive(Debug)]
enum Place {
    First,
    After(String),
    End,
}

/// Some of the objects.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) items: Vec<Value>,
    /// What was read before it, if anything, does not count.
    pub(crate) is_first: bool,
    /// The moment that the list is of.
    pub(crate) version: String,
}

impl<'a> Pages<'a> {
    /// Without a resource version the server asks etcd, not its cache.
    pub(crate) fn of(client: &'a Client, path: String) -> Self {
        let (place, limit) = (Place::First, LIMIT);
        Self { client, path, of_metadata: false, place, limit, failures: 0, restarts: 0 }
    }

    /// The same with the metadata of the objects alone.
    pub(crate) fn of_metadata(client: &'a Client, path: String) -> Self {
        Self { of_metadata: true, ..Self::of(client, path) }
    }

    /// The next page; none after the last. A list has at least one.
    pub(crate) async fn next(&mut self) -> Result<Option<Page>, CallError> {
        loop {
            let (is_first, path) = match &self.place {
                Place::First => (true, format!("{}?limit={}", self.path, self.limit)),
                // It is base64 for URLs: nothing in it needs to be escaped.
                Place::After(token) => {
                    (false, format!("{}?limit={}&continue={token}", self.path, self.limit))
                }
                Place::End => return Ok(None),
            };
            let answered = match self.of_metadata {
                true => self.client.get_metadata(&path).await,
                false => self.client.get(&path).await,
            };
            if let Some(mut list) = self.counted(answered).await? {
                let items = match list["items"].take() {
                    Value::Array(items) => items,
                    _ => Vec::new(),
                };
                let text = |field: &str| list["metadata"][field].as_str().unwrap_or_default();
                self.place = match text("continue") {
                    "" => Place::End,
                    token => Place::After(token.to_owned()),
                };
                return Ok(Some(Page { items, is_first, version: text("resourceVersion").into() }));
            }
        }
    }

    /// The list in an answer; none if it is to be asked for again, after a pause where that is due.
    async fn counted(
        &mut self,
        answered: Result<Answer, CallError>,
    ) -> Result<Option<Value>, CallError> {
        let (error, asked) = match answered {
            Ok(answer) if answer.code == 429 || answer.code >= 500 => {
                let asked = answer.retry_after;
                (CallError::Failed { code: answer.code, words: answer.words() }, asked)
            }
            Ok(answer) if answer.code == 410 && self.restarts < RESTARTS => {
                self.restarts += 1;
                self.place = Place::First;
                return Ok(None);
            }
            Ok(answer) => {
                self.failures = 0;
                return answer.done().map(Some);
            }
            Err(error @ CallError::NoPath { .. }) => return Err(error),
            // It may be too much for one answer.
            Err(error @ (CallError::CutOff(_) | CallError::TimedOut)) => {
                self.limit = (self.limit / 2).max(1);
                (error, None)
            }
            Err(error) => (error, None),
        };
        self.failures += 1;
        if self.failures > FAILURES {
            return Err(error);
        }
        tracing::debug!(list = self.path, "asking for a page again: {error}");
        tokio::time::sleep(asked.unwrap_or(PAUSE).min(LONGEST_ASKED)).await;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::Response;
    use http_body_util::{BodyExt, Full};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::client::{Call, Sending, Transport};

    /// What a call of that number, with that query, is answered: a code, and a body.
    type Answers = fn(usize, &str) -> (u16, String);

    #[derive(Clone)]
    struct Scripted {
        answers: Answers,
        queries: Arc<Mutex<Vec<String>>>,
    }

    impl Scripted {
        fn new(answers: Answers) -> Self {
            Self { answers, queries: Arc::default() }
        }

        /// All pages that are read: how many objects each has, and whether it is the first.
        async fn read(&self) -> Result<Vec<(usize, bool)>, CallError> {
            let client = Client::over(self.clone());
            let mut pages = Pages::of(&client, "/api/v1/nodes".to_owned());
            let mut read = Vec::new();
            while let Some(page) = pages.next().await? {
                assert_eq!(page.version, "7");
                read.push((page.items.len(), page.is_first));
            }
            Ok(read)
        }

        fn queries(&self) -> Vec<String> {
            self.queries.lock().unwrap().clone()
        }
    }

    impl Transport for Scripted {
        fn send(&self, call: Call) -> Sending {
            let query = call.uri().query().unwrap().to_owned();
            let number = {
                let mut queries = self.queries.lock().unwrap();
                queries.push(query.clone());
                queries.len() - 1
            };
            let (code, body) = (self.answers)(number, &query);
            let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
            let reply = Response::builder().status(code).header("retry-after", "3").body(body);
            Box::pin(async { Ok(reply.unwrap()) })
        }
    }

    fn page(items: usize, next: &str) -> (u16, String) {
        let metadata = json!({ "continue": next, "resourceVersion": "7" });
        (200, json!({ "metadata": metadata, "items": vec![1; items] }).to_string())
    }

    /// Three pages, each after a few refusals.
    #[tokio::test(start_paused = true)]
    async fn each_page_is_asked_for_again_and_no_other() {
        let server = Scripted::new(|number, query| match (number % 6, query) {
            (0..5, _) => (429, String::new()),
            (_, "limit=500") => page(2, "b"),
            (_, "limit=500&continue=b") => page(3, "c"),
            (_, _) => page(1, ""),
        });
        let began = Instant::now();
        assert_eq!(server.read().await.unwrap(), [(2, true), (3, false), (1, false)]);
        assert_eq!(server.queries().len(), 18);
        assert_eq!(began.elapsed(), 15 * Duration::from_secs(3), "as the server asks");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_cannot_be_had_is_given_up() {
        let server = Scripted::new(|_, query| match query {
            "limit=500" => page(2, "b"),
            _ => (503, String::new()),
        });
        let error = server.read().await.unwrap_err();
        assert!(matches!(error, CallError::Failed { code: 503, .. }), "{error}");
        assert_eq!(server.queries().len(), 1 + 1 + 8);
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_pause_mends_is_told_at_once() {
        let server = Scripted::new(|_, _| (404, String::new()));
        let error = server.read().await.unwrap_err();
        assert!(matches!(error, CallError::Failed { code: 404, .. }), "{error}");
        assert_eq!(server.queries().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_whose_moment_is_past_begins_anew() {
        let server = Scripted::new(|number, query| match (number, query) {
            (1, _) => (410, String::new()),
            (_, "limit=500") => page(2, "b"),
            (_, _) => page(3, ""),
        });
        assert_eq!(server.read().await.unwrap(), [(2, true), (2, true), (3, false)]);
        let server = Scripted::new(|_, _| (410, String::new()));
        let error = server.read().await.unwrap_err();
        assert!(matches!(error, CallError::Failed { code: 410, .. }), "{error}");
        assert_eq!(server.queries().len(), 1 + 3);
    }

    /// The story: a tenant filled a hundred claims with annotations as long as they may be. They came in one answer,
    /// took all the memory that a controller has, and so it was with every controller after it.
    #[tokio::test(start_paused = true)]
    async fn large_objects_come_a_few_at_a_time() {
        let server = Scripted::new(|_, query| {
            let limit = query.strip_prefix("limit=").unwrap().split('&').next().unwrap();
            let item = "x".repeat(3 << 19);
            let items = vec![item; limit.parse::<usize>().unwrap().min(40)];
            let metadata = json!({ "continue": "", "resourceVersion": "7" });
            (200, json!({ "metadata": metadata, "items": items }).to_string())
        });
        assert_eq!(server.read().await.unwrap(), [(7, true)]);
    }

    /// The story: somebody filled five hundred objects with more than can be read at once. The page was asked for
    /// again as it was, and no list of that kind came to its end.
    #[tokio::test(start_paused = true)]
    async fn a_page_that_is_too_long_is_asked_for_in_parts() {
        let server = Scripted::new(|_, query| match query {
            "limit=500" => page(500, "b"),
            "limit=1&continue=b" => page(1, "c"),
            "limit=1&continue=c" => page(1, ""),
            // What is cut off is no JSON.
            _ => (200, "{".to_owned()),
        });
        assert_eq!(server.read().await.unwrap(), [(500, true), (1, false), (1, false)]);
        let limits = [500, 500, 250, 125, 62, 31, 15, 7, 3, 1, 1];
        let asked: Vec<_> = server.queries();
        assert_eq!(asked.len(), limits.len());
        for (query, limit) in asked.iter().zip(limits) {
            assert!(query.starts_with(&format!("limit={limit}")), "{asked:?}");
        }
    }
}
