//! Drives that are not empty and are wiped to be attached: what goes, what is refused, and what a kill leaves.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hotbay_core::device::{Denied, Observed};
use hotbay_core::ids::{ClusterId, DriveId};
use hotbay_core::label::update::Want;
use hotbay_core::wipe::{Content, contents_of};
use hotbay_host::worker::{Attach, AttachError, LabelWant, Request, Workers};
use rustix::process::Signal;

use crate::Test;
use crate::rig::{
    CLUSTER, DRIVE_BYTES, LIMIT, LoopDevice, Mounted, Other, Rig, WANT, attach, attach_of,
    block_on, detach, detach_of, kill, run, seen, skipped, state_of, until,
};

pub(crate) const TESTS: &[Test] = &[
    ("a_wipe_takes_what_was_shown", everything),
    ("a_wipe_takes_partitions_with_what_is_in_them", partitions),
    ("a_wipe_that_is_killed_is_finished_by_the_next", killed),
    ("a_wipe_takes_nothing_that_was_not_shown", not_shown),
    ("a_drive_in_use_is_not_wiped", in_use),
    ("an_order_that_comes_again_wipes_nothing", again),
    ("a_label_is_wiped_only_if_it_is_foreign_and_was_shown", labels),
    ("a_partition_that_somebody_looks_at_is_waited_for_and_named", held_partition),
];

const MIB: u64 = 1 << 20;

fn ext4() -> Content {
    Content::Filesystem { kind: "ext4".into() }
}

fn gpt() -> Content {
    Content::PartitionTable { kind: "gpt".into() }
}

/// An attach that may wipe this.
fn wiping(drive: &Observed, wipe: &[Content]) -> Attach {
    Attach { wipe: wipe.to_vec(), ..attach_of(drive) }
}

/// The attach that a person gets who has looked at the drive.
fn wiping_all(drive: &Observed) -> Attach {
    wiping(drive, &contents_of(&drive.denied).unwrap())
}

async fn refused(workers: &Workers, request: Attach) -> String {
    attach(workers, request).await.map(|_| ()).unwrap_err().to_string()
}

/// Attaches a drive that may be wiped, and takes it out again: it is ours then.
async fn taken(workers: &Workers, request: Attach, path: &str) {
    let (_, descriptor) = attach(workers, request).await.unwrap();
    let drive = seen(workers, path).await;
    assert_eq!(drive.denied, []);
    assert_eq!(drive.label.unwrap().drive, WANT.drive);
    detach(workers, detach_of(&drive), Some(descriptor)).await;
}

fn write(path: &str, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.sync_all().unwrap();
}

/// The label of a physical volume of LVM, as far as it is looked at.
fn lvm_label() -> [u8; 512] {
    let mut label = [0; 512];
    label[..8].copy_from_slice(b"LABELONE");
    label[8] = 1;
    label[20] = 32;
    label[24..32].copy_from_slice(b"LVM2 001");
    label[32..64].copy_from_slice(b"abcdefghijklmnopqrstuvwxyz012345");
    let mut sum: u32 = 0xf597_a6cf;
    for byte in &label[20..] {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
        }
    }
    label[16..20].copy_from_slice(&sum.to_le_bytes());
    label
}

/// What is put on a drive, how, and what it is denied for then.
type Maker = (&'static str, fn(&str), Denied);

fn everything() {
    if skipped("everything") {
        return;
    }
    let makers: [Maker; 5] = [
        (
            "ext4",
            |path| drop(run("mkfs.ext4", &["-q", path])),
            Denied::Filesystem { kind: "ext4".into() },
        ),
        ("swap", |path| drop(run("mkswap", &[path])), Denied::Filesystem { kind: "swap".into() }),
        (
            "LVM",
            |path| write(path, 512, &lvm_label()),
            Denied::Member { of: "LVM".into(), by: vec![] },
        ),
        (
            "bytes at its end",
            |path| write(path, DRIVE_BYTES - 9, &[1]),
            Denied::NotEmpty { at_byte: DRIVE_BYTES - 9 },
        ),
        (
            "btrfs",
            |path| drop(run("mkfs.btrfs", &["-q", "--mixed", path])),
            Denied::Filesystem { kind: "btrfs".into() },
        ),
    ];
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        for (what, make, denied) in makers {
            if what == "btrfs" && crate::rig::skipped_without("mkfs.btrfs", "everything: btrfs") {
                continue;
            }
            let device = rig.loop_drive(what);
            let file = rig.dir.path().join(format!("{what} as a file"));
            File::create(&file).unwrap().set_len(DRIVE_BYTES).unwrap();
            for path in [device.path.as_str(), file.to_str().unwrap()] {
                make(path);
                let drive = seen(&workers, path).await;
                assert_eq!(drive.denied, std::slice::from_ref(&denied), "{what}");
                assert!(refused(&workers, attach_of(&drive)).await.contains("not ours"), "{what}");
                taken(&workers, wiping_all(&drive), path).await;
            }
        }
    });
}

/// A GPT with two parts, the kernel knowing of both, and a filesystem in each.
fn parted(rig: &Rig, device: &LoopDevice) {
    let table = rig.dir.path().join("table");
    std::fs::write(&table, "label: gpt\nsize=8MiB\nsize=32MiB\n").unwrap();
    let sfdisk = "sfdisk -q --no-reread --no-tell-kernel";
    run("sh", &["-c", &format!("{sfdisk} {} < {}", device.path, table.display())]);
    for (number, start, size) in [("1", MIB, 8 * MIB), ("2", 9 * MIB, 32 * MIB)] {
        let sectors = |bytes: u64| (bytes / 512).to_string();
        run("addpart", &[&device.path, number, &sectors(start), &sectors(size)]);
        run("mkfs.ext4", &["-q", &format!("{}p{number}", device.path)]);
    }
}

fn shown_parts(device: &LoopDevice) -> usize {
    let name = device.path.rsplit('/').next().unwrap();
    let shown = std::fs::read_dir(format!("/sys/block/{name}")).unwrap();
    shown.filter(|entry| entry.as_ref().unwrap().path().join("partition").exists()).count()
}

fn partitions() {
    if skipped("partitions") || crate::rig::skipped_without("addpart", "partitions") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        parted(&rig, &device);
        let workers = rig.workers();
        let drive = seen(&workers, &device.path).await;
        assert_eq!(drive.denied, [Denied::Partitioned { table: "gpt".into() }]);
        taken(&workers, wiping_all(&drive), &device.path).await;
        assert_eq!(shown_parts(&device), 0);
        // A table made at the same place would bring nothing back.
        let file = File::open(&device.path).unwrap();
        let mut bytes = vec![0; 4 << 20];
        for edge in [5 * MIB, 9 * MIB, 37 * MIB] {
            file.read_exact_at(&mut bytes, edge).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0), "at {edge}");
        }
    });
}

/// At each of its steps, with a drive on which there is much to be lost.
fn killed() {
    if skipped("killed") || crate::rig::skipped_without("addpart", "killed") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let steps = ["wipe-parts", "wipe-head", "wipe-synced", "wipe-forgotten", "slot-written"];
        for step in steps {
            let device = rig.loop_drive(step);
            parted(&rig, &device);
            let drive = seen(&workers, &device.path).await;
            let stopping = rig.workers_with(&["drive-worker", step]);
            let request = || wiping(&drive, &[gpt()]);
            let stopped = stopping.start(Request::Attach(request()), vec![]).unwrap();
            let pid = stopped.pid();
            until(step, || state_of(pid) == Some('T')).await;
            kill(pid, Signal::KILL);
            assert!(tokio::time::timeout(LIMIT, stopped).await.unwrap().is_err(), "{step}");
            assert_eq!(
                shown_parts(&device) > 0,
                ["wipe-parts", "wipe-head", "wipe-synced"].contains(&step)
            );
            taken(&workers, request(), &device.path).await;
            assert_eq!(shown_parts(&device), 0, "{step}");
        }
    });
}

fn not_shown() {
    block_on(async {
        let rig = Rig::new();
        let path = rig.file("a.img");
        let text = path.to_str().unwrap();
        run("mkfs.ext4", &["-q", text]);
        let before = std::fs::read(&path).unwrap();
        let workers = rig.workers();
        let drive = seen(&workers, text).await;
        let xfs = Content::Filesystem { kind: "xfs".into() };
        for shown in [xfs, gpt(), Content::Nameless, Content::DamagedLabel] {
            let why = refused(&workers, wiping(&drive, &[shown])).await;
            assert!(why.contains("ext4 is on it, which was not there"), "{why}");
        }
        assert!(std::fs::read(&path).unwrap() == before, "something was written");
        let other =
            Attach { path: rig.file("b.img").to_str().unwrap().into(), ..wiping_all(&drive) };
        let refused = attach(&workers, other).await.map(|_| ());
        assert!(matches!(refused, Err(AttachError::OtherDrive { .. })), "{refused:?}");
        taken(&workers, wiping_all(&drive), text).await;
    });
}

fn in_use() {
    if skipped("in_use") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let backing = rig.dir.path().join("a.img");
        run("mkfs.ext4", &["-q", &device.path]);
        let workers = rig.workers();
        let drive = seen(&workers, &device.path).await;
        let wipe = || wiping(&drive, &[ext4()]);
        let at = rig.dir.path().join("mounted");
        let mounted = Mounted::new(&device.path, &at);
        std::fs::write(at.join("file"), "precious").unwrap();
        let why = refused(&workers, wipe()).await;
        assert!(why.contains("a mount at"), "{why}");
        assert_eq!(std::fs::read_to_string(at.join("file")).unwrap(), "precious");
        drop(mounted);

        let before = std::fs::read(&backing).unwrap();
        let over = LoopDevice::over(Path::new(&device.path));
        let why = refused(&workers, wipe()).await;
        assert!(why.contains("loop device"), "{why}");
        drop(over);
        run("blockdev", &["--setro", &device.path]);
        let why = refused(&workers, wipe()).await;
        run("blockdev", &["--setrw", &device.path]);
        assert!(why.contains("read-only") || why.contains("cannot open the drive"), "{why}");
        assert!(std::fs::read(&backing).unwrap() == before, "something was written");
        taken(&workers, wipe(), &device.path).await;

        // A plain file has no exclusive open: whoever has it open is found otherwise.
        let file = rig.file("b.img").to_str().unwrap().to_owned();
        run("mkfs.ext4", &["-q", &file]);
        let before = std::fs::read(&file).unwrap();
        let drive = seen(&workers, &file).await;
        let holder = Other::holding("hold-for-reading", &file);
        let why = refused(&workers, wiping(&drive, &[ext4()])).await;
        assert!(why.contains("in use"), "{why}");
        drop(holder);
        let over = LoopDevice::over(Path::new(&file));
        let why = refused(&workers, wiping(&drive, &[ext4()])).await;
        assert!(why.contains("loop device"), "{why}");
        drop(over);
        assert!(std::fs::read(&file).unwrap() == before, "something was written");
        taken(&workers, wiping(&drive, &[ext4()]), &file).await;
    });
}

fn again() {
    if skipped("again") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        run("mkfs.ext4", &["-q", &device.path]);
        let workers = rig.workers();
        let drive = seen(&workers, &device.path).await;
        let (_, descriptor) = attach(&workers, wiping_all(&drive)).await.unwrap();
        drop(descriptor);
        // What belongs to a volume, as near to the ends as can be.
        write(&device.path, 2 * MIB, &[7; 4096]);
        let before = std::fs::read(&device.path).unwrap();
        for _ in 0..2 {
            let (_, descriptor) = attach(&workers, wiping_all(&drive)).await.unwrap();
            drop(descriptor);
            assert!(std::fs::read(&device.path).unwrap() == before, "it was wiped again");
        }
    });
}

fn labels() {
    block_on(async {
        let rig = Rig::new();
        let path = rig.file("a.img").to_str().unwrap().to_owned();
        let workers = rig.workers();
        let drive = seen(&workers, &path).await;
        let with =
            |want: Want, wipe: &[Content]| Attach { want: LabelWant(want), ..wiping(&drive, wipe) };
        let theirs = ClusterId::from_bits(0xc2);
        drop(attach(&workers, with(Want { cluster: theirs, ..WANT }, &[])).await.unwrap());
        let before = std::fs::read(&path).unwrap();
        let foreign = |cluster| Content::ForeignLabel { cluster };
        let seen_now = seen(&workers, &path).await;
        assert_eq!(contents_of(&seen_now.denied).unwrap(), [foreign(theirs)]);
        for shown in [gpt(), Content::Nameless, foreign(CLUSTER)] {
            let why = refused(&workers, with(WANT, &[shown])).await;
            assert!(why.contains("which was not there"), "{why}");
        }
        assert!(std::fs::read(&path).unwrap() == before, "something was written");
        taken(&workers, with(WANT, &[foreign(theirs)]), &path).await;

        // A label of this cluster is that of a drive of ours, whatever was permitted.
        let before = std::fs::read(&path).unwrap();
        let other = Want { drive: DriveId::from_bits(0xd2), ..WANT };
        let all = [gpt(), foreign(CLUSTER), Content::DamagedLabel, Content::Nameless];
        let why = refused(&workers, with(other, &all)).await;
        assert!(why.contains("another drive"), "{why}");
        assert!(std::fs::read(&path).unwrap() == before, "something was written");

        // Both copies damaged: nobody knows whose it was.
        for slot in [hotbay_core::label::SlotNumber::Zero, hotbay_core::label::SlotNumber::One] {
            write(&path, slot.offset_bytes() + 100, &[0xff; 16]);
        }
        let damaged = seen(&workers, &path).await;
        assert_eq!(damaged.denied, [Denied::DamagedLabel]);
        taken(&workers, wiping_all(&damaged), &path).await;
    });
}

fn held_partition() {
    if skipped("held_partition") || crate::rig::skipped_without("addpart", "held_partition") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        parted(&rig, &device);
        let workers = rig.workers();
        let drive = seen(&workers, &device.path).await;
        let holder = Other::holding("hold-for-reading", &format!("{}p2", device.path));
        let why = refused(&workers, wiping(&drive, &[gpt()])).await;
        assert!(why.contains("have the kernel forget"), "{why}");
        assert!(seen(&workers, &device.path).await.label.is_none());
        drop(holder);
        taken(&workers, wiping(&drive, &[gpt()]), &device.path).await;
    });
}
