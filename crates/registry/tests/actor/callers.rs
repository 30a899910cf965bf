//! Many callers, callers that hang up, and agents that do not read.

use std::sync::Arc;

use hotbay_core::cluster::State;
use hotbay_core::cms::Code;
use tokio::task::JoinSet;

use crate::rig::{A_WHILE, Agent, Mood, Rig, add, assert_code, in_time, registration, remove};
use hotbay_registry::ToAgent;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_callers_are_all_answered() {
    let rig = Arc::new(Rig::new());
    let _agent = Agent::join(&rig, 1, 100, 4_096).await;
    let mut callers = JoinSet::new();
    for caller in 0..1_000_usize {
        let rig = Arc::clone(&rig);
        callers.spawn(async move {
            let serial = format!("n1-{}", caller % 100);
            match caller % 4 {
                0 => drop(rig.state(&serial).await),
                1 => assert_code(rig.act(add("n1-nothing")).await, Code::NotFound),
                2 => {
                    let code = rig.act(add(&serial)).await.unwrap().code;
                    assert!(matches!(code, Code::Ok | Code::Already), "{code}");
                }
                _ => {
                    // Unknown and reported closed, or on its way.
                    let code = rig.act(remove(&serial)).await.unwrap().code;
                    assert!(matches!(code, Code::Ok | Code::TryAgain), "{code}");
                }
            }
        });
    }
    in_time("all callers", callers.join_all()).await;
}

/// Whoever hangs up has asked all the same: what was decided stands, and the next caller meets it.
#[tokio::test]
async fn a_caller_that_hangs_up_delays_nobody() {
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, 3, 64).await;
    rig.store.set(Mood::Waits);
    for serial in ["n1-0", "n1-1"] {
        let hung_up = tokio::time::timeout(A_WHILE, rig.act(add(serial))).await;
        assert!(hung_up.is_err(), "answered before it was durable");
    }
    let hung_up = tokio::time::timeout(A_WHILE, rig.state("n1-0")).await;
    assert!(hung_up.is_err(), "shown before it was durable");
    rig.store.set(Mood::Works);
    in_time("the next caller", async {
        assert_code(rig.act(add("n1-2")).await, Code::Ok);
        assert_code(rig.act(add("n1-0")).await, Code::Already);
    })
    .await;
    let mut ordered = Vec::new();
    for _ in 0..3 {
        ordered.push(agent.order().await.drive);
    }
    ordered.sort_unstable();
    ordered.dedup();
    assert_eq!(ordered.len(), 3, "each drive is ordered, though nobody waits for two of them");
}

/// An agent that does not read its orders must not fill the registry's memory or stop the others.
#[tokio::test]
async fn an_agent_that_does_not_read_loses_its_session_alone() {
    let rig = Rig::new();
    let mut slow = Agent::join(&rig, 1, 10, 2).await;
    let mut quick = Agent::join(&rig, 2, 10, 64).await;
    for drive in 0..10 {
        assert_code(rig.act(add(&format!("n1-{drive}"))).await, Code::Ok);
        assert_code(rig.act(add(&format!("n2-{drive}"))).await, Code::Ok);
        let order = quick.order().await;
        quick.answer(&rig, &order).await.unwrap();
        assert_eq!(rig.state(&format!("n2-{drive}")).await, State::Attached);
    }
    assert!(matches!(slow.told.recv().await, Some(ToAgent::Order(_))));
    assert!(matches!(slow.told.recv().await, Some(ToAgent::Order(_))));
    assert_eq!(slow.told.recv().await, None, "its session is over");
    // It comes back and hears of all ten.
    rig.registry.close(slow.session).await.unwrap();
    let again = Agent::join(&rig, 1, 10, 2).await;
    assert_eq!(again.registered.allowed.len(), 10);
}

/// A registration and a removal cross each other: the list of the registration goes out first, and what was decided
/// after it follows as an order of a higher generation, so that the agent ends with what was wanted last.
#[tokio::test]
async fn an_answer_to_a_registration_comes_before_newer_orders() {
    let rig = Rig::new();
    let first = Agent::join(&rig, 1, 1, 64).await;
    assert_code(rig.act(add("n1-0")).await, Code::Ok);
    drop(first);
    rig.store.set(Mood::Waits);
    let (sender, mut told) = tokio::sync::mpsc::channel(64);
    let session = rig.registry.accept(sender).await.unwrap();
    let (registration, fresh) = registration(1, 1, session);
    let registering = rig.registry.register(session, None, registration, fresh);
    let removing = rig.act(remove("n1-0"));
    let release = async {
        tokio::time::sleep(A_WHILE).await;
        rig.store.set(Mood::Works);
    };
    let (registered, removed, ()) = tokio::join!(registering, removing, release);
    registered.unwrap();
    assert_code(removed, Code::TryAgain);
    let Some(ToAgent::Registered(registered)) = told.recv().await else { panic!("not first") };
    let Some(ToAgent::Order(order)) = told.recv().await else { panic!("no order") };
    let allowed = &registered.allowed[0];
    assert!(order.ordered.stamp.generation > allowed.ordered.stamp.generation);
}
