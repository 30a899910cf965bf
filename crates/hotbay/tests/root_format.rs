//! A volume that had a filesystem never gets a new one by itself, whatever became of the old one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod cluster;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use cluster::Cluster;
use serde_json::Value;

/// So much of a volume is overwritten: every superblock at its beginning.
const WIPED: usize = 1 << 20;

fn agent_dir(cluster: &Cluster) -> String {
    cluster.path().join("node").to_str().unwrap().to_owned()
}

fn mount(cluster: &Cluster, at: &Path, code: i32) -> String {
    let dir = agent_dir(cluster);
    cluster.expect(&["volume", "mount", "db", at.to_str().unwrap(), "--agent-dir", &dir], code)
}

fn unmount(cluster: &Cluster) {
    cluster.expect(&["volume", "unmount", "db", "--agent-dir", &agent_dir(cluster)], 0);
}

/// Where the volume begins on its drive.
fn start(cluster: &Cluster) -> u64 {
    let path = cluster.drives[0].path.to_str().unwrap().to_owned();
    let label = cluster.expect(&["drive", "inspect", &path, "-o", "json"], 0);
    let label: Value = serde_json::from_str(&label).unwrap();
    label["extents"][0]["startBytes"].as_u64().unwrap()
}

/// What is left when a test fails.
struct Leftovers<'a>(&'a Path, &'a Path);

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        let Self(at, drive) = self;
        Command::new("umount").arg(at).status().ok();
        let over = Command::new("losetup").arg("-j").arg(drive).output();
        let over = over.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        for line in over.unwrap_or_default().lines() {
            let mapping = line.split(':').next().unwrap_or_default();
            Command::new("losetup").args(["-d", mapping]).status().ok();
        }
    }
}

/// The story: the first bytes of a volume were overwritten, it looked empty, and the next pod got a new filesystem.
#[test]
fn a_filesystem_that_is_not_found_any_more_is_not_made_again() {
    let cluster = Cluster::started(1, true);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    cluster.expect(&["volume", "create", "db", "--size", "40MiB"], 0);
    let (at, drive) = (cluster.path().join("db"), cluster.drives[0].path.clone());
    let _leftovers = Leftovers(&at, &drive);
    mount(&cluster, &at, 0);
    std::fs::write(at.join("kept"), "bytes").unwrap();
    unmount(&cluster);

    let start = start(&cluster);
    let bytes = File::options().read(true).write(true).open(&drive).unwrap();
    let mut kept = vec![0; WIPED];
    bytes.read_exact_at(&mut kept, start).unwrap();
    bytes.write_all_at(&vec![0; WIPED], start).unwrap();
    bytes.sync_all().unwrap();

    let refused = mount(&cluster, &at, 3);
    assert!(refused.contains("it had a filesystem, and none is found on it any more"), "{refused}");
    assert!(refused.contains("mkfs.ext4 /dev/loop"), "{refused}");
    let mut left = vec![1; WIPED];
    bytes.read_exact_at(&mut left, start).unwrap();
    assert!(left.iter().all(|byte| *byte == 0), "nothing was written");

    // Repaired, it has what it had.
    bytes.write_all_at(&kept, start).unwrap();
    bytes.sync_all().unwrap();
    drop(bytes);
    mount(&cluster, &at, 0);
    assert_eq!(std::fs::read_to_string(at.join("kept")).unwrap(), "bytes");
    unmount(&cluster);
}
