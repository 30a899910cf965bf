//! A storm: every agent of a large cluster registers at once, gets its orders and confirms them, on the embedded store.

use std::time::Instant;

use hotbay_core::cluster::State;
use hotbay_core::cms::Action;
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_registry::{RedbStore, Registry, Surroundings, ToAgent};
use tokio::sync::mpsc;

use crate::cluster::{DRIVES_PER_NODE, done, fresh, node_name, registration};

const NODES: usize = 5_000;

pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let seconds = runtime.block_on(storm())?;
    println!(
        "Registration storm: {NODES} agents in this process with {DRIVES_PER_NODE} drives each register, are added and \
         confirm every attach, on redb: {seconds:.1} s to the last confirmed attach.\n"
    );
    Ok(())
}

async fn storm() -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let surroundings = Surroundings {
        cluster: ClusterId::from_bits(1),
        term: TermId::from_bits(2),
        wall_ms: || 0,
        checkpoint: |_| {},
        auto_add: Default::default(),
    };
    let (registry, _ended) = Registry::start(RedbStore::open(folder.path())?, surroundings)?;
    let began = Instant::now();
    let mut agents = tokio::task::JoinSet::new();
    for node in 0..NODES {
        agents.spawn(agent(registry.clone(), node));
    }
    while let Some(ended) = agents.join_next().await {
        ended??;
    }
    let seconds = began.elapsed().as_secs_f64();
    let attached = registry
        .read(|cluster| {
            cluster.drives().filter(|drive| drive.record.state == State::Attached).count()
        })
        .await?;
    anyhow::ensure!(attached == NODES * DRIVES_PER_NODE, "only {attached} are attached");
    Ok(seconds)
}

async fn agent(registry: Registry, node: usize) -> anyhow::Result<()> {
    let (outbox, mut told) = mpsc::channel(1_024);
    let session = registry.accept(outbox).await?;
    registry.register(session, None, registration(node), fresh(node)).await?;
    let action = Action::AddHost { host: node_name(node), with_removed: false, returned: false };
    registry.act(vec![action], String::new(), false).await?;
    let mut left = DRIVES_PER_NODE;
    while left > 0 {
        let Some(message) = told.recv().await else { anyhow::bail!("the session ended") };
        if let ToAgent::Order(order) = message {
            // An order that comes again has been confirmed already.
            if registry.answer(session, done(&order)).await.is_ok() {
                left -= 1;
            }
        }
    }
    Ok(())
}
