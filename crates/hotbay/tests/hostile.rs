//! A hostile world around the real program, on plain files, without root: names that mean nothing, agents that are
//! away or stopped, drives that vanish, come late or are swapped, clients that die. Each gets its clear answer, and
//! nobody else waits. What needs the machine's own faults is in the tests whose names begin with `root_`.

mod cluster;

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cluster::{Cluster, Part, TestDrive, anyone_has_open, eventually, signal};

/// What the world may take that has nothing to wait for. Far above what it takes, far below any deadline that it must
/// not wait for.
const AT_ONCE: Duration = Duration::from_secs(8);

/// What was done before may leave something to be written in a moment: the agent looks at a drive again that it has
/// just opened. So it is tried again; what changes something does so each time.
fn assert_changes_nothing<S: PartialEq>(state: impl Fn() -> S, act: impl Fn()) {
    eventually("nothing changes", || {
        let before = state();
        act();
        (state() == before).then_some(())
    });
}

#[test]
fn names_that_mean_nothing_change_nothing() {
    let cluster = Cluster::started(1, false);
    let long = "x".repeat(5_000);
    let state = || (cluster.bytes("registry/registry.redb"), cluster.drive(0));
    assert_changes_nothing(state, || {
        for (name, code) in [("nothing", 4), ("no-node:bay-0", 4), ("", 2), ("a\nb", 2), (&long, 2)]
        {
            for verb in ["add", "remove"] {
                let text = cluster.expect(&["drive", verb, name], code);
                assert!(text.len() < 6_000 && !text.contains("a\nb"), "{text}");
            }
        }
        cluster.expect(&["host", "add", "no-node"], 4);
        cluster.expect(&["host", "remove", "NO NODE"], 4);
    });
}

/// A dry run leaves every record of both sides as it is, byte for byte.
#[test]
fn a_dry_run_changes_nothing() {
    let cluster = Cluster::started(2, false);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let state = || {
        let records = (cluster.bytes("registry/registry.redb"), cluster.bytes("node/record"));
        (records, cluster.drive(0), cluster.drive(1), cluster.logged("ordered to"))
    };
    assert_changes_nothing(state, || {
        cluster.expect(&["drive", "add", &cluster.target(1), "--dry-run"], 0);
        cluster.expect(&["drive", "remove", &cluster.target(0), "--dry-run"], 0);
        cluster.expect(&["host", "add", &cluster.name, "--dry-run"], 0);
        cluster.expect(&["host", "remove", &cluster.name, "--dry-run"], 0);
    });
}

/// A node that cannot be reached may still have the drive open: a removal is not done until its agent says so.
#[test]
fn an_absent_agent_is_not_a_closed_drive() {
    let mut cluster = Cluster::started(1, false);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    cluster.agent.take().unwrap().kill();
    eventually("the registry notices", || {
        let text = cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
        text.contains("cannot be reached").then_some(())
    });
    for _ in 0..3 {
        cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
        cluster.expect(&["host", "remove", &cluster.name], 3);
    }
    cluster.start_agent();
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
    assert!(!anyone_has_open(&cluster.drives[0].path));
}

/// An agent that hangs without hanging up keeps its drive open, and so does a removal go on.
#[test]
fn a_stopped_agent_is_not_a_closed_drive() {
    let cluster = Cluster::started(1, false);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let agent = cluster.agent.as_ref().unwrap().pid();
    signal(agent, "STOP");
    for _ in 0..3 {
        cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
    }
    assert_eq!(cluster.agent_descriptors(0).len(), 1);
    signal(agent, "CONT");
    cluster.wait_state(0, "DetachedDevice");
    assert!(!anyone_has_open(&cluster.drives[0].path));
}

/// A close that failed at first ends by itself: whoever asked for it need not ask again.
#[test]
fn a_blocked_close_ends_without_anybody_asking() {
    let cluster = Cluster::started(1, false);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let foreign = std::fs::File::open(&cluster.drives[0].path).unwrap();
    cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
    let me = std::process::id().to_string();
    eventually("the process that has it is named", || {
        let waits = cluster.drive(0)["status"]["waitingFor"].to_string();
        waits.contains(&me).then_some(())
    });
    assert_eq!(cluster.state(0), "ClosingDevice");
    drop(foreign);
    cluster.wait_state(0, "DetachedDevice");
}

/// A drive that was removed by itself may be in somebody's hands: adding its host does not open it, nor does a restart
/// of either side.
#[test]
fn adding_a_host_leaves_alone_what_was_removed_by_itself() {
    let mut cluster = Cluster::started(2, false);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    cluster.expect(&["drive", "remove", &cluster.target(1), "--wait"], 0);
    cluster.agent.take().unwrap().kill();
    cluster.registry.take().unwrap().kill();
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    eventually("the other drive is open", || {
        (cluster.agent_descriptors(0).len() == 1).then_some(())
    });
    assert_eq!(cluster.state(1), "DetachedDevice");
    assert!(!anyone_has_open(&cluster.drives[1].path));
    cluster.expect(&["host", "add", &cluster.name, "--with-removed", "--wait"], 0);
    assert_eq!(cluster.agent_descriptors(1).len(), 1);
}

/// Removed and added again while the older close still waits for a foreign process: the drive is back in operation,
/// and the older close, when it could end, ends nothing.
#[test]
fn an_add_while_a_close_is_blocked_wins() {
    let cluster = Cluster::started(1, false);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let foreign = std::fs::File::open(&cluster.drives[0].path).unwrap();
    cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
    eventually("the close is tried", || (cluster.logged("closing") > 0).then_some(()));
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    assert_eq!(cluster.state(0), "AttachedDevice");
    let held = cluster.agent_descriptors(0);
    assert_eq!(held.len(), 1);
    drop(foreign);
    // A pause of the older close may still be running; when it is over nothing happens.
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        assert_eq!(cluster.state(0), "AttachedDevice");
    }
    assert_eq!(cluster.agent_descriptors(0), held);
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
}

/// One drive of four vanishes before it can be attached. The other three do not wait for it, nothing turns at full
/// speed meanwhile, and it is attached when it is back. The registry is killed in between and owes the same.
#[test]
fn one_vanished_drive_fails_alone_and_is_attached_when_it_is_back() {
    let mut cluster = Cluster::started(4, false);
    let (file, away) = (cluster.drives[1].file.clone(), cluster.path().join("away"));
    std::fs::rename(&file, &away).unwrap();
    let begun = Instant::now();
    cluster.expect(&["host", "add", &cluster.name], 0);
    for bay in [0, 2, 3] {
        cluster.wait_state(bay, "AttachedDevice");
    }
    assert!(begun.elapsed() < AT_ONCE, "the others waited for {:?}", begun.elapsed());
    eventually("it says what it waits for", || {
        let waits = cluster.drive(1)["status"]["waitingFor"].to_string();
        waits.contains("not on the machine").then_some(())
    });
    let lines = cluster.logged("");
    std::thread::sleep(Duration::from_secs(5));
    let more = cluster.logged("") - lines;
    assert!(more < 40, "{more} lines in five seconds");
    cluster.registry.take().unwrap().kill();
    cluster.start_registry();
    assert_eq!(cluster.state(1), "AttachingDevice");
    std::fs::rename(&away, &file).unwrap();
    cluster.wait_state(1, "AttachedDevice");
    assert_eq!(cluster.agent_descriptors(1).len(), 1);
}

/// A drive that has vanished for good can be taken out of operation: its agent has closed it.
#[test]
fn a_vanished_drive_can_be_removed() {
    let cluster = Cluster::started(2, false);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    let name = cluster.drive(0)["metadata"]["name"].as_str().unwrap().to_owned();
    std::fs::remove_file(&cluster.drives[0].file).unwrap();
    eventually("it is seen to be gone", || {
        (cluster.drive(0)["status"]["present"] == false).then_some(())
    });
    cluster.expect(&["drive", "remove", &name, "--wait", "--timeout", "30s"], 0);
    assert!(cluster.agent_descriptors(1).len() == 1, "the other one is left alone");
    cluster.expect(&["drive", "add", &name], 0);
    eventually("it says what it waits for", || {
        let waits = cluster.drive(0)["status"]["waitingFor"].to_string();
        waits.contains("not on the machine").then_some(())
    });
}

/// Another drive in the same bay, under the same path, is another drive: it has no goal, and what was ordered for the
/// one before does not reach it. No restart is needed.
#[test]
fn a_swapped_drive_is_another_drive() {
    let cluster = Cluster::started(1, false);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let first = cluster.drive(0)["metadata"]["name"].as_str().unwrap().to_owned();
    std::fs::remove_file(&cluster.drives[0].file).unwrap();
    let swapped = TestDrive::new(cluster.drives[0].file.clone(), false);
    let second = eventually("the new drive is seen", || {
        let drives: serde_json::Value =
            serde_json::from_slice(&cluster.client(&["get", "drives", "-o", "json"]).stdout)
                .ok()?;
        let other = |drive: &&serde_json::Value| drive["metadata"]["name"] != first.as_str();
        drives["items"].as_array()?.iter().find(other).cloned()
    });
    assert_eq!(second["status"]["state"], "UnknownDevice");
    // The bay means the drive that is in it now.
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let name = second["metadata"]["name"].as_str().unwrap();
    let text = cluster.expect(&["get", "drives", name, "-o", "json"], 0);
    assert!(text.contains("AttachedDevice"), "{text}");
    cluster.expect(&["drive", "remove", &first, "--wait", "--timeout", "30s"], 0);
    assert_eq!(cluster.agent_descriptors(0).len(), 1, "the new one stays open");
    drop(swapped);
}

/// A drive that is put in while the agent runs can be added; nothing has to be started again.
#[test]
fn a_drive_that_comes_later_can_be_added() {
    let mut cluster = Cluster::new(2, false);
    let (file, away) = (cluster.drives[1].file.clone(), cluster.path().join("away"));
    std::fs::rename(&file, &away).unwrap();
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    cluster.expect(&["drive", "add", &cluster.target(1)], 4);
    std::fs::rename(&away, &file).unwrap();
    assert_eq!(cluster.state(1), "UnknownDevice");
    cluster.expect(&["drive", "add", &cluster.target(1), "--wait"], 0);
    assert_eq!(cluster.agent_descriptors(1).len(), 1);
}

#[test]
fn a_client_that_is_killed_has_asked_all_the_same() {
    let cluster = Cluster::started(1, false);
    let foreign = std::fs::File::open(&cluster.drives[0].path).unwrap();
    for (verb, state) in [("add", "AttachedDevice"), ("remove", "ClosingDevice")] {
        let client = Command::new(env!("CARGO_BIN_EXE_hotbay"))
            .args(["drive", verb, &cluster.target(0), "--wait"])
            .env("HOTBAY_API", cluster.api())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let client = Part::of(client.unwrap());
        cluster.wait_state(0, state);
        client.kill();
    }
    drop(foreign);
    cluster.wait_state(0, "DetachedDevice");
}

/// Two agents under one name on one machine: the second does not start, and says which process has the name.
#[test]
fn a_second_agent_of_the_same_name_does_not_start() {
    let cluster = Cluster::started(1, false);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let held = cluster.agent_descriptors(0);
    let mut second = Command::new(env!("CARGO_BIN_EXE_hotbay"));
    second.arg("node").arg("--join").arg(cluster.api()).args(["--name", &cluster.name]);
    second.arg("--data-dir").arg(cluster.path().join("other")).stdin(Stdio::null());
    let output = second.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&cluster.name) && text.contains("another agent"), "{text}");
    let pid = cluster.agent.as_ref().unwrap().pid().to_string();
    assert!(text.contains(&pid), "{text}");
    assert_eq!(cluster.agent_descriptors(0), held);
}

/// More callers than the registry has descriptors: those that are there go on, those that come wait for a free one,
/// and the registry neither ends nor turns at full speed.
#[test]
fn callers_without_number_do_not_end_the_registry() {
    let mut cluster = Cluster::new(1, false);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_hotbay")]);
    cluster.start_registry_by(cluster.started_by(limited));
    cluster.start_agent();
    cluster.wait_ready();
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let pid = cluster.registry.as_ref().unwrap().pid();
    let crowd: Vec<_> = (0..200).map(|_| UnixStream::connect(cluster.api()).unwrap()).collect();
    eventually("the registry has no descriptor left", || {
        (cluster.logged("a caller has to wait") > 0).then_some(())
    });
    let before = processor_ms(pid);
    std::thread::sleep(Duration::from_secs(2));
    let used = processor_ms(pid) - before;
    assert!(used < 1_000, "{used} ms of processor time in two seconds");
    assert!(!cluster.registry.as_mut().unwrap().has_ended());
    drop(crowd);
    eventually("callers are served again", || {
        cluster.client(&["get", "nodes"]).status.success().then_some(())
    });
    cluster.wait_ready();
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
}

/// The processor time that a process has used, in milliseconds (the kernel counts hundredths of a second).
fn processor_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let after_name = stat.rsplit(')').next().expect("a name in brackets");
    let fields: Vec<_> = after_name.split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<u64>().expect("a number");
    (ticks(11) + ticks(12)) * 10
}
