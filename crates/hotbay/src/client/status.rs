//! `hotbay status`: how it all stands, in a few lines.

use std::collections::BTreeMap;

use hotbay_api::kinds::{Drive, StorageNode};

use super::api::{Api, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::screen::{Screen, plain};
use super::{rows, words};
use crate::plugin::as_called;

const REWOUND: &str = "it knows more than this registry, which has no record of it, and gets no orders; \
                       hotbay registry adopt shows what it knows";

pub(crate) async fn run(api: &Api, screen: &mut Screen) -> Result<Exit, ClientError> {
    let nodes: Vec<StorageNode> = api.objects(Kind::StorageNode, "").await?;
    let drives: Vec<Drive> = api.objects(Kind::Drive, "").await?;
    screen.line(&format!("registry  answers at {}", api.place()))?;
    let here = nodes.iter().filter(|node| node.status.ready).count();
    screen.line(&format!("nodes     {here} of {} ready", nodes.len()))?;
    screen.line(&format!("drives    {}", in_states(&drives)))?;
    let mut exit = Exit::Done;
    let mut complain = |subject: &str, why: &str| {
        exit = Exit::TryAgain;
        screen.line(&format!("  {}: {}", plain(subject), plain(why)))
    };
    for node in &nodes {
        for condition in &node.status.conditions {
            complain(&node.metadata.name, &condition.message)?;
        }
        if !node.status.ready && !node.status.purged {
            complain(&node.metadata.name, "its agent is not connected")?;
        }
    }
    // A machine that knows more than a registry which has lost its records stands in no list.
    for unknown in api.adopt(false).await?.nodes {
        if nodes.iter().all(|node| node.metadata.name != unknown.node) {
            complain(&unknown.node, &as_called(REWOUND))?;
        }
    }
    for drive in &drives {
        if let Some(why) = &drive.status.waiting_for {
            complain(&drive.metadata.name, why)?;
        }
    }
    Ok(exit)
}

/// Such as `6: 2 Attached, 4 Unknown`.
fn in_states(drives: &[Drive]) -> String {
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for drive in drives {
        *states.entry(rows::state(&drive.status)).or_default() += 1;
    }
    let states: Vec<_> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    match states.as_slice() {
        [] => words::count(0, "drive"),
        states => format!("{}: {}", drives.len(), states.join(", ")),
    }
}
