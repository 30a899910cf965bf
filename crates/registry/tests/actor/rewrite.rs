//! Records that a store has lost are written again from memory, and nothing else is.

use hotbay_core::cluster::{About, Notice};
use hotbay_core::cms::Code;
use hotbay_registry::{CallError, Key, Kind, Store, StoreHealth, Write};

use crate::rig::{A_WHILE, Agent, Mood, Rig, add, assert_code, in_time};

fn notice() -> Notice {
    let (reason, about) = ("Test", About::Registry);
    Notice { warning: true, reason, about, text: "It came back.".into(), order: None }
}

#[tokio::test]
async fn lost_records_come_back_and_unknown_ones_are_left_out() {
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, 2, 64).await;
    assert_code(rig.act(add("n1-0")).await, Code::Ok);
    agent.order().await;
    let before = rig.store.memory.durable();
    let keys: Vec<Key> = before.keys().copied().collect();
    let kinds: Vec<_> = keys.iter().map(|key| key.kind).collect();
    assert_eq!(kinds, [Kind::Registry, Kind::Node, Kind::Drive, Kind::Drive]);
    let lost: Vec<_> = keys.iter().map(|key| Write::Delete { key: *key }).collect();
    rig.store.memory.clone().commit(&lost).unwrap();

    let unknown = Kind::ALL.map(|kind| Key { kind, id: 99 });
    let asked: Vec<_> = keys.iter().chain(&unknown[1..]).copied().collect();
    let present = rig.registry.present(asked.clone()).await.unwrap();
    assert_eq!(present, keys.iter().copied().collect());
    rig.registry.rewrite(asked, vec![notice()]).await.unwrap();
    assert_eq!(rig.store.memory.durable(), before);
    let told = rig.registry.events().after(0);
    assert_eq!(told.last().map(|event| event.notice.clone()), Some(notice()));

    // Nothing to write: no commit.
    let commits = rig.store.memory.commits();
    rig.registry.rewrite(unknown[1..].to_vec(), vec![]).await.unwrap();
    assert_eq!(rig.store.memory.commits(), commits);
}

/// It waits like any decision, is refused at the door like any request, and what stands behind it waits as well.
#[tokio::test]
async fn it_is_behind_the_gate() {
    let rig = Rig::new();
    Agent::join(&rig, 1, 1, 64).await;
    let registry = Key { kind: Kind::Registry, id: 0 };
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
