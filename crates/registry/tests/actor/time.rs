//! Orders that nobody answers, clocks that jump, and what a restart still owes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hotbay_core::cluster::State;
use hotbay_core::cms::Code;
use hotbay_core::order::Goal;
use tokio::time::Instant;

use crate::rig::{Agent, Rig, add, assert_code, remove};

/// An agent that never answers is asked again, more and more slowly: no hot loop, and no end either.
#[tokio::test]
async fn an_order_that_is_never_answered_is_repeated_ever_more_slowly() {
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, 1, 4_096).await;
    assert_code(rig.act(add("n1-0")).await, Code::Ok);
    let first = agent.order().await;
    tokio::time::pause();
    let begun = Instant::now();
    let mut repeated = 0;
    while begun.elapsed() < Duration::from_secs(600) {
        let order = agent.told.recv().await.unwrap();
        assert_eq!(order, hotbay_registry::ToAgent::Order(Box::new(first.clone())));
        repeated += 1;
    }
    assert!((8..=20).contains(&repeated), "{repeated} times in ten minutes");
    // Late, but it is the order in force; and twice, which changes nothing.
    agent.answer(&rig, &first).await.unwrap();
    agent.answer(&rig, &first).await.unwrap();
    assert_eq!(rig.state("n1-0").await, State::Attached);
    while agent.told.try_recv().is_ok() {}
    let quiet = tokio::time::timeout(Duration::from_secs(600), agent.told.recv()).await;
    assert!(quiet.is_err(), "ordered again after it was done");
}

static WALL_MS: AtomicU64 = AtomicU64::new(1_700_000_000_000);

/// The wall clock is for people. Whatever it does, orders are repeated on time, answers count, and removals end.
#[tokio::test]
async fn jumps_of_the_wall_clock_change_nothing_but_dates() {
    let rig = Rig::over(crate::under::new(), || WALL_MS.load(Ordering::Relaxed));
    let mut agent = Agent::join(&rig, 1, 1, 4_096).await;
    // As far as every store counts.
    let jumps = [0, i64::MAX.cast_unsigned(), 1, 1_700_000_000_000, 4_000_000_000_000, 0];
    for (add_at, remove_at) in jumps.iter().zip(&jumps[1..]) {
        WALL_MS.store(*add_at, Ordering::Relaxed);
        assert_code(rig.act(add("n1-0")).await, Code::Ok);
        let first = agent.order().await;
        tokio::time::pause();
        let sent = Instant::now();
        WALL_MS.store(*remove_at, Ordering::Relaxed);
        assert_eq!(agent.order().await, first);
        assert!(sent.elapsed() < Duration::from_secs(4), "repeated after {:?}", sent.elapsed());
        tokio::time::resume();
        agent.answer(&rig, &first).await.unwrap();
        assert_eq!(rig.state("n1-0").await, State::Attached);
        assert_code(rig.act(remove("n1-0")).await, Code::TryAgain);
        let order = agent.order().await;
        agent.answer(&rig, &order).await.unwrap();
        assert_code(rig.act(remove("n1-0")).await, Code::Ok);
    }
}

/// A registry that dies between decision and confirmation: the next one owes the same orders, under its own term.
#[tokio::test]
async fn a_restart_resumes_what_was_attaching_and_closing() {
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, 3, 64).await;
    assert_code(rig.act(add("n1-0")).await, Code::Ok);
    assert_code(rig.act(add("n1-1")).await, Code::Ok);
    let attach = agent.order().await;
    assert_code(rig.act(remove("n1-1")).await, Code::TryAgain);
    let next = Rig::over(rig.store.memory.fork(), || 0);
    drop(rig);
    assert_eq!(next.state("n1-0").await, State::Attaching);
    let agent = Agent::join(&next, 1, 3, 64).await;
    let allowed = &agent.registered.allowed;
    let unknown = &agent.registered.unknown;
    assert_eq!((allowed.len(), unknown.len()), (1, 1));
    assert_eq!(allowed[0].drive, attach.drive);
    let (before, now) = (attach.ordered.stamp, allowed[0].ordered.stamp);
    assert_eq!(before.generation, now.generation, "a restart is no change of what is wanted");
    assert!(now.term.number > before.term.number);
    assert_eq!(unknown[0].ordered.goal, Goal::Detach);
    // A confirmation under the old term does not count.
    assert!(agent.answer(&next, &attach).await.is_err());
    assert_eq!(next.state("n1-0").await, State::Attaching);
    agent.answer(&next, &allowed[0]).await.unwrap();
    assert_eq!(next.state("n1-0").await, State::Attached);
}
