//! Deleted objects, edited statuses, strange objects: what comes of them. Asked of the server in memory, and of a real
//! one.

use std::time::{Duration, Instant};

use hotbay_core::cluster::{State, VolumeRequest};
use hotbay_core::ids::VolumeId;
use hotbay_kubernetes::living::Times;
use http::Method;
use serde_json::{Value, json};

use crate::faults::Fault;
use crate::people::PLURALS;
use crate::world::{ATTACHMENT, TIMES, VOLUME, World, wish};

/// The registry, a node, two drives, a volume and its attachment.
const OBJECTS: usize = 6;

/// What people do is told from what the store does, in more than one call, by a second that it does not take.
const SECOND: Duration = Duration::from_secs(1);

/// Tries a case again on a machine that was slower than that; the case says how long its calls took.
fn while_quick(case: impl Fn() -> Duration) {
    let took: Vec<_> = (0..5).map(|_| case()).take_while(|took| *took >= SECOND).collect();
    assert!(took.len() < 5, "two calls take longer than a second: {took:?}");
}

fn without_version(mut object: Value) -> Value {
    for field in ["resourceVersion", "uid", "creationTimestamp", "managedFields"] {
        object["metadata"].as_object_mut().unwrap().remove(field);
    }
    // Only of those that were made with their first record.
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove("hotbay.dev/record");
    }
    object
}

/// All objects, without what changes when one is written again.
fn everything(world: &World) -> Vec<Value> {
    let all = PLURALS.iter().flat_map(|plural| world.people.list(plural));
    all.map(without_version).collect()
}

fn delete_all(world: &World) {
    for plural in PLURALS {
        for object in world.people.list(plural) {
            let path = format!("{plural}/{}", object["metadata"]["name"].as_str().unwrap());
            world.people.call(Method::DELETE, &path, &json!({}));
        }
    }
}

fn edit_status(world: &World, plural: &str, name: &str, change: impl Fn(&mut Value)) {
    world.edit(plural, name, "/status", |object| change(&mut object["status"]));
}

/// A volume from its creation to its end: whoever follows does nothing about it.
#[test]
fn the_life_of_a_volume_is_left_to_the_store() {
    while_quick(|| {
        let world = World::new();
        let volume = VolumeId::from_bits(9 << 96);
        let mut began = Instant::now();
        world.request(VolumeRequest::Detach { volume, node: None });
        world.until("detached", || world.find("attachments", ATTACHMENT).is_none());
        let detached = began.elapsed();
        began = Instant::now();
        world.request(VolumeRequest::Delete { volume });
        world.until("deleted", || world.find("volumes", VOLUME).is_none());
        let took = began.elapsed().max(detached);
        // Longer than it takes to let go of what people deleted.
        std::thread::sleep(SECOND * 3);
        world.settled();
        let events = world.events();
        assert!(!events.iter().any(|text| text.contains("written again")), "{events:?}");
        assert!(took >= SECOND || world.follower.writes() == 0);
        took
    });
}

/// Its first record came with the object. As long as its drive's agent says nothing no other follows.
#[test]
fn a_volume_that_has_to_wait_is_shown_all_the_same() {
    // What it waits for is told much later.
    let world = World::with_drives_and(1, Times { hold: Duration::from_secs(600), ..TIMES });
    world.add("S0");
    world.settled();
    world.agent_falls_silent();
    let before = world.store.writes();
    let (id, wish) = (VolumeId::from_bits(9 << 96), Box::new(wish(VOLUME)));
    let began = Instant::now();
    world.request(VolumeRequest::Create { id, wish });
    // The object with its record, and the drive. What is waited for is shown after a second.
    let written = world.store.writes() - before;
    let most = if began.elapsed() < SECOND { 2 } else { 3 };
    assert!((2..=most).contains(&written), "{written} in {:?}", began.elapsed());
    world.until("shown", || world.find("volumes", VOLUME).unwrap()["status"]["state"] == "Pending");
    assert_eq!(world.settled(), before + 3);
    let (reason, words) = world.reason("volumes", VOLUME, "Created");
    assert_eq!(reason, "Pending", "{words}");
}

/// Counts the writes while drives appear, go into operation and a new controller takes the lead.
pub(crate) fn nothing_is_written_for_our_own_writes(drives: usize) {
    let world = World::with_drives(drives);
    let in_operation = |count: u64| {
        let node = world.find("storagenodes", "node-a").unwrap_or_default();
        node["status"]["drivesInOperation"] == count
    };
    world.until("the node says that it is ready", || in_operation(0));
    world.settled();
    // The registry, the node and each drive: an object and its status. And that the node is ready.
    assert_eq!(world.store.writes(), 2 * (drives + 2) + 1);
    world.add("S0");
    world.until("the node says so", || in_operation(1));
    world.settled();
    // Attaching, then Attached; and how many drives of the node are in operation.
    assert_eq!(world.store.writes(), 2 * (drives + 2) + 1 + 3);
    assert_eq!(world.follower.writes(), 0);
    let next = World::start(world.stop(), 11);
    next.settled();
    // Its term.
    assert_eq!((next.store.writes(), next.follower.writes()), (1, 0));
    assert_eq!(next.events(), Vec::<String>::new());
}

#[test]
fn what_people_change_of_their_own_costs_no_write() {
    let world = World::new();
    let before = world.settled();
    let long = "x".repeat(200 << 10);
    for (plural, name) in
        [("volumes", VOLUME), ("attachments", ATTACHMENT), ("registries", "registry")]
    {
        let mut object = world.people.named(plural, name);
        object["metadata"]["annotations"] = json!({ "example.com/note": long });
        world.people.succeed(Method::PUT, &format!("{plural}/{name}"), &object);
    }
    assert_eq!(world.settled(), before);
    // The next decision about it is one write, with one more to show it, and keeps what people wrote.
    let id = VolumeId::from_bits(9 << 96);
    let changes = [("owner".to_owned(), Some("me".to_owned()))].into();
    let annotate = VolumeRequest::Annotate { volume: id, changes };
    world.request(annotate);
    assert_eq!(world.settled(), before + 2);
    let volume = world.people.named("volumes", VOLUME);
    assert_eq!(volume["metadata"]["annotations"]["example.com/note"], long);
    assert!(world.follows());
}

#[test]
fn whatever_is_deleted_comes_back_and_nothing_else_happens() {
    let world = World::new();
    let before = everything(&world);
    assert_eq!(before.len(), OBJECTS);
    delete_all(&world);
    world.until("everything is back", || everything(&world) == before);
    for kind in ["registries", "storagenodes", "drives", "volumes", "attachments"] {
        let times = if kind == "drives" { 2 } else { 1 };
        world.until_told(&format!("The object {kind}/"), times);
    }
    world.until_told("hotbay volume delete pvc-1", 1);
    let states = world
        .registry
        .read(|cluster| cluster.drives().map(|drive| drive.record.state).collect::<Vec<_>>());
    let mut states = world.wait(states).unwrap();
    states.sort_by_key(|state| *state == State::Unknown);
    assert_eq!(states, [State::Attached, State::Unknown]);
    let at_rest = world.settled();
    assert_eq!(world.settled(), at_rest);
}

#[test]
fn everything_comes_back_with_the_definitions() {
    let world = World::new();
    let before = everything(&world);
    world.people.delete_definitions();
    world.settled();
    assert!(world.follows());
    world.people.restore_definitions();
    world.until("everything is back", || {
        let now = PLURALS.iter().map(|plural| world.people.call(Method::GET, plural, &Value::Null));
        now.into_iter().all(|(code, _)| code == 200) && everything(&world) == before
    });
    assert!(world.follows());
    // An object may be there a moment before its writer has heard so.
    let drives = || world.wait(world.registry.read(|cluster| cluster.drives().count()));
    world.until("all is durable", || drives().is_ok_and(|drives| drives == 2));
}

/// What could not be written for a time is not waited for. So an object of ours was seen between the two calls that
/// make it, taken for what a controller before had left, and deleted.
#[test]
fn an_object_that_is_being_made_again_is_not_taken_for_a_left_over() {
    let registry = "registries/registry";
    while_quick(|| {
        let world = World::new();
        world.store.on(Method::POST, "/registries", usize::MAX, Fault::Refused(403));
        world.people.succeed(Method::DELETE, registry, &json!({}));
        world.wait(world.store.meet());
        world.settled();
        let before = world.follower.writes();
        // The next write makes the object, and has to call again for its status.
        world.store.heal();
        world.store.on(Method::PUT, "registries/registry/status", 3, Fault::RequestLost);
        world.until("it is there", || world.find("registries", "registry").is_some());
        let there = Instant::now();
        world.until("it is made", || {
            world.find("registries", "registry").unwrap_or_default()["status"]["record"].is_object()
        });
        let took = there.elapsed();
        world.settled();
        assert!(took >= SECOND || world.follower.writes() == before, "it was deleted");
        took
    });
}

#[test]
fn an_edit_of_a_status_is_repaired() {
    let world = World::new();
    let before = everything(&world);
    let edits: [fn(&mut Value); 6] = [
        |status| status["record"]["size_bytes"] = json!(1),
        |status| status["checksum"] = json!("0"),
        |status| *status = json!({}),
        |status| status["state"] = json!("Lost"),
        |status| status["observedGeneration"] = json!(77),
        |status| status["conditions"] = json!([]),
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        edit_status(&world, "volumes", VOLUME, edit);
        world.until(&format!("edit {number} is undone"), || everything(&world) == before);
    }
    edit_status(&world, "registries", "registry", |status| status["record"]["terms"] = json!([]));
    world.until("the registry's too", || everything(&world) == before);
    // Once a minute.
    world.until_told("The status of volumes/pvc-1 was changed by hand", 1);
    assert_eq!(world.follower.writes(), 0);
}

/// It is valid, and was ours: only the store's own knowledge tells that it is old.
#[test]
fn an_older_state_that_is_put_back_is_written_over() {
    let world = World::with_drives(1);
    let name = world.drive_name("S0");
    world.settled();
    let old = world.people.named("drives", &name)["status"].clone();
    world.add("S0");
    world.settled();
    let now = world.people.named("drives", &name)["status"].clone();
    assert_ne!(old, now);
    edit_status(&world, "drives", &name, |status| *status = old.clone());
    world.until("written over", || world.people.named("drives", &name)["status"] == now);
}

#[test]
fn a_record_of_the_past_that_nobody_knows_is_removed() {
    let world = World::new();
    let volume = world.people.named("volumes", VOLUME);
    let world = World::start(world.stop(), 11);
    let (id, node) = (VolumeId::from_bits(9 << 96), None);
    // Its drive does not answer, as there is no agent: it is forgotten with the next word of it.
    world.wait(crate::agent::join(&world.registry, 2));
    world.request(VolumeRequest::Detach { volume: id, node });
    world.until("detached", || world.find("attachments", ATTACHMENT).is_none());
    world.request(VolumeRequest::Delete { volume: id });
    world.until("deleted", || world.find("volumes", VOLUME).is_none());
    world.settled();
    // What the controller that led before would do if it woke up now: both of its calls, or the first alone.
    let half = json!({
        "apiVersion": "hotbay.dev/v1alpha1",
        "kind": "Volume",
        "metadata": { "name": "half", "annotations": volume["metadata"]["annotations"],
                      "finalizers": volume["metadata"]["finalizers"] },
        "spec": volume["spec"],
    });
    world.people.succeed(Method::POST, "volumes", &half);
    world.until("removed", || world.find("volumes", "half").is_none());
    let unmet = json!({ "sizeBytes": 1, "parameters": { "colour": "red" } });
    world.people.create("volumes", "Volume", "late", unmet);
    edit_status(&world, "volumes", "late", |status| *status = volume["status"].clone());
    world.until("removed", || world.find("volumes", "late").is_none());
    for name in ["late", "half"] {
        world.until_told(&format!("volumes/{name} is removed"), 1);
    }
}

#[test]
fn finalizers_are_set_again_and_hold_nothing_for_ever() {
    let world = World::new();
    let mut volume = world.people.named("volumes", VOLUME);
    volume["metadata"]["finalizers"] = json!(["example.com/other"]);
    world.people.succeed(Method::PUT, &format!("volumes/{VOLUME}"), &volume);
    let finalizers = || world.people.named("volumes", VOLUME)["metadata"]["finalizers"].clone();
    world.until("set again", || {
        finalizers() == json!(["example.com/other", "hotbay.dev/controller"])
    });
    // Somebody else holds it; ours does not.
    world.people.succeed(Method::DELETE, &format!("volumes/{VOLUME}"), &json!({}));
    world.until("let go", || finalizers() == json!(["example.com/other"]));
    let mut volume = world.people.named("volumes", VOLUME);
    let uid = volume["metadata"]["uid"].clone();
    assert_eq!(volume["status"]["state"], "Created");
    volume["metadata"]["finalizers"] = json!([]);
    world.people.succeed(Method::PUT, &format!("volumes/{VOLUME}"), &volume);
    world.until("back", || {
        let now = world.find("volumes", VOLUME).unwrap_or_default();
        now["metadata"]["uid"] != uid && now["status"]["state"] == "Created"
    });
}

/// What nobody should have made, and what makes no sense, is left alone and stops nothing.
#[test]
fn strange_objects_stop_nothing() {
    let world = World::new();
    world.people.create("drives", "Drive", "copy", json!({}));
    let name = world.drive_name("S0");
    let drive = world.people.named("drives", &name);
    edit_status(&world, "drives", "copy", |status| *status = drive["status"].clone());
    world.people.create("drives", "Drive", "nonsense", json!({}));
    edit_status(&world, "drives", "nonsense", |status| {
        *status = json!({ "record": { "a": 1 }, "checksum": "x" });
    });
    let unmet = json!({ "sizeBytes": 1, "parameters": { "colour": "red" } });
    world.people.create("volumes", "Volume", "filled-in", unmet);
    edit_status(&world, "volumes", "filled-in", |status| {
        *status = json!({ "record": { "a": 1 }, "checksum": "x" });
    });
    world.until_told(&format!("drives/copy is left alone: it has the record of drives/{name}."), 1);
    for strange in ["drives/nonsense", "volumes/filled-in"] {
        world.until_told(&format!("{strange} is left alone: its status is not"), 1);
    }
    world.settled();
    assert_eq!(world.people.named("drives", "copy")["status"], drive["status"]);
    // It still follows.
    world.people.call(Method::DELETE, &format!("drives/{name}"), &json!({}));
    world.until("back", || {
        world.find("drives", &name).is_some_and(|now| now["status"] == drive["status"])
    });
    assert_eq!(world.people.named("drives", "nonsense")["status"]["checksum"], "x");
}
