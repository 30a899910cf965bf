//! Records that a store has lost are written again from memory, and nothing else is.

use hotbay_core::cluster::{About, Notice};
use hotbay_core::cms::Code;
use hotbay_registry::{Key, Kind, Store, Write};

use crate::rig::{Agent, Rig, add, assert_code};

pub(crate) fn notice() -> Notice {
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
