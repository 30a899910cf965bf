//! Faults of the machine under the real program, on loop devices: full and read-only disks below the registry and the
//! agent, drives that hang or vanish, a second machine under the same name, a tool that is not there. Everything is
//! made and taken apart here.

mod cluster;
mod machine;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cluster::{Cluster, Part, TestDrive, anyone_has_open, descriptors, eventually, signal};
use machine::{Goes, Hanging, Pluggable, Tmpfs};

/// What may take no longer, because it has nothing to wait for; the deadlines that it must not wait for are longer.
const AT_ONCE: Duration = Duration::from_secs(10);

fn at_once<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    assert!(begun.elapsed() < AT_ONCE, "{what} took {:?}", begun.elapsed());
    done
}

/// Takes a drive out of operation and puts it back.
fn cycle(cluster: &Cluster, bay: usize) {
    cluster.expect(&["drive", "remove", &cluster.target(bay), "--wait"], 0);
    cluster.expect(&["drive", "add", &cluster.target(bay), "--wait"], 0);
}

/// A drive that hangs in the kernel: only what concerns it waits, with the reason, also over a kill of the agent.
#[test]
fn a_drive_that_hangs_delays_only_its_own() {
    hangs(Hanging::server);
}

/// The same where not even the identity of the drive can be asked for: a restarted agent must not take it for another
/// one, nor for gone.
#[test]
fn a_drive_that_cannot_even_be_identified_delays_only_its_own() {
    hangs(Hanging::filesystem);
}

fn hangs(victim: fn(&Hanging) -> u32) {
    let hanging = Hanging::new();
    let mut cluster = Cluster::new(1, true);
    cluster.drives.push(TestDrive::of(PathBuf::from(&hanging.device)));
    let goes = Goes(victim(&hanging));
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    signal(victim(&hanging), "STOP");
    cluster.expect(&["drive", "remove", &cluster.target(1)], 3);
    eventually("it is quarantined", || {
        let text = cluster.expect(&["drive", "remove", &cluster.target(1)], 3);
        text.contains("quarantined").then_some(())
    });
    at_once("the other drive", || cycle(&cluster, 0));
    cluster.agent.take().expect("it runs").kill();
    let begun = Instant::now();
    cluster.start_agent();
    cluster.wait_ready();
    assert!(begun.elapsed() < 2 * AT_ONCE, "the start took {:?}", begun.elapsed());
    eventually("the other drive is open again", || {
        (cluster.agent_descriptors(0).len() == 1).then_some(())
    });
    at_once("the other drive", || cycle(&cluster, 0));
    cluster.expect(&["drive", "remove", &cluster.target(1)], 3);
    assert_eq!(cluster.state(1), "ClosingDevice");
    drop(goes);
    cluster.wait_state(1, "DetachedDevice");
    assert!(!anyone_has_open(&cluster.drives[1].path));
    let drives = cluster.expect(&["get", "drives", "-o", "name"], 0);
    assert_eq!(drives.lines().count(), 2, "a drive that hung is not a new one:\n{drives}");
}

/// A removal while the attach hangs: the attach may end well when the drive goes on, and the drive is closed again.
#[test]
fn a_removal_while_an_attach_hangs_wins() {
    let hanging = Hanging::new();
    let mut cluster = Cluster::new(0, true);
    cluster.drives.push(TestDrive::of(PathBuf::from(&hanging.device)));
    let goes = Goes(hanging.server());
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    cluster.drive(0);
    signal(hanging.server(), "STOP");
    cluster.expect(&["drive", "add", &cluster.target(0)], 0);
    eventually("it is quarantined", || {
        let waits = cluster.drive(0)["status"]["waitingFor"].to_string();
        waits.contains("quarantined").then_some(())
    });
    cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
    assert_eq!(cluster.state(0), "ClosingDevice");
    drop(goes);
    cluster.wait_state(0, "DetachedDevice");
    assert!(!anyone_has_open(&cluster.drives[0].path));
    cycle_back(&cluster);
}

/// And the drive is as good as before.
fn cycle_back(cluster: &Cluster) {
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
}

/// The registry's disk is full: who asks hears why, at once, drives in operation are not touched, and what was decided
/// is done when there is space again.
#[test]
fn a_full_disk_below_the_registry() {
    let mut cluster = Cluster::new(2, true);
    let disk = Tmpfs::at(cluster.path().join("registry"), "8m");
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let held = cluster.agent_descriptors(0);
    disk.fill();
    let text = eventually("the store is full", || {
        ["add", "remove"].iter().find_map(|verb| {
            let output = cluster.client(&["drive", verb, &cluster.target(1)]);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            text.contains("no space left").then_some((text, output.status.code()))
        })
    });
    assert_eq!(text.1, Some(3), "{}", text.0);
    at_once("each answer", || {
        for arguments in [&["get", "drives"][..], &["host", "add", &cluster.name]] {
            let text = cluster.expect(arguments, 3);
            assert!(text.contains("no space left"), "{text}");
        }
    });
    assert!(!cluster.registry.as_mut().unwrap().has_ended());
    assert_eq!(cluster.agent_descriptors(0), held);
    disk.empty();
    eventually("it goes on", || cluster.client(&["get", "drives"]).status.success().then_some(()));
    cluster.expect(&["drive", "add", &cluster.target(1), "--wait"], 0);
    assert_eq!(cluster.agent_descriptors(0), held);
    // What it said is in the store.
    cluster.registry.take().unwrap().kill();
    cluster.start_registry();
    cluster.wait_ready();
    assert_eq!(cluster.state(1), "AttachedDevice");
    cluster.agent = None;
    cluster.registry = None;
}

/// The agent cannot write its record, because its disk is full or read-only: it does nothing that is not on disk, says
/// why, also after a restart, and goes on when it can.
#[test]
fn an_agent_that_cannot_write_its_record() {
    let mut cluster = Cluster::new(2, true);
    let disk = Tmpfs::at(cluster.path().join("node"), "256k");
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    for full in [true, false] {
        if full {
            disk.fill()
        } else {
            disk.make_read_only(true)
        }
        let held = cluster.agent_descriptors(0);
        cluster.expect(&["drive", "add", &cluster.target(1)], 0);
        cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
        for bay in [0, 1] {
            eventually("it says why", || {
                let waits = cluster.drive(bay)["status"]["waitingFor"].to_string();
                waits.contains("cannot write its record").then_some(())
            });
        }
        assert_eq!(cluster.agent_descriptors(0), held, "closed before it was on disk");
        assert!(!anyone_has_open(&cluster.drives[1].path), "opened before it was on disk");
        cluster.agent.take().unwrap().kill();
        cluster.start_agent();
        cluster.wait_ready();
        eventually("what the record allows is open", || {
            (cluster.agent_descriptors(0).len() == 1).then_some(())
        });
        cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
        if full {
            disk.empty()
        } else {
            disk.make_read_only(false)
        }
        cluster.wait_state(1, "AttachedDevice");
        cluster.wait_state(0, "DetachedDevice");
        assert!(!anyone_has_open(&cluster.drives[0].path));
        cluster.expect(&["drive", "remove", &cluster.target(1), "--wait"], 0);
        cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    }
    cluster.agent = None;
}

/// Neither part starts on a read-only directory that has nothing for it, and each says what to do.
#[test]
fn a_read_only_data_directory_is_refused_with_words() {
    let mut cluster = Cluster::new(0, true);
    let disk = Tmpfs::at(cluster.path().join("disk"), "1m");
    disk.make_read_only(true);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
        let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let (api, data) = (cluster.api(), disk.path.join("data"));
    let (api, data) = (api.to_str().unwrap(), data.to_str().unwrap());
    let text = run(&["controller", "--listen", api, "--data-dir", data]);
    assert!(text.contains("read-only") || text.contains("Read-only"), "{text}");
    let text = run(&["node", "--join", api, "--name", &cluster.name, "--data-dir", data]);
    assert!(text.contains("Read-only") && text.contains(data), "{text}");
    disk.make_read_only(false);
    assert_eq!(std::fs::read_dir(&disk.path).unwrap().count(), 0);
    cluster.agent = None;
}

/// A drive is taken away before it is attached, and while it is in operation. The first comes back under another path
/// and is the same drive; the second is gone for good, and its close is proved.
#[test]
fn a_drive_that_vanishes() {
    let mut cluster = Cluster::new(1, true);
    let dir = cluster.path().to_owned();
    let mut in_operation = Pluggable::new(&dir, "in-operation");
    let mut attaching = Pluggable::new(&dir, "attaching");
    cluster.drives.push(TestDrive::of(in_operation.place.clone()));
    cluster.drives.push(TestDrive::of(attaching.place.clone()));
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    cluster.expect(&["drive", "add", &cluster.target(1), "--wait"], 0);
    let (name, target) = (cluster.drive(1), cluster.target(2));
    let name = name["metadata"]["name"].as_str().unwrap();
    attaching.pull();
    cluster.expect(&["drive", "add", &target], 0);
    eventually("it says what it waits for", || {
        let waits = cluster.drive(2)["status"]["waitingFor"].to_string();
        waits.contains("not on the machine").then_some(())
    });
    at_once("another drive", || {
        cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    });
    let back = attaching.plug();
    cluster.wait_state(2, "AttachedDevice");
    let agent = cluster.agent.as_ref().unwrap().pid();
    assert_eq!(descriptors(agent, Path::new(&back)).len(), 1);
    // The kernel keeps a loop device that is open until it is closed.
    let gone = in_operation.device.clone().unwrap();
    in_operation.pull();
    assert_eq!(descriptors(agent, Path::new(&gone)).len(), 1);
    cluster.expect(&["drive", "remove", name, "--wait", "--timeout", "40s"], 0);
    assert!(descriptors(agent, Path::new(&gone)).is_empty());
    assert_eq!(cluster.agent_descriptors(0).len(), 1, "the other one is left alone");
}

/// Another machine (another `/run`, another state directory) under the same name gets no session, and the first one
/// does not notice.
#[test]
fn a_second_machine_of_the_same_name_gets_no_session() {
    let cluster = Cluster::started(1, true);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let held = cluster.agent_descriptors(0);
    let other = TestDrive::new(cluster.path().join("other.img"), true);
    let mut second = cluster.started_by(unshared("mount -t tmpfs -o mode=700 none /run/hotbay"));
    second.arg("node").arg("--join").arg(cluster.api()).args(["--name", &cluster.name]);
    second.arg("--data-dir").arg(cluster.path().join("other")).stdout(Stdio::null());
    second.arg("--drives").arg(&other.path);
    let mut second = Part::of(second.spawn().unwrap());
    eventually("it is refused", || (cluster.logged("DuplicateNode") > 2).then_some(()));
    assert!(!second.has_ended(), "it goes on asking");
    let drives = cluster.expect(&["get", "drives", "-o", "name"], 0);
    assert_eq!(drives.lines().count(), 1, "{drives}");
    assert_eq!(cluster.agent_descriptors(0), held);
    second.kill();
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
}

/// An agent that sees no `sbin` directories: a tool that is not installed is named, with its package.
#[test]
fn a_tool_that_is_not_installed_is_named() {
    let mut cluster = Cluster::new(1, true);
    let tools = cluster.path().join("tools");
    std::fs::create_dir(&tools).unwrap();
    for name in ["blkid", "losetup"] {
        let which = Command::new("which").arg(name).output().unwrap();
        let found = String::from_utf8(which.stdout).unwrap();
        std::fs::copy(found.trim(), tools.join(name)).unwrap();
    }
    cluster.set("PATH", &format!("{}:/usr/bin:/bin", tools.display()));
    cluster.start_registry();
    let mut agent = cluster.started_by(unshared("mount -t tmpfs none /usr/sbin"));
    agent.args(["node", "--no-config", "--join"]).arg(cluster.api());
    agent.args(["--name", &cluster.name]).arg("--data-dir").arg(cluster.path().join("node"));
    agent.arg("--drives").arg(format!("0={}", cluster.drives[0].path.display()));
    cluster.agent = Some(Part::of(agent.stdout(Stdio::null()).spawn().unwrap()));
    cluster.wait_ready();
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    cluster.expect(&["volume", "create", "db", "--size", "8MiB"], 0);
    let (dir, at) = (cluster.path().join("node"), cluster.path().join("db"));
    let (dir, at) = (dir.to_str().unwrap(), at.to_str().unwrap());
    let refused = cluster.expect(&["volume", "mount", "db", at, "--agent-dir", dir], 5);
    assert!(refused.contains("mkfs.ext4 is not installed: install e2fsprogs"), "{refused}");
    cluster.expect(&["volume", "unmount", "db", "--agent-dir", dir], 0);
    cluster.expect(&["volume", "delete", "db", "--yes"], 0);
}

/// The program in a mount namespace of its own, after what a script has changed there. It keeps a copy of every mount
/// of the machine: this test program runs alone.
fn unshared(script: &str) -> Command {
    let mut unshare = Command::new("/usr/bin/unshare");
    unshare.args(["-m", "/bin/sh", "-c", &format!("{script} && exec \"$0\" \"$@\"")]);
    unshare.arg(env!("CARGO_BIN_EXE_hotbay"));
    unshare
}
