//! What happens again and again is one event of Kubernetes' own that counts. Asked of the server in memory, and of a
//! real one.

use hotbay_core::volume::IGNORE_IF_INACCESSIBLE;
use hotbay_kubernetes::events;
use http::Method;
use serde_json::{Value, json};

use crate::faults::{Fault, Faults};
use crate::world::{VOLUME, World};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const REASON: &str = "AnnotationsRefused";

/// Publishes what happens, for as long as the world is there.
fn publish(world: &World) -> Faults {
    let faults = Faults::default();
    let client = faults.before(world.server.client());
    let (registry, objects) = (world.registry.clone(), world.objects.clone());
    // Those of a test before stay on a server for an hour, and have the same names: no time passes between the tests.
    for event in listed(world) {
        let path = format!("{EVENTS}/{}", event["metadata"]["name"].as_str().unwrap());
        world.wait(world.server.client().delete(&path, &json!({}))).unwrap().done().unwrap();
    }
    let publishing = events::publish(client, registry, objects, "test".to_owned());
    world.wait(async { drop(tokio::spawn(publishing)) });
    faults
}

/// Somebody annotates the volume as it cannot be: it is taken off again, and told in the same words each time.
fn annotate_in_vain(world: &World) {
    let told = |text: &String| text.contains("are not taken over");
    let before = world.events().iter().filter(|text| told(text)).count();
    let shown = || world.people.named("volumes", VOLUME)["metadata"]["annotations"].clone();
    let mut object = world.people.named("volumes", VOLUME);
    object["metadata"]["annotations"] = json!({ IGNORE_IF_INACCESSIBLE: "x".repeat(8 << 10) });
    world.people.succeed(Method::PUT, &format!("volumes/{VOLUME}"), &object);
    world.until("taken off", || shown()[IGNORE_IF_INACCESSIBLE].is_null());
    world.until_told("are not taken over", before + 1);
    world.settled();
}

/// All events that the server has.
fn listed(world: &World) -> Vec<Value> {
    let list = world.wait(world.server.client().get(EVENTS)).unwrap().done().unwrap();
    list["items"].as_array().unwrap().clone()
}

/// Those about the volume.
fn published(world: &World) -> Vec<Value> {
    let volume = world.people.named("volumes", VOLUME)["metadata"]["uid"].clone();
    let is_ours = |it: &Value| it["reason"] == REASON && it["regarding"]["uid"] == volume;
    listed(world).into_iter().filter(is_ours).collect()
}

fn counts(world: &World) -> Vec<u64> {
    published(world).iter().map(|it| it["series"]["count"].as_u64().unwrap_or(1)).collect()
}

#[test]
fn the_same_again_is_the_same_event_with_a_count() {
    let world = World::new();
    publish(&world);
    annotate_in_vain(&world);
    world.until("published", || counts(&world) == [1]);
    let first = published(&world).remove(0);
    assert_eq!((&first["type"], &first["regarding"]["name"]), (&json!("Warning"), &json!(VOLUME)));
    annotate_in_vain(&world);
    world.until("counted", || counts(&world) == [2]);
    let second = published(&world).remove(0);
    assert_eq!(second["metadata"]["uid"], first["metadata"]["uid"]);
    assert!(second["series"]["lastObservedTime"].is_string(), "{second}");
    // More of it is written later, and is not another one.
    annotate_in_vain(&world);
    assert_eq!(counts(&world), [2]);
}

/// The story: the server let nobody change an event. What could not be counted was forgotten, so every second time was
/// a new event.
#[test]
fn an_event_that_cannot_be_counted_is_not_told_over_and_over() {
    let world = World::new();
    let faults = publish(&world);
    annotate_in_vain(&world);
    world.until("published", || counts(&world) == [1]);
    let writes = faults.writes();
    faults.on(Method::PUT, "/events/", usize::MAX, Fault::Refused(403));
    for _ in 0..4 {
        annotate_in_vain(&world);
    }
    world.wait(faults.meet());
    assert_eq!(counts(&world), [1]);
    assert_eq!(faults.writes(), writes + 1, "one that was refused");
}

/// Somebody has deleted it, or it has expired: what happens then is told at once, as the first of another one.
#[test]
fn an_event_that_is_gone_is_made_again() {
    let world = World::new();
    publish(&world);
    annotate_in_vain(&world);
    world.until("published", || counts(&world) == [1]);
    let first = published(&world).remove(0)["metadata"].take();
    let path = format!("{EVENTS}/{}", first["name"].as_str().unwrap());
    world.wait(world.server.client().delete(&path, &json!({}))).unwrap().done().unwrap();
    annotate_in_vain(&world);
    world.until("published again", || counts(&world) == [1]);
    assert_ne!(published(&world)[0]["metadata"]["uid"], first["uid"]);
}
