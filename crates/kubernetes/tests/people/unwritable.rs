//! Objects that the server lets nobody write, as an admission policy can have it: they delay themselves alone.
//!
//! The story: `drives/status` of one drive was denied. What was to be said of it was asked for again every second, with
//! all that had changed at the same moment; nothing was said of any node or drive any more, and each time one more
//! decision stayed open, until the registry refused every call.

use std::time::Duration;

use hotbay_core::cluster::{FreshIds, VolumeRequest};
use hotbay_core::cms::{Action, Target};
use hotbay_core::ids::{Incarnation, MachineId, NodeId, SessionNumber, VolumeId};
use hotbay_core::message::{Answer, AnswerResult, Obstacle, Order, Registration};
use hotbay_kubernetes::living::Times;
use hotbay_registry::{CallError, ToAgent};
use http::Method;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::agent;
use crate::faults::Fault;
use crate::living::{close, in_a_cluster, set_machine, until_ready};
use crate::server;
use crate::world::{TIMES, VOLUME, World, wish};

/// Longer than three times the pause of whoever asks again.
const A_WHILE: Duration = Duration::from_millis(3_500);

/// The writes of one object that fails, within that time: the pauses between them grow.
const TRIES_MOST: usize = 3;

/// Registers a node that answers nothing by itself.
fn join(
    world: &World,
    name: &str,
    number: u128,
    drives: usize,
) -> (SessionNumber, mpsc::Receiver<ToAgent>) {
    let (outbox, told) = mpsc::channel(64);
    let registration = Registration {
        name: name.parse().unwrap(),
        machine: MachineId::from_bits(number),
        incarnation: Incarnation::from_bits(number),
        ..agent::registration(drives)
    };
    let fresh = (0..drives).map(agent::drive).collect();
    let fresh = FreshIds { node: NodeId::from_bits(number << 64), drives: fresh };
    world.wait(async {
        let session = world.registry.accept(outbox).await.unwrap();
        world.registry.register(session, None, registration, fresh).await.unwrap();
        (session, told)
    })
}

/// From now on the server refuses such calls of the store.
fn refuse(world: &World, method: Method, address: String) {
    world.store.on(method, address.leak(), usize::MAX, Fault::Refused(403));
}

fn is_ready(world: &World, node: &str, status: &str) {
    world.until(&format!("{node} is ready: {status}"), || {
        world.condition("storagenodes", node, "Ready") == status
    });
}

/// How many wait for something to be durable: one more for every decision that was asked for in vain.
fn held(world: &World) -> u64 {
    world.registry.stats().snapshot().held
}

/// How many writes are asked of the store in a while in which nothing happens. Of the registry nothing is asked that
/// stays open: others, whose writes succeed, are asked for and done with all the time.
fn writes_in_a_while(world: &World) -> usize {
    // What failed only just now is tried again soon.
    std::thread::sleep(A_WHILE);
    let (writes, open) = (world.store.writes(), held(world));
    std::thread::sleep(A_WHILE);
    let writes = world.store.writes() - writes;
    world.until("no decision more is open", || held(world) <= open);
    writes
}

/// What was refused delays no word about `node-b`, whose agent goes, and is not asked for again and again.
fn assert_others_are_told_of(world: &World, other: SessionNumber) {
    world.wait(world.store.meet());
    close(world, other);
    is_ready(world, "node-b", "False");
    let writes = writes_in_a_while(world);
    assert!(writes <= TRIES_MOST, "{writes} writes");
}

fn orders(world: &World, told: &mut mpsc::Receiver<ToAgent>, count: usize) -> Vec<Order> {
    let mut orders = Vec::new();
    world.wait(async {
        while orders.len() < count {
            if let ToAgent::Order(order) = told.recv().await.unwrap() {
                orders.push(*order);
            }
        }
    });
    orders
}

#[test]
fn a_drive_that_cannot_be_written_delays_no_word_about_others() {
    const DRIVES: usize = 5;
    let world = World::start(server(), 10);
    let (session, mut told) = join(&world, "node-a", 0xa, DRIVES);
    let (other, _told) = join(&world, "node-b", 0xb, 0);
    is_ready(&world, "node-b", "True");
    let names: Vec<_> = (0..DRIVES).map(|at| world.drive_name(&format!("S{at}"))).collect();
    for at in 0..DRIVES {
        world.act(Action::AddDevice(Target { host: None, device: format!("S{at}") }));
    }
    let orders = orders(&world, &mut told, DRIVES);
    world.settled();
    refuse(&world, Method::PUT, format!("drives/{}/status", names[0]));
    // All of them at once: what is worth a write is written together.
    for Order { drive, ordered, incarnation, .. } in orders {
        let result =
            AnswerResult::Waiting(Obstacle::AttachFailed { error: "it is dead".to_owned() });
        let answer = Answer { drive, ordered, incarnation, result };
        world.wait(world.registry.answer(session, answer)).unwrap();
    }
    let says = |name: &str| world.reason("drives", name, "Waiting").0;
    for name in &names[1..] {
        world.until("told", || says(name) == "AttachFailed");
    }
    assert_others_are_told_of(&world, other);
    assert_ne!(says(&names[0]), "AttachFailed");
    world.store.heal();
    world.until("told", || says(&names[0]) == "AttachFailed");
    assert!(world.follows());
}

/// With every heartbeat there was one open decision more, in a fortnight as many as the registry takes.
#[test]
fn a_node_that_cannot_be_written_is_asked_for_once_and_says_the_last_word_when_it_can_be() {
    let times = Times { beat: Duration::from_millis(300), ..TIMES };
    let world = World::start_with(server(), 10, times);
    let (session, _told) = join(&world, "node-a", 0xa, 0);
    let (other, _told_too) = join(&world, "node-b", 0xb, 0);
    is_ready(&world, "node-a", "True");
    is_ready(&world, "node-b", "True");
    refuse(&world, Method::PUT, "storagenodes/node-a/status".to_owned());
    world.wait(world.store.meet());
    writes_in_a_while(&world);
    close(&world, other);
    is_ready(&world, "node-b", "False");
    close(&world, session);
    std::thread::sleep(TIMES.hold * 4);
    assert_eq!(world.condition("storagenodes", "node-a", "Ready"), "True");
    world.store.heal();
    is_ready(&world, "node-a", "False");
    // From now on it is like any other.
    let (_session, _told) = join(&world, "node-a", 0xa, 0);
    is_ready(&world, "node-a", "True");
    assert!(world.follows());
}

#[test]
fn a_machine_that_cannot_be_forgotten_delays_no_word_about_others() {
    forget_in_vain(|_| "storagenodes/node-a".to_owned());
}

/// The node goes after its drives: what waits for one that cannot be written is not waited for either.
#[test]
fn a_drive_that_cannot_be_forgotten_delays_no_word_about_others() {
    forget_in_vain(|world| format!("drives/{}", world.drive_name("S0")));
}

fn forget_in_vain(refused: impl Fn(&World) -> String) {
    let (world, session) = in_a_cluster(2, TIMES);
    let (other, _told) = join(&world, "node-b", 0xb, 0);
    is_ready(&world, "node-b", "True");
    refuse(&world, Method::DELETE, refused(&world));
    close(&world, session);
    until_ready(&world, "False");
    set_machine(&world.server, "node-a", false);
    assert_others_are_told_of(&world, other);
    world.store.heal();
    world.until("forgotten", || world.find("storagenodes", "node-a").is_none());
    assert!(world.people.list("drives").is_empty());
    assert!(world.follows());
}

/// The place of a volume is written after the volume: whoever looked at everything that can be written waited for the
/// drive, for ever. Nothing was said of any node, and nothing that people did to the objects was seen any more.
#[test]
fn a_volume_that_cannot_be_made_delays_no_word_about_others_and_no_repair() {
    let world = World::with_drives(1);
    world.add("S0");
    let name = world.drive_name("S0");
    let (other, _told) = join(&world, "node-b", 0xb, 0);
    is_ready(&world, "node-b", "True");
    world.settled();
    refuse(&world, Method::POST, "volumes".to_owned());
    let (id, wish) = (VolumeId::from_bits(9 << 96), Box::new(wish(VOLUME)));
    let made = world.registry.request(VolumeRequest::Create { id, wish }, "test".to_owned());
    assert!(matches!(world.wait(made), Err(CallError::NotDurable { .. })));
    close(&world, other);
    is_ready(&world, "node-b", "False");
    world.people.succeed(Method::DELETE, "storagenodes/node-b", &Value::Null);
    world.until("back", || world.find("storagenodes", "node-b").is_some());
    world.store.heal();
    world.until("made", || world.condition("volumes", VOLUME, "Created") == "True");
    assert_eq!(world.condition("drives", &name, "InOperation"), "True");
    assert!(world.follows());
}
