//! Each kind of thing that keeps a drive from being closed is found, and goes away with its cause.

use std::os::fd::AsFd;
use std::process::Command;

use hotbay_core::device::DeviceKind;
use hotbay_host::proof::{Blocker, Proof};
use hotbay_host::worker::{Limits, Workers};

use crate::Test;
use crate::rig::{
    LoopDevice, Mounted, Other, Rig, block_on, detach, detach_of, exclusive_is_free, prove, run,
    seen, skipped, until,
};

pub(crate) const TESTS: &[Test] = &[
    ("another_process_is_named", other_process),
    ("a_partition_counts_as_the_drive", partition),
    ("one_thread_of_a_process_is_named", one_thread),
    ("a_loop_device_with_a_mounted_filesystem_is_named", loop_over_drive),
    ("a_mount_is_named_and_one_in_another_namespace_is_felt", mounts),
    ("openers_of_a_plain_file_are_named_or_felt", plain_file),
    ("what_cannot_be_seen_is_not_proved", cannot_see),
];

fn blockers(proof: Proof) -> Vec<Blocker> {
    match proof {
        Proof::Blocked { by } => by,
        other => panic!("{other:?}"),
    }
}

fn process(other: &Other, command: &str) -> Blocker {
    Blocker::Process { pid: other.pid(), command: command.to_owned(), thread: None }
}

fn other_process() {
    if skipped("other_process") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        assert_eq!(prove(&workers, &device.path, DeviceKind::Loop).await, Proof::Proved);
        let mut command = Command::new("sh");
        let script = format!("exec 5<{}; echo ready; exec sleep 1000", device.path);
        let sleeper = Other::ready(command.args(["-c", &script]));
        let by = blockers(prove(&workers, &device.path, DeviceKind::Loop).await);
        assert_eq!(by, [process(&sleeper, "sleep")]);
        drop(sleeper);
        assert_eq!(prove(&workers, &device.path, DeviceKind::Loop).await, Proof::Proved);
    });
}

fn partition() {
    if skipped("partition") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        let partition = Partition::on(&device);
        let part = &partition.path;
        until("the partition has a node", || std::path::Path::new(part).exists()).await;
        let holder = Other::holding("hold-for-reading", part);
        let by = blockers(prove(&workers, &device.path, DeviceKind::Loop).await);
        assert!(
            matches!(&by[..], [Blocker::Process { pid, .. }] if *pid == holder.pid()),
            "{by:?}"
        );
        drop(holder);
        run("mkfs.ext4", &["-q", part]);
        let mounted = Mounted::new(part, &rig.dir.path().join("mnt"));
        let by = blockers(prove(&workers, &device.path, DeviceKind::Loop).await);
        assert_eq!(by, [Blocker::Mount { at: mounted.at.clone() }]);
        let drive = seen(&workers, &device.path).await;
        let mounted_there = hotbay_core::device::Denied::Mounted { at: vec![mounted.at.clone()] };
        assert!(drive.denied.contains(&mounted_there), "{:?}", drive.denied);
    });
}

/// A partition that the kernel is told of. It would outlive even the loop device's backing file.
pub(crate) struct Partition<'a> {
    device: &'a LoopDevice,
    pub(crate) path: String,
}

impl<'a> Partition<'a> {
    /// 16 MiB from the second MiB on.
    pub(crate) fn on(device: &'a LoopDevice) -> Self {
        run("addpart", &[&device.path, "1", "4096", "32768"]);
        Self { device, path: format!("{}p1", device.path) }
    }
}

impl Drop for Partition<'_> {
    fn drop(&mut self) {
        let _ = Command::new("delpart").args([&self.device.path, "1"]).status();
    }
}

fn one_thread() {
    if skipped("one_thread") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        let holder = Other::holding("hold-in-thread", &device.path);
        let by = blockers(prove(&workers, &device.path, DeviceKind::Loop).await);
        let [Blocker::Process { pid, thread: Some(thread), .. }] = &by[..] else {
            panic!("{by:?}");
        };
        assert_eq!(*pid, holder.pid());
        assert_ne!(thread, pid);
    });
}

fn loop_over_drive() {
    if skipped("loop_over_drive") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        let over = LoopDevice::over(device.path.as_ref());
        run("mkfs.ext4", &["-q", &over.path]);
        let mounted = Mounted::new(&over.path, &rig.dir.path().join("mnt"));
        let expected = [Blocker::LoopDevice { path: over.path.clone() }];
        assert_eq!(blockers(prove(&workers, &device.path, DeviceKind::Loop).await), expected);
        let denied = seen(&workers, &device.path).await.denied;
        let looped = hotbay_core::device::Denied::Looped { by: vec![over.path.clone()] };
        assert!(denied.contains(&looped), "{denied:?}");
        drop((mounted, over));
        assert_eq!(prove(&workers, &device.path, DeviceKind::Loop).await, Proof::Proved);
    });
}

fn mounts() {
    if skipped("mounts") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        run("mkfs.ext4", &["-q", &device.path]);
        let at = rig.dir.path().join("mnt");
        let mounted = Mounted::new(&device.path, &at);
        let by = blockers(prove(&workers, &device.path, DeviceKind::Loop).await);
        assert_eq!(by, [Blocker::Mount { at: mounted.at.clone() }]);
        drop(mounted);
        let script =
            format!("mount {} {} && echo ready && exec sleep 1000", device.path, at.display());
        let mut command = Command::new("unshare");
        let elsewhere =
            Other::ready(command.args(["-m", "--propagation", "private", "sh", "-c", &script]));
        let by = blockers(prove(&workers, &device.path, DeviceKind::Loop).await);
        assert_eq!(by, [Blocker::Exclusive]);
        drop(elsewhere);
        // The kernel takes a namespace apart a moment after its last process has ended.
        until("unmounted", || exclusive_is_free(&device.path)).await;
        assert_eq!(prove(&workers, &device.path, DeviceKind::Loop).await, Proof::Proved);
    });
}

fn cannot_see() {
    if skipped("cannot_see") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let drive = seen(&rig.workers(), &device.path).await;
        let program = std::env::current_exe().unwrap();
        let arguments = ["-p", "-f", "--mount-proc", program.to_str().unwrap(), "drive-worker"];
        let limits = Limits::default();
        let workers = Workers::new("unshare", arguments, rig.runtime_dir.clone(), limits);
        match detach(&workers, detach_of(&drive), None).await.proof {
            Proof::CannotProve { why } => assert!(why.contains("pid namespace"), "{why}"),
            other => panic!("{other:?}"),
        }
    });
}

fn plain_file() {
    block_on(async {
        let rig = Rig::new();
        let path = rig.file("a.img").to_str().unwrap().to_owned();
        let workers = rig.workers();
        assert_eq!(prove(&workers, &path, DeviceKind::File).await, Proof::Proved);
        for how in ["hold-for-reading", "hold-for-writing"] {
            let holder = Other::holding(how, &path);
            let by = blockers(prove(&workers, &path, DeviceKind::File).await);
            assert!(
                matches!(&by[..], [Blocker::Process { pid, .. }] if *pid == holder.pid()),
                "{how}: {by:?}"
            );
        }
        // On its way from one process to another, a descriptor is in nobody's table.
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        send_to_nobody(&one, std::fs::File::open(&path).unwrap());
        let by = blockers(prove(&workers, &path, DeviceKind::File).await);
        assert_eq!(by, [Blocker::Leased]);
        drop((one, other));
        assert_eq!(prove(&workers, &path, DeviceKind::File).await, Proof::Proved);
        if !skipped("plain_file with a loop device over it") {
            let over = LoopDevice::over(path.as_ref());
            let by = blockers(prove(&workers, &path, DeviceKind::File).await);
            assert_eq!(by, [Blocker::LoopDevice { path: over.path.clone() }]);
        }
    });
}

fn send_to_nobody(socket: &std::os::unix::net::UnixStream, file: std::fs::File) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let descriptors = [file.as_fd()];
    assert!(beside.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(socket, &[std::io::IoSlice::new(b"x")], &mut beside, SendFlags::empty()).unwrap();
}
