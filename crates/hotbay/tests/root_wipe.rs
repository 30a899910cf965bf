//! `hotbay drive add --wipe` with the real program over loop devices: a drive that is not empty is taken only by who
//! names it, only as it was seen, and never while it is in use.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod cluster;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use cluster::{Cluster, eventually, signal};
use serde_json::{Value, json};

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("this test needs {program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

/// Something mounted, which is unmounted with the value.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        Command::new("umount").arg(self.0).status().ok();
    }
}

/// A cluster with one drive that has a filesystem; none has a serial number, so that names stand for them.
fn with_ext4() -> Cluster {
    let mut cluster = Cluster::new(1, true);
    run("mkfs.ext4", &["-q", node(&cluster)]);
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    wait_contents(&cluster, "ext4");
    cluster
}

fn node(cluster: &Cluster) -> &str {
    cluster.drives[0].path.to_str().unwrap()
}

fn name(cluster: &Cluster) -> String {
    cluster.drive(0)["metadata"]["name"].as_str().unwrap().to_owned()
}

fn wait_contents(cluster: &Cluster, contents: &str) -> Value {
    eventually(&format!("it is seen with {contents}"), || {
        let drive = cluster.drive(0);
        (drive["status"]["contents"] == contents).then_some(drive)
    })
}

/// Waits until nothing is said to be on the drive any more.
fn wait_clean(cluster: &Cluster) {
    eventually("it is looked at again", || {
        let status = &cluster.drive(0)["status"];
        (status["denied"] == json!([]) && status["contents"].is_null()).then_some(())
    });
}

/// All that is on the drive.
fn bytes(cluster: &Cluster) -> Vec<u8> {
    run("sync", &[node(cluster)]);
    std::fs::read(&cluster.drives[0].file).unwrap()
}

/// Runs the client on a terminal, and types a line.
fn typed(cluster: &Cluster, arguments: &str, line: &str) -> (Option<i32>, String) {
    let hotbay = env!("CARGO_BIN_EXE_hotbay");
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &format!("{hotbay} {arguments}"), "/dev/null"])
        .env("HOTBAY_API", cluster.api())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test needs script");
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{line}").unwrap();
    // The terminal is there until the command has ended.
    let output = child.wait_with_output().unwrap();
    drop(input);
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Asks over HTTP for the drive to be wiped and added, as it was seen.
fn ask_to_wipe(cluster: &Cluster, seen: &Value) -> Value {
    let name = &seen["metadata"]["name"];
    let action = json!({
        "type": "ADD_DEVICE",
        "device": name,
        "wipe": true,
        "serial": name,
        "expectedState": seen["status"]["stateHash"],
    });
    let body = json!({ "actions": [action] }).to_string();
    let mut stream = UnixStream::connect(cluster.http()).unwrap();
    let head = "POST /v1/actions HTTP/1.0\r\nHost: hotbay\r\nContent-Type: application/json";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
    body["results"][0].clone()
}

#[test]
fn a_drive_is_wiped_only_for_who_names_it() {
    let cluster = with_ext4();
    let (target, name) = (cluster.target(0), name(&cluster));
    let before = bytes(&cluster);
    let text = cluster.expect(&["drive", "add", &target], 5);
    assert!(text.contains("it has ext4 on it"), "{text}");
    let wipe = ["drive", "add", &target, "--wipe"];
    let text = cluster.expect(&wipe, 2);
    assert!(text.contains("On it       ext4") && text.contains("will be lost"), "{text}");
    assert!(text.contains("nothing was changed"), "{text}");
    let text = cluster.expect(&[&wipe[..], &["--serial", "d-00000000"]].concat(), 2);
    assert!(text.contains("that is not the drive's name"), "{text}");
    cluster.expect(&[&wipe[..], &["another"]].concat(), 2);
    cluster.expect(&["drive", "add", &target, "--serial", &name], 2);
    let text = cluster.expect(&[&wipe[..], &["--dry-run"]].concat(), 0);
    assert!(text.contains("would be wiped and added"), "{text}");
    let (code, text) = typed(&cluster, &wipe.join(" "), "yes");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("Type its name to wipe it"), "{text}");
    assert_eq!(cluster.state(0), "UnknownDevice");
    assert!(bytes(&cluster) == before, "something was written");

    let (code, text) = typed(&cluster, &format!("{} --wait", wipe.join(" ")), &name);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("wiping and adding") && text.contains("is in operation"), "{text}");
    assert_eq!(cluster.state(0), "AttachedDevice");
    let events = cluster.expect(&["events"], 0);
    assert!(events.contains("on it is ext4"), "{events}");
    assert!(events.contains(" was wiped of ext4, asked by "), "{events}");

    // It is one of ours now, and is not wiped again.
    wait_clean(&cluster);
    let again = [&wipe[..], &["--serial", &name]].concat();
    let text = cluster.expect(&again, 5);
    assert!(text.contains("it is in operation (Attached)"), "{text}");
    cluster.expect(&["drive", "remove", &target, "--wait"], 0);
    let labelled = bytes(&cluster);
    let text = cluster.expect(&[&again[..], &["--dry-run"]].concat(), 0);
    assert!(!text.contains("would be wiped"), "{text}");
    cluster.expect(&[&again[..], &["--wait"]].concat(), 0);
    cluster.expect(&["drive", "remove", &target, "--wait"], 0);
    // The label's slots are in the first two MiB, its third copy in the last two.
    let rest = 2 << 20..labelled.len() - (2 << 20);
    assert!(bytes(&cluster)[rest.clone()] == labelled[rest], "only the label was written");
}

#[test]
fn a_mounted_drive_keeps_what_is_on_it() {
    let cluster = with_ext4();
    let (target, name) = (cluster.target(0), name(&cluster));
    let at = cluster.path().join("mounted");
    std::fs::create_dir(&at).unwrap();
    run("mount", &[node(&cluster), at.to_str().unwrap()]);
    let mounted = Mounted(&at);
    std::fs::write(at.join("file"), "precious").unwrap();
    eventually("the mount is seen", || {
        cluster.drive(0)["status"]["mounts"].is_array().then_some(())
    });
    let wipe = ["drive", "add", &target, "--wipe", "--serial", &name];
    let text = cluster.expect(&wipe, 5);
    assert!(text.contains("it is mounted at"), "{text}");
    assert_eq!(std::fs::read_to_string(at.join("file")).unwrap(), "precious");
    drop(mounted);
    eventually("it is unmounted", || cluster.drive(0)["status"]["mounts"].is_null().then_some(()));
    cluster.expect(&[&wipe[..], &["--wait"]].concat(), 0);
}

#[test]
fn what_has_changed_since_it_was_seen_is_not_wiped() {
    let cluster = with_ext4();
    let seen = wait_contents(&cluster, "ext4");
    run("mkswap", &["-f", node(&cluster)]);
    let now = wait_contents(&cluster, "swap");
    let before = bytes(&cluster);
    let answer = ask_to_wipe(&cluster, &seen);
    assert_eq!(answer["result"], "E_INVALID_STATE");
    assert!(answer["reasons"][0].as_str().unwrap().starts_with("ChangedSince"), "{answer}");

    // It changes once more, before the registry or the agent has heard of that.
    let agent = cluster.agent.as_ref().unwrap().pid();
    signal(agent, "STOP");
    let answer = ask_to_wipe(&cluster, &now);
    run("mkfs.ext4", &["-q", "-F", node(&cluster)]);
    let changed = bytes(&cluster);
    signal(agent, "CONT");
    assert_eq!(answer["result"], "S_OK", "{answer}");
    assert!(changed != before);
    eventually("the agent refuses", || {
        let why = cluster.drive(0)["status"]["waitingFor"].as_str()?.to_owned();
        why.contains("ext4 is on it, which was not there").then_some(())
    });
    let described = cluster.expect(&["describe", "drive", &cluster.target(0)], 0);
    assert!(described.contains("it is not wiped: ext4 is on it"), "{described}");
    assert!(bytes(&cluster) == changed, "something was written");

    // The way out: take the wish back, look again, say so again.
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
    let seen = wait_contents(&cluster, "ext4");
    assert_eq!(ask_to_wipe(&cluster, &seen)["result"], "S_OK");
    cluster.wait_state(0, "AttachedDevice");
}

/// A drive that was removed is left alone, so that nobody sees what is on it until it is wanted again.
#[test]
fn a_removed_drive_that_somebody_else_has_used_since_can_be_wiped() {
    let cluster = Cluster::started(1, true);
    let target = cluster.target(0);
    cluster.expect(&["drive", "add", &target, "--wait"], 0);
    cluster.expect(&["drive", "remove", &target, "--wait"], 0);
    run("blkdiscard", &["-f", "-z", node(&cluster)]);
    run("mkfs.ext4", &["-q", node(&cluster)]);
    cluster.client(&["drive", "add", &target]);
    eventually("the agent refuses", || {
        let why = cluster.drive(0)["status"]["waitingFor"].as_str()?.to_owned();
        why.contains("is not empty").then_some(())
    });
    cluster.expect(&["drive", "remove", &target, "--wait"], 0);
    let seen = wait_contents(&cluster, "ext4");
    assert_eq!(ask_to_wipe(&cluster, &seen)["result"], "S_OK");
    cluster.wait_state(0, "AttachedDevice");
}

/// Of the registry, the agent, or the child that wipes: the order comes again, and finishes it.
#[test]
fn a_wipe_survives_a_kill_at_every_step() {
    for step in [
        "registry-batch-durable",
        "agent-record-decided",
        "agent-record-durable",
        "open-proved",
        "wipe-parts",
        "wipe-head",
        "wipe-synced",
        "wipe-forgotten",
        "slot-written",
        "primary-table-synced",
        "attach-labelled",
    ] {
        let mut cluster = Cluster::new(1, true);
        run("mkfs.ext4", &["-q", node(&cluster)]);
        let once = cluster.path().join("die-once");
        cluster.set("HOTBAY_DIE_AT", step);
        cluster.set("HOTBAY_DIE_ONCE", once.to_str().unwrap());
        cluster.start_registry();
        cluster.start_agent();
        cluster.wait_ready();
        let seen = wait_contents(&cluster, "ext4");
        std::fs::write(&once, "").unwrap();
        let name = seen["metadata"]["name"].as_str().unwrap();
        eventually(&format!("it is attached after {step}"), || {
            if cluster.registry.as_mut().unwrap().has_ended() {
                cluster.start_registry();
            }
            if cluster.agent.as_mut().unwrap().has_ended() {
                cluster.start_agent();
            }
            // The registry may end while it is asked.
            let drives = cluster.client(&["get", "drives", "-o", "json"]).stdout;
            let drives: Value = serde_json::from_slice(&drives).ok()?;
            let state = drives["items"][0]["status"]["state"].as_str()?;
            // The one who is to take it may have died before that: it is asked for again.
            if state == "UnknownDevice" {
                cluster.client(&["drive", "add", name, "--wipe", "--serial", name]);
            }
            (state == "AttachedDevice").then_some(())
        });
        assert!(!once.exists(), "{step} was not passed");
        wait_clean(&cluster);
    }
}
