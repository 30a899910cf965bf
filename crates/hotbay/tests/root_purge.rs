//! A host is purged with volumes on its drives, and comes back: its drives are closed once nothing uses them, nothing
//! on them is touched, and a person may take it all back.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod cluster;

use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::{Cluster, eventually};
use serde_json::Value;

fn agent_dir(cluster: &Cluster) -> String {
    cluster.path().join("node").to_str().unwrap().to_owned()
}

fn mount(cluster: &Cluster, at: &Path) {
    let dir = agent_dir(cluster);
    cluster.expect(&["volume", "mount", "db", at.to_str().unwrap(), "--agent-dir", &dir], 0);
}

fn volume_state(cluster: &Cluster) -> String {
    let volume = cluster.expect(&["get", "volumes", "-o", "json"], 0);
    let volume: Value = serde_json::from_str(&volume).unwrap();
    volume["items"][0]["status"]["state"].as_str().unwrap().to_owned()
}

/// Unmounts and unmaps whatever is left when a test fails.
struct Leftovers {
    mount: PathBuf,
    drive: PathBuf,
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| Path::new(point).starts_with(&self.mount)) {
            Command::new("umount").arg(point).status().ok();
        }
        let over = Command::new("losetup").arg("-j").arg(&self.drive).output();
        let over = over.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        for line in over.unwrap_or_default().lines() {
            let mapping = line.split(':').next().unwrap_or_default();
            Command::new("losetup").args(["-d", mapping]).status().ok();
        }
    }
}

/// Invariant 5: a drive with live volumes is never closed by an order, except a purged one, and only when nothing of it
/// is mapped or mounted.
#[test]
fn a_purged_drive_is_closed_with_its_volumes_when_nothing_uses_them() {
    let mut cluster = Cluster::started(1, true);
    let _leftovers =
        Leftovers { mount: cluster.path().to_owned(), drive: cluster.drives[0].path.clone() };
    let host = cluster.name.clone();
    cluster.expect(&["host", "add", &host, "--wait"], 0);
    cluster.expect(&["volume", "create", "db", "--size", "40MiB"], 0);
    let at = cluster.path().join("db");
    mount(&cluster, &at);
    std::fs::write(at.join("kept"), "bytes").unwrap();

    // As a machine that is cut off: nobody hears of it, and the volume is still mounted there.
    cluster.agent.take().unwrap().kill();
    let purged = eventually("the host can be purged", || {
        let output = cluster.client(&["host", "purge", &host, "--yes"]);
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    assert!(purged.contains("1 volume lost"), "{purged}");
    assert!(purged.contains("nothing is erased"), "{purged}");
    assert!(purged.contains(&format!("hotbay host add {host} --returned")), "{purged}");
    assert_eq!(volume_state(&cluster), "Lost");

    cluster.start_agent();
    let why = eventually("it is told why the drive is not closed", || {
        let shown = cluster.expect(&["describe", "drive", &cluster.target(0)], 0);
        shown.contains("still in use by volume db, mapped at /dev/loop").then_some(shown)
    });
    assert_eq!(cluster.state(0), "ClosingDevice", "{why}");
    assert_eq!(std::fs::read_to_string(at.join("kept")).unwrap(), "bytes", "it is used as before");
    assert_eq!(volume_state(&cluster), "Lost", "it is not taken back by itself");

    cluster.expect(&["volume", "unmount", "db", "--agent-dir", &agent_dir(&cluster)], 0);
    cluster.wait_state(0, "DetachedDevice");
    let path = cluster.drives[0].path.to_str().unwrap().to_owned();
    let label = cluster.expect(&["drive", "inspect", &path, "-o", "json"], 0);
    let label: Value = serde_json::from_str(&label).unwrap();
    assert_eq!(label["extents"][0]["use"], "Used", "neither adopted nor erased: {label:#}");

    let refused = cluster.expect(&["host", "add", &host], 5);
    assert!(refused.contains("--returned"), "{refused}");
    cluster.expect(&["host", "add", &host, "--returned", "--wait"], 0);
    eventually("the volume is found", || (volume_state(&cluster) == "Created").then_some(()));
    mount(&cluster, &at);
    assert_eq!(std::fs::read_to_string(at.join("kept")).unwrap(), "bytes");
    cluster.expect(&["volume", "unmount", "db", "--agent-dir", &agent_dir(&cluster)], 0);
    cluster.expect(&["volume", "delete", "db", "--yes"], 0);
}
