//! Machines that are not who they say, or cannot show it any more: told in words, and nobody else hears of it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::controllers::agent::Agent;
use crate::controllers::mounted::{Writer, mount, unmount};
use crate::controllers::{Rig, STEADY_LEASE, until, until_true};
use crate::{membership, object, said, until_said};

const DRIVE_BYTES: u64 = 32 << 20;
/// Of certificates that soon expire, in seconds: long enough to join with one on a machine that has much else to do.
const LIFE: (&str, &str) = ("HOTBAY_TEST_CERTIFICATE_LIFE", "16");

/// The certificate of one node with the name of another; and a second machine that was let in under that name. The one
/// whose name it is cannot speak up meanwhile, its drives are in operation, and a program uses one of them.
pub(crate) fn name_of_another(rig: &mut Rig) {
    let before = said(rig);
    let (node, impostor) = (rig.node.clone(), another(rig, "b"));
    let mut other = joined(rig, &impostor);
    let writer = Writer::start(&mount(rig, "kept"));
    rig.agent.as_mut().unwrap().process.kill();
    other.process.kill();
    membership::rename(&other.membership(), &impostor, &node);
    other.restart();
    let words = format!("the certificate of {impostor} does not speak for {node}");
    until_said(rig, &words, &before);
    until_logged(&other, "NotYourName");
    drop(other);

    let twin = Agent::start(rig.path("twin"), &rig.token(&node), &[DRIVE_BYTES]);
    until_logged(&twin, "DuplicateNode");
    until_true("the node's object says so", || has_condition(rig, &node, "DuplicateNode"));
    drop(twin);
    rig.start_agent_again();
    rig.until_ready(&node);
    until_true("nobody claims its name", || !has_condition(rig, &node, "DuplicateNode"));
    assert_eq!(rig.objects("drives").len(), rig.agent().drives.len() + 1, "a drive of the twin");
    writer.goes_on();
    writer.end();
    unmount(rig, "kept");
    forget(rig, &impostor);
}

/// An agent that slept for too long. It says what to do, and that helps.
pub(crate) fn expired_certificate(rig: &mut Rig) {
    rig.environment = vec![(LIFE.0, LIFE.1.to_owned())];
    rig.lead_with(STEADY_LEASE);
    let sleeper = another(rig, "c");
    let mut late = joined(rig, &sleeper);
    late.process.kill();
    let not_after_ms = membership::read(&late.membership())["not_after_ms"].as_u64().unwrap();
    until_true("its certificate has expired", || wall() > Duration::from_millis(not_after_ms));
    late.restart();
    until_logged(&late, "has expired; join again with a new token");
    until_true("the node's object says that it is away", || {
        condition(rig, &sleeper, "Ready").is_some_and(|ready| ready["status"] == "False")
    });
    rig.until_ready(&rig.node);
    late.join_again(&rig.token(&sleeper));
    rig.until_ready(&sleeper);
    drop(late);
    rig.environment.clear();
    rig.lead_with(STEADY_LEASE);
    forget(rig, &sleeper);
}

/// The name of another node: no program beside this one has it either.
fn another(rig: &Rig, letter: &str) -> String {
    format!("{}-{letter}", rig.node)
}

/// An agent of this name, over one file.
fn joined(rig: &Rig, node: &str) -> Agent {
    let agent = Agent::start(rig.path(node), &rig.token(node), &[DRIVE_BYTES]);
    rig.until_ready(node);
    agent
}

/// Forgets a node whose agent has ended.
fn forget(rig: &Rig, node: &str) {
    rig.client(&["host", "forget", node]);
}

fn until_logged(agent: &Agent, words: &str) {
    until(&format!("the agent says {words:?}"), || {
        let log = agent.log();
        log.contains(words).then_some(()).ok_or(log)
    });
}

fn condition(rig: &Rig, node: &str, kind: &str) -> Option<Value> {
    let node = object(rig, &["storagenodes.hotbay.dev", node]);
    let conditions = node["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind).cloned()
}

/// Whether a condition of a node is so.
fn has_condition(rig: &Rig, node: &str, kind: &str) -> bool {
    condition(rig, node, kind).is_some_and(|condition| condition["status"] == "True")
}

fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
