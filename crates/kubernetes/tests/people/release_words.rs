//! What whoever looks after an application says on a Volume, or on its claim, while a drive is replaced: on either of
//! them all of it is heard, and of two words under one key that of the claim counts.

use std::collections::BTreeMap;

use hotbay_core::ids::VolumeId;
use hotbay_core::volume::{IGNORE_IF_INACCESSIBLE, RELEASE};
use hotbay_kubernetes::claims;
use http::Method;
use serde_json::{Value, json};

use crate::world::{VOLUME, World};

const CLAIMS: &str = "/api/v1/persistentvolumeclaims";
const ID: VolumeId = VolumeId::from_bits(9 << 96);
const SUPPORT: &str = RELEASE[0];
const STATE: &str = RELEASE[1];
const RECOVERY: &str = RELEASE[2];
const STATUS: &str = RELEASE[3];

fn record(world: &World) -> BTreeMap<String, String> {
    let read =
        world.registry.read(|cluster| cluster.volume(ID).unwrap().record.annotations.clone());
    world.wait(read).unwrap()
}

fn until_said(world: &World, expected: &[(&str, &str)]) {
    let expected: BTreeMap<_, _> =
        expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    world.until(&format!("{expected:?}"), || {
        let mut now = record(world);
        now.remove("hotbay.dev/from-claim");
        now == expected
    });
}

/// As `kubectl annotate` does; what has no value is taken off.
fn annotate(world: &World, changes: &[(&str, Option<&str>)]) {
    loop {
        let mut object = world.people.named("volumes", VOLUME);
        if object["metadata"]["annotations"].is_null() {
            object["metadata"]["annotations"] = json!({});
        }
        let all = object["metadata"]["annotations"].as_object_mut().unwrap();
        for (key, value) in changes {
            match value {
                Some(value) => all.insert((*key).to_owned(), json!(value)),
                None => all.remove(*key),
            };
        }
        match world.people.call(Method::PUT, &format!("volumes/{VOLUME}"), &object) {
            (200, _) => return,
            (code, answer) => assert_eq!(code, 409, "{answer}"),
        }
    }
}

fn shown(world: &World, key: &str) -> Value {
    world.people.named("volumes", VOLUME)["metadata"]["annotations"][key].clone()
}

/// The claim of the volume says this, and nothing else.
fn claim(world: &World, method: Method, path: &str, said: &[(&str, &str)]) {
    let annotations: BTreeMap<_, _> = said.iter().copied().collect();
    let object = json!({
        "metadata": { "namespace": "shop", "name": "data-0", "annotations": annotations },
        "spec": { "volumeName": VOLUME },
    });
    let client = world.server.client();
    let answer = world.wait(client.call(method, path, Some(&object))).unwrap();
    assert!(answer.code < 300, "{answer:?}");
}

/// The story: the operator of the application put its words onto the Volume, where the description of the procedure
/// has them, and nobody heard them: only one key counted there, and these on the claim alone.
#[test]
fn how_far_a_release_is_may_be_said_on_the_volume() {
    let world = World::new();
    annotate(&world, &[(STATE, Some("processing")), (RECOVERY, Some("10"))]);
    until_said(&world, &[(STATE, "processing"), (RECOVERY, "10")]);
    world.settled();
    let words = [(RECOVERY, Some("50")), (STATE, Some("failed")), (STATUS, Some("by timeout"))];
    annotate(&world, &words);
    until_said(&world, &[(STATE, "failed"), (RECOVERY, "50"), (STATUS, "by timeout")]);
    world.settled();
    annotate(&world, &[(STATE, None), (RECOVERY, None), (STATUS, None), (SUPPORT, Some("yes"))]);
    until_said(&world, &[(SUPPORT, "yes")]);
    let at_rest = world.settled();
    assert_eq!(world.settled(), at_rest);
    world.until_told("are not taken over", 0);
    assert!(world.follows());
}

#[test]
fn the_claim_counts_where_the_volume_says_something_else() {
    let world = World::new();
    annotate(&world, &[(STATE, Some("processing")), (IGNORE_IF_INACCESSIBLE, Some("no"))]);
    until_said(&world, &[(STATE, "processing"), (IGNORE_IF_INACCESSIBLE, "no")]);
    claim(&world, Method::POST, CLAIMS, &[(SUPPORT, "yes"), (IGNORE_IF_INACCESSIBLE, "yes")]);
    let bound = json!({ "metadata": {}, "status": { "phase": "Bound" } });
    let path = format!("{CLAIMS}/data-0");
    let client = world.server.client();
    world.wait(client.put(&format!("{path}/status"), &bound)).unwrap();
    let following = claims::follow(world.server.client(), world.registry.clone());
    world.wait(async { drop(tokio::spawn(following)) });
    // Of the volume's own words stays what the claim does not say.
    let both = [(SUPPORT, "yes"), (STATE, "processing"), (IGNORE_IF_INACCESSIBLE, "yes")];
    until_said(&world, &both);
    world.until("shown", || shown(&world, IGNORE_IF_INACCESSIBLE) == "yes");
    world.settled();
    // Written over on the Volume, or taken off there, it comes back; the rest of the same edit is heard.
    annotate(&world, &[(IGNORE_IF_INACCESSIBLE, Some("no")), (STATE, Some("completed"))]);
    let both = [(SUPPORT, "yes"), (STATE, "completed"), (IGNORE_IF_INACCESSIBLE, "yes")];
    until_said(&world, &both);
    world.until("as before", || shown(&world, IGNORE_IF_INACCESSIBLE) == "yes");
    world.until_told("and what that says counts", 1);
    annotate(&world, &[(SUPPORT, None)]);
    world.until("back", || shown(&world, SUPPORT) == "yes");
    world.until_told("and what that says counts", 2);
    until_said(&world, &both);
    // What is taken off the claim goes, and from then on the Volume is heard again.
    claim(&world, Method::PUT, &path, &[(SUPPORT, "yes")]);
    until_said(&world, &[(SUPPORT, "yes"), (STATE, "completed")]);
    world.until("gone", || shown(&world, IGNORE_IF_INACCESSIBLE).is_null());
    world.settled();
    annotate(&world, &[(IGNORE_IF_INACCESSIBLE, Some("no"))]);
    until_said(&world, &[(SUPPORT, "yes"), (STATE, "completed"), (IGNORE_IF_INACCESSIBLE, "no")]);
    assert!(world.follows());
}
