//! A drive that takes no more writes while a filesystem is made on it: its file lies on a small disk that is full, as
//! behind a thin pool. The kernel answers each write with an I/O error, and goes on reading.

use std::fs;

use tonic::Code;

use crate::cluster::{Cluster, TestDrive};
use crate::machine::Tmpfs;
use crate::rig::{As, MIB, Rig, Volume, refused};

/// What a drive has beside the volume.
const BESIDE_MIB: i64 = 40;
const PAGE_BYTES: u64 = 4096;

/// From a drive that takes only so many pages more to the same one that takes all again, without a restart of anything.
fn fails_then_is_made(access: As, volume_mib: i64, pages: u64, words: &str) {
    let folder = tempfile::tempdir().unwrap();
    let drive_mib = volume_mib + BESIDE_MIB;
    let disk = Tmpfs::at(folder.path().join("disk"), &format!("{drive_mib}m"));
    let mut cluster = Cluster::new(0, true);
    let drive = TestDrive::sized(disk.path.join("drive"), true, drive_mib.cast_unsigned());
    cluster.drives.push(drive);
    let device = cluster.drives[0].path.to_str().unwrap().to_owned();
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    let rig = Rig::of(cluster);
    let caller = rig.caller();
    let mut volume = Volume { bytes: volume_mib * MIB, ..Volume::new(&rig, "a", access) };
    rig.runtime.block_on(async {
        volume.create(&caller).await.unwrap();
        volume.attach(&caller).await.unwrap();
    });
    disk.fill_but(pages * PAGE_BYTES);
    // Twice: what the first has left behind is met by the second.
    for _ in 0..2 {
        let answer = rig.runtime.block_on(volume.stage(&caller));
        let on_drive = format!("on the drive {device}");
        refused(answer.clone(), Code::Unavailable, &on_drive);
        refused(answer, Code::Unavailable, words);
        assert_eq!(rig.mounts(), [""; 0]);
    }
    // It can be given up on the node while the drive is as it is,
    rig.runtime.block_on(volume.unstage(&caller)).unwrap();
    assert_eq!(rig.loops(), [""; 0]);
    // and is staged once the drive takes writes again.
    disk.empty();
    rig.runtime.block_on(async {
        volume.stage(&caller).await.unwrap();
        volume.publish(&caller).await.unwrap();
    });
    fs::write(format!("{}/x", volume.target), "y").unwrap();
    rig.end(&volume);
    rig.assert_nothing_left();
}

#[test]
fn an_ext4_that_the_drive_does_not_take_is_made_later() {
    for pages in [0, 100] {
        fails_then_is_made(As::Filesystem, 4, pages, "Input/output error while writing");
    }
}

/// `mkfs.xfs` marks its superblock before it goes on: what it leaves looks like a filesystem, and is none.
#[test]
fn an_xfs_that_the_drive_takes_in_part_is_made_later() {
    fails_then_is_made(As::Xfs, 320, 1000, "mkfs.xfs failed with code 1");
}
