//! What people say on a PersistentVolumeClaim counts for its volume: the annotations of a claim that Hotbay acts upon
//! are kept equal on the Volume, from where the node that uses it hears of them. The leading controller runs
//! [`follow`].
//!
//! - [`word`]: what one claim says; [`settle`]: what follows from it.
//!
//! A claim counts when it is bound, and is the one that its volume was made for, where that is known, or was given to
//! since: then the PersistentVolume says so. It is found by the name of its PersistentVolume, which is the volume's
//! own when it was provisioned; for one that a person made (`hotbay recover --manifests`) the PersistentVolume is
//! looked up. Which annotations of a volume came from its claim is noted beside them, so that what is taken off the
//! claim goes, and what somebody wrote onto the volume itself stays.

mod settle;
mod word;

use std::time::Duration;

use hotbay_registry::Registry;
use serde_json::Value;
use thiserror::Error;
use tokio::time::Instant;

use self::word::{News, Noted, Word};
use crate::client::pages::Pages;
use crate::client::{CallError, Client, Watch, WatchEvent};

pub(crate) use self::word::{COUNTED, is_of_claim};

/// On the volume: which of its annotations came from the claim, with commas between them.
pub(crate) const FROM_CLAIM: &str = "hotbay.dev/from-claim";

const CLAIMS: &str = "/api/v1/persistentvolumeclaims";
const DRIVER: &str = "csi.hotbay.dev";
/// As many claims are settled at once.
const TOGETHER: usize = 500;

/// The pause after a failure; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A round that held for so long has worked: the next pause is short again.
const WORKED: Duration = Duration::from_secs(60);
/// How long more is waited for once something came. Much comes at the same time, and one look at the registry does.
const LINGER: Duration = Duration::from_millis(50);
/// After so long the claims are listed again, if one was refused: a person may have mended what was wrong.
const AGAIN: Duration = Duration::from_secs(5 * 60);

/// Follows the claims until the registry ends.
pub async fn follow(client: Client, registry: Registry) {
    let mut changes = registry.changes();
    let noted = Noted::default();
    let mut claims = Claims { client, registry, noted, list_by: None, trouble: String::new() };
    tokio::select! {
        () = claims.rounds() => {}
        () = async { while changes.changed().await.is_ok() {} } => {}
    }
}

/// Why claims cannot be followed now.
#[derive(Debug, Error)]
enum Trouble {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Registry(#[from] hotbay_registry::CallError),
}

struct Claims {
    client: Client,
    registry: Registry,
    noted: Noted,
    /// When the claims are listed again at the latest.
    list_by: Option<Instant>,
    /// What went wrong last: told once, however often it does.
    trouble: String,
}

/// How a watch goes on, after something was read of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Read,
    /// With another watch from the same place.
    Watch,
    /// With a list.
    List,
}

impl Claims {
    /// Rounds without end. Each begins with a list, so what one could not settle is settled by the next.
    async fn rounds(&mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            if let Err(error) = self.round().await {
                let words = error.to_string();
                if words != self.trouble {
                    tracing::warn!("claims cannot be followed, trying again: {words}");
                    self.trouble = words;
                }
            }
            if began.elapsed() >= WORKED {
                pause = FIRST_PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A list, and watches from there on for as long as they follow each other without a gap.
    async fn round(&mut self) -> Result<(), Trouble> {
        let mut version = self.list().await?;
        if !self.trouble.is_empty() {
            tracing::info!("claims are followed again");
            self.trouble.clear();
        }
        while self.watch(&mut version).await? == Next::Watch {}
        Ok(())
    }

    async fn list(&mut self) -> Result<String, Trouble> {
        self.list_by = None;
        let client = self.client.clone();
        let (mut pages, mut version) = (Pages::of(&client, CLAIMS.to_owned()), String::new());
        while let Some(page) = pages.next().await? {
            // Also those that say nothing: whoever led before may have heard something of them.
            self.settle(page.items.iter().filter_map(Word::of).collect()).await?;
            version = page.version;
        }
        Ok(version)
    }

    /// One watch, until the server ends it, as it does from time to time.
    async fn watch(&mut self, version: &mut String) -> Result<Next, Trouble> {
        let began = Instant::now();
        let mut watch = match self.client.watch(CLAIMS, version).await {
            Err(CallError::Failed { code: 410, .. }) => return Ok(Next::List),
            watch => watch?,
        };
        loop {
            let mut news = News::default();
            let next = self.read(&mut watch, version, &mut news).await?;
            self.settle(news.take()).await?;
            if self.list_by.is_some_and(|time| time <= Instant::now()) {
                return Ok(Next::List);
            }
            if next == Next::Watch && began.elapsed() < FIRST_PAUSE {
                // One that ends as soon as it begins must not be asked for without a pause.
                tokio::time::sleep(FIRST_PAUSE).await;
            }
            if next != Next::Read {
                return Ok(next);
            }
        }
    }

    /// Waits for something that concerns us, and takes what comes with it.
    async fn read(
        &self,
        watch: &mut Watch,
        version: &mut String,
        news: &mut News,
    ) -> Result<Next, CallError> {
        let mut until = self.list_by;
        while news.len() < TOGETHER {
            let event = match until {
                Some(time) => tokio::time::timeout_at(time, watch.next()).await,
                None => Ok(watch.next().await),
            };
            let Ok(event) = event else { break };
            let (object, is_there) = match event? {
                None => return Ok(Next::Watch),
                Some(WatchEvent::Expired(_)) => return Ok(Next::List),
                Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (object, true),
                Some(WatchEvent::Deleted(object) | WatchEvent::Bookmark(object)) => (object, false),
            };
            *version = resource_version(&object);
            let word = Word::of(&object).filter(|word| is_there && self.noted.concerns(word));
            let Some(word) = word else { continue };
            if news.len() == 0 {
                until = Some(Instant::now() + LINGER);
            }
            news.add(word);
        }
        Ok(Next::Read)
    }

    /// Has the claims listed again, after a while.
    fn again(&mut self) {
        self.list_by.get_or_insert_with(|| Instant::now() + AGAIN);
    }
}

fn resource_version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}
