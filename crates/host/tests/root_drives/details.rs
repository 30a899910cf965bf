//! What is told of a real device beside its size, and that one device alone is seen as among all.

use std::process::Command;

use hotbay_core::device::{Denied, Details, Transport};
use hotbay_host::scan::{Selection, one};
use hotbay_host::{DeviceNumber, KernelId};

use crate::Test;
use crate::blockers::Partition;
use crate::rig::{LoopDevice, Mounted, Rig, block_on, candidate, run, seen, skipped, until};

pub(crate) const TESTS: &[Test] = &[
    ("one_device_is_seen_as_among_all", alone),
    ("partitions_mounts_and_contents_are_told", told),
    ("a_drive_that_is_swapped_to_is_guarded", swapped_to),
    ("a_filter_that_a_link_names_finds_the_device", linked),
    ("blocks_of_4096_bytes_are_told", large_blocks),
];

fn number_of(path: &str) -> DeviceNumber {
    match candidate(path).id {
        KernelId::Block(number) => number,
        id @ KernelId::File { .. } => panic!("{path}: {id}"),
    }
}

fn by(pattern: &str) -> Selection {
    Selection::Patterns(vec![pattern.to_owned()])
}

fn alone() {
    if skipped("alone") {
        return;
    }
    let rig = Rig::new();
    let device = rig.loop_drive("a.img");
    let number = number_of(&device.path);
    let seen = one(number, &by("/dev/loop*")).unwrap();
    assert_eq!(seen, Some(candidate(&device.path)));
    assert_eq!(one(number, &Selection::All).unwrap(), None, "a loop device is no drive of its own");
    assert_eq!(one(number, &by("/dev/sd*")).unwrap(), None);
    drop(device);
    assert_eq!(one(number, &by("/dev/loop*")).unwrap(), None, "there is nothing behind it");
}

fn linked() {
    if skipped("linked") {
        return;
    }
    let rig = Rig::new();
    let device = rig.loop_drive("a.img");
    let link = rig.dir.path().canonicalize().unwrap().join("by-name");
    std::os::unix::fs::symlink(&device.path, &link).unwrap();
    let found = one(number_of(&device.path), &by(link.to_str().unwrap())).unwrap();
    assert_eq!(found, Some(candidate(&device.path)));
}

fn told() {
    if skipped("told") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let image = rig.file("a.img");
        let workers = rig.workers();
        // A table for blkid; the kernel is told of the partition, as it may know no tables.
        run("sh", &["-c", &format!("echo 4096,32768 | sfdisk -q -X gpt '{}'", image.display())]);
        let device = LoopDevice::over(&image);
        let partition = Partition::on(&device);
        let part = &partition.path;
        until("the partition has a node", || std::path::Path::new(part).exists()).await;
        run("mkfs.ext4", &["-q", part]);
        let mounted = Mounted::new(part, &rig.dir.path().join("a place\twith spaces"));
        let inside = std::path::Path::new(&mounted.at).join("inside");
        std::fs::create_dir(&inside).unwrap();
        let bound = Bound::new(inside.to_str().unwrap(), &rig.dir.path().join("bound"));

        let drive = seen(&workers, &device.path).await;
        let Details { transport, partitions, mounts, contents, links, .. } = *drive.details;
        assert_eq!(transport, Transport::File);
        let sizes: Vec<_> = partitions.iter().map(|p| (p.name.as_str(), p.size_bytes)).collect();
        assert_eq!(sizes, [(part.rsplit('/').next().unwrap(), 16 << 20)]);
        assert_eq!(mounts, [mounted.at.clone(), bound.0.at.clone()]);
        assert_eq!(contents.as_deref(), Some("gpt"));
        assert!(links.is_empty() || std::path::Path::new("/run/udev").exists());
        assert!(drive.denied.contains(&Denied::Mounted { at: mounts }), "{:?}", drive.denied);
    });
}

struct Bound(Mounted);

impl Bound {
    fn new(what: &str, at: &std::path::Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let at = at.to_str().unwrap().to_owned();
        run("mount", &["--bind", what, &at]);
        Self(Mounted { at })
    }
}

struct Swap(String);

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(&self.0).status();
    }
}

fn swapped_to() {
    if skipped("swapped_to") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        // Swap must not have holes behind it, or the kernel has to find room when it has none.
        let image = rig.dir.path().join("a.img");
        run("fallocate", &["-l", "64M", image.to_str().unwrap()]);
        run("mkswap", &[&device.path]);
        let idle = seen(&workers, &device.path).await;
        assert_eq!(idle.denied, [Denied::Filesystem { kind: "swap".into() }]);
        if !Command::new("swapon").arg(&device.path).status().unwrap().success() {
            eprintln!("SKIPPED swapped_to: this kernel does not swap to it");
            return;
        }
        let _swap = Swap(device.path.clone());
        let drive = seen(&workers, &device.path).await;
        let name = device.path.rsplit('/').next().unwrap().to_owned();
        let system = Denied::SystemDrive { mounts: vec!["[swap]".into()] };
        assert_eq!(drive.denied[..2], [system, Denied::Swap { at: vec![name] }]);
    });
}

fn large_blocks() {
    if skipped("large_blocks") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let image = rig.file("a.img");
        let path = run("losetup", &["-b", "4096", "-f", "--show", image.to_str().unwrap()]);
        let device = LoopDevice { path };
        let drive = seen(&rig.workers(), &device.path).await;
        assert_eq!((drive.block_bytes, drive.details.physical_block_bytes), (4096, 4096));
        assert_eq!(drive.denied, []);
    });
}
