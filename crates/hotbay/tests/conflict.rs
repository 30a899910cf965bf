//! A copy of a drive in operation, in another machine: it is shown, and denied, and goes away when the copy does.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;

use std::path::Path;
use std::process::Stdio;

use cluster::{Cluster, Part, eventually};
use serde_json::Value;

fn second_agent(cluster: &Cluster, name: &str, drive: &Path) -> Part {
    let mut command = cluster.hotbay();
    command.arg("node").arg("--join").arg(cluster.api()).args(["--name", name]);
    command.arg("--data-dir").arg(cluster.path().join("second")).stdout(Stdio::null());
    command.arg("--drives").arg(format!("7={}", drive.display()));
    Part::of(command.spawn().unwrap())
}

fn drives(cluster: &Cluster) -> Vec<Value> {
    let list = cluster.expect(&["get", "drives", "-o", "json"], 0);
    serde_json::from_str::<Value>(&list).unwrap()["items"].as_array().unwrap().clone()
}

#[test]
fn a_copy_of_a_drive_is_denied_until_it_is_gone() {
    let cluster = Cluster::started(1, false);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let copy = cluster.path().join("copy.img");
    std::fs::copy(&cluster.drives[0].path, &copy).unwrap();
    let before = std::fs::read(&copy).unwrap();
    let other = format!("{}-2", cluster.name);
    let agent = second_agent(&cluster, &other, &copy);
    let row = eventually("the copy is listed", || {
        drives(&cluster).into_iter().find(|drive| drive["status"]["node"] == other.as_str())
    });

    let original = cluster.drive(0);
    let denied = &row["status"]["denied"][0];
    assert_eq!(denied["reason"], "IdentityConflict", "{row}");
    assert_eq!(denied["drive"], original["metadata"]["name"]);
    assert_eq!(denied["node"], cluster.name.as_str());
    let table = cluster.expect(&["get", "drives"], 0);
    assert!(table.contains("IdentityConflict: it looks like d-"), "{table}");
    let place = format!("{other}:bay-7");
    let described = cluster.expect(&["describe", "drive", &place], 0);
    assert!(described.contains("IdentityConflict"), "{described}");
    let answer = cluster.expect(&["drive", "add", &place], 5);
    assert!(answer.contains("IdentityConflict: it looks like d-"), "{answer}");
    let answer = cluster.expect(&["host", "add", &other], 0);
    assert!(answer.contains("left out: "), "{answer}");

    // The drive in operation is what it was.
    assert_eq!(cluster.drive(0), original);
    assert_eq!(cluster.agent_descriptors(0).len(), 1);
    assert_eq!(std::fs::read(&copy).unwrap(), before, "the copy was written to");

    std::fs::remove_file(&copy).unwrap();
    eventually("the conflict is over", || {
        let left = drives(&cluster);
        left.iter().all(|drive| drive["status"]["node"] != other.as_str()).then_some(())
    });
    cluster.expect(&["drive", "add", &place], 4);
    drop(agent);
}
