//! Wishes without a record whose objects are gone: nobody wants them any more.

use std::time::Duration;

use http::Method;
use serde_json::json;

use crate::faults::Fault;
use crate::world::World;

/// Longer than it takes until a wish of some seconds ago is tried again.
const TRIED_AGAIN: Duration = Duration::from_secs(3);

fn wish_for(world: &World, name: &str) {
    world.people.create("volumes", "Volume", name, json!({ "sizeBytes": 10 << 20 }));
}

fn has_no_place(world: &World, name: &str) {
    world.until(name, || world.reason("volumes", name, "Created").0 == "NoPlace");
}

/// As soon as there is room, what is wished for is made, and nothing else.
fn nothing_but_new_is_made(world: &World) {
    world.add("S0");
    wish_for(world, "new");
    world.until("made", || world.condition("volumes", "new", "Created") == "True");
    std::thread::sleep(TRIED_AGAIN);
    let names = world.registry.read(|cluster| {
        cluster.volumes_after(None).map(|known| known.record.name.to_string()).collect::<Vec<_>>()
    });
    assert_eq!(world.wait(names).unwrap(), ["new"]);
}

/// It was deleted while nobody watched: the next list does not have it.
#[test]
fn a_wish_that_a_list_does_not_have_any_more_is_dropped() {
    let world = World::with_drives(1);
    wish_for(&world, "db");
    has_no_place(&world, "db");
    world.settled();
    world.server.fake.lose("volumes");
    world.server.fake.cut_watches(true);
    // Heard of by the list, or after it.
    wish_for(&world, "later");
    has_no_place(&world, "later");
    world.people.succeed(Method::DELETE, "volumes/later", &json!({}));
    world.settled();
    nothing_but_new_is_made(&world);
}

/// What could not be written to it was about to be written again.
#[test]
fn a_wish_that_is_deleted_after_a_failed_write_is_dropped() {
    let world = World::with_drives(1);
    world.until("there", || !world.people.list("drives").is_empty());
    world.settled();
    world.follower.on(Method::PUT, "volumes/db/status", 1, Fault::Refused(500));
    wish_for(&world, "db");
    world.wait(world.follower.meet());
    world.people.succeed(Method::DELETE, "volumes/db", &json!({}));
    std::thread::sleep(TRIED_AGAIN);
    nothing_but_new_is_made(&world);
}
