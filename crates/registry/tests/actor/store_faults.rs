//! A store that waits, or is lost.

use hotbay_core::cluster::State;
use hotbay_core::cms::Code;
use hotbay_registry::{CallError, StoreError};

use crate::rig::{A_WHILE, Agent, Mood, Rig, add, assert_code, in_time, remove};

/// Reply, read and order all wait for the sync.
#[tokio::test]
async fn nothing_is_said_before_it_is_durable() {
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, 2, 64).await;
    let before = rig.store.memory.durable();
    rig.store.set(Mood::Waits);
    let acting = rig.act(add("n1-0"));
    let reading = rig.state("n1-0");
    let (acted, seen) = {
        tokio::pin!(acting, reading);
        tokio::select! {
            biased;
            _ = &mut acting => panic!("answered before it was durable"),
            _ = &mut reading => panic!("shown before it was durable"),
            order = agent.told.recv() => panic!("ordered before it was durable: {order:?}"),
            () = tokio::time::sleep(A_WHILE) => {}
        }
        assert_eq!(rig.store.memory.durable(), before);
        rig.store.set(Mood::Works);
        in_time("both answers", async { tokio::join!(acting, reading) }).await
    };
    assert_code(acted, Code::Ok);
    assert_eq!(seen, State::Attaching);
    assert_ne!(rig.store.memory.durable(), before);
    agent.order().await;
}

#[tokio::test]
async fn a_lost_store_ends_the_registry_and_every_caller_hears_of_it() {
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, 2, 64).await;
    rig.store.set(Mood::Waits);
    let lose = async {
        tokio::time::sleep(A_WHILE).await;
        rig.store.set(Mood::Lost);
    };
    let (pending, ()) = tokio::join!(in_time("an answer", rig.act(add("n1-0"))), lose);
    assert!(matches!(pending, Err(CallError::Stopped)));
    assert!(matches!(rig.act(add("n1-1")).await, Err(CallError::Stopped)));
    assert_eq!(in_time("the session's end", agent.told.recv()).await, None);
    let error = in_time("the end", rig.ended).await.unwrap();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn a_dry_run_writes_nothing_and_counts_nothing() {
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, 2, 64).await;
    assert_code(rig.act(add("n1-0")).await, Code::Ok);
    agent.order().await;
    let (bytes, commits) = (rig.store.memory.durable(), rig.store.memory.commits());
    let actions = vec![add("n1-1"), remove("n1-0"), remove("n1-1"), add("nothing")];
    let outcomes = rig.registry.act(actions.clone(), "test".into(), true).await.unwrap();
    let codes: Vec<_> = outcomes.iter().map(|outcome| outcome.code).collect();
    assert_eq!((rig.store.memory.durable(), rig.store.memory.commits()), (bytes, commits));
    assert_eq!(rig.state("n1-0").await, State::Attaching);
    assert_eq!(rig.state("n1-1").await, State::Unknown);
    assert!(agent.told.try_recv().is_err(), "a dry run gave an order");
    // And it told the truth.
    let real = rig.registry.act(actions, "test".into(), false).await.unwrap();
    assert_eq!(real.iter().map(|outcome| outcome.code).collect::<Vec<_>>(), codes);
}
