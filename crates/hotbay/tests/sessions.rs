//! The real agent and a registry that gives its half of a session up, and leaves the other half open.

mod cluster;
mod fake_registry;

use std::time::Duration;

use cluster::Cluster;
use fake_registry::Session;
use tokio::sync::mpsc;

const LIMIT: Duration = Duration::from_secs(60);

async fn next(sessions: &mut mpsc::Receiver<Session>) -> Session {
    let session = tokio::time::timeout(LIMIT, sessions.recv()).await;
    session.expect("the agent dials").expect("the registry listens")
}

/// An agent that hears nothing more must not go on in a session that nobody has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_session_was_dropped_registers_anew() {
    let mut cluster = Cluster::new(1, false);
    let mut sessions = fake_registry::listen(&cluster.api());
    cluster.start_agent();
    let mut first = next(&mut sessions).await;
    first.register().await;
    let mut dropped = first.hang_up();
    let mut second = next(&mut sessions).await;
    second.register().await;
    let heard =
        tokio::time::timeout(LIMIT, async { while let Ok(Some(_)) = dropped.message().await {} });
    heard.await.expect("it ends its own half, too");
}
