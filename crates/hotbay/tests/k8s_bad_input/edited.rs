//! Objects in the hands of people, while controllers run and while none does.

use std::fs;

use serde_json::{Value, json};

use crate::controllers::csi::{dial, publish};
use crate::controllers::mounted::{Writer, mount, unmount};
use crate::controllers::{Rig, until};
use crate::{object, said, stop, until_said};

const REGISTRY: [&str; 2] = ["registries.hotbay.dev", "registry"];
const IGNORE: &str = "pv.attach.kubernetes.io/ignore-if-inaccessible";

fn edit_status(rig: &Rig, what: &[&str], status: &Value) {
    let patch = json!({ "status": status }).to_string();
    let patch = [&["patch"], what, &["--subresource=status", "--type", "merge", "-p", &patch]];
    rig.plane.kubectl().run(&patch.concat()).unwrap();
}

fn start(rig: &mut Rig) {
    (0..rig.controllers.len()).for_each(|number| rig.restart(number));
}

/// On a Volume, a Drive and a claim. What people keep there is theirs; what is too long to count is told.
pub(crate) fn long_annotations(rig: &mut Rig) {
    let (before, drive) = (said(rig), rig.drive_name(0));
    let long = "x".repeat(200 << 10);
    let file = rig.path("long.json");
    let annotations = json!({ "example.com/note": long });
    fs::write(&file, json!({ "metadata": { "annotations": annotations } }).to_string()).unwrap();
    let file = file.to_str().unwrap().to_owned();
    for what in [["volumes.hotbay.dev", "kept"], ["drives.hotbay.dev", &drive]] {
        let patch = ["--type", "merge", "--patch-file", &file];
        rig.plane.kubectl().run(&[&["patch"], &what[..], &patch].concat()).unwrap();
    }
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "long", "namespace": "default", "annotations": { IGNORE: long } },
        "spec": { "accessModes": ["ReadWriteOnce"], "volumeName": "kept", "storageClassName": "",
                  "resources": { "requests": { "storage": "16Mi" } } },
    });
    rig.plane.kubectl().with_input(&["create", "-f", "-"], &claim.to_string()).unwrap();
    // Only a bound claim counts, and nobody binds it here.
    edit_status(rig, &["pvc", "long"], &json!({ "phase": "Bound" }));
    until_said(rig, "of the claim default/long has 204800 bytes and does not count", &before);
    // The next decisions about them are written all the same, and keep what people wrote.
    rig.insist(&["volume", "annotate", "kept", "owner=me"]);
    let kept = object(rig, &["volumes.hotbay.dev", "kept"]);
    assert_eq!(kept["metadata"]["annotations"]["example.com/note"], long);
    assert_eq!(kept["status"]["record"]["annotations"]["owner"], "me");
    rig.plane.kubectl().run(&["delete", "pvc", "long", "--wait=false"]).unwrap();
}

/// A Drive and a Volume whose decisions were changed: nobody's decision is followed, and both are learnt again.
pub(crate) fn at_rest(rig: &mut Rig) {
    let labels = rig.agent().labels();
    let has_volume = |label: &Value| {
        label["extents"].as_array().unwrap().iter().any(|extent| extent["name"] == "kept")
    };
    let at = labels.iter().position(has_volume).unwrap();
    let drive = rig.drive_name(at);
    let (volume, node) =
        (object(rig, &["volumes.hotbay.dev", "kept"]), rig.objects("storagenodes"));
    let id = |object: &Value| object["status"]["id"].as_str().unwrap().to_owned();
    let (volume, node) = (id(&volume), id(&node[0]));
    stop(rig);
    let before = said(rig);
    let (drive, kept) = (["drives.hotbay.dev", &drive], ["volumes.hotbay.dev", "kept"]);
    edit_status(rig, &drive, &json!({ "record": { "state": "Detached", "generation": 99 } }));
    edit_status(rig, &kept, &json!({ "record": null, "checksum": "nonsense", "state": "Lost" }));
    start(rig);
    until_said(rig, "was changed by hand and is left out", &before);
    until("the drive is learnt again", || {
        rig.restart_ended();
        let events = rig.try_client(&["events"])?;
        events.contains("its record was missing").then_some(()).ok_or(events)
    });
    until("it is in operation, as its agent says", || {
        rig.restart_ended();
        let drive = object(rig, &drive);
        let state = drive["status"]["state"].as_str().unwrap_or_default();
        if state == "AttachedDevice" { Ok(()) } else { Err(drive.to_string()) }
    });
    // The volume is used again, under its own id, and its object is as it should be.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    until("its label is told", || {
        rig.restart_ended();
        let volumes = rig.try_client(&["get", "volumes", "-o", "json"])?;
        volumes.contains("\"kept\"").then_some(()).ok_or(volumes)
    });
    let csi = rig.controllers[rig.leader(None)].csi();
    runtime.block_on(async { publish(dial(csi), &volume, &node).await });
    let now = object(rig, &kept);
    assert_eq!((&now["status"]["state"], id(&now)), (&json!("Created"), volume));
    assert_eq!(rig.agent().labels()[at]["extents"], labels[at]["extents"]);
}

/// The kinds whose objects are learnt again from the machines.
const LEARNT: [&str; 4] = ["attachments", "volumes", "drives", "storagenodes"];

/// All objects of drives, volumes, uses and nodes, with the finalizers that hold some of them: what is left are the
/// labels and what the agent remembers. A program uses the volume all the time.
pub(crate) fn deleted_at_rest(rig: &mut Rig) {
    goes_on_without(rig, &LEARNT);
}

/// The Registry, too, as with the definitions: what the agent remembers is of a past that no record has any more.
pub(crate) fn deleted_with_the_registry(rig: &mut Rig) {
    let all: Vec<_> = LEARNT.into_iter().chain(["registries"]).collect();
    goes_on_without(rig, &all);
}

/// Deletes what nobody looks after, under a program that writes; everything comes back from the machine.
fn goes_on_without(rig: &mut Rig, kinds: &[&str]) {
    let writer = Writer::start(&mount(rig, "kept"));
    let (labels, volume) = (rig.agent().labels(), object(rig, &["volumes.hotbay.dev", "kept"]));
    stop(rig);
    for kind in kinds {
        let kind = format!("{kind}.hotbay.dev");
        rig.plane.kubectl().run(&["delete", &kind, "--all", "--wait=false"]).unwrap();
        let held = rig.plane.kubectl().run(&["get", &kind, "-o", "name"]).unwrap();
        for object in held.lines() {
            let bare = r#"{"metadata": {"finalizers": null}}"#;
            let bare = ["patch", object, "--type", "merge", "-p", bare];
            rig.plane.kubectl().run(&bare).unwrap();
        }
        assert!(rig.plane.kubectl().run(&["get", &kind, "-o", "name"]).unwrap().is_empty());
    }
    start(rig);
    if kinds.contains(&"registries") {
        until("the agent knows more", || {
            rig.restart_ended();
            let status = rig.try_client(&["status"]).err().unwrap_or_default();
            status.contains("hotbay registry adopt").then_some(()).ok_or(status)
        });
        rig.insist(&["registry", "adopt", "--yes"]);
    }
    let node = rig.node.clone();
    rig.insist(&["host", "add", &node, "--wait"]);
    until("the volume is known by its label", || {
        rig.restart_ended();
        let volumes = rig.try_client(&["get", "volumes", "-o", "json"])?;
        volumes.contains("\"Orphan\"").then_some(()).ok_or(volumes)
    });
    writer.goes_on();
    writer.end();
    unmount(rig, "kept");
    // Used again it is what it was.
    let at = mount(rig, "kept");
    assert!(fs::metadata(at.join("lines")).unwrap().len() > 0);
    let now = object(rig, &["volumes.hotbay.dev", "kept"]);
    assert_eq!(now["status"]["state"], "Created");
    assert_eq!(now["status"]["id"], volume["status"]["id"]);
    unmount(rig, "kept");
    let extents = |labels: &[Value]| labels.iter().map(|it| it["extents"].clone()).collect();
    let (now, before): (Vec<_>, Vec<_>) = (extents(&rig.agent().labels()), extents(&labels));
    assert_eq!(now, before, "a label lost or gained something");
}

/// The one object that cannot be learnt again: nothing starts, until it is put back.
pub(crate) fn registry_at_rest(rig: &mut Rig) {
    stop(rig);
    let (before, registry) = (said(rig), object(rig, &REGISTRY));
    edit_status(rig, &REGISTRY, &json!({ "record": { "terms": [] } }));
    start(rig);
    until_said(rig, "restore it from a backup", &before);
    assert!(rig.try_client(&["get", "nodes"]).is_err());
    edit_status(rig, &REGISTRY, &json!({ "record": registry["status"]["record"] }));
}

/// The same object deleted: the others tell of the newest term, and the agent knows no later one.
pub(crate) fn registry_deleted_at_rest(rig: &mut Rig) {
    stop(rig);
    let before = object(rig, &REGISTRY);
    rig.plane.kubectl().run(&[&["delete"], &REGISTRY[..]].concat()).unwrap();
    start(rig);
    rig.until_ready(&rig.node);
    let now = object(rig, &REGISTRY);
    assert_eq!(now["status"]["record"]["cluster"], before["status"]["record"]["cluster"]);
    assert_ne!(now["metadata"]["uid"], before["metadata"]["uid"]);
}

/// A controller of this release does not touch them, and says which one to start.
pub(crate) fn of_a_newer_release(rig: &mut Rig) {
    stop(rig);
    let (before, registry) = (said(rig), object(rig, &REGISTRY));
    assert_eq!(registry["status"]["formatVersion"], 1);
    edit_status(rig, &REGISTRY, &json!({ "formatVersion": 9 }));
    start(rig);
    let words = "the records have format version 9, and this release reads up to 1";
    until_said(rig, words, &before);
    assert_eq!(object(rig, &REGISTRY)["status"]["record"], registry["status"]["record"]);
    edit_status(rig, &REGISTRY, &json!({ "formatVersion": 1 }));
}
