//! Annotations of volumes: those of the record are on the object, and those that people change there reach the record.
//! Asked of the server in memory, and of a real one.

use std::collections::BTreeMap;

use hotbay_core::cluster::VolumeRequest;
use hotbay_core::ids::VolumeId;
use hotbay_core::volume::IGNORE_IF_INACCESSIBLE;
use http::Method;
use serde_json::{Value, json};

use crate::world::{VOLUME, World};

const ID: VolumeId = VolumeId::from_bits(9 << 96);

/// By the API, as `hotbay volume annotate` and a claim do.
fn annotate(world: &World, key: &str, value: Option<&str>) {
    let changes = [(key.to_owned(), value.map(str::to_owned))].into();
    world.request(VolumeRequest::Annotate { volume: ID, changes });
}

fn record(world: &World) -> BTreeMap<String, String> {
    let read =
        world.registry.read(|cluster| cluster.volume(ID).unwrap().record.annotations.clone());
    world.wait(read).unwrap()
}

fn shown(world: &World, key: &str) -> Value {
    world.people.named("volumes", VOLUME)["metadata"]["annotations"][key].clone()
}

/// As `kubectl annotate` does.
fn edit(world: &World, change: impl Fn(&mut Value)) {
    world.edit("volumes", VOLUME, "", |object| {
        if object["metadata"]["annotations"].is_null() {
            object["metadata"]["annotations"] = json!({});
        }
        change(&mut object["metadata"]["annotations"]);
    });
}

#[test]
fn what_the_record_says_is_on_the_object_and_outlives_it() {
    let world = World::new();
    annotate(&world, "team", Some("red"));
    world.until("shown", || shown(&world, "team") == "red");
    let old = world.people.named("volumes", VOLUME)["metadata"]["uid"].clone();
    world.people.call(Method::DELETE, &format!("volumes/{VOLUME}"), &json!({}));
    world.until("shown on the new object", || {
        let metadata = world.find("volumes", VOLUME).unwrap_or_default()["metadata"].take();
        metadata["annotations"]["team"] == "red" && metadata["uid"] != old
    });
    annotate(&world, "team", None);
    world.until("gone", || shown(&world, "team").is_null());
    let before = world.settled();
    // The next leader finds it as it is.
    let next = World::start(world.stop(), 11);
    assert_eq!(next.settled(), 1, "its term, after {before} writes before");
}

#[test]
fn what_people_annotate_reaches_the_record() {
    let world = World::new();
    edit(&world, |all| all[IGNORE_IF_INACCESSIBLE] = json!("yes"));
    let said = || record(&world).get(IGNORE_IF_INACCESSIBLE).cloned();
    world.until("taken", || said().as_deref() == Some("yes"));
    // The object says the same already; that it was seen is noted with it.
    world.settled();
    edit(&world, |all| drop(all.as_object_mut().unwrap().remove(IGNORE_IF_INACCESSIBLE)));
    world.until("taken back", || said().is_none());
    // What is nobody's business here is left alone, and taken for nothing.
    edit(&world, |all| all["example.com/mine"] = json!("kept"));
    world.settled();
    assert_eq!((shown(&world, "example.com/mine"), record(&world).len()), (json!("kept"), 0));
}

#[test]
fn what_is_not_for_people_to_say_is_written_again() {
    let world = World::new();
    edit(&world, |all| all[IGNORE_IF_INACCESSIBLE] = json!("x".repeat(200 << 10)));
    world.until("taken off", || shown(&world, IGNORE_IF_INACCESSIBLE).is_null());
    let told = |text: &String| text.contains("are not taken over") && text.contains("bytes");
    world.until("told", || world.events().iter().any(told));
    assert_eq!(record(&world), BTreeMap::new());
    assert!(world.follows());
}
