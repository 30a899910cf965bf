//! The object of the registry itself is deleted while nobody leads.
//!
//! The story: it is the one object that no agent and no label tells of. The next leader took the cluster for a new one,
//! with an id of its own, and no agent was let in any more.

use hotbay_core::cms::{Action, Code, Target};
use http::Method;
use serde_json::{Value, json};

use crate::agent;
use crate::people::People;
use crate::world::World;

fn remove(serial: &str) -> Action {
    Action::RemoveDevice(Target { host: None, device: serial.to_owned() })
}

#[test]
fn it_is_made_again_for_the_same_cluster_and_above_the_other_records() {
    let world = World::with_drives(1);
    world.add("S0");
    let first = world.people.only("registries")["status"]["record"].clone();
    // The drive is written under the second term.
    let world = World::start(world.stop(), 11);
    world.wait(agent::join(&world.registry, 1));
    world.until("closed", || world.act(remove("S0")) == Code::Ok);
    world.settled();
    let newest = world.people.only("drives")["status"]["term"].clone();
    assert_eq!(newest["number"], 2, "{newest}");

    let server = world.stop();
    People::on(&server).succeed(Method::DELETE, "registries/registry", &json!({}));
    let world = World::start(server, 12);
    let again = world.people.only("registries")["status"]["record"].clone();
    assert_eq!(again["cluster"], first["cluster"]);
    let numbers = again["terms"].as_array().unwrap().iter().map(|term| term["number"].clone());
    assert_eq!(numbers.collect::<Vec<Value>>(), [2, 3]);
    // Nothing that is there is taken for a later leader's.
    world.wait(agent::join(&world.registry, 1));
    world.add("S0");
    assert!(world.follows());
    assert_eq!(world.people.only("drives")["status"]["term"]["number"], 3);
}
