//! Volumes on loop devices with the real program: bytes live through kills of everything around them, mounts come back
//! after a restart of the machine, and a whole life passes with a kill -9 at every step.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod cluster;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cluster::{Cluster, eventually};

/// Steps of a volume's life that a process can die at.
const STEPS: &[&str] = &[
    "registry-batch-decided",
    "registry-batch-durable",
    "registry-released",
    "agent-record-decided",
    "agent-record-durable",
    "found-synced",
    "extents-written",
    "slot-written",
    "slot-synced",
    "third-written",
    "map-locked",
    "map-configured",
    "map-verified",
    "make-made",
    "mount-put",
    "bind-put",
    "unmount-done",
    "remove-looked",
    "unmap-found",
    "unmap-cleared",
    "erase-zeroed",
    "erase-synced",
];

/// A cluster whose drives are in operation.
fn in_operation(drives: usize) -> Cluster {
    let cluster = Cluster::started(drives, true);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    cluster
}

fn agent_dir(cluster: &Cluster) -> String {
    cluster.path().join("node").to_str().unwrap().to_owned()
}

fn mount(cluster: &Cluster, volume: &str, at: &Path, more: &[&str]) {
    let dir = agent_dir(cluster);
    let mut arguments = vec!["volume", "mount", volume, at.to_str().unwrap(), "--agent-dir", &dir];
    arguments.extend(more);
    cluster.expect(&arguments, 0);
}

fn unmount(cluster: &Cluster, volume: &str) {
    cluster.expect(&["volume", "unmount", volume, "--agent-dir", &agent_dir(cluster)], 0);
}

/// What is mounted below the cluster's folder.
fn mounts(cluster: &Cluster) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = cluster.path().to_str().unwrap().to_owned();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4).map(str::to_owned));
    points.filter(|point| point.starts_with(&below)).collect()
}

/// The loop devices over the cluster's drives.
fn mapped(cluster: &Cluster) -> usize {
    let output =
        Command::new("losetup").args(["--list", "--noheadings", "-O", "BACK-FILE"]).output();
    let list = String::from_utf8(output.unwrap().stdout).unwrap();
    let is_drive = |line: &&str| {
        cluster.drives.iter().any(|drive| line.trim() == drive.path.to_str().unwrap())
    };
    list.lines().filter(is_drive).count()
}

/// Whether the label of a drive has any extent.
fn has_extents(cluster: &Cluster, bay: usize) -> bool {
    let path = cluster.drives[bay].path.to_str().unwrap().to_owned();
    let output = cluster.client(&["drive", "inspect", &path, "-o", "json"]);
    let label: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    !label["extents"].as_array().unwrap_or(&Vec::new()).is_empty()
}

/// Unmounts whatever is left below a folder when a test fails.
struct Mounts(PathBuf);

impl Drop for Mounts {
    fn drop(&mut self) {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| Path::new(point).starts_with(&self.0)) {
            Command::new("umount").arg(point).status().ok();
        }
        let columns = ["--list", "--noheadings", "-O", "NAME,BACK-FILE"];
        let Ok(output) = Command::new("losetup").args(columns).output() else { return };
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut words = line.split_whitespace();
            if let (Some(name), Some(file)) = (words.next(), words.next())
                && file.starts_with(self.0.to_str().unwrap_or_default())
            {
                // The mappings first: they are over these.
                let over = Command::new("losetup").args(["-j", name]).output();
                let over = over.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
                for mapping in over.unwrap_or_default().lines() {
                    let mapping = mapping.split(':').next().unwrap_or_default();
                    Command::new("losetup").args(["-d", mapping]).status().ok();
                }
            }
        }
    }
}

/// Writes blocks that tell their round, syncs, and reads them back, until told to stop; gives how many rounds passed.
fn writes_and_reads(at: &Path, stop: &AtomicBool) -> u32 {
    let path = at.join("bytes");
    let mut round = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let block = round.to_le_bytes().repeat(64 << 10);
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .read(true)
            .open(&path)
            .unwrap();
        file.write_all(&block).unwrap();
        file.sync_all().unwrap();
        let mut read = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut read).unwrap();
        assert!(read == block, "round {round} does not read back");
    }
    round
}

#[test]
fn bytes_live_through_kills_of_agent_and_registry() {
    let mut cluster = in_operation(1);
    let _mounts = Mounts(cluster.path().to_owned());
    cluster.expect(&["volume", "create", "db", "--size", "40MiB"], 0);
    let at = cluster.path().join("db");
    mount(&cluster, "db", &at, &[]);
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (at, stop) = (at.clone(), stop.clone());
        std::thread::spawn(move || writes_and_reads(&at, &stop))
    };
    for _ in 0..3 {
        cluster.agent.take().unwrap().kill();
        cluster.start_agent();
        cluster.wait_ready();
        cluster.registry.take().unwrap().kill();
        cluster.start_registry();
        cluster.wait_ready();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().unwrap() > 3, "it wrote on all the while");
    // The drive is found again beside its mapping, and can be used as before.
    cluster.wait_state(0, "AttachedDevice");
    cluster.expect(&["volume", "create", "more", "--size", "4MiB"], 0);
    let refused = cluster.expect(&["volume", "delete", "db", "--yes"], 5);
    assert!(refused.contains("in use"), "{refused}");
    unmount(&cluster, "db");
    cluster.expect(&["volume", "delete", "db", "--yes"], 0);
    cluster.expect(&["volume", "delete", "more", "--yes"], 0);
    assert_eq!((mounts(&cluster), mapped(&cluster)), (Vec::new(), 0));
    eventually("what they had is erased", || (!has_extents(&cluster, 0)).then_some(()));
}

#[test]
fn a_mount_that_persists_comes_back_without_a_registry() {
    let mut cluster = in_operation(1);
    let _mounts = Mounts(cluster.path().to_owned());
    cluster.expect(&["volume", "create", "db", "--size", "40MiB"], 0);
    let at = cluster.path().join("srv");
    mount(&cluster, "db", &at, &["--persist"]);
    std::fs::write(at.join("kept"), "bytes").unwrap();
    // As a restart of the machine: no process, no mount and no mapping is left.
    cluster.registry.take().unwrap().kill();
    cluster.agent.take().unwrap().kill();
    for point in mounts(&cluster) {
        assert!(Command::new("umount").arg(&point).status().unwrap().success());
    }
    let drive = cluster.drives[0].path.to_str().unwrap().to_owned();
    let over = Command::new("losetup").args(["-j", &drive]).output().unwrap().stdout;
    for mapping in String::from_utf8(over).unwrap().lines() {
        let mapping = mapping.split(':').next().unwrap();
        assert!(Command::new("losetup").args(["-d", mapping]).status().unwrap().success());
    }
    cluster.start_agent();
    let kept = at.join("kept");
    let read = eventually("it is mounted again", || std::fs::read_to_string(&kept).ok());
    assert_eq!(read, "bytes");
    cluster.start_registry();
    cluster.wait_ready();
    unmount(&cluster, "db");
    // It does not come back any more.
    cluster.agent.take().unwrap().kill();
    cluster.start_agent();
    cluster.wait_ready();
    cluster.expect(&["volume", "delete", "db", "--yes"], 0);
    assert!(mounts(&cluster).is_empty());
}

/// Asks until it is done, while whatever dies is started again.
fn until_done(cluster: &mut Cluster, arguments: &[&str]) {
    eventually(&format!("{arguments:?}"), || {
        if cluster.registry.as_mut().unwrap().has_ended() {
            cluster.start_registry();
        }
        if cluster.agent.as_mut().unwrap().has_ended() {
            cluster.start_agent();
        }
        let output = cluster.client(arguments);
        let gone = arguments[1] == "delete" && output.status.code() == Some(4);
        (output.status.success() || gone).then_some(())
    });
}

#[test]
fn a_whole_life_passes_with_a_kill_at_every_step() {
    for step in STEPS {
        let mut cluster = in_operation(1);
        let _mounts = Mounts(cluster.path().to_owned());
        let once = cluster.path().join("die-once");
        cluster.set("HOTBAY_DIE_AT", step);
        cluster.set("HOTBAY_DIE_ONCE", once.to_str().unwrap());
        cluster.agent.take().unwrap().kill();
        cluster.registry.take().unwrap().kill();
        cluster.start_registry();
        cluster.start_agent();
        cluster.wait_ready();
        cluster.wait_state(0, "AttachedDevice");
        File::create(&once).unwrap();
        let (dir, at) = (agent_dir(&cluster), cluster.path().join("db"));
        let at = at.to_str().unwrap().to_owned();
        until_done(&mut cluster, &["volume", "create", "db", "--size", "40MiB"]);
        until_done(&mut cluster, &["volume", "mount", "db", &at, "--agent-dir", &dir]);
        std::fs::write(Path::new(&at).join("x"), step).unwrap();
        until_done(&mut cluster, &["volume", "unmount", "db", "--agent-dir", &dir]);
        until_done(&mut cluster, &["volume", "mount", "db", &at, "--agent-dir", &dir]);
        assert_eq!(std::fs::read_to_string(Path::new(&at).join("x")).unwrap(), *step);
        until_done(&mut cluster, &["volume", "unmount", "db", "--agent-dir", &dir]);
        until_done(&mut cluster, &["volume", "delete", "db", "--yes"]);
        eventually(&format!("nothing is left after {step}"), || {
            (!has_extents(&cluster, 0) && !once.exists()).then_some(())
        });
        assert_eq!((mounts(&cluster), mapped(&cluster)), (Vec::new(), 0), "{step}");
    }
}
