//! Which release of the agent a node has, and where it comes from, in the status of its StorageNode: written when that
//! is another one, and for nothing else. Asked of the server in memory, and of a real one.

use std::time::Duration;

use hotbay_core::cluster::FreshIds;
use hotbay_core::ids::{Incarnation, NodeId, SessionNumber};
use hotbay_core::message::{AgentProgram, Registration};
use hotbay_kubernetes::living::Times;
use hotbay_registry::ToAgent;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::living::{close, until_ready};
use crate::world::{TIMES, World};
use crate::{agent, server};

/// A leader that waits for longer than a new start of an agent takes here.
const PATIENT: Times = Times { hold: Duration::from_secs(3), ..TIMES };

/// What the agent hears, for as long as it is kept.
type Told = mpsc::Receiver<ToAgent>;

/// The agent starts for the `start`th time, of this release, from this address.
fn start(world: &World, start: u128, version: &str, address: &str) -> (SessionNumber, Told) {
    let program = AgentProgram { version: version.parse().ok(), address: address.parse().ok() };
    let (incarnation, program) = (Incarnation::from_bits(start), Box::new(program));
    let registration = Registration { incarnation, program, ..agent::registration(1) };
    let (outbox, told) = mpsc::channel(64);
    world.wait(async {
        let session = world.registry.accept(outbox).await.unwrap();
        let fresh = FreshIds { node: NodeId::from_bits(0xa << 64), drives: vec![agent::drive(0)] };
        world.registry.register(session, None, registration, fresh).await.unwrap();
        (session, told)
    })
}

/// What is shown of the agent: its release and its address.
fn shown(world: &World) -> (Value, Value) {
    let node = world.find("storagenodes", "node-a").unwrap_or_default();
    (node["status"]["version"].clone(), node["status"]["address"].clone())
}

fn until_shown(world: &World, version: Value, address: Value) {
    let expected = (version, address);
    world.until(&format!("{expected:?}"), || shown(world) == expected);
}

#[test]
fn the_release_of_an_agent_is_written_when_it_is_another_one() {
    let world = World::start_with(server(), 10, PATIENT);
    let (session, _told) = start(&world, 1, "1.2.3", "10.0.0.7");
    until_ready(&world, "True");
    assert_eq!(shown(&world), (json!("1.2.3"), json!("10.0.0.7")), "with the first word of it");
    let writes = world.settled();
    // The same again: no word.
    close(&world, session);
    let (session, _told) = start(&world, 2, "1.2.3", "10.0.0.7");
    std::thread::sleep(PATIENT.settle + PATIENT.hold * 2);
    assert_eq!(world.settled(), writes);
    // A newer one, or from elsewhere: one word each.
    close(&world, session);
    let (session, _told) = start(&world, 3, "1.3.0", "10.0.0.7");
    until_shown(&world, json!("1.3.0"), json!("10.0.0.7"));
    assert_eq!(world.settled(), writes + 1);
    close(&world, session);
    let (session, _told) = start(&world, 4, "1.3.0", "fd00::7");
    until_shown(&world, json!("1.3.0"), json!("fd00::7"));
    assert_eq!(world.settled(), writes + 2);
    // One that says nothing of itself, as an older one does, and comes by the socket of the machine.
    close(&world, session);
    let (_session, _told) = start(&world, 5, "", "");
    until_shown(&world, Value::Null, Value::Null);
    assert_eq!(world.settled(), writes + 3);
    assert!(world.follows());
}

#[test]
fn an_agent_that_is_away_is_no_other_one_and_for_the_next_leader_neither() {
    let world = World::start(server(), 10);
    let (session, _told) = start(&world, 1, "1.2.3", "10.0.0.7");
    until_ready(&world, "True");
    close(&world, session);
    until_ready(&world, "False");
    assert_eq!(shown(&world), (json!("1.2.3"), json!("10.0.0.7")));
    world.settled();
    let times = Times { heard: Duration::from_millis(500), ..TIMES };
    let next = World::start_with(world.stop(), 11, times);
    std::thread::sleep(times.heard * 2);
    assert_eq!(next.settled(), 1, "its term");
    assert_eq!(shown(&next), (json!("1.2.3"), json!("10.0.0.7")));
    let (_session, _told) = start(&next, 2, "1.2.3", "10.0.0.7");
    until_ready(&next, "True");
    assert_eq!(next.settled(), 2, "its term, and that the agent is back");
}
