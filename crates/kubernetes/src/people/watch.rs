//! One kind, watched without end: a list, then what happens after it. When the watch cannot go on, the list is read
//! again, so that nothing is missed, also not what went away between the two.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::pending::{Listed, Pending};
use super::seen::Seen;
use crate::client::pages::Pages;
use crate::client::{CallError, Client, WatchEvent};
use crate::resource::Resource;
use crate::store::write::unknown_kind;

/// The pause after a failure; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A watch that held for so long has worked: the next pause is short again.
const WORKED: Duration = Duration::from_secs(30);

/// Why a watch, or a list, ended.
#[derive(Debug)]
enum Ended {
    /// The server forgets what was so long ago: a list helps at once.
    Expired(String),
    Failed(CallError),
}

impl From<CallError> for Ended {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Failed { code: 410, words } => Self::Expired(words),
            error => Self::Failed(error),
        }
    }
}

/// Tells all that happens to the objects of a kind, and does not end.
pub(super) async fn watch(client: Client, resource: Resource, news: Arc<Pending>) {
    let mut watching = Watching { client, resource, news, trouble: None };
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        match watching.round().await {
            Ended::Expired(words) => {
                tracing::debug!(kind = resource.kind(), "listing again: {words}")
            }
            Ended::Failed(error) => watching.complain(&error),
        }
        if began.elapsed() >= WORKED {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

struct Watching {
    client: Client,
    resource: Resource,
    news: Arc<Pending>,
    /// What went wrong last: told once, however often it does.
    trouble: Option<String>,
}

impl Watching {
    /// A list, and watches from there on for as long as they follow each other without a gap.
    async fn round(&mut self) -> Ended {
        let mut version = match self.list().await {
            Ok(version) => version,
            Err(ended) => return ended,
        };
        if self.trouble.take().is_some() {
            tracing::info!(kind = self.resource.kind(), "watching again");
        }
        loop {
            if let Err(ended) = self.follow(&mut version).await {
                return ended;
            }
        }
    }

    async fn list(&self) -> Result<String, Ended> {
        let mut pages = Pages::of(&self.client, self.resource.path());
        let (mut uids, mut version) = (HashSet::new(), String::new());
        while let Some(page) = pages.next().await? {
            if page.is_first {
                uids.clear();
            }
            for object in page.items {
                let Some(seen) = self.seen(object) else { continue };
                uids.insert(seen.entry.uid.clone());
                self.news.tell(seen, false);
            }
            version = page.version;
        }
        let (resource, number) = (self.resource, version.parse().unwrap_or(0));
        self.news.tell_listed(Listed { resource, version: number, uids });
        Ok(version)
    }

    /// One watch, until the server ends it, as it does from time to time. It can be followed by another from the same
    /// place.
    async fn follow(&self, version: &mut String) -> Result<(), Ended> {
        let began = Instant::now();
        let mut watch = self.client.watch(&self.resource.path(), version).await?;
        while let Some(event) = watch.next().await? {
            let (object, gone) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(object) => {
                    advance(version, &object);
                    continue;
                }
                WatchEvent::Expired(words) => return Err(Ended::Expired(words)),
            };
            advance(version, &object);
            if let Some(seen) = self.seen(object) {
                self.news.tell(seen, gone);
            }
        }
        // One that ends as soon as it begins must not be asked for without a pause.
        if began.elapsed() < FIRST_PAUSE {
            tokio::time::sleep(FIRST_PAUSE).await;
        }
        Ok(())
    }

    /// One object that makes no sense stops nothing.
    fn seen(&self, object: Value) -> Option<Seen> {
        let name = object["metadata"]["name"].as_str().unwrap_or("without a name").to_owned();
        let seen = Seen::of(self.resource, object);
        if seen.is_none() {
            let kind = self.resource.kind();
            tracing::warn!(
                kind,
                name,
                "the server shows an object without uid or version; it is left alone"
            );
        }
        seen
    }

    fn complain(&mut self, error: &CallError) {
        let words = match error {
            CallError::Failed { code: 404, .. } => unknown_kind(self.resource),
            error => match std::error::Error::source(error) {
                Some(cause) => format!("{error}: {cause}"),
                None => error.to_string(),
            },
        };
        if self.trouble.as_ref() != Some(&words) {
            let kind = self.resource.kind();
            tracing::warn!(
                kind,
                "cannot watch what people do to the objects, trying again: {words}"
            );
            self.trouble = Some(words);
        }
    }
}

fn advance(version: &mut String, object: &Value) {
    if let Some(seen) = object["metadata"]["resourceVersion"].as_str() {
        seen.clone_into(version);
    }
}
