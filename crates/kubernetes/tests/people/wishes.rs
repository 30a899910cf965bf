//! What people ask for by a spec, and where they see what came of it.

use hotbay_core::cluster::{State, VolumeRequest};
use hotbay_core::cms::{Action, Code, Target};
use hotbay_core::ids::VolumeId;
use http::Method;
use serde_json::{Value, json};

use crate::world::{VOLUME, World, condition};

/// What `kubectl patch --type merge` does to a spec.
fn patch(world: &World, plural: &str, name: &str, spec: &Value) {
    world.edit(plural, name, "", |object| {
        for (field, value) in spec.as_object().unwrap() {
            match value {
                Value::Null => drop(object["spec"].as_object_mut().unwrap().remove(field)),
                value => object["spec"][field] = value.clone(),
            }
        }
    });
}

fn state(world: &World, serial: &str) -> State {
    let target = Target { host: None, device: serial.to_owned() };
    let state = world.registry.read(move |cluster| {
        let id = cluster.find(&target).unwrap();
        cluster.drive(id).unwrap().record.state
    });
    world.wait(state).unwrap()
}

/// Waits until the wish of this generation has this answer.
fn answered(world: &World, plural: &str, name: &str, generation: i64, reason: &str) {
    world.until(&format!("{plural}/{name}: {reason}"), || {
        let object = world.find(plural, name).unwrap_or_default();
        let told = condition(&object, "SpecApplied");
        told["reason"] == reason
            && told["observedGeneration"] == generation
            && object["status"]["observedGeneration"] == generation
    });
}

#[test]
fn a_drive_goes_in_and_out_of_operation_by_its_spec() {
    let world = World::with_drives(1);
    let name = world.drive_name("S0");
    world.until("there", || world.find("drives", &name).is_some());
    patch(&world, "drives", &name, &json!({ "inOperation": true }));
    answered(&world, "drives", &name, 2, "S_OK");
    world.until("open", || world.condition("drives", &name, "InOperation") == "True");
    assert_eq!(state(&world, "S0"), State::Attached);
    // The same manifest again, after somebody else has removed the drive: no wish.
    let target = Target { host: None, device: "S0".into() };
    world.until("removed", || world.act(Action::RemoveDevice(target.clone())) == Code::Ok);
    patch(&world, "drives", &name, &json!({ "inOperation": true }));
    let before = world.settled();
    assert_eq!(state(&world, "S0"), State::Detached);
    assert_eq!(condition(&world.people.named("drives", &name), "SpecApplied")["reason"], "S_OK");
    // An annotation is no wish either.
    let mut object = world.people.named("drives", &name);
    object["metadata"]["annotations"] = json!({ "a": "b" });
    world.people.succeed(Method::PUT, &format!("drives/{name}"), &object);
    assert_eq!(world.settled(), before);
    patch(&world, "drives", &name, &json!({ "inOperation": false }));
    answered(&world, "drives", &name, 3, "S_OK");
    patch(&world, "drives", &name, &json!({ "inOperation": null }));
    world.until("no wish, no answer", || {
        let object = world.people.named("drives", &name);
        object["status"]["observedGeneration"] == 4 && condition(&object, "SpecApplied").is_null()
    });
}

/// The object that is made again begins anew: what was noticed of the old one's spec does not count for it.
#[test]
fn a_deleted_drive_can_be_wished_for_again() {
    let world = World::with_drives(1);
    let name = world.drive_name("S0");
    world.until("there", || world.find("drives", &name).is_some());
    for (generation, wanted) in [(2, true), (3, false), (4, true)] {
        patch(&world, "drives", &name, &json!({ "inOperation": wanted }));
        answered(&world, "drives", &name, generation, "S_OK");
    }
    world.settled();
    world.people.succeed(Method::DELETE, &format!("drives/{name}"), &json!({}));
    world.until("back", || {
        let object = world.find("drives", &name).unwrap_or_default();
        object["status"]["observedGeneration"] == 1 && condition(&object, "SpecApplied").is_null()
    });
    assert_eq!(state(&world, "S0"), State::Attached);
    patch(&world, "drives", &name, &json!({ "inOperation": false }));
    answered(&world, "drives", &name, 2, "S_OK");
    assert_eq!(state(&world, "S0"), State::Detached);
}

/// A host that waits for its volumes goes on doing so, whatever else its spec says meanwhile.
#[test]
fn a_removal_of_a_host_outlives_a_change_of_its_labels() {
    let world = World::new();
    patch(&world, "storagenodes", "node-a", &json!({ "inOperation": false }));
    answered(&world, "storagenodes", "node-a", 2, "E_TRY_AGAIN");
    patch(&world, "storagenodes", "node-a", &json!({ "labels": { "rack": "r1" } }));
    answered(&world, "storagenodes", "node-a", 3, "E_TRY_AGAIN");
    let volume = VolumeId::from_bits(9 << 96);
    world.request(VolumeRequest::Detach { volume, node: None });
    world.until("detached", || world.people.list("attachments").is_empty());
    world.request(VolumeRequest::Delete { volume });
    answered(&world, "storagenodes", "node-a", 3, "S_OK");
    assert_eq!(state(&world, "S0"), State::Detached);
}

/// With a volume on it: it waits, says for what, also after a change of the leader, and goes on by itself.
#[test]
fn a_removal_waits_for_the_volumes_and_outlives_its_controller() {
    let world = World::new();
    let name = world.drive_name("S0");
    patch(&world, "drives", &name, &json!({ "inOperation": false }));
    answered(&world, "drives", &name, 2, "E_TRY_AGAIN");
    let (_, message) = world.reason("drives", &name, "SpecApplied");
    assert!(message.contains("volumes are on it") && message.contains(VOLUME), "{message}");
    assert_eq!(world.condition("drives", &name, "RemovalWanted"), "True");
    let before = world.settled();
    // Asking again costs nothing as long as nothing changes.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(world.settled(), before);

    let world = World::start(world.stop(), 11);
    world.wait(crate::agent::join(&world.registry, 2));
    let volume = VolumeId::from_bits(9 << 96);
    world.request(VolumeRequest::Detach { volume, node: None });
    world.until("detached", || world.people.list("attachments").is_empty());
    world.request(VolumeRequest::Delete { volume });
    answered(&world, "drives", &name, 2, "S_OK");
    assert_eq!(state(&world, "S0"), State::Detached);
}

/// What is asked for by another way later counts: the spec does not fight it.
#[test]
fn a_wish_that_was_overtaken_is_given_up() {
    let world = World::new();
    let name = world.drive_name("S0");
    patch(&world, "drives", &name, &json!({ "inOperation": false }));
    answered(&world, "drives", &name, 2, "E_TRY_AGAIN");
    let target = Target { host: None, device: "S0".into() };
    assert_eq!(world.act(Action::AddDevice(target)), Code::Ok);
    answered(&world, "drives", &name, 2, "Superseded");
    assert_eq!(state(&world, "S0"), State::Attached);
}

#[test]
fn a_node_is_labelled_and_its_drives_are_added_by_its_spec() {
    let world = World::with_drives(2);
    world.until("there", || world.find("storagenodes", "node-a").is_some());
    world.settled();
    let spec = json!({ "inOperation": true, "labels": { "rack": "r1" } });
    patch(&world, "storagenodes", "node-a", &spec);
    answered(&world, "storagenodes", "node-a", 2, "S_OK");
    let labels =
        world.registry.read(|cluster| cluster.nodes().next().unwrap().record.labels.to_string());
    assert_eq!(world.wait(labels).unwrap(), "rack=r1");
    world.until("open", || {
        state(&world, "S0") == State::Attached && state(&world, "S1") == State::Attached
    });
    // A bad label refuses all of it.
    patch(
        &world,
        "storagenodes",
        "node-a",
        &json!({ "inOperation": false, "labels": { "a b": "c" } }),
    );
    answered(&world, "storagenodes", "node-a", 3, "E_ARGUMENT");
    assert_eq!(state(&world, "S0"), State::Attached);
}

#[test]
fn a_volume_and_an_attachment_are_made_by_their_objects() {
    let world = World::with_drives(1);
    world.until("there", || !world.people.list("drives").is_empty());
    let spec = json!({ "sizeBytes": 10 << 20, "parameters": { "media": "ssd" } });
    world.people.create("volumes", "Volume", "db", spec);
    let attachment = json!({ "volume": "db", "node": "node-a" });
    world.people.create("attachments", "Attachment", "mine", attachment);
    // Nothing is in operation yet.
    world.until("no place", || world.reason("volumes", "db", "Created").0 == "NoPlace");
    world
        .until("no volume", || world.reason("attachments", "mine", "Attached").0 == "NoSuchVolume");
    let told = world.people.named("volumes", "db");
    assert_eq!(told["status"]["observedGeneration"], 1);
    let leads = world.people.named("registries", "registry");
    assert_eq!(told["status"]["term"], leads["status"]["term"]);
    world.add("S0");
    world.until("created", || world.condition("volumes", "db", "Created") == "True");
    world.until("attached", || world.condition("attachments", "mine", "Attached") == "True");
    for (plural, name) in [("volumes", "db"), ("attachments", "mine")] {
        let object = world.people.only(plural);
        assert_eq!(object["metadata"]["name"], name);
        assert_eq!(object["metadata"]["finalizers"], json!(["hotbay.dev/controller"]));
        assert_eq!(object["status"]["observedGeneration"], 1);
    }
    let volume = world.people.named("volumes", "db");
    assert_eq!(volume["spec"]["parameters"], json!({ "media": "ssd" }));
    // It grows as people want, and not in other ways.
    patch(&world, "volumes", "db", &json!({ "sizeBytes": 20 << 20 }));
    answered(&world, "volumes", "db", 2, "S_OK");
    world
        .until("larger", || world.people.named("volumes", "db")["status"]["sizeBytes"] == 20 << 20);
    patch(&world, "volumes", "db", &json!({ "parameters": { "media": "hdd" } }));
    answered(&world, "volumes", "db", 3, "E_INVALID_STATE");
    // Deleting it is no consent, whoever made it.
    world.people.call(Method::DELETE, "volumes/db", &json!({}));
    world.until_told("volumes/db was deleted", 1);
    world.until("whole", || world.condition("volumes", "db", "Created") == "True");
}

#[test]
fn a_fault_in_a_wish_is_named_and_stops_nothing() {
    let world = World::new();
    let volume = |name: &str, spec| world.people.create("volumes", "Volume", name, spec);
    volume("bad-class", json!({ "sizeBytes": 1, "parameters": { "colour": "red" } }));
    volume("too-large", json!({ "sizeBytes": 1_u64 << 50 }));
    let attachment = |name: &str, volume: &str, node: &str| {
        let spec = json!({ "volume": volume, "node": node });
        world.people.create("attachments", "Attachment", name, spec);
    };
    attachment("no-node", VOLUME, "node-z");
    attachment("no-volume", "none", "node-a");
    attachment("twice", VOLUME, "node-a");
    world.people.create("drives", "Drive", "d-none", json!({ "inOperation": true }));
    world.people.create("storagenodes", "StorageNode", "node-z", json!({}));
    for (plural, name, kind, reason, words) in [
        ("volumes", "bad-class", "Created", "InvalidParameters", "colour"),
        ("volumes", "too-large", "Created", "NoPlace", "no drive takes"),
        ("attachments", "no-node", "Attached", "NoSuchNode", "node-z"),
        ("attachments", "no-volume", "Attached", "NoSuchVolume", "none"),
        ("attachments", "twice", "Attached", "AlreadyExists", "pvc-1-node-a"),
        ("drives", "d-none", "Known", "NotReported", "agent"),
        ("storagenodes", "node-z", "Known", "NotJoined", "agent"),
    ] {
        world.until(name, || world.condition(plural, name, kind) == "False");
        let (told, message) = world.reason(plural, name, kind);
        assert_eq!(told, reason);
        assert!(message.contains(words), "{message}");
    }
    let before = world.settled();
    // They are tried again, and that costs nothing.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(world.settled(), before);
    // A spec that is mended is met.
    patch(&world, "volumes", "bad-class", &json!({ "parameters": {} }));
    world.until("met", || world.condition("volumes", "bad-class", "Created") == "True");
    // What was never met just goes.
    world.people.succeed(Method::DELETE, "attachments/twice", &json!({}));
    world.until("gone", || world.find("attachments", "twice").is_none());
    assert_eq!(world.condition("volumes", VOLUME, "Created"), "True");
    assert!(world.follows());
}
