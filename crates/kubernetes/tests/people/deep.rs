//! A status that somebody has made deeper than JSON is read here, beside objects that people change.
//!
//! The story: the event that told of it could not be read, and the watch began again with a list, which could not be
//! read either. From then on nothing that people did to any object of that kind was seen.

use http::Method;
use serde_json::{Value, json};

use crate::world::{VOLUME, World};

const LEVELS: usize = 200;

fn record(world: &World, plural: &str, name: &str) -> Value {
    world.find(plural, name).unwrap_or_default()["status"]["record"].clone()
}

#[test]
fn it_is_written_over_and_the_watches_go_on() {
    let world = World::new();
    let drive = world.drive_name("S1");
    for (plural, name) in [("volumes", VOLUME), ("drives", drive.as_str())] {
        let before = record(&world, plural, name);
        world.server.fake.deepen(plural, name, LEVELS);
        world.until("written over", || record(&world, plural, name) == before);
        world.until_told(&format!("The status of {plural}/{name} was changed by hand"), 1);
        // Also one that a list tells of.
        world.server.fake.deepen(plural, name, LEVELS);
        world.server.fake.cut_watches(true);
        world.until("written over", || record(&world, plural, name) == before);
    }
    let uid = world.people.named("volumes", VOLUME)["metadata"]["uid"].clone();
    world.people.call(Method::DELETE, &format!("volumes/{VOLUME}"), &json!({}));
    world.until("what is deleted comes back", || {
        let now = world.find("volumes", VOLUME).unwrap_or_default();
        now["metadata"]["uid"] != uid && now["status"]["state"] == "Created"
    });
    assert!(world.follows());
}

#[test]
fn a_leader_that_starts_leaves_it_out() {
    let server = World::new().stop();
    server.fake.deepen("volumes", VOLUME, LEVELS);
    let world = World::start(server, 11);
    let known = world
        .registry
        .read(|cluster| (cluster.volumes_after(None).count(), cluster.drives().count()));
    assert_eq!(world.wait(known).unwrap(), (0, 2));
    world.settled();
    assert!(world.follows());
    assert!(world.find("volumes", VOLUME).is_some(), "it is left alone");
}
