//! What of a drive reaches etcd: a change of its size, by one write of its object; and of a storm of events that mean
//! nothing, and of a new start of the agent, no write of any object of ours. Counted in the audit log of a real API
//! server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod controllers;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use controllers::agent::{Agent, detach_loops};
use controllers::{Rig, STEADY_LEASE, until};

const EVENTS: usize = 100_000;
const FIRST_BYTES: u64 = 64 << 20;
const BYTES: u64 = 96 << 20;
/// Longer than anything takes to get from a drive to etcd.
const SETTLED: Duration = Duration::from_secs(5);
/// An agent that is back within this time was not missed: shorter than it is waited for.
const NOT_MISSED: Duration = Duration::from_secs(4);
/// Longer than what an agent says after its start takes to count, and then to be told.
const COUNTS: Duration = Duration::from_secs(12);
const RESTARTS: usize = 5;
/// A node is written so often because it is connected; in seconds, with some room.
const BEAT: u64 = 295;
/// In seconds.
const DAY: u64 = 24 * 3600;

/// A loop device over a new file. It goes with the value.
struct Loop {
    device: PathBuf,
    file: PathBuf,
}

impl Loop {
    fn new(file: PathBuf) -> Self {
        File::create_new(&file).unwrap().set_len(FIRST_BYTES).unwrap();
        let device = losetup(&["--find", "--show", file.to_str().unwrap()]);
        Self { device: device.trim().into(), file }
    }

    fn resize(&self, bytes: u64) {
        File::options().write(true).open(&self.file).unwrap().set_len(bytes).unwrap();
        losetup(&["--set-capacity", self.device.to_str().unwrap()]);
    }

    /// Has the kernel say that the device has changed, so many times.
    fn says_changed(&self, times: usize) {
        let name = self.device.file_name().unwrap().to_str().unwrap();
        let path = format!("/sys/block/{name}/uevent");
        let mut file = File::options().write(true).open(path).unwrap();
        for _ in 0..times {
            file.write_all(b"change").unwrap();
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        detach_loops(self.file.parent().unwrap());
    }
}

fn losetup(arguments: &[&str]) -> String {
    let output = Command::new("losetup").args(arguments).output().unwrap();
    assert!(output.status.success(), "losetup {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// All writes that are not the server's own, to whatever object, according to the server: the verb, and of what.
/// Without those that only say that a node is still connected, and without the Lease, renewed every few seconds.
fn writes(audit_log: &Path) -> Vec<String> {
    let log = fs::read_to_string(audit_log).unwrap();
    let mut of_nodes = HashMap::new();
    let write = |line: &str| {
        let event: Value = serde_json::from_str(line).ok()?;
        let (verb, object) = (event["verb"].as_str()?, &event["objectRef"]);
        let is_read = ["get", "list", "watch"].contains(&verb);
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let is_of_server = event["user"]["username"].as_str()?.starts_with("system:");
        if is_read || is_of_server || text("resource") == "leases" {
            return None;
        }
        if text("resource") == "storagenodes" {
            let second = second(&event);
            let before = of_nodes.insert(text("name"), second);
            if before.is_some_and(|before| (second + DAY - before) % DAY >= BEAT) {
                return None;
            }
        }
        Some(format!("{verb} {}/{} {}", text("resource"), text("name"), text("subresource")))
    };
    log.lines().filter_map(write).collect()
}

/// When a request was made, in seconds since midnight.
fn second(event: &Value) -> u64 {
    let time = event["requestReceivedTimestamp"].as_str().unwrap();
    let (_, time) = time.split_once('T').unwrap();
    let parts = time[..8].split(':').map(|part| part.parse::<u64>().unwrap());
    parts.fold(0, |sum, part| sum * 60 + part)
}

fn of_drives(writes: &[String]) -> Vec<&String> {
    writes.iter().filter(|write| write.contains(" drives/")).collect()
}

/// Ends the agent and starts it again; gives how much was written before. On a machine that has much else to do this
/// may take so long that the agent is missed, which is told of its node, and of nothing else: then it is tried again.
fn start_agent_anew(rig: &mut Rig) -> usize {
    let log = rig.plane.audit_log();
    let registered = |rig: &Rig| rig.agent().log().matches("\"registered\"").count();
    for _ in 0..RESTARTS {
        let (before, starts, began) = (writes(&log).len(), registered(rig), Instant::now());
        rig.agent.as_mut().unwrap().restart();
        until("the agent is back", || {
            let now = registered(rig);
            if now > starts { Ok(()) } else { Err(format!("{now}")) }
        });
        let took = began.elapsed();
        println!("the agent is back after {took:?}");
        std::thread::sleep(COUNTS);
        if took < NOT_MISSED {
            return before;
        }
        let since = writes(&log).split_off(before);
        let of_the_node =
            |write: &String| [" storagenodes/", " events/"].iter().any(|of| write.contains(of));
        let others: Vec<_> = since.iter().filter(|write| !of_the_node(write)).collect();
        assert!(others.is_empty(), "told of an agent that was missed: {since:?}");
    }
    panic!("an agent takes longer than {NOT_MISSED:?} to start");
}

#[test]
fn a_resize_is_one_write_and_a_hundred_thousand_events_and_a_restart_are_none() {
    let mut rig = Rig::with_lease(1, STEADY_LEASE);
    let folder = rig.path("agent");
    fs::create_dir_all(&folder).unwrap();
    let drives = [Loop::new(folder.join("used.img")), Loop::new(folder.join("idle.img"))];
    let token = rig.token(&rig.node);
    let devices: Vec<_> = drives.iter().map(|drive| drive.device.clone()).collect();
    let target = format!("{}:{}", rig.node, devices[0].display());
    rig.agent = Some(Agent::over(folder, &token, devices));
    rig.client(&["drive", "add", &target, "--wait"]);
    let sizes = |rig: &Rig| {
        let size = |drive: &Value| drive["status"]["sizeBytes"].as_u64().unwrap();
        let mut sizes: Vec<_> = rig.objects("drives").iter().map(size).collect();
        sizes.sort_unstable();
        sizes
    };
    until("both drives are there", || {
        let sizes = sizes(&rig);
        if sizes.len() == 2 { Ok(()) } else { Err(format!("{sizes:?}")) }
    });
    std::thread::sleep(SETTLED);

    let log = rig.plane.audit_log();
    for (drive, expected) in [(&drives[0], [FIRST_BYTES, BYTES]), (&drives[1], [BYTES, BYTES])] {
        let before = writes(&log).len();
        drive.resize(BYTES);
        until("the size is in etcd", || {
            let sizes = sizes(&rig);
            if sizes == expected { Ok(()) } else { Err(format!("{sizes:?}")) }
        });
        std::thread::sleep(SETTLED);
        let all = writes(&log);
        let (since, of_drives) = (&all[before..], of_drives(&all[before..]));
        assert_eq!(of_drives.len(), 1, "{since:?}");
        assert!(of_drives[0].starts_with("update drives/"), "{since:?}");
        assert!(of_drives[0].ends_with(" status"), "{since:?}");
        println!("a resize: {since:?}");
    }

    let (before, began) = (writes(&log).len(), Instant::now());
    std::thread::scope(|scope| {
        for drive in &drives {
            scope.spawn(|| drive.says_changed(EVENTS / 2));
        }
    });
    let took = began.elapsed();
    let since = writes(&log).split_off(before);
    println!("{EVENTS} events in {took:?}: {since:?}");
    assert_eq!(since, Vec::<String>::new());
    let before = start_agent_anew(&mut rig);
    // Of the storm, too, nothing came meanwhile.
    let noise = writes(&log);
    assert_eq!(noise[before..], Vec::<String>::new());
    // Something real comes after all that was noise.
    drives[0].resize(FIRST_BYTES);
    until("the agent sees changes", || {
        let sizes = sizes(&rig);
        if sizes == [FIRST_BYTES, BYTES] { Ok(()) } else { Err(format!("{sizes:?}")) }
    });
    let real = writes(&log).split_off(noise.len());
    assert_eq!(of_drives(&real).len(), 1, "{real:?}");
    rig.client(&["drive", "remove", &target, "--wait"]);
}
