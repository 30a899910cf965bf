//! Volumes whose drive dies under pods that are to start all the same: real failures of loop devices, in the calls of a
//! kubelet.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../cluster/mod.rs"]
mod cluster;
#[path = "../machine/mod.rs"]
#[expect(dead_code, reason = "this program uses a part of it")]
mod machine;
mod orders;
mod rig;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use cluster::eventually;
use rig::{As, IGNORE, MIB, Rig};
use tonic::Code;

/// The drive is out when the pod starts, the agent dies while the pod has the dummy, the drive comes back: and the pod,
/// restarted, has its file again.
#[test]
fn a_filesystem_comes_back_as_itself() {
    let mut rig = Rig::new();
    let volume = rig.volume("db", As::Filesystem, true);
    volume.start_pod();
    fs::write(volume.file(), "precious").unwrap();
    volume.end_pod();
    let id = volume.id.clone();
    rig.pull_while_the_agent_is_away();
    let volume = rig.volume("db", As::Filesystem, true);
    volume.start_pod();
    assert_eq!(volume.mounts(), [("tmpfs".to_owned(), id.clone())], "once, named after it");
    assert!(!volume.file().exists());
    fs::write(volume.file(), "lost").unwrap();
    assert!(fs::write(volume.file(), vec![1; 2 << 20]).is_err(), "1 MiB");
    volume.wait_shown(true, "MISSING");
    assert!(rig.events().contains("FakeAttachInvolved"));
    assert_eq!(rig.fake_attachments(), "hotbay_fake_attachments 1");
    let (abnormal, words) = volume.condition();
    assert!(abnormal && words.contains("dummy"), "{words}");
    let attachment = volume.annotate(&[])["status"]["attachments"][0].clone();
    assert_eq!(attachment["state"], "Attached");
    assert!(attachment["inaccessible"].as_str().unwrap().contains("drive"), "{attachment}");
    rig.restart_agent();
    let volume = rig.volume("db", As::Filesystem, true);
    volume.publish().unwrap();
    assert_eq!(volume.mounts().len(), 1, "the same dummy, also for another agent");
    volume.wait_shown(true, "MISSING");
    rig.drive.plug();
    let volume = rig.volume("db", As::Filesystem, true);
    volume.wait_shown(true, "OPERATIVE");
    assert!(rig.events().contains("restart the pod"));
    // The pod still runs: until it gives the dummy back, that is what is staged.
    volume.start_pod();
    assert_eq!(volume.mounts(), [("tmpfs".to_owned(), id)]);
    volume.wait_shown(true, "OPERATIVE");
    volume.end_pod();
    volume.start_pod();
    assert_eq!(fs::read(volume.file()).unwrap(), b"precious");
    assert_eq!(volume.mounts().len(), 1);
    volume.wait_shown(false, "OPERATIVE");
    assert!(rig.events().contains("FakeAttachCleared"));
    assert!(!volume.condition().0);
    assert_eq!(rig.fake_attachments(), "hotbay_fake_attachments 0");
    volume.end_pod();
    volume.detach();
    volume.delete();
    rig.assert_nothing_left();
}

/// Who did not ask for a dummy gets none; who asks while the volume is dead gets one; who takes it back, none again.
#[test]
fn a_dummy_is_for_those_who_asked() {
    let mut rig = Rig::new();
    drop(rig.volume("db", As::Filesystem, false));
    rig.pull_while_the_agent_is_away();
    let volume = rig.volume("db", As::Filesystem, false);
    for _ in 0..2 {
        assert_eq!(volume.stage().unwrap_err().code(), Code::Unavailable);
    }
    assert_eq!(volume.shown(), (None, None, "OPERATIVE".to_owned()));
    volume.annotate(&[(IGNORE, "yes")]);
    eventually("the agent has heard of it", || volume.stage().ok());
    volume.publish().unwrap();
    volume.wait_shown(true, "MISSING");
    volume.annotate(&[(IGNORE, "no")]);
    volume.end_pod();
    eventually("the agent has heard of it", || volume.stage().err());
    assert!(volume.publish().is_err(), "there is no staging any more");
    assert!(volume.mounts().is_empty());
    volume.end_pod();
    volume.detach();
    volume.delete();
    rig.assert_nothing_left();
}

/// The file under the drive is cut off while the volume is staged: the publish gets the dummy, and so do later stages.
#[test]
fn a_block_volume_that_dies_gets_a_device_of_its_size() {
    let rig = Rig::new();
    let volume = rig.volume("raw", As::Block, true);
    volume.start_pod();
    let mut device = File::options().write(true).open(&volume.target).unwrap();
    device.write_all(&[7; 4096]).unwrap();
    device.sync_all().unwrap();
    drop(device);
    volume.unpublish().unwrap();
    rig.cut(0);
    for _ in 0..2 {
        volume.publish().unwrap();
    }
    assert_eq!(volume.block_bytes(), 16 * MIB);
    assert_eq!(volume.mounts().len(), 1);
    let mut first = [9; 4096];
    let mut dummy = File::options().read(true).write(true).open(&volume.target).unwrap();
    dummy.read_exact(&mut first).unwrap();
    assert_eq!(first, [0; 4096], "nothing of the volume");
    dummy.seek(SeekFrom::Start(0)).unwrap();
    dummy.write_all(&[1; 4096]).unwrap();
    drop(dummy);
    volume.wait_shown(true, "MISSING");
    let device = volume.shown().1.expect("the device is shown");
    let (abnormal, words) = volume.condition();
    assert!(abnormal && words.contains("dummy"), "{words}");
    volume.stage().unwrap();
    volume.publish().unwrap();
    assert_eq!(volume.shown().1.as_ref(), Some(&device), "the same one");
    assert_eq!(volume.unstage().unwrap_err().code(), Code::FailedPrecondition, "a pod has it");
    volume.end_pod();
    eventually("its device is gone", || volume.shown().1.is_none().then_some(()));
    volume.start_pod();
    volume.wait_shown(true, "MISSING");
    volume.end_pod();
    volume.detach();
    volume.delete();
    rig.assert_nothing_left();
}

/// A drive whose reads fail for a while: what is back is told, and the pod, restarted, has the volume.
#[test]
fn a_block_volume_that_can_be_read_again_is_itself_again() {
    let rig = Rig::new();
    let volume = rig.volume("raw", As::Block, true);
    // The label stays, the end of the volume goes.
    rig.cut(8 * MIB);
    volume.start_pod();
    let dummy = volume.shown();
    assert!(volume.block_bytes() == 16 * MIB, "{dummy:?}");
    volume.wait_shown(true, "MISSING");
    rig.mend();
    volume.wait_shown(true, "OPERATIVE");
    volume.end_pod();
    volume.start_pod();
    volume.wait_shown(false, "OPERATIVE");
    assert!(!volume.condition().0);
    File::options().write(true).open(&volume.target).unwrap().write_all(&[5; 4096]).unwrap();
    volume.end_pod();
    volume.detach();
    volume.delete();
    rig.assert_nothing_left();
}

/// The drive answers, and its label is gone: nobody knows what is on it. It was told that the volume answers again, and
/// the pod, restarted, had a dummy again.
#[test]
fn a_volume_without_a_label_does_not_answer_again() {
    let rig = Rig::new();
    let volume = rig.volume("raw", As::Block, true);
    let drive = rig.drive.device.as_ref().unwrap();
    let drive = File::options().read(true).write(true).open(drive).unwrap();
    let mut label = vec![0; 2 << 20];
    drive.read_exact_at(&mut label, 0).unwrap();
    drive.write_all_at(&vec![0; label.len()], 0).unwrap();
    drive.sync_all().unwrap();
    for _ in 0..2 {
        volume.start_pod();
        volume.wait_shown(true, "MISSING");
        volume.end_pod();
    }
    volume.start_pod();
    drive.write_all_at(&label, 0).unwrap();
    drive.sync_all().unwrap();
    volume.wait_shown(true, "OPERATIVE");
    assert_eq!(rig.cluster.logged("it answers again"), 1);
    volume.end_pod();
    volume.start_pod();
    volume.wait_shown(false, "OPERATIVE");
    volume.end_pod();
    volume.detach();
    volume.delete();
    rig.assert_nothing_left();
}

/// A damaged filesystem is covered; a mount option that is wrong is the caller's mistake and stays one.
#[test]
fn a_damaged_filesystem_is_covered_and_a_wrong_option_is_not() {
    let rig = Rig::new();
    let mut volume = rig.volume("db", As::Filesystem, true);
    volume.flags = vec!["data=nonsense".to_owned()];
    let refused = volume.stage().unwrap_err();
    assert!(volume.mounts().is_empty(), "{refused}");
    assert_eq!(volume.shown().0, None, "{refused}");
    volume.flags.clear();
    volume.start_pod();
    volume.end_pod();
    let drive = File::options().write(true).open(rig.drive.device.as_ref().unwrap()).unwrap();
    // Behind the superblock: group descriptors, bitmaps and inodes.
    let start = rig.first_extent();
    drive.write_all_at(&vec![0xa5; 512 << 10], start + 4096).unwrap();
    drive.sync_all().unwrap();
    volume.start_pod();
    assert_eq!(volume.mounts()[0].0, "tmpfs");
    volume.wait_shown(true, "MISSING");
    volume.end_pod();
    volume.detach();
    volume.delete();
    rig.assert_nothing_left();
}

/// An agent that starts takes apart what belongs to no staging, and leaves what does.
#[test]
fn an_agent_that_starts_takes_apart_what_belongs_to_no_staging() {
    let mut rig = Rig::new();
    let ids = ["one", "two"].map(|name| rig.volume(name, As::Block, true).id);
    rig.cut(8 * MIB);
    for name in ["one", "two"] {
        rig.volume(name, As::Block, true).start_pod();
    }
    rig.volume("two", As::Block, true).unpublish().unwrap();
    let record = rig.cluster.path().join("node/stagings").join(&ids[1]);
    rig.cluster.agent.take().unwrap().kill();
    fs::remove_file(record).unwrap();
    rig.cluster.start_agent();
    rig.cluster.wait_ready();
    drop(rig.node());
    let dummies = rig.cluster.path().join("node/dummies");
    let left = || -> Vec<_> {
        fs::read_dir(&dummies).unwrap().flatten().map(|entry| entry.file_name()).collect()
    };
    eventually("the other one is gone", || (left() == [ids[0].as_str()]).then_some(()));
    rig.mend();
    for name in ["one", "two"] {
        let volume = rig.volume(name, As::Block, true);
        volume.end_pod();
        volume.detach();
        volume.delete();
    }
    rig.assert_nothing_left();
}
