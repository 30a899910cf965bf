//! What holds where the store takes batches: callers share a commit, and while one fails nobody gets in.

use std::sync::Arc;
use std::time::Duration;

use hotbay_core::cluster::State;
use hotbay_core::cms::Code;
use hotbay_registry::{CallError, Fault, Key, StoreHealth};
use tokio::task::JoinSet;

use crate::rewrite::notice;
use crate::rig::{A_WHILE, Agent, Mood, Rig, add, assert_code, in_time, remove};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_that_come_together_share_their_syncs() {
    const CALLERS: usize = 64;
    const ROUNDS: u64 = 8;
    let rig = Arc::new(Rig::new());
    let _agent = Agent::join(&rig, 1, CALLERS, 4_096).await;
    rig.store.memory.set_commit_delay(Duration::from_millis(2));
    let before = rig.store.memory.commits();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let rig = Arc::clone(&rig);
        callers.spawn(async move {
            let serial = format!("n1-{caller}");
            for _ in 0..ROUNDS / 2 {
                assert_code(rig.act(add(&serial)).await, Code::Ok);
                assert_code(rig.act(remove(&serial)).await, Code::TryAgain);
            }
        });
    }
    in_time("all callers", callers.join_all()).await;
    let commits = rig.store.memory.commits() - before;
    let actions = CALLERS as u64 * ROUNDS;
    assert!(commits >= ROUNDS, "one caller waits for each of its own actions");
    assert!(commits * 4 <= actions, "{commits} syncs for {actions} actions");
}

/// The next batch waits for callers that were just answered; one whose neighbours have gone is answered all the same.
#[tokio::test]
async fn who_is_left_alone_is_answered() {
    let rig = Rig::new();
    let _agent = Agent::join(&rig, 1, 4, 64).await;
    let together =
        async { tokio::join!(rig.act(add("n1-0")), rig.act(add("n1-1")), rig.act(add("n1-2"))) };
    let (one, two, three) = in_time("three callers", together).await;
    for outcome in [one, two, three] {
        assert_code(outcome, Code::Ok);
    }
    assert_code(in_time("the one that is left", rig.act(add("n1-3"))).await, Code::Ok);
}

#[tokio::test]
async fn while_the_store_fails_callers_are_refused_with_words_and_the_first_is_answered_later() {
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, 3, 64).await;
    assert_code(rig.act(add("n1-2")).await, Code::Ok);
    let order = agent.order().await;
    rig.store.set(Mood::Fails);
    let mut health = rig.registry.store_health();
    let first = rig.act(add("n1-0"));
    tokio::pin!(first);
    tokio::select! {
        _ = &mut first => panic!("answered, though nothing could be written"),
        failing = health.wait_for(|health| *health != StoreHealth::Good) => drop(failing.unwrap()),
    }
    // Requests, dry runs and looks cannot be answered; each says so at once.
    let dry = rig.registry.act(vec![add("n1-1")], "test".into(), true);
    let looked = rig.registry.read(|cluster| cluster.drives().count());
    let refusals = [
        rig.act(add("n1-1")).await.map(drop),
        in_time("a dry run", dry).await.map(drop),
        in_time("a look", looked).await.map(drop),
    ];
    for refused in refusals {
        let Err(CallError::StoreFailing { error }) = refused else { panic!("{refused:?}") };
        assert!(error.contains("no space left"), "{error}");
    }
    // What an agent says is news, not a promise: it is taken, and acknowledged when it is durable.
    let answering = agent.answer(&rig, &order);
    tokio::pin!(answering);
    assert!(tokio::time::timeout(A_WHILE, &mut answering).await.is_err());
    rig.store.set(Mood::Works);
    let (first, answered) = in_time("the first", async { tokio::join!(first, answering) }).await;
    assert_code(first, Code::Ok);
    answered.unwrap();
    assert_eq!(rig.state("n1-1").await, State::Unknown, "a refused request changed something");
    assert_eq!(rig.state("n1-2").await, State::Attached);
    assert_code(rig.act(add("n1-1")).await, Code::Ok);
    assert_eq!(*health.borrow_and_update(), StoreHealth::Good);
}

/// The store says that it failed, and has written all the same. The commit is repeated, which changes nothing.
#[tokio::test]
async fn an_error_after_the_write_is_not_taken_for_a_failure() {
    let rig = Rig::new();
    let _agent = Agent::join(&rig, 1, 1, 64).await;
    let next = rig.store.memory.commits() + 1;
    rig.store.memory.fail_commit(next, Fault::After);
    assert_code(in_time("an answer", rig.act(add("n1-0"))).await, Code::Ok);
    assert_eq!(rig.state("n1-0").await, State::Attaching);
    assert_code(rig.act(remove("n1-0")).await, Code::TryAgain);
}

/// It waits like any decision, is refused at the door like any request, and what stands behind it waits as well.
#[tokio::test]
async fn it_is_behind_the_gate() {
    let rig = Rig::new();
    Agent::join(&rig, 1, 1, 64).await;
    let registry = Key::REGISTRY;
    rig.store.set(Mood::Waits);
    let rewriting = rig.registry.rewrite(vec![registry], vec![notice()]);
    tokio::pin!(rewriting);
    assert!(tokio::time::timeout(A_WHILE, &mut rewriting).await.is_err());
    assert!(rig.registry.events().after(0).iter().all(|event| event.notice != notice()));
    let mut health = rig.registry.store_health();
    rig.store.set(Mood::Fails);
    let failing = health.wait_for(|health| *health != StoreHealth::Good);
    drop(in_time("a failing store", failing).await.unwrap());
    let refused = rig.registry.rewrite(vec![registry], vec![]).await;
    assert!(matches!(refused, Err(CallError::StoreFailing { .. })), "{refused:?}");
    rig.store.set(Mood::Works);
    in_time("the first", rewriting).await.unwrap();
}

/// While the store hangs nothing leaves, and orders that are due again and again must not pile up meanwhile: they would
/// all leave at once, and the memory for them has no other bound.
#[tokio::test]
async fn orders_are_not_repeated_without_bound_while_the_store_hangs() {
    const DRIVES: usize = 300;
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, DRIVES + 1, 1 << 17).await;
    for drive in 0..DRIVES {
        assert_code(rig.act(add(&format!("n1-{drive}"))).await, Code::Ok);
        agent.order().await;
    }
    rig.store.set(Mood::Waits);
    let last = format!("n1-{DRIVES}");
    let hanging = rig.act(add(&last));
    tokio::pin!(hanging);
    tokio::time::pause();
    // Each of the 300 is due about 60 times.
    let hour = tokio::time::timeout(Duration::from_secs(3_600), &mut hanging).await;
    assert!(hour.is_err(), "answered before it was durable");
    tokio::time::resume();
    rig.store.set(Mood::Works);
    assert_code(in_time("the store works again", hanging).await, Code::Ok);
    let mut told = 0;
    while agent.told.try_recv().is_ok() {
        told += 1;
    }
    assert!((1_000..=4_200).contains(&told), "{told} orders at once");
}
