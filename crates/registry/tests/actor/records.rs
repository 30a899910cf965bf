//! One record that cannot be written: who asks about it hears so, everybody else is served, and when it can be written
//! again nothing was lost.

use hotbay_core::cluster::{Cluster, State};
use hotbay_core::cms::{Action, Code};
use hotbay_core::ids::DriveId;
use hotbay_registry::{CallError, Key, Kind, StoreHealth, ToAgent};

use crate::rewrite::notice;
use crate::rig::{
    A_WHILE, Agent, Mood, Rig, add, assert_code, in_time, registration, remove, target,
};

/// The record of a drive, by its serial number.
async fn record(rig: &Rig, serial: &str) -> Key {
    let serial = serial.to_owned();
    let find = move |cluster: &Cluster| cluster.find(&target(&serial)).unwrap();
    Key { kind: Kind::Drive, id: rig.registry.read(find).await.unwrap().to_bits() }
}

async fn state_on_its_own(rig: &Rig, key: Key) -> Result<State, CallError> {
    let id = DriveId::from_bits(key.id);
    let look = move |cluster: &Cluster| {
        (cluster.drive(id).unwrap().record.state, cluster.ground_of_drive(id))
    };
    rig.registry.read_on(look).await
}

/// A registry whose first drive is not written, and has been asked for.
async fn stuck(rig: &Rig) -> Key {
    let stuck = record(rig, "n1-0").await;
    rig.store.refuse(Some(stuck));
    let refused = in_time("the first", rig.act(add("n1-0"))).await;
    let Err(CallError::NotDurable { error }) = refused else { panic!("{refused:?}") };
    assert!(error.contains("a policy forbids it"), "{error}");
    stuck
}

/// Programs ask again every second. Each question about a drive that could not be written left something behind, and
/// with 4,096 of them no order was repeated any more, to nobody.
#[tokio::test]
async fn who_asks_again_and_again_about_such_a_record_leaves_nothing_behind() {
    let rig = Rig::new();
    let _agent = Agent::join(&rig, 1, 2, 64).await;
    let stuck = stuck(&rig).await;
    let held = || rig.registry.stats().snapshot().held;
    let before = held();
    for _ in 0..50 {
        let again = in_time("once more", rig.act(add("n1-0"))).await;
        assert!(matches!(again, Err(CallError::NotDurable { .. })), "{again:?}");
        assert!(state_on_its_own(&rig, stuck).await.is_err());
        assert!(rig.registry.read(|cluster| cluster.drives().count()).await.is_err());
    }
    // What is counted may lag behind by one.
    assert!(held() <= before + 1, "{} wait, {before} did before", held());
    rig.store.refuse(None);
    let mut health = rig.registry.store_health();
    let good = health.wait_for(|health| *health == StoreHealth::Good);
    drop(in_time("it is written", good).await.unwrap());
    assert_eq!(rig.state("n1-0").await, State::Attaching);
}

#[tokio::test]
async fn a_record_that_cannot_be_written_delays_its_own_alone() {
    let rig = Rig::new();
    let mut one = Agent::join(&rig, 1, 2, 64).await;
    let mut two = Agent::join(&rig, 2, 1, 64).await;
    let stuck = stuck(&rig).await;
    let health = rig.registry.store_health();
    assert!(matches!(&*health.borrow(), StoreHealth::Partly(why) if why.contains("policy")));

    // Another drive of the same node, and one of another node: asked for, ordered, answered, removed.
    for (agent, serial) in [(&mut one, "n1-1"), (&mut two, "n2-0")] {
        let key = record_around(&rig, serial).await;
        assert_code(in_time("another drive", rig.act(add(serial))).await, Code::Ok);
        let order = agent.order().await;
        assert_eq!(order.drive.to_bits(), key.id);
        agent.answer(&rig, &order).await.unwrap();
        assert_eq!(state_on_its_own(&rig, key).await.unwrap(), State::Attached);
        assert_code(in_time("it is removed", rig.act(remove(serial))).await, Code::TryAgain);
        agent.order().await;
    }

    // Whoever asks about it hears why: again, by a look at it, and by a look at everything.
    let again = in_time("once more", rig.act(add("n1-0"))).await;
    assert!(matches!(again, Err(CallError::NotDurable { .. })), "{again:?}");
    let looked = state_on_its_own(&rig, stuck).await;
    assert!(matches!(looked, Err(CallError::StoreFailing { .. })), "{looked:?}");
    let all = rig.registry.read(|cluster| cluster.drives().count()).await;
    assert!(matches!(all, Err(CallError::StoreFailing { .. })), "{all:?}");
    assert_eq!(rig.registry.read_around(|cluster| cluster.drives().count()).await.unwrap(), 3);

    // Its agent hears of it only now.
    assert!(one.told.try_recv().is_err());
    rig.store.refuse(None);
    let order = one.order().await;
    assert_eq!(order.drive.to_bits(), stuck.id);
    one.answer(&rig, &order).await.unwrap();
    assert_eq!(rig.state("n1-0").await, State::Attached);
    assert_eq!(*health.borrow(), StoreHealth::Good);
}

async fn record_around(rig: &Rig, serial: &str) -> Key {
    let serial = serial.to_owned();
    let find = move |cluster: &Cluster| cluster.find(&target(&serial)).unwrap();
    let id = rig.registry.read_around(find).await.unwrap();
    Key { kind: Kind::Drive, id: id.to_bits() }
}

/// What an agent says is news, not a promise: it is taken, and what follows from it waits.
#[tokio::test]
async fn news_about_it_is_taken() {
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, 2, 64).await;
    assert_code(rig.act(add("n1-0")).await, Code::Ok);
    let order = agent.order().await;
    rig.store.refuse(Some(record(&rig, "n1-0").await));
    let answered = in_time("news", agent.answer(&rig, &order)).await;
    assert!(matches!(answered, Err(CallError::NotDurable { .. })), "{answered:?}");
    rig.store.refuse(None);
    let mut health = rig.registry.store_health();
    let good = health.wait_for(|health| *health == StoreHealth::Good);
    drop(in_time("it is written", good).await.unwrap());
    assert_eq!(rig.state("n1-0").await, State::Attached);
}

/// An agent must not get orders before the answer to its registration, which rests on all drives of its node.
#[tokio::test]
async fn an_order_does_not_overtake_the_answer_to_a_registration() {
    let rig = Rig::new();
    let first = Agent::join(&rig, 1, 2, 64).await;
    assert_code(rig.act(add("n1-0")).await, Code::Ok);
    drop(first);
    rig.store.set(Mood::Waits);
    let (sender, mut told) = tokio::sync::mpsc::channel(64);
    let session = rig.registry.accept(sender).await.unwrap();
    let (registration, fresh) = registration(1, 3, session);
    let registering = rig.registry.register(session, None, registration, fresh);
    let adding = rig.act(add("n1-1"));
    let release = async {
        tokio::time::sleep(A_WHILE).await;
        rig.store.set(Mood::Works);
    };
    let (registered, added, ()) = tokio::join!(registering, adding, release);
    registered.unwrap();
    assert_code(added, Code::Ok);
    assert!(matches!(told.recv().await, Some(ToAgent::Registered(_))), "not first");
    assert!(matches!(told.recv().await, Some(ToAgent::Order(_))));
}

/// A node whose drive cannot be written is told so, and registers when it can.
#[tokio::test]
async fn an_agent_registers_when_its_records_can_be_written() {
    let rig = Rig::new();
    drop(Agent::join(&rig, 1, 2, 64).await);
    stuck(&rig).await;
    let (sender, mut told) = tokio::sync::mpsc::channel(64);
    let session = rig.registry.accept(sender).await.unwrap();
    let (registration, fresh) = registration(1, 2, session);
    let refused = rig.registry.register(session, None, registration, fresh).await;
    assert!(matches!(refused, Err(CallError::NotDurable { .. })), "{refused:?}");
    assert_eq!(in_time("the session's end", told.recv()).await, None);
    rig.store.refuse(None);
    let mut health = rig.registry.store_health();
    let good = health.wait_for(|health| *health == StoreHealth::Good);
    drop(in_time("it is written", good).await.unwrap());
    let agent = Agent::join(&rig, 1, 2, 64).await;
    assert_eq!(agent.registered.allowed.len(), 1);
}

/// Records that were lost and one that cannot be written: the others come back, and the caller hears of that one.
#[tokio::test]
async fn a_rewrite_is_behind_the_gate() {
    let rig = Rig::new();
    Agent::join(&rig, 1, 2, 64).await;
    let (one, other) = (record(&rig, "n1-0").await, record(&rig, "n1-1").await);
    rig.store.refuse(Some(one));
    let rewritten =
        in_time("a refusal", rig.registry.rewrite(vec![one, other], vec![notice()])).await;
    assert!(matches!(rewritten, Err(CallError::NotDurable { .. })), "{rewritten:?}");
    let told = || rig.registry.events().after(0).iter().any(|event| event.notice == notice());
    assert!(!told());
    in_time("the other", rig.registry.rewrite(vec![other], vec![])).await.unwrap();
    rig.store.refuse(None);
    let mut newest = rig.registry.events().newest();
    in_time("the notice", newest.wait_for(|_| told())).await.unwrap();
}

/// The server takes nothing at all: each caller hears so, and in the end all that was decided is there.
#[tokio::test]
async fn while_nothing_can_be_written_every_caller_hears_so() {
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, 3, 64).await;
    rig.store.set(Mood::Fails);
    for serial in ["n1-0", "n1-1"] {
        let refused = in_time("an answer", rig.act(add(serial))).await;
        let Err(CallError::NotDurable { error }) = refused else { panic!("{refused:?}") };
        assert!(error.contains("no space left"), "{error}");
    }
    let health = rig.registry.store_health();
    assert!(matches!(&*health.borrow(), StoreHealth::Partly(why) if why.ends_with("and 1 more")));
    assert!(agent.told.try_recv().is_err());
    rig.store.set(Mood::Works);
    for _ in 0..2 {
        let order = agent.order().await;
        agent.answer(&rig, &order).await.unwrap();
    }
    for serial in ["n1-0", "n1-1"] {
        assert_eq!(rig.state(serial).await, State::Attached);
    }
}

/// A host is added. One of its drives cannot be written; its others go into operation, those after it as well.
#[tokio::test]
async fn one_drive_of_a_host_does_not_hold_up_the_others() {
    let rig = Rig::new();
    let mut agent = Agent::join(&rig, 1, 4, 64).await;
    let refused = record(&rig, "n1-1").await;
    rig.store.refuse(Some(refused));
    let host = || Action::AddHost { host: "node-1".into(), with_removed: false, returned: false };
    let answer = in_time("an answer", rig.act(host())).await;
    assert!(matches!(answer, Err(CallError::NotDurable { .. })), "{answer:?}");
    for _ in 0..3 {
        let order = agent.order().await;
        assert_ne!(order.drive.to_bits(), refused.id);
        agent.answer(&rig, &order).await.unwrap();
    }
    rig.store.refuse(None);
    let order = agent.order().await;
    assert_eq!(order.drive.to_bits(), refused.id);
    agent.answer(&rig, &order).await.unwrap();
    assert_code(in_time("all", rig.act(host())).await, Code::Already);
}
