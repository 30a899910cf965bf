//! Waits until nodes have registered, by following what the registry shows.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use hotbay_api::kinds::StorageNode;

use crate::client::api::{Api, Kind};
use crate::client::place::Place;

/// Calls `show` for each of the nodes as it gets ready, and ends when all are.
pub(super) async fn nodes(
    api: &Path,
    names: &[String],
    show: impl Fn(&StorageNode),
) -> anyhow::Result<()> {
    let mut waiting: BTreeSet<_> = names.iter().cloned().collect();
    let mut news =
        Api::connect(Place::Socket(api.to_owned())).await?.follow(Kind::StorageNode, Vec::new());
    while !waiting.is_empty() {
        // A registry that is away for a moment comes back.
        let Ok(objects) = news.recv().await.context("the registry stopped")? else { continue };
        for object in objects {
            let node: StorageNode = serde_json::from_str(&object)?;
            if node.status.ready && waiting.remove(&node.metadata.name) {
                show(&node);
            }
        }
    }
    Ok(())
}
