//! Volumes by the real program, on drives that are files: made, shown, explained, expanded and deleted, with the label
//! on the drive as the witness.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

#[path = "../cluster/mod.rs"]
mod cluster;
mod crowd;
mod http;
mod kills;
mod refusals;

use std::process::Command;

use cluster::{Cluster, eventually};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// A cluster whose drives, of 64 MiB each, are in operation.
fn in_operation(drives: usize) -> Cluster {
    let cluster = Cluster::started(drives, false);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    wait_labels(&cluster, drives);
    cluster
}

/// Volumes can be made when the registry has heard what is on the labels.
fn wait_labels(cluster: &Cluster, drives: usize) {
    for bay in 0..drives {
        eventually("the label is told", || cluster.drive(bay)["status"]["freeBytes"].as_u64());
    }
}

/// What the drive itself says: the extents of its label.
fn extents(cluster: &Cluster, bay: usize) -> Vec<Value> {
    let path = &cluster.drives[bay].path;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
    let output = command.args(["drive", "inspect", "-o", "json"]).arg(path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    shown["extents"].as_array().unwrap_or_else(|| panic!("{shown}")).clone()
}

/// Everything is erased, and nothing is left.
fn wait_empty(cluster: &Cluster, drives: usize) {
    for bay in 0..drives {
        eventually("the label is empty", || extents(cluster, bay).is_empty().then_some(()));
        eventually("the drive is free", || {
            let status = cluster.drive(bay)["status"].take();
            (status["dirtyBytes"] == 0 && status["freeBytes"].as_u64()? >= 60 * MIB).then_some(())
        });
    }
}

fn volumes(cluster: &Cluster) -> Vec<Value> {
    let text = cluster.expect(&["get", "volumes", "-o", "json"], 0);
    serde_json::from_str::<Value>(&text).unwrap()["items"].as_array().unwrap().clone()
}

#[test]
fn a_volume_lives_and_its_label_says_so() {
    let cluster = in_operation(2);
    let nothing = cluster.expect(&["volume", "list"], 0);
    assert!(nothing.contains("hotbay volume create NAME"), "{nothing}");
    let claim = ["csi.storage.k8s.io/pvc/namespace=shop", "csi.storage.k8s.io/pvc/name=data-0"];
    let create = ["volume", "create", "db", "--size", "10MiB", "--filesystem", "xfs"];
    let create = [&create[..], &["--param", claim[0], "--param", claim[1]]].concat();
    let made = cluster.expect(&create, 0);
    assert!(made.starts_with("db is made after ") && made.contains(": 10 MiB on d-"), "{made}");
    let again = cluster.expect(&create, 0);
    assert!(again.contains("db is there already: 10 MiB on d-"), "{again}");
    assert!(again.contains("nothing was changed"), "{again}");

    let table = cluster.expect(&["get", "volumes"], 0);
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows[0],
        ["NAME", "SIZE", "STATE", "NODE", "DRIVE", "USED", "ON", "CLAIM", "SINCE", "WHY"]
    );
    assert_eq!(rows[1][..4], ["db", "10M", "Created", cluster.name.as_str()]);
    assert_eq!(rows[1][5..7], ["-", "shop/data-0"]);
    assert_eq!(cluster.expect(&["volume", "list"], 0).lines().count(), 2);
    let object = volumes(&cluster).remove(0);
    assert_eq!(object["status"]["sizeBytes"], 10 * MIB);
    assert_eq!(object["spec"]["parameters"]["fsType"], "xfs");

    let bay = (0..2).find(|bay| !extents(&cluster, *bay).is_empty()).unwrap();
    let on_label = extents(&cluster, bay);
    assert_eq!(on_label.len(), 1, "{on_label:?}");
    assert_eq!(
        (&on_label[0]["name"], &on_label[0]["lengthBytes"]),
        (&json!("db"), &json!(10 * MIB))
    );
    let drive = cluster.drive(bay);
    assert_eq!(drive["status"]["volumes"], json!(["db"]));

    let grown = cluster.expect(&["volume", "expand", "db", "--size", "20MiB"], 0);
    assert!(grown.starts_with("db is larger: 20 MiB on d-"), "{grown}");
    let same = cluster.expect(&["volume", "expand", "db", "--size", "5MiB"], 0);
    assert!(
        same.contains("large enough already") && same.contains("nothing was changed"),
        "{same}"
    );
    assert_eq!(extents(&cluster, bay)[0]["lengthBytes"], 20 * MIB);

    cluster.expect(&["volume", "annotate", "db", "owner=shop", "note=x"], 0);
    cluster.expect(&["volume", "annotate", "db", "note-"], 0);
    assert_eq!(volumes(&cluster)[0]["annotations"], json!({ "owner": "shop" }));
    let described = cluster.expect(&["describe", "volume", "db"], 0);
    for text in
        ["20 MiB (20971520 bytes)", "namespace shop, claim data-0", "fsType=xfs", "owner=shop"]
    {
        assert!(described.contains(text), "{text} in {described}");
    }
    assert!(described.contains("Volume db is made, on "), "its events: {described}");
    let drive = cluster.expect(&["describe", "drive", &cluster.target(bay)], 0);
    assert!(drive.contains("db, 20 MiB, namespace shop, claim data-0"), "{drive}");

    let deleted = cluster.expect(&["volume", "delete", "db", "--yes"], 0);
    assert!(deleted.contains("db: 20 MiB on d-"), "what is lost: {deleted}");
    assert!(deleted.contains("namespace shop, claim data-0"), "{deleted}");
    assert!(deleted.contains("db is deleted after "), "{deleted}");
    assert!(volumes(&cluster).is_empty());
    wait_empty(&cluster, 2);
}

#[test]
fn what_is_free_is_zeroed_before_it_is_given_out() {
    let cluster = in_operation(1);
    cluster.expect(&["volume", "create", "old", "--size", "8MiB"], 0);
    let extent = extents(&cluster, 0).remove(0);
    let start = usize::try_from(extent["startBytes"].as_u64().unwrap()).unwrap();
    let secret = b"the secret of the last user";
    let file = std::fs::File::options().write(true).open(&cluster.drives[0].path).unwrap();
    let at = (start + 4096) as u64;
    std::os::unix::fs::FileExt::write_all_at(&file, secret, at).unwrap();
    drop(file);
    cluster.expect(&["volume", "delete", "old", "--yes"], 0);
    wait_empty(&cluster, 1);
    let bytes = cluster.bytes("bay-0.img");
    assert!(!bytes.windows(secret.len()).any(|window| window == secret));
}

#[test]
fn explain_says_where_and_of_every_other_drive_why_not() {
    let cluster = Cluster::started(3, false);
    for bay in 0..2 {
        cluster.expect(&["drive", "add", &cluster.target(bay), "--wait"], 0);
    }
    wait_labels(&cluster, 2);
    let group = ["--size", "1MiB", "--spread", "required", "--group", "db"];
    cluster.expect(&[&["volume", "create", "db-0"], &group[..]].concat(), 0);
    let told = cluster.expect(&[&["volume", "explain"], &group[..]].concat(), 0);
    let lines: Vec<_> = told.lines().collect();
    assert!(lines[0].starts_with("would go to  d-"), "{told}");
    assert!(lines[0].ends_with("MiB free, the only one that fits"), "{told}");
    assert!(
        told.contains("no: volume db-0 of the same group is on it (spread required)"),
        "{told}"
    );
    assert!(told.contains("no: not in operation"), "{told}");
    let json = cluster.expect(&[&["volume", "explain", "-o", "json"], &group[..]].concat(), 0);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["fits"], json["drives"].as_array().unwrap().len()), (&json!(true), 3));
    let chosen = json["drives"][0]["name"].as_str().unwrap();
    let made = cluster.expect(&[&["volume", "create", "db-1"], &group[..]].concat(), 0);
    assert!(made.contains(chosen), "it goes where it was said: {made}");
    let nowhere = cluster.expect(&["volume", "explain", "--size", "1TiB"], 0);
    assert!(nowhere.starts_with("would go nowhere: no drive fits"), "{nowhere}");
    assert!(nowhere.contains("no room: "), "{nowhere}");
}

#[test]
fn a_removal_names_the_volumes_that_it_waits_for() {
    let cluster = in_operation(1);
    cluster.expect(&["volume", "create", "db", "--size", "3MiB"], 0);
    let target = cluster.target(0);
    let told = cluster.expect(&["drive", "remove", &target, "--dry-run"], 0);
    assert!(told.contains("1 volume is on it"), "{told}");
    let told = cluster.expect(&["drive", "remove", &target], 3);
    assert!(told.contains("  db  3 MiB  no claim  not in use"), "{told}");
    let drives = cluster.expect(&["get", "drives"], 0);
    assert!(drives.contains("waits for 1 volume: db"), "{drives}");
    cluster.expect(&["volume", "delete", "db", "--yes"], 0);
    cluster.expect(&["drive", "remove", &target, "--wait"], 0);
    assert!(!cluster::anyone_has_open(&cluster.drives[0].path));
}
