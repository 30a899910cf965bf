//! Volumes and attachments that our finalizer holds until an agent has done what was asked for: they say what is waited
//! for. Asked of the server in memory, and of a real one.

use hotbay_core::cluster::VolumeRequest;
use hotbay_core::ids::{AttachmentId, NodeId, VolumeId};
use serde_json::{Value, json};

use crate::world::{ATTACHMENT, VOLUME, World, wish};

const IN_USE: VolumeId = VolumeId::from_bits(9 << 96);
const TO_DELETE: VolumeId = VolumeId::from_bits(10 << 96);
const TO_ATTACH: VolumeId = VolumeId::from_bits(11 << 96);
const TO_CREATE: VolumeId = VolumeId::from_bits(12 << 96);

fn create(world: &World, id: VolumeId, name: &str) {
    world.request(VolumeRequest::Create { id, wish: Box::new(wish(name)) });
}

fn until_created(world: &World, name: &str) {
    world.until(name, || world.condition("volumes", name, "Created") == "True");
}

/// Waits until it says that something is waited for; gives the reason and the words.
fn until_waiting(world: &World, plural: &str, name: &str) -> (String, String) {
    world.until(&format!("{plural}/{name} waits"), || {
        world.condition(plural, name, "Waiting") == "True"
    });
    world.reason(plural, name, "Waiting")
}

/// An object that is there, is not being deleted, and is held by our finalizer.
fn held(world: &World, plural: &str, name: &str) -> Value {
    let object = world.people.named(plural, name);
    let metadata = &object["metadata"];
    assert_eq!(metadata["finalizers"], json!(["hotbay.dev/controller"]), "{object}");
    assert!(metadata["deletionTimestamp"].is_null(), "{object}");
    object
}

#[test]
fn what_an_agent_has_not_done_yet_stands_in_a_condition_until_it_has() {
    let world = World::new();
    let (deleted, attached, made) = ("pvc-2", "pvc-3", "pvc-4");
    create(&world, TO_DELETE, deleted);
    create(&world, TO_ATTACH, attached);
    until_created(&world, deleted);
    until_created(&world, attached);
    let node = world.registry.read(|cluster| cluster.nodes().next().unwrap().record.id);
    let node: NodeId = world.wait(node).unwrap();
    world.settled();
    world.agent_falls_silent();
    world.request(VolumeRequest::Detach { volume: IN_USE, node: None });
    world.request(VolumeRequest::Delete { volume: TO_DELETE });
    let id = AttachmentId::from_bits(7 << 96);
    world.request(VolumeRequest::Attach { id, volume: TO_ATTACH, node, read_only: false });
    create(&world, TO_CREATE, made);
    let drive = world.drive_name("S0");
    let no_answer = format!("drive {drive} has not answered");
    let not_yet = "the node's agent has not answered".to_owned();
    let second = format!("{attached}-node-a");
    for (plural, name, state, reason, words) in [
        ("attachments", ATTACHMENT, "Detaching", "WaitingForAgent", &not_yet),
        ("attachments", &second, "Attaching", "WaitingForAgent", &not_yet),
        ("volumes", deleted, "Deleting", "Deleting", &no_answer),
        ("volumes", made, "Pending", "Pending", &no_answer),
    ] {
        let told = until_waiting(&world, plural, name);
        assert_eq!(told, (reason.to_owned(), words.clone()), "{plural}/{name}");
        assert_eq!(held(&world, plural, name)["status"]["state"], state);
    }
    // That one is as it was: only what is waited for says so.
    assert_eq!(world.condition("volumes", VOLUME, "Waiting"), "");
    let writes = world.settled();
    assert_eq!(world.settled(), writes, "waiting costs nothing");
    world.agent_goes();
    world.agent_comes();
    world.until("detached", || world.find("attachments", ATTACHMENT).is_none());
    world.until("deleted", || world.find("volumes", deleted).is_none());
    world.until("attached", || world.condition("attachments", &second, "Attached") == "True");
    until_created(&world, made);
    for (plural, name) in [("attachments", second.as_str()), ("volumes", made)] {
        world.until(name, || world.condition(plural, name, "Waiting").is_empty());
    }
    assert_eq!(world.find("volumes", VOLUME).unwrap()["status"]["state"], "Created");
    assert!(world.follows());
}
