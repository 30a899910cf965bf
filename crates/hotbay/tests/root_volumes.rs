//! Volumes on loop devices with the real program: bytes live through kills of everything around them, mounts come back
//! after a restart of the machine, and a whole life passes with a kill -9 at every step.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod cluster;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cluster::{Cluster, eventually};
use serde_json::Value;

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

/// How often agent and registry are killed while bytes are written and read.
const KILLS: u64 = 3;

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

/// Asks until it is done: a mount namespace that another test made meanwhile holds the device for a moment longer, and
/// the answer is to try again.
fn unmount(cluster: &Cluster, volume: &str) {
    let dir = agent_dir(cluster);
    let arguments = ["volume", "unmount", volume, "--agent-dir", &dir];
    eventually(&format!("{volume} is unmounted"), || {
        let output = cluster.client(&arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 3)), "hotbay {arguments:?} ended with {code:?}:\n{text}");
        (code == Some(0)).then_some(())
    });
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
    let label: Value = serde_json::from_slice(&output.stdout).unwrap();
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

/// fio, which writes blocks and reads them back past the cache, one pass after the other. Each block tells its place,
/// its checksum and when it was written, so that neither another byte nor an older block passes.
struct Fio {
    child: Child,
    folder: PathBuf,
}

impl Fio {
    /// What a pass writes and reads back.
    const PASS: u64 = 4 << 20;
    /// More passes than there is time for: it runs until it is told to end.
    const PASSES: &str = "--loops=1000000";

    /// Starts on a new file at `at`; what it reports goes to `folder`.
    fn start(at: &Path, folder: &Path) -> Self {
        let mut command = Command::new("fio");
        command.args(["--name=verify", "--thread", "--ioengine=psync", "--direct=1", "--fsync=16"]);
        command.args(["--rw=randwrite", "--bs=16k", &format!("--size={}", Self::PASS)]);
        command.args(["--verify=crc32c", "--verify_fatal=1", Self::PASSES]);
        command.arg(format!("--filename={}", at.join("bytes").display()));
        command.arg(format!("--aux-path={}", folder.display()));
        command.arg(format!("--trigger-file={}", folder.join("fio-end").display()));
        command.arg(format!("--output={}", folder.join("fio.json").display()));
        let child = command.arg("--output-format=json").stdin(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("this test needs the program fio, install the package fio: {error}")
        });
        Self { child, folder: folder.to_owned() }
    }

    /// Waits until it has read back another pass, as the kernel counts what it reads from devices.
    fn goes_on(&mut self) {
        let counted = format!("/proc/{}/io", self.child.id());
        let mut read = || {
            assert_eq!(self.child.try_wait().unwrap(), None, "fio gave up, and said why above");
            let text = std::fs::read_to_string(&counted).unwrap();
            let bytes = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
            bytes.unwrap().parse::<u64>().unwrap()
        };
        let goal = read() + Self::PASS;
        eventually("fio reads back what it wrote", || (read() >= goal).then_some(()));
    }

    /// Tells it to end, which it must do without a complaint; gives how many bytes it has read back.
    fn verified(mut self) -> u64 {
        File::create(self.folder.join("fio-end")).unwrap();
        let status = eventually("fio ends", || self.child.try_wait().unwrap());
        let report = std::fs::read_to_string(self.folder.join("fio.json")).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        let job = &report["jobs"][0];
        assert_eq!((status.code(), &job["error"]), (Some(0), &Value::from(0)), "{report:#}");
        job["read"]["io_bytes"].as_u64().unwrap()
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn bytes_live_through_kills_of_agent_and_registry() {
    let mut cluster = in_operation(1);
    let _mounts = Mounts(cluster.path().to_owned());
    cluster.expect(&["volume", "create", "db", "--size", "40MiB"], 0);
    let at = cluster.path().join("db");
    mount(&cluster, "db", &at, &[]);
    let mut fio = Fio::start(&at, cluster.path());
    fio.goes_on();
    for _ in 0..KILLS {
        cluster.agent.take().unwrap().kill();
        fio.goes_on();
        cluster.start_agent();
        cluster.wait_ready();
        fio.goes_on();
        cluster.registry.take().unwrap().kill();
        fio.goes_on();
        cluster.start_registry();
        cluster.wait_ready();
        fio.goes_on();
    }
    let verified = fio.verified();
    assert!(verified > 4 * KILLS * Fio::PASS, "only {verified} bytes were verified");
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
