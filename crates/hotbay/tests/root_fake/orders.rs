//! A volume that dies and answers again, at every place between the calls of a kubelet: the pod that is started after
//! that has the volume, never the dummy; and the pod that has the dummy keeps it until it gives it back.

use std::fs::{self, File};
use std::io::{Read, Write};

use crate::rig::{As, Rig, Volume};

/// What a pod writes that has the volume itself.
const PRECIOUS: [u8; 4096] = [7; 4096];

fn write(volume: &Volume<'_>, how: As) {
    match how {
        As::Filesystem => fs::write(volume.file(), PRECIOUS).unwrap(),
        As::Block => {
            let mut device = File::options().write(true).open(&volume.target).unwrap();
            device.write_all(&PRECIOUS).unwrap();
            device.sync_all().unwrap();
        }
    }
}

/// Whether the pod has the volume itself, with what was written to it.
fn is_real(volume: &Volume<'_>, how: As) -> bool {
    assert_eq!(volume.mounts().len(), 1, "mounts on top of each other");
    let mut first = [0; 4096];
    match how {
        As::Filesystem => fs::read(volume.file()).is_ok_and(|read| read == PRECIOUS),
        As::Block => {
            File::open(&volume.target).unwrap().read_exact(&mut first).unwrap();
            first == PRECIOUS
        }
    }
}

fn in_every_order(how: As) {
    let rig = Rig::new();
    let volume = rig.volume("db", how, true);
    let end = rig.first_extent() + (16 << 20);
    let cut = || rig.cut(end - 4096);
    volume.start_pod();
    write(&volume, how);
    volume.end_pod();
    let died = || {
        cut();
        volume.start_pod();
        assert!(!is_real(&volume, how), "the pod has a dummy");
    };
    let restarted = |order: &str| {
        volume.start_pod();
        assert!(is_real(&volume, how), "{order}");
        volume.wait_shown(false, "OPERATIVE");
        volume.end_pod();
    };

    died();
    rig.mend();
    volume.start_pod();
    assert!(!is_real(&volume, how), "it keeps what it has");
    volume.end_pod();
    restarted("back before unpublish");

    died();
    volume.unpublish().unwrap();
    rig.mend();
    volume.unstage().unwrap();
    restarted("back before unstage");

    died();
    volume.end_pod();
    rig.mend();
    restarted("back before stage");

    died();
    volume.unpublish().unwrap();
    rig.mend();
    restarted("back, and staged again without unstage");

    cut();
    volume.stage().unwrap();
    rig.mend();
    volume.publish().unwrap();
    assert!(!is_real(&volume, how), "publish follows the stage");
    volume.end_pod();
    restarted("back between stage and publish");

    volume.start_pod();
    cut();
    volume.unpublish().unwrap();
    volume.publish().unwrap();
    assert!(!is_real(&volume, how), "dead between stage and publish");
    rig.mend();
    volume.end_pod();
    restarted("back after a publish that found it dead");

    volume.detach();
    volume.delete();
    rig.assert_nothing_left();
}

#[test]
fn a_filesystem_is_itself_again_in_every_order() {
    in_every_order(As::Filesystem);
}

#[test]
fn a_block_volume_is_itself_again_in_every_order() {
    in_every_order(As::Block);
}

/// A use that is taken back while a pod has the dummy: the pod keeps it, and gives it back as usual.
#[test]
fn a_use_that_is_taken_back_leaves_the_dummy_to_its_pod() {
    for how in [As::Filesystem, As::Block] {
        let rig = Rig::new();
        let volume = rig.volume("db", how, true);
        rig.cut(rig.first_extent() + (16 << 20) - 4096);
        volume.start_pod();
        volume.wait_shown(true, "MISSING");
        volume.detach();
        assert_eq!(volume.mounts().len(), 1);
        volume.end_pod();
        rig.mend();
        volume.delete();
        rig.assert_nothing_left();
    }
}

/// What is staged, and no pod has, goes with the use of it.
#[test]
fn a_dummy_that_no_pod_has_goes_with_its_use() {
    let rig = Rig::new();
    let volume = rig.volume("raw", As::Block, true);
    rig.cut(rig.first_extent() + (16 << 20) - 4096);
    volume.stage().unwrap();
    volume.wait_shown(true, "MISSING");
    volume.detach();
    rig.assert_nothing_left();
    rig.mend();
    volume.delete();
}
