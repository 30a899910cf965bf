//! Watches that begin with a list of several pages, on a server that does not answer each call.
//!
//! The story: a list began again from its first page whenever any call for it was refused, and at once. With many
//! drives, on a server with much to do, it never came to its end, and made the server's work no less.

use std::time::{Duration, Instant};

use hotbay_kubernetes::claims;
use http::Method;
use serde_json::json;

use crate::faults::Fault;
use crate::world::World;

/// More than one page.
const MANY: usize = 501;

/// Refusals of the second page in a row, each with a second to wait.
const REFUSALS: usize = 3;

const LISTS: [&str; 3] = ["/drives", "/nodes", "/persistentvolumeclaims"];

/// So many drives, machines and claims, and all who follow them.
fn world() -> World {
    let world = World::with_drives(MANY);
    for number in 0..MANY {
        make(&world, "nodes", number);
        make(&world, "persistentvolumeclaims", number);
    }
    let client = world.follower.before(world.server.client());
    let following = claims::follow(client, world.registry.clone());
    world.wait(async { drop(tokio::spawn(following)) });
    world.until("all are watched", || LISTS.iter().all(|list| watches(&world, list) > 0));
    world.settled();
    world
}

fn make(world: &World, plural: &str, number: usize) {
    let object = json!({ "metadata": { "name": format!("x-{number}") }, "spec": {} });
    let client = world.server.client();
    let made = world.wait(client.post(&format!("/api/v1/{plural}"), &object)).unwrap();
    assert_eq!(made.code, 201);
}

fn watches(world: &World, list: &str) -> usize {
    world.follower.reads(&format!("{list}?watch="))
}

#[test]
fn a_page_that_is_refused_is_asked_for_again_and_no_other() {
    let world = world();
    let first =
        |list: &str| world.follower.reads(&format!("{list}?limit=500")) - later(&world, list);
    let before = LISTS.map(|list| (first(list), later(&world, list)));
    for address in
        ["/drives?limit=500&c", "/nodes?limit=500&c", "/persistentvolumeclaims?limit=500&c"]
    {
        world.follower.on(Method::GET, address, REFUSALS, Fault::Busy(1));
    }
    // After all that is watched: from there on none of them can be.
    make(&world, "others", 0);
    let began = Instant::now();
    world.server.fake.cut_watches(true);
    for (list, (pages, rest)) in LISTS.into_iter().zip(before) {
        world.until(list, || later(&world, list) > rest + REFUSALS);
        assert_eq!(first(list), pages + 1, "{list}");
        assert_eq!(later(&world, list), rest + REFUSALS + 1, "{list}");
    }
    assert!(began.elapsed() >= Duration::from_secs(REFUSALS as u64), "as the server asks");
    assert!(world.follows());
}

fn later(world: &World, list: &str) -> usize {
    world.follower.reads(&format!("{list}?limit=500&continue="))
}
