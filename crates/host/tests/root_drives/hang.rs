//! A drive that hangs: nbdkit in memory, mounted as a file by nbdfuse, a loop device over it, and nbdkit stopped.
//! Whoever writes to it then waits in the kernel and does not even die.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use hotbay_core::device::Observed;
use hotbay_host::proof::{Blocker, Proof};
use hotbay_host::worker::{AttachError, Request, Running};
use rustix::process::Signal;

use crate::Test;
use crate::rig::{
    LoopDevice, Other, Rig, attach, attach_of, block_on, detach, detach_of, is_dead, kill, seen,
    skipped, skipped_without, state_of, until,
};

pub(crate) const TESTS: &[Test] = &[
    ("a_drive_that_hangs_delays_only_its_own", hang),
    ("a_filesystem_that_hangs_below_a_loop_device_delays_only_its_own", filesystem_hangs),
];

struct Hanging {
    // In the order in which they are taken apart.
    device: LoopDevice,
    mount: FuseMount,
    server: Server,
}

struct Server(Other);

struct FuseMount {
    directory: PathBuf,
    process: Other,
}

impl Hanging {
    fn new(dir: &Path) -> Self {
        let socket = dir.join("nbd.sock");
        let socket_text = socket.to_str().unwrap();
        let nbdkit = Command::new("nbdkit")
            .args(["-f", "-U", socket_text, "memory", "64M"])
            .spawn()
            .unwrap();
        let server = Server(Other(nbdkit));
        wait_for(&socket);
        let directory = dir.join("fuse");
        std::fs::create_dir(&directory).unwrap();
        let file = directory.join("drive");
        let nbdfuse = Command::new("nbdfuse")
            .args([file.to_str().unwrap(), "--unix", socket_text])
            .spawn()
            .unwrap();
        let mount = FuseMount { directory, process: Other(nbdfuse) };
        wait_for(&file);
        Self { device: LoopDevice::over(&file), mount, server }
    }

    fn stop(&self) {
        kill(self.server.0.pid(), Signal::STOP);
    }

    fn go_on(&self) {
        kill(self.server.0.pid(), Signal::CONT);
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        // A stopped server would hang everything that follows.
        self.go_on();
        kill(self.mount.process.pid(), Signal::CONT);
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", self.directory.to_str().unwrap()]).status();
    }
}

fn wait_for(path: &Path) {
    let end = Instant::now() + Duration::from_secs(10);
    while !path.exists() {
        assert!(Instant::now() < end, "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn hang() {
    if skipped("hang") || skipped_without("nbdkit", "hang") || skipped_without("nbdfuse", "hang") {
        return;
    }
    let rig = Rig::new();
    let hanging = Hanging::new(rig.dir.path());
    let (drive, old) = first_agent(&rig, &hanging);
    block_on(async {
        let workers = rig.workers();
        assert_quarantined(&rig, &drive, old).await;
        // Killing it changes nothing: its write can still land.
        kill(old, Signal::KILL);
        assert_quarantined(&rig, &drive, old).await;
        hanging.go_on();
        until("the old child is gone", || is_dead(old)).await;
        let (_, descriptor) = attach(&workers, attach_of(&drive)).await.unwrap();
        let detached = detach(&workers, detach_of(&drive), Some(descriptor)).await;
        assert_eq!((detached.label_not_updated, detached.proof), (None, Proof::Proved));
    });
}

/// What a loop device is over is asked of the filesystem below it, in every proof of any drive.
fn filesystem_hangs() {
    let test = "filesystem_hangs";
    if skipped(test) || skipped_without("nbdkit", test) || skipped_without("nbdfuse", test) {
        return;
    }
    let rig = Rig::new();
    let hanging = Hanging::new(rig.dir.path());
    let healthy = rig.loop_drive("healthy.img");
    block_on(async {
        let workers = rig.workers();
        let other = seen(&workers, &healthy.path).await;
        kill(hanging.mount.process.pid(), Signal::STOP);
        // The kernel remembers a file's attributes for a second before it asks again.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let begun = Instant::now();
        let (_, descriptor) = attach(&workers, attach_of(&other)).await.unwrap();
        let detached = detach(&workers, detach_of(&other), Some(descriptor)).await;
        assert_eq!(detached.proof, Proof::Proved);
        assert!(begun.elapsed() < Duration::from_secs(10), "the other drive waited");
    });
}

/// Works with both drives, one of them hangs; then ends, at once. Returns the hanging drive and the pid of the child
/// that hangs with it.
fn first_agent(rig: &Rig, hanging: &Hanging) -> (Observed, u32) {
    let healthy = rig.loop_drive("healthy.img");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (drive, running): (Observed, Running) = runtime.block_on(async {
        let workers = rig.workers();
        let drive = seen(&workers, &hanging.device.path).await;
        assert_eq!(drive.denied, []);
        let other = seen(&workers, &healthy.path).await;
        // Between a write and its sync, so that it is a write that hangs.
        let stopping = rig.workers_with(&["drive-worker", "slot-written"]);
        let mut running = stopping.start(Request::Attach(attach_of(&drive)), vec![]).unwrap();
        let pid = running.pid();
        until("it has written", || state_of(pid) == Some('T')).await;
        hanging.stop();
        kill(pid, Signal::CONT);
        until("it hangs in the kernel", || state_of(pid) == Some('D')).await;

        let begun = Instant::now();
        let (_, descriptor) = attach(&workers, attach_of(&other)).await.unwrap();
        let detached = detach(&workers, detach_of(&other), Some(descriptor)).await;
        assert_eq!(detached.proof, Proof::Proved);
        assert!(begun.elapsed() < Duration::from_secs(10), "the other drive waited");
        assert!(tokio::time::timeout(Duration::ZERO, &mut running).await.is_err());
        (drive, running)
    });
    let pid = running.pid();
    let begun = Instant::now();
    drop(running);
    drop(runtime);
    assert!(begun.elapsed() < Duration::from_secs(2), "the end of the agent waited for a drive");
    assert!(!is_dead(pid));
    (drive, pid)
}

async fn assert_quarantined(rig: &Rig, drive: &Observed, old: u32) {
    let workers = rig.workers();
    match attach(&workers, attach_of(drive)).await.map(|_| ()) {
        Err(AttachError::LockedBy { by }) => assert_eq!(by.pid, Some(old)),
        other => panic!("{other:?}"),
    }
    let Proof::Blocked { by } = detach(&workers, detach_of(drive), None).await.proof else {
        panic!("proved closed while process {old} writes to it");
    };
    let named = |b: &Blocker| matches!(b, Blocker::Process { pid, .. } if *pid == old);
    assert!(by.iter().any(named), "{by:?}");
}
