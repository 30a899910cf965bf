//! What people do with kubectl.

use crate::cases;
use crate::world::{VOLUME, World};

#[test]
fn a_thousand_drives_cost_their_own_writes_and_no_more() {
    cases::nothing_is_written_for_our_own_writes(1_000);
}

fn kubectl(world: &World, arguments: &[&str]) -> String {
    world.server.kubectl().run(arguments).unwrap()
}

/// Waits until an object has a condition.
fn wait(world: &World, condition: &str, object: &str) {
    let condition = format!("--for=condition={condition}");
    // A watch: the rig's own limit for a request would cut it short.
    let wait = ["--request-timeout=0", "wait", &condition, "--timeout=90s", object];
    kubectl(world, &wait);
}

#[test]
fn a_drive_is_added_and_removed_by_a_patch() {
    let world = World::with_drives(1);
    let name = world.drive_name("S0");
    let drive = format!("drive/{name}");
    world.until("there", || world.find("drives", &name).is_some());
    let patch = |spec: &str| {
        let patch = format!(r#"{{"spec":{{"inOperation":{spec}}}}}"#);
        world.server.kubectl().run(&["patch", &drive, "--type", "merge", "-p", &patch])
    };
    patch("true").unwrap();
    let wait = |condition: &str| wait(&world, condition, &drive);
    wait("SpecApplied");
    wait("InOperation");
    patch("false").unwrap();
    wait("InOperation=False");
    wait("SpecApplied");
    let described = kubectl(&world, &["describe", &drive]);
    let words = described.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in ["Reason: S_OK", "that is proved", "Asked By: kubernetes"] {
        assert!(words.contains(expected), "{described}");
    }
    let error = patch(r#""perhaps""#).unwrap_err().to_string();
    assert!(error.contains("must be of type boolean"), "{error}");
}

/// Every object at once, and by its category, as one who cleans up would.
#[test]
fn everything_is_deleted_and_comes_back() {
    let world = World::new();
    let names = || {
        let list = kubectl(&world, &["get", "hotbay", "-o", "name"]);
        let mut names: Vec<_> = list.lines().map(str::to_owned).collect();
        names.sort();
        names
    };
    let before = names();
    assert_eq!(before.len(), 6);
    kubectl(&world, &["delete", "hotbay", "--all", "--wait=false"]);
    world.until_told("was deleted and is written again", 6);
    world.until("everything is back", || {
        names() == before && world.condition("volumes", VOLUME, "Created") == "True"
    });
    wait(&world, "Attached", "hba/pvc-1-node-a");
}

#[test]
fn a_volume_is_made_by_a_manifest_and_shows_its_fault_until_it_is_mended() {
    let world = World::new();
    let manifest = |colour: &str| {
        format!(
            "apiVersion: hotbay.dev/v1alpha1\nkind: Volume\nmetadata: {{name: logs}}\n\
             spec:\n  sizeBytes: 1048576\n  parameters: {{{colour}}}\n"
        )
    };
    world.server.kubectl().apply(&manifest("colour: red")).unwrap();
    wait(&world, "Created=False", "hbv/logs");
    let described = kubectl(&world, &["describe", "hbv/logs"]);
    assert!(described.contains("InvalidParameters") && described.contains("colour"), "{described}");
    world.server.kubectl().apply(&manifest("")).unwrap();
    wait(&world, "Created", "hbv/logs");
}
