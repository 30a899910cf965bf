//! kill -9 at every step that a crash could fall between: of the registry, of the agent and of its children. After each
//! the drive still goes into operation and out again, what was acknowledged holds, and nothing is left open.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod cluster;

use std::process::{Command, Stdio};

use cluster::{Cluster, anyone_has_open, eventually};

/// Every step, and whether adding or removing a drive passes it.
const STEPS: &[(&str, &[Doing])] = &[
    ("registry-batch-decided", &[Doing::Add, Doing::Remove]),
    ("registry-batch-durable", &[Doing::Add, Doing::Remove]),
    ("registry-released", &[Doing::Add, Doing::Remove]),
    ("agent-record-decided", &[Doing::Add, Doing::Remove]),
    ("agent-file-written", &[Doing::Add, Doing::Remove]),
    ("agent-file-renamed", &[Doing::Add, Doing::Remove]),
    ("agent-record-durable", &[Doing::Add, Doing::Remove]),
    ("open-locked", &[Doing::Add]),
    ("open-proved", &[Doing::Add]),
    ("attach-labelled", &[Doing::Add]),
    ("detach-labelled", &[Doing::Remove]),
    ("detach-closed", &[Doing::Remove]),
    ("slot-written", &[Doing::Add, Doing::Remove]),
    ("slot-synced", &[Doing::Add, Doing::Remove]),
];

/// Steps that only the first label of a drive passes.
const FIRST_LABEL: &[&str] = &[
    "slot-written",
    "slot-synced",
    "backup-entries-written",
    "backup-header-written",
    "backup-table-synced",
    "primary-entries-written",
    "primary-header-written",
    "protective-mbr-written",
    "primary-table-synced",
];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Doing {
    Add,
    Remove,
}

/// Runs the client while restarting whatever dies; gives whether the armed step was reached.
fn survives(cluster: &mut Cluster, doing: Doing, armed: &str) -> bool {
    let once = cluster.path().join("die-once");
    std::fs::write(&once, "").unwrap();
    let verb = match doing {
        Doing::Add => "add",
        Doing::Remove => "remove",
    };
    let mut client = Command::new(env!("CARGO_BIN_EXE_hotbay"))
        .args(["drive", verb, &cluster.target(0), "--wait", "--timeout", "50s"])
        .env("HOTBAY_API", cluster.api())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let status = eventually(&format!("{verb} while dying at {armed}"), || {
        start_what_died(cluster);
        client.try_wait().unwrap()
    });
    if !status.success() {
        // The registry died before it took the action; the caller was told to try again, and does.
        assert_eq!(status.code(), Some(3), "{verb} while dying at {armed}");
        eventually("the retried action succeeds", || {
            // Who hears of a death first is open: it may be seen only the next time round.
            start_what_died(cluster);
            cluster
                .client(&["drive", verb, &cluster.target(0), "--wait", "--timeout", "5s"])
                .status
                .success()
                .then_some(())
        });
    }
    let reached = !once.exists();
    std::fs::remove_file(&once).ok();
    reached
}

fn start_what_died(cluster: &mut Cluster) {
    if cluster.registry.as_mut().unwrap().has_ended() {
        cluster.start_registry();
    }
    if cluster.agent.as_mut().unwrap().has_ended() {
        cluster.start_agent();
    }
}

fn arm(cluster: &mut Cluster, step: &str) {
    cluster.agent.take();
    cluster.registry.take();
    let once = cluster.path().join("die-once");
    cluster.set("HOTBAY_DIE_AT", step);
    cluster.set("HOTBAY_DIE_ONCE", once.to_str().unwrap());
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
}

#[test]
fn every_step_survives_a_kill() {
    let mut cluster = Cluster::new(1, true);
    for (step, passed_by) in STEPS {
        arm(&mut cluster, step);
        let reached = survives(&mut cluster, Doing::Add, step);
        assert_eq!(reached, passed_by.contains(&Doing::Add), "adding passes {step}");
        assert_eq!(cluster.state(0), "AttachedDevice", "after {step}");
        eventually("the agent has it open", || {
            if cluster.agent.as_mut().unwrap().has_ended() {
                cluster.start_agent();
            }
            (cluster.agent_descriptors(0).len() == 1).then_some(())
        });
        let reached = survives(&mut cluster, Doing::Remove, step);
        assert_eq!(reached, passed_by.contains(&Doing::Remove), "removing passes {step}");
        assert_eq!(cluster.state(0), "DetachedDevice", "after {step}");
        assert!(!anyone_has_open(&cluster.drives[0].path), "S_OK, but open, after {step}");
    }
}

#[test]
fn a_first_label_survives_a_kill_at_every_write() {
    for step in FIRST_LABEL {
        let mut cluster = Cluster::new(1, true);
        arm(&mut cluster, step);
        assert!(survives(&mut cluster, Doing::Add, step), "the first label passes {step}");
        assert_eq!(cluster.state(0), "AttachedDevice", "after {step}");
        assert!(survives(&mut cluster, Doing::Remove, step) || *step != "slot-written");
        assert!(!anyone_has_open(&cluster.drives[0].path), "S_OK, but open, after {step}");
    }
}

#[test]
fn a_registry_that_dies_while_it_begins_a_term_begins_the_next() {
    let mut cluster = Cluster::started(1, true);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let held = cluster.agent_descriptors(0);
    for step in ["registry-term-decided", "registry-term-durable"] {
        cluster.registry.take().unwrap().kill();
        let once = cluster.path().join("die-once");
        std::fs::write(&once, "").unwrap();
        cluster.set("HOTBAY_DIE_AT", step);
        cluster.set("HOTBAY_DIE_ONCE", once.to_str().unwrap());
        cluster.start_registry();
        eventually("it dies", || cluster.registry.as_mut().unwrap().has_ended().then_some(()));
        assert!(!once.exists(), "{step} was not reached");
        cluster.start_registry();
        cluster.wait_ready();
    }
    assert_eq!(cluster.agent_descriptors(0), held);
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
}
