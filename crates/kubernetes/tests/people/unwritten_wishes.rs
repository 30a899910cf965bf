//! Wishes that are decided, and whose records cannot be written for a time.
//!
//! The story: such a wish was asked for again every few seconds, each time under a new id. The store took its object
//! for that of one record more each time, and kept all of them for as long as it ran.

use hotbay_core::cluster::VolumeRequest;
use hotbay_core::ids::VolumeId;
use hotbay_registry::CallError;
use http::Method;
use serde_json::json;

use crate::faults::Fault;
use crate::world::{VOLUME, World, fresh, wish};

/// For the records of how many things the store takes an object.
fn taken_for(world: &World, uid: &str) -> usize {
    let known = format!("{:?}", world.objects);
    known.matches(&format!("uid: {uid:?}")).count()
}

fn uid(world: &World, plural: &str, name: &str) -> String {
    world.people.named(plural, name)["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// So many calls fail before the server takes the record: the store's pauses grow up to 5 s, and a wish would be asked
/// for again every second.
const REFUSALS: usize = 6;

#[test]
fn a_volume_that_cannot_be_written_is_asked_for_once() {
    let world = World::with_drives(1);
    world.add("S0");
    world.store.on(Method::PUT, "volumes/mine/status", REFUSALS, Fault::Refused(403));
    world.people.create("volumes", "Volume", "mine", json!({ "sizeBytes": 10 << 20 }));
    let uid = uid(&world, "volumes", "mine");
    world.wait(world.store.meet());
    world.until("made", || world.condition("volumes", "mine", "Created") == "True");
    assert_eq!(taken_for(&world, &uid), 1);
    let volumes = world.registry.read(|cluster| cluster.volumes_after(None).count());
    assert_eq!(world.wait(volumes).unwrap(), 1);
    assert!(world.follows());
}

/// Nothing was decided: it is asked for again, for the same object.
#[test]
fn a_use_of_what_cannot_be_written_is_granted_when_it_can_be() {
    let world = World::with_drives(1);
    world.add("S0");
    world.store.on(Method::POST, "volumes", REFUSALS, Fault::Refused(403));
    let (id, wish) = (fresh(), wish(VOLUME));
    let made = VolumeRequest::Create { id: VolumeId::from_bits(id), wish: Box::new(wish) };
    let made = world.registry.request(made, "test".to_owned());
    assert!(matches!(world.wait(made), Err(CallError::NotDurable { .. })));
    let spec = json!({ "volume": VOLUME, "node": "node-a" });
    world.people.create("attachments", "Attachment", "mine", spec);
    let uid = uid(&world, "attachments", "mine");
    world.until("attached", || world.condition("attachments", "mine", "Attached") == "True");
    assert_eq!(taken_for(&world, &uid), 1);
    assert!(world.follows());
}
