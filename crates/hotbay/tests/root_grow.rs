//! Drives that grow and shrink while volumes on them are mounted, with the real program and loop devices.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod cluster;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::{Cluster, eventually};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The steps of writing a table for a larger drive that a child can die at.
const STEPS: &[&str] = &[
    "backup-entries-written",
    "backup-header-written",
    "backup-table-synced",
    "outgrown-zeroed",
    "outgrown-synced",
    "primary-entries-written",
    "protective-mbr-written",
    "primary-entries-synced",
    "primary-header-written",
    "primary-table-synced",
    "third-written",
];

fn in_operation() -> Cluster {
    let cluster = Cluster::started(1, true);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    cluster
}

/// Gives the drive another size, as a larger disk of a virtual machine or a volume of a storage array gets one.
fn resize(cluster: &Cluster, size_bytes: u64) {
    let drive = &cluster.drives[0];
    File::options().write(true).open(&drive.file).unwrap().set_len(size_bytes).unwrap();
    let told = Command::new("losetup").arg("-c").arg(&drive.path).status().unwrap();
    assert!(told.success());
}

fn wait_free(cluster: &Cluster, free_mib: u64) {
    let what = format!("{free_mib} MiB are free");
    eventually(&what, || (cluster.drive(0)["status"]["freeBytes"] == free_mib * MIB).then_some(()));
}

fn inspect(cluster: &Cluster) -> Value {
    let path = cluster.drives[0].path.to_str().unwrap().to_owned();
    serde_json::from_str(&cluster.expect(&["drive", "inspect", &path, "-o", "json"], 0)).unwrap()
}

/// A volume that is mounted, with bytes in it; unmounted with the value.
struct Mounted<'a> {
    cluster: &'a Cluster,
    at: PathBuf,
}

impl<'a> Mounted<'a> {
    fn new(cluster: &'a Cluster, volume: &str) -> Self {
        let at = cluster.path().join("mnt");
        std::fs::create_dir(&at).unwrap();
        let mounted = Self { cluster, at };
        let dir = mounted.agent_dir();
        let at = mounted.at.to_str().unwrap();
        cluster.expect(&["volume", "mount", volume, at, "--agent-dir", &dir], 0);
        std::fs::write(mounted.file(), vec![0xa5; 4 << 20]).unwrap();
        File::open(mounted.file()).unwrap().sync_all().unwrap();
        mounted
    }

    fn agent_dir(&self) -> String {
        self.cluster.path().join("node").to_str().unwrap().to_owned()
    }

    fn file(&self) -> PathBuf {
        self.at.join("data")
    }

    /// What is on the drive, not in the cache.
    fn check(&self) {
        let file = File::open(self.file()).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert!(std::fs::read(self.file()).unwrap().iter().all(|byte| *byte == 0xa5));
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let dir = self.agent_dir();
        let volume = self.cluster.client(&["volume", "unmount", "old", "--agent-dir", &dir]);
        if !volume.status.success() {
            unmount_by_force(&self.at, &self.cluster.drives[0].path);
        }
    }
}

/// For a test that has failed.
fn unmount_by_force(at: &Path, drive: &Path) {
    Command::new("umount").arg(at).status().ok();
    let over = Command::new("losetup").arg("-j").arg(drive).output();
    let over = over.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    for line in over.unwrap_or_default().lines() {
        let mapping = line.split(':').next().unwrap_or_default();
        Command::new("losetup").args(["-d", mapping]).status().ok();
    }
}

/// What the programs of others say of the partition table.
fn sfdisk(cluster: &Cluster) -> String {
    let output =
        Command::new("sfdisk").arg("--verify").arg(&cluster.drives[0].path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn what_a_drive_has_grown_by_is_for_volumes_while_others_are_in_use() {
    let cluster = in_operation();
    cluster.expect(&["volume", "create", "old", "--size", "40MiB"], 0);
    let mounted = Mounted::new(&cluster, "old");
    wait_free(&cluster, 20);
    let refused = cluster.expect(&["volume", "create", "new", "--size", "100MiB"], 5);
    assert!(refused.contains("no room: 20 MiB in one piece at most"), "{refused}");

    resize(&cluster, 256 * MIB);
    wait_free(&cluster, 256 - 4 - 40);
    let shown = cluster.expect(&["get", "drives"], 0);
    assert!(shown.contains("212M"), "{shown}");
    let explained = cluster.expect(&["volume", "explain", "--size", "100MiB"], 0);
    assert!(explained.contains("212 MiB free"), "{explained}");
    cluster.expect(&["volume", "create", "new", "--size", "100MiB"], 0);
    mounted.check();
    let label = inspect(&cluster);
    assert_eq!(label["partitionTable"], "Whole", "{label:#}");
    assert_eq!(label["extents"].as_array().unwrap().len(), 2, "{label:#}");
    let verified = sfdisk(&cluster);
    assert!(verified.contains("No errors detected"), "{verified}");
    let told = cluster.expect(&["events"], 0);
    assert!(told.contains("has grown from 64 MiB to 256 MiB."), "{told}");
}

#[test]
fn a_drive_that_ends_before_its_volumes_says_so_and_is_well_when_it_has_grown_back() {
    let cluster = in_operation();
    cluster.expect(&["volume", "create", "old", "--size", "40MiB"], 0);
    let mounted = Mounted::new(&cluster, "old");
    resize(&cluster, 256 * MIB);
    wait_free(&cluster, 212);
    cluster.expect(&["volume", "create", "new", "--size", "100MiB"], 0);
    resize(&cluster, 80 * MIB);
    let condition = eventually("the drive is too small", || {
        let conditions = cluster.drive(0)["status"]["conditions"].clone();
        conditions.as_array()?.first().cloned()
    });
    assert_eq!(condition["type"], "Shrunk");
    let message = condition["message"].as_str().unwrap();
    assert_eq!(message, "volume new reaches beyond its end; it takes no new volumes");
    let told = cluster.expect(&["events"], 0);
    assert!(told.contains("while in operation: volume new reaches beyond its end"), "{told}");
    let refused = cluster.expect(&["volume", "create", "third", "--size", "1MiB"], 5);
    assert!(refused.contains("smaller than it was"), "{refused}");
    mounted.check();

    resize(&cluster, 256 * MIB);
    eventually("the drive is well", || {
        (cluster.drive(0)["status"]["conditions"].as_array()?.is_empty()).then_some(())
    });
    wait_free(&cluster, 112);
    cluster.expect(&["volume", "create", "third", "--size", "100MiB"], 0);
    mounted.check();
    assert_eq!(cluster.state(0), "AttachedDevice");
}

/// Whoever writes the table is killed at every step; what follows has all the room, and every extent.
#[test]
fn a_kill_at_any_step_of_growing_is_made_good() {
    for step in STEPS {
        let mut cluster = Cluster::new(1, true);
        let once = cluster.path().join("die-once");
        cluster.set("HOTBAY_DIE_AT", step);
        cluster.set("HOTBAY_DIE_ONCE", once.to_str().unwrap());
        cluster.start_registry();
        cluster.start_agent();
        cluster.wait_ready();
        cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
        cluster.expect(&["volume", "create", "old", "--size", "40MiB"], 0);
        File::create(&once).unwrap();
        resize(&cluster, 128 * MIB);
        eventually(&format!("somebody died at {step}"), || (!once.exists()).then_some(()));
        let label = inspect(&cluster);
        assert_eq!(label["extents"].as_array().unwrap().len(), 1, "{step}: {label:#}");
        wait_free(&cluster, 128 - 4 - 40);
        eventually(&format!("the table is whole after {step}"), || {
            (inspect(&cluster)["partitionTable"] == "Whole").then_some(())
        });
        let verified = sfdisk(&cluster);
        assert!(verified.contains("No errors detected"), "{step}: {verified}");
    }
}
