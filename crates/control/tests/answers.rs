//! Agents that answer late, twice, never, from the past or for others, and what becomes of the races between an order
//! and its answer. The agents are fake, the server is real.

mod controller;
mod fake_agent;

use std::time::{Duration, Instant};

use controller::{Controller, add, on_host, remove};
use fake_agent::{FakeAgent, device, registration, registration_again};
use hotbay_api::cms::ActionType;
use hotbay_api::convert::{FromAgent, FromRegistry};
use hotbay_core::ids::{ClusterId, MachineId};
use hotbay_core::message::{Answer, AnswerResult, DriveReport, Obstacle, Order, Registration};
use hotbay_core::order::Goal;

const DONE: AnswerResult = AnswerResult::Done;

fn seen(order: &Order, open: bool) -> DriveReport {
    DriveReport {
        drive: order.drive,
        seen: Some(order.ordered),
        evidence: order.evidence.clone(),
        label: None,
        open,
    }
}

/// A confirmation counts once, for its own order: what comes late or again changes nothing.
#[tokio::test]
async fn a_late_or_doubled_answer_changes_nothing() {
    let controller = Controller::start();
    let client = controller.client().await;
    let (mut agent, _) =
        FakeAgent::join(&controller.socket(), registration("node-a", 1, &["S1"])).await;
    assert_eq!(client.code(add("S1")).await, "S_OK");
    let attach = agent.order().await;
    agent.answer(&attach, DONE).await;
    agent.answer(&attach, DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.state("S1").await, "AttachedDevice");
    assert_eq!(client.code(remove("S1")).await, "E_TRY_AGAIN");
    let detach = agent.order().await;
    // The attach is confirmed once more, after the removal: it must not bring the drive back.
    agent.answer(&attach, DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.state("S1").await, "ClosingDevice");
    assert_eq!(client.code(remove("S1")).await, "E_TRY_AGAIN");
    agent.answer(&detach, DONE).await;
    agent.answer(&detach, DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.code(remove("S1")).await, "S_OK");
    assert_eq!(client.code(add("S1")).await, "S_OK");
    // And the old detach must not take it out again.
    agent.answer(&detach, DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.state("S1").await, "AttachingDevice");
}

/// A removal while the attach still runs: the attach ends well and says so too late, the drive must not stay open.
#[tokio::test]
async fn a_removal_while_an_attach_runs_wins() {
    let controller = Controller::start();
    let client = controller.client().await;
    let (mut agent, _) =
        FakeAgent::join(&controller.socket(), registration("node-a", 1, &["S1"])).await;
    assert_eq!(client.code(add("S1")).await, "S_OK");
    let attach = agent.order().await;
    assert_eq!(client.code(remove("S1")).await, "E_TRY_AGAIN");
    let detach = agent.order().await;
    assert_eq!(detach.ordered.goal, Goal::Detach);
    assert!(detach.ordered.stamp.generation > attach.ordered.stamp.generation);
    agent.answer(&attach, DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.code(remove("S1")).await, "E_TRY_AGAIN");
    agent.answer(&detach, DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.code(remove("S1")).await, "S_OK");
}

/// Removed and added again while the older close still drains: the old close is confirmed late and does not count.
#[tokio::test]
async fn an_add_while_the_older_close_drains_wins() {
    let controller = Controller::start();
    let client = controller.client().await;
    let (mut agent, _) =
        FakeAgent::join(&controller.socket(), registration("node-a", 1, &["S1"])).await;
    assert_eq!(client.code(add("S1")).await, "S_OK");
    let attach = agent.order().await;
    agent.answer(&attach, DONE).await;
    assert_eq!(client.code(remove("S1")).await, "E_TRY_AGAIN");
    let detach = agent.order().await;
    let blocked = Obstacle::Blocked { by: vec!["process 77 (dd)".into()] };
    agent.answer(&detach, AnswerResult::Waiting(blocked)).await;
    agent.settle(vec![device(0, "S1")]).await;
    let (code, reasons) = client.act(remove("S1")).await;
    assert_eq!(code, "E_TRY_AGAIN");
    assert!(reasons.contains("process 77 (dd)"), "{reasons}");
    assert_eq!(client.code(add("S1")).await, "S_OK");
    let again = agent.order().await;
    agent.answer(&detach, DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.state("S1").await, "AttachingDevice");
    agent.answer(&again, DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.state("S1").await, "AttachedDevice");
}

/// The confirmation is lost with its connection. The next registration says what is open, gets the same order again,
/// and its confirmation counts.
#[tokio::test]
async fn a_lost_answer_is_given_again() {
    let controller = Controller::start();
    let client = controller.client().await;
    let first = registration("node-a", 1, &["S1"]);
    let (mut agent, registered) = FakeAgent::join(&controller.socket(), first.clone()).await;
    assert_eq!(client.code(add("S1")).await, "S_OK");
    let lost = agent.order().await;
    drop(agent);
    let again = registration_again(first, &registered, 99, vec![seen(&lost, true)]);
    let (mut agent, registered) = FakeAgent::join(&controller.socket(), again).await;
    assert_eq!(registered.allowed.len(), 1);
    assert_eq!(registered.allowed[0].ordered, lost.ordered, "the same order, not a new one");
    agent.answer(&registered.allowed[0], DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.state("S1").await, "AttachedDevice");
}

/// The agent restarts while it should be closing a drive, and comes back with the drive open.
#[tokio::test]
async fn a_drive_that_comes_back_open_is_closed_before_it_counts_as_removed() {
    let controller = Controller::start();
    let client = controller.client().await;
    let first = registration("node-a", 1, &["S1"]);
    let (mut agent, registered) = FakeAgent::join(&controller.socket(), first.clone()).await;
    assert_eq!(client.code(add("S1")).await, "S_OK");
    let attach = agent.order().await;
    agent.answer(&attach, DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    drop(agent);
    // Nobody is there: however often it is asked, a removal is not done.
    for _ in 0..3 {
        let (code, _) = client.act(remove("S1")).await;
        assert_eq!(code, "E_TRY_AGAIN");
    }
    let again = registration_again(first, &registered, 99, vec![seen(&attach, true)]);
    let (mut agent, registered) = FakeAgent::join(&controller.socket(), again).await;
    assert_eq!((registered.allowed.len(), registered.unknown.len()), (0, 1));
    assert_eq!(client.code(remove("S1")).await, "E_TRY_AGAIN");
    agent.answer(&registered.unknown[0], DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.code(remove("S1")).await, "S_OK");
}

/// What an earlier connection still says does not count once a newer one is registered.
#[tokio::test]
async fn an_older_session_is_not_listened_to() {
    let controller = Controller::start();
    let client = controller.client().await;
    let first = registration("node-a", 1, &["S1"]);
    let (mut old, registered) = FakeAgent::join(&controller.socket(), first.clone()).await;
    assert_eq!(client.code(add("S1")).await, "S_OK");
    let order = old.order().await;
    let again = registration_again(first, &registered, 99, vec![seen(&order, false)]);
    let (mut new, registered) = FakeAgent::join(&controller.socket(), again).await;
    old.answer(&order, DONE).await;
    let (reason, _) = old.hear_refusal().await;
    assert_eq!(reason, "OldSession");
    assert_eq!(client.state("S1").await, "AttachingDevice");
    // An answer of the start before, over the new connection, does not count either.
    new.answer(&order, DONE).await;
    new.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.state("S1").await, "AttachingDevice");
    new.answer(&registered.allowed[0], DONE).await;
    new.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.state("S1").await, "AttachedDevice");
}

#[tokio::test]
async fn a_node_speaks_for_its_own_drives_alone() {
    let controller = Controller::start();
    let client = controller.client().await;
    let socket = controller.socket();
    let (mut a, _) = FakeAgent::join(&socket, registration("node-a", 1, &["S1"])).await;
    let (mut b, _) = FakeAgent::join(&socket, registration("node-b", 9, &["S2"])).await;
    assert_eq!(client.code(add("S1")).await, "S_OK");
    let order = a.order().await;
    b.answer(&order, DONE).await;
    b.settle(vec![device(0, "S2")]).await;
    assert_eq!(client.state("S1").await, "AttachingDevice");
    // Nor does it get another node's drive by showing its serial number.
    b.settle(vec![device(0, "S2"), device(1, "S1")]).await;
    assert_eq!(client.drive("S1").await["node"], "node-a");
    // An answer about a drive that nobody knows.
    let drive = hotbay_core::ids::DriveId::from_bits(0xdead);
    let Order { ordered, incarnation, .. } = order.clone();
    a.say(FromAgent::Answer(Answer { drive, ordered, incarnation, result: DONE })).await;
    a.answer(&order, DONE).await;
    a.settle(vec![device(0, "S1")]).await;
    assert_eq!(client.state("S1").await, "AttachedDevice");
}

#[tokio::test]
async fn registering_twice_is_answered_twice_and_under_another_name_refused() {
    let controller = Controller::start();
    let client = controller.client().await;
    let first = registration("node-a", 1, &["S1"]);
    let (mut agent, registered) = FakeAgent::join(&controller.socket(), first.clone()).await;
    agent.say(FromAgent::Register(first.clone())).await;
    match agent.hear().await {
        Some(FromRegistry::Registered(again)) => assert_eq!(again.node, registered.node),
        other => panic!("{other:?}"),
    }
    let before = controller.store.durable();
    let other_name = Registration { name: "node-b".parse().unwrap(), ..first };
    agent.say(FromAgent::Register(other_name)).await;
    assert_eq!(agent.hear_refusal().await.0, "OldSession");
    assert_eq!(controller.store.durable(), before);
    assert_eq!(client.list("StorageNode").await.len(), 1);
}

#[tokio::test]
async fn nothing_counts_before_the_registration() {
    let controller = Controller::start();
    let mut agent = FakeAgent::dial(&controller.socket()).await;
    agent.say(FromAgent::Heartbeat).await;
    agent
        .say(FromAgent::Report { number: 1, devices: vec![device(0, "S1")], conditions: vec![] })
        .await;
    agent.hear_refusal().await;
    assert!(controller.client().await.list("Drive").await.is_empty());
}

/// Two machines under one name: the second is refused by its machine, whether or not it was told the first one's ids.
#[tokio::test]
async fn a_second_machine_of_the_same_name_is_refused() {
    let controller = Controller::start();
    let client = controller.client().await;
    let first = registration("node-a", 1, &["S1"]);
    let (mut agent, registered) = FakeAgent::join(&controller.socket(), first.clone()).await;
    assert_eq!(client.code(add("S1")).await, "S_OK");
    let order = agent.order().await;
    agent.answer(&order, DONE).await;
    agent.settle(vec![device(0, "S1")]).await;
    let before = controller.store.durable();
    let stranger = registration("node-a", 7, &["S9"]);
    let copied = Registration {
        machine: MachineId::from_bits(7),
        ..registration_again(first, &registered, 8, Vec::new())
    };
    for second in [stranger.clone(), copied] {
        let mut other = FakeAgent::dial(&controller.socket()).await;
        other.say(FromAgent::Register(second)).await;
        let (reason, message) = other.hear_refusal().await;
        assert_eq!(reason, "DuplicateNode", "{message}");
        assert!(message.contains("hotbay host purge node-a"), "{message}");
    }
    // Nor while the first one is away: it has a drive in operation there.
    drop(agent);
    let mut other = FakeAgent::dial(&controller.socket()).await;
    other.say(FromAgent::Register(stranger)).await;
    assert_eq!(other.hear_refusal().await.0, "DuplicateNode");
    assert_eq!(controller.store.durable(), before);
    assert_eq!(client.state("S1").await, "AttachedDevice");
}

/// The story: a machine of a cluster that was given up was refused by the next one in words that said why, and not what
/// to do.
#[tokio::test]
async fn an_agent_of_another_cluster_is_told_how_it_can_leave_that() {
    let controller = Controller::start();
    let other = ClusterId::from_bits(99);
    let foreign = Registration { cluster: Some(other), ..registration("node-a", 1, &["S1"]) };
    let mut agent = FakeAgent::dial(&controller.socket()).await;
    agent.say(FromAgent::Register(foreign)).await;
    let (reason, message) = agent.hear_refusal().await;
    assert_eq!(reason, "ForeignCluster", "{message}");
    assert!(message.contains(&other.to_string()), "{message}");
    assert!(message.contains("remove the agent's data directory"), "{message}");
}

/// One drive of four cannot be attached and one agent never answers: the others do not wait for either.
#[tokio::test]
async fn one_bad_drive_and_one_silent_agent_delay_nobody() {
    let controller = Controller::start();
    let client = controller.client().await;
    let socket = controller.socket();
    let serials = ["S1", "S2", "S3", "S4"];
    let (mut agent, _) = FakeAgent::join(&socket, registration("node-a", 1, &serials)).await;
    let (_silent, _) = FakeAgent::join(&socket, registration("node-b", 9, &["T1"])).await;
    let begun = Instant::now();
    assert_eq!(client.code(on_host(ActionType::AddHost, "node-b")).await, "S_OK");
    assert_eq!(client.code(on_host(ActionType::AddHost, "node-a")).await, "S_OK");
    let bad = Obstacle::AttachFailed { error: "Input/output error".into() };
    for _ in serials {
        let order = agent.order().await;
        let is_bad = order.evidence.serial.as_deref() == Some("S2");
        let result = if is_bad { AnswerResult::Waiting(bad.clone()) } else { DONE };
        agent.answer(&order, result).await;
    }
    let devices = serials.iter().enumerate().map(|(bay, serial)| device(bay, serial));
    agent.settle(devices.collect()).await;
    for serial in ["S1", "S3", "S4"] {
        assert_eq!(client.state(serial).await, "AttachedDevice");
    }
    let waits = client.drive("S2").await["waitingFor"].to_string();
    assert!(waits.contains("Input/output error"), "{waits}");
    assert_eq!(client.code(remove("T1")).await, "E_TRY_AGAIN");
    assert!(begun.elapsed() < Duration::from_secs(5), "waited for {:?}", begun.elapsed());
}

/// An agent that hangs without hanging up: it does not beat, loses its session, and a removal says so.
#[tokio::test]
async fn an_agent_that_never_speaks_again_counts_as_unreachable() {
    let controller = Controller::start();
    let client = controller.client().await;
    let (mut agent, _) =
        FakeAgent::join(&controller.socket(), registration("node-a", 1, &["S1"])).await;
    assert_eq!(client.code(add("S1")).await, "S_OK");
    while agent.hear().await.is_some() {}
    let (code, reasons) = client.act(remove("S1")).await;
    assert_eq!(code, "E_TRY_AGAIN");
    assert!(reasons.contains("cannot be reached"), "{reasons}");
    assert_eq!(client.list("StorageNode").await[0]["status"]["ready"], false);
}

/// A thousand nodes came at once, and what they brought took longer to write than an agent may be silent. Beats waited
/// to be heard, and yet a part of the agents lost their sessions when it was done, came again, and were written again.
#[tokio::test]
async fn a_store_that_takes_its_time_is_not_the_silence_of_an_agent() {
    let controller = Controller::start();
    controller.store.set_commit_delay(Duration::from_secs(11));
    let mut agents = Vec::new();
    for number in 0u32..12 {
        let agent = FakeAgent::dial(&controller.socket()).await;
        let serial = format!("S{number}");
        let name = format!("node-{number}");
        let machine = 10 * (u128::from(number) + 1);
        agent.say(FromAgent::Register(registration(&name, machine, &[&serial]))).await;
        agent.beat();
        agents.push((agent, serial));
    }
    for (agent, _) in &mut agents {
        let heard = agent.hear().await;
        assert!(matches!(heard, Some(FromRegistry::Registered(_))), "{heard:?}");
    }
    controller.store.set_commit_delay(Duration::ZERO);
    for (agent, serial) in &mut agents {
        let devices = vec![device(0, serial)];
        agent.say(FromAgent::Report { number: 1, devices, conditions: vec![] }).await;
        let heard = agent.hear().await;
        assert_eq!(heard, Some(FromRegistry::ReportTaken { number: 1 }), "its session was lost");
    }
}

/// A message of a release before does not have what came later, and is as good.
#[tokio::test]
async fn the_release_of_an_agent_is_shown_and_an_older_one_need_not_say_it() {
    let controller = Controller::start();
    let client = controller.client().await;
    let shown = async || client.list("StorageNode").await[0]["status"].clone();
    let first = registration("node-a", 1, &["S1"]);
    let (agent, registered) = FakeAgent::join(&controller.socket(), first.clone()).await;
    let status = shown().await;
    assert_eq!((&status["ready"], status.get("version")), (&true.into(), None), "{status}");
    drop(agent);
    let mut newer = registration_again(first, &registered, 99, Vec::new());
    newer.program.version = "1.2.3".parse().ok();
    let before = controller.store.durable();
    let (_agent, _) = FakeAgent::join(&controller.socket(), newer).await;
    let status = shown().await;
    assert_eq!((&status["version"], status.get("address")), (&"1.2.3".into(), None), "{status}");
    assert_eq!(controller.store.durable(), before, "memory alone knows it");
}
