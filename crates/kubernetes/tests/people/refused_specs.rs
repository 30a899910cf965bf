//! Specs that are refused as a whole: nothing of them was acted on, so all of it counts once they are mended. Asked of
//! the server in memory, and of a real one.

use hotbay_core::cluster::State;
use hotbay_core::cms::Target;
use http::Method;
use serde_json::{Value, json};

use crate::world::{World, condition};

const NODE: &str = "storagenodes/node-a";

fn patch(world: &World, field: &str, value: &Value) {
    world.edit("storagenodes", "node-a", "", |object| object["spec"][field] = value.clone());
}

/// Waits until the spec of this generation has this answer, and that was seen as well.
fn answered(world: &World, generation: i64, reason: &str) {
    world.until(&format!("{reason} to {generation}"), || {
        let object = world.find("storagenodes", "node-a").unwrap_or_default();
        let told = condition(&object, "SpecApplied");
        told["reason"] == reason && told["observedGeneration"] == generation
    });
    world.settled();
}

fn state(world: &World) -> State {
    let target = Target { host: None, device: "S0".to_owned() };
    let state = world.registry.read(move |cluster| {
        let id = cluster.find(&target).unwrap();
        cluster.drive(id).unwrap().record.state
    });
    world.wait(state).unwrap()
}

/// A drive is in operation. It is to leave, by a spec with a label that is none.
fn refused() -> World {
    let world = World::with_drives(1);
    world.add("S0");
    world.settled();
    let mut object = world.people.named("storagenodes", "node-a");
    object["spec"]["inOperation"] = json!(false);
    object["spec"]["labels"] = json!({ "a b": "c" });
    world.people.succeed(Method::PUT, NODE, &object);
    answered(&world, 2, "E_ARGUMENT");
    assert_eq!(state(&world), State::Attached);
    world
}

#[test]
fn a_spec_that_is_mended_counts_as_a_whole() {
    let world = refused();
    patch(&world, "labels", &json!({ "a b": "d" }));
    answered(&world, 3, "E_ARGUMENT");
    patch(&world, "labels", &json!({ "rack": "r1" }));
    answered(&world, 4, "S_OK");
    assert_eq!(state(&world), State::Detached);
    let labels =
        world.registry.read(|cluster| cluster.nodes().next().unwrap().record.labels.to_string());
    assert_eq!(world.wait(labels).unwrap(), "rack=r1");
}

/// The next leader finds a spec that was taken notice of, and was refused.
#[test]
fn a_spec_that_is_mended_under_the_next_leader_counts_as_a_whole() {
    let world = World::start(refused().stop(), 11);
    world.wait(crate::agent::join(&world.registry, 1));
    world.settled();
    patch(&world, "labels", &json!({}));
    answered(&world, 3, "S_OK");
    assert_eq!(state(&world), State::Detached);
}

/// A removal that is under way when a spec is refused is still wanted when that is mended.
#[test]
fn a_removal_outlives_a_spec_that_is_refused() {
    let world = World::new();
    patch(&world, "inOperation", &json!(false));
    answered(&world, 2, "E_TRY_AGAIN");
    patch(&world, "labels", &json!({ "a b": "c" }));
    answered(&world, 3, "E_ARGUMENT");
    patch(&world, "labels", &json!({ "rack": "r1" }));
    answered(&world, 4, "E_TRY_AGAIN");
}
