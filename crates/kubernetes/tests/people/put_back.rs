//! A status that was saved, and is put back by hand after another controller has taken the lead.
//!
//! The story: the new leader had loaded the object and not written it yet. It took what was put back for a late write
//! of the controller before and ended, so that the next one loaded it: the agent knew newer orders, and its node stood
//! still as `RegistryRewound` until a person said what to do.

use hotbay_core::cluster::VolumeRequest;
use hotbay_core::ids::VolumeId;
use http::Method;
use serde_json::Value;

use crate::agent;
use crate::world::{VOLUME, World, condition, wish};

fn status(world: &World, name: &str) -> Value {
    world.people.named("drives", name)["status"].clone()
}

/// Puts a status back, and waits until it is written over.
fn put_back(world: &World, name: &str, old: &Value) {
    let now = status(world, name);
    let mut object = world.people.named("drives", name);
    object["status"] = old.clone();
    world.people.succeed(Method::PUT, &format!("drives/{name}/status"), &object);
    world.until("written over", || status(world, name)["record"] == now["record"]);
    let object = world.people.named("drives", name);
    assert_eq!(condition(&object, "InOperation")["status"], "True");
    world.until_told(&format!("The status of drives/{name} was changed by hand"), 1);
    assert!(world.follows());
}

/// The generation of its record tells that it is older than what was loaded.
#[test]
fn what_the_controller_before_wrote_earlier_is_written_over() {
    let world = World::with_drives(1);
    let name = world.drive_name("S0");
    world.settled();
    let old = status(&world, &name);
    world.add("S0");
    world.settled();
    let world = World::start(world.stop(), 11);
    put_back(&world, &name, &old);
}

/// Its term tells, also where the record has the same generation.
#[test]
fn what_a_controller_before_that_wrote_is_written_over() {
    let world = World::with_drives(1);
    let name = world.drive_name("S0");
    world.add("S0");
    world.settled();
    let old = status(&world, &name);
    let world = World::start(world.stop(), 11);
    world.wait(agent::join(&world.registry, 1));
    world.until("room for volumes", || {
        let space = world.registry.read(|cluster| cluster.drives().all(|it| it.space.is_some()));
        world.wait(space).unwrap()
    });
    let (id, wish) = (VolumeId::from_bits(9 << 96), Box::new(wish(VOLUME)));
    world.request(VolumeRequest::Create { id, wish });
    world.settled();
    assert_eq!(status(&world, &name)["record"]["generation"], old["record"]["generation"]);
    assert_ne!(status(&world, &name)["record"], old["record"]);
    let world = World::start(world.stop(), 12);
    put_back(&world, &name, &old);
}
