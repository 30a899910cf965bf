//! What of a drive reaches etcd: a change of its size, by one write of its object; and of a storm of events that mean
//! nothing, and of a new start of the agent, nothing at all. Counted in the audit log of a real API server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod controllers;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use controllers::agent::{Agent, detach_loops};
use controllers::{Rig, until};

const EVENTS: usize = 100_000;
const FIRST_BYTES: u64 = 64 << 20;
const BYTES: u64 = 96 << 20;
/// Longer than anything takes to get from a drive to etcd.
const SETTLED: Duration = Duration::from_secs(5);

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

/// How often each kind of object of ours was written, according to the server: the verb, and of what.
fn writes(audit_log: &Path) -> Vec<String> {
    let log = fs::read_to_string(audit_log).unwrap();
    let write = |line: &str| {
        let event: Value = serde_json::from_str(line).ok()?;
        let (verb, object) = (event["verb"].as_str()?, &event["objectRef"]);
        let is_write = ["create", "update", "patch", "delete"].contains(&verb);
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let is_ours = text("apiGroup") == "hotbay.dev";
        let what = format!("{verb} {}/{} {}", text("resource"), text("name"), text("subresource"));
        (is_write && is_ours).then_some(what)
    };
    log.lines().filter_map(write).collect()
}

fn of_drives(writes: &[String]) -> Vec<&String> {
    writes.iter().filter(|write| write.contains(" drives/")).collect()
}

#[test]
fn a_resize_is_one_write_and_a_hundred_thousand_events_and_a_restart_are_none() {
    let mut rig = Rig::new(1);
    let folder = rig.path("agent");
    fs::create_dir_all(&folder).unwrap();
    let drives = [Loop::new(folder.join("used.img")), Loop::new(folder.join("idle.img"))];
    let token = rig.client(&["token", "create", "node-a", "--address", &rig.address()]);
    let devices: Vec<_> = drives.iter().map(|drive| drive.device.clone()).collect();
    let target = format!("node-a:{}", devices[0].display());
    rig.agent = Some(Agent::over(folder, token.trim(), devices));
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
    rig.agent.as_mut().unwrap().restart();
    let registered = |rig: &Rig| rig.agent().log().matches("\"registered\"").count();
    until("the agent is back", || {
        let registered = registered(&rig);
        if registered >= 2 { Ok(()) } else { Err(format!("{registered}")) }
    });
    // Something real comes after all that was noise.
    let noise = writes(&log).len();
    drives[0].resize(FIRST_BYTES);
    until("the agent sees changes", || {
        let sizes = sizes(&rig);
        if sizes == [FIRST_BYTES, BYTES] { Ok(()) } else { Err(format!("{sizes:?}")) }
    });
    let all = writes(&log);
    assert_eq!(of_drives(&all[before..noise]), Vec::<&String>::new());
    assert_eq!(of_drives(&all[noise..]).len(), 1, "{:?}", &all[noise..]);
    println!("{EVENTS} events in {took:?} and a restart: {:?}", &all[before..noise]);
    rig.client(&["drive", "remove", &target, "--wait"]);
}
