//! Which Kubernetes Nodes there are: a list, then what happens after it. Their names are all that is kept, and their
//! metadata all that is asked for: a Node is large, and its status changes every few minutes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use crate::client::pages::Pages;
use crate::client::{CallError, Client, WatchEvent};

const NODES: &str = "/api/v1/nodes";

/// The pause after a failure; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The names of all Nodes; none before the first list was read to its end.
pub(super) type Machines = Option<Arc<BTreeSet<String>>>;

/// Tells which there are, and does not end. While the server cannot be asked, what was known last stands.
pub(super) async fn follow(client: Client, machines: watch::Sender<Machines>) {
    let (mut pause, mut trouble) = (FIRST_PAUSE, String::new());
    loop {
        match round(&client, &machines).await {
            Ok(()) => {
                pause = FIRST_PAUSE;
                trouble.clear();
            }
            Err(error) => {
                let words = error.to_string();
                if words != trouble {
                    tracing::warn!("Kubernetes Nodes cannot be followed, trying again: {words}");
                    trouble = words;
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A list, and watches for as long as they follow each other without a gap.
async fn round(client: &Client, machines: &watch::Sender<Machines>) -> Result<(), CallError> {
    let (mut names, mut version) = list(client).await?;
    tell(machines, &names);
    loop {
        let mut watch = match client.watch_metadata(NODES, &version).await {
            Err(CallError::Failed { code: 410, .. }) => return Ok(()),
            watch => watch?,
        };
        while let Some(event) = watch.next().await? {
            let (object, is_there) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
                WatchEvent::Deleted(object) => (object, false),
                WatchEvent::Bookmark(object) => {
                    version = resource_version(&object);
                    continue;
                }
                WatchEvent::Expired(_) => return Ok(()),
            };
            version = resource_version(&object);
            let Some(name) = name(&object) else { continue };
            let changed = if is_there { names.insert(name) } else { names.remove(&name) };
            if changed {
                tell(machines, &names);
            }
        }
        // One that ends as soon as it begins must not be asked for without a pause.
        tokio::time::sleep(FIRST_PAUSE).await;
    }
}

async fn list(client: &Client) -> Result<(BTreeSet<String>, String), CallError> {
    let mut pages = Pages::of_metadata(client, NODES.to_owned());
    let (mut names, mut version) = (BTreeSet::new(), String::new());
    while let Some(page) = pages.next().await? {
        if page.is_first {
            names.clear();
        }
        names.extend(page.items.iter().filter_map(name));
        version = page.version;
    }
    Ok((names, version))
}

fn tell(machines: &watch::Sender<Machines>, names: &BTreeSet<String>) {
    let now = Some(Arc::new(names.clone()));
    machines.send_if_modified(|told| {
        let is_new = *told != now;
        *told = now;
        is_new
    });
}

fn name(object: &Value) -> Option<String> {
    object["metadata"]["name"].as_str().map(str::to_owned)
}

fn resource_version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}
