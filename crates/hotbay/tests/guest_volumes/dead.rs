//! Drives that die under volumes whose users want their pods to start all the same. A pod that starts again gets a
//! dummy, and the volume itself when the drive is back.

use serde_json::Value;

use crate::lab::{Lab, SIZE, nvme, path, scsi};
use crate::volumes::{
    add, mapped, mounted, precious, restart_pod, unmount_and_delete, until_operational,
};

pub(crate) fn a_drive_pulled_under_a_volume(lab: &mut Lab) {
    let drive = nvme("PULLED", 2);
    add(lab, &drive);
    precious(lab, "pulled");
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("PULLED");
    lab.wait_until("its guard is gone", |guest| {
        let names = guest.run("cat /sys/block/dm-*/dm/name").unwrap().stdout;
        !names.contains("guard")
    });
    let read = lab.run("dd if=/mnt/pulled/file of=/dev/null bs=4k iflag=direct");
    assert!(!read.success(), "what is gone fails, and does not hang: {read:?}");
    restart_pod(lab, "pulled");
    is_dummy(lab, "pulled");
    assert_eq!(mapped(lab), Vec::<String>::new(), "nothing is left of the dead one");
    lab.guest.plug(&drive).unwrap();
    until_operational(lab, "pulled", "OPERATIVE");
    is_itself_again(lab, "pulled");
    unmount_and_delete(lab, "pulled");
    lab.remove(&["PULLED"]);
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("PULLED");
}

/// The device that stands for all paths to a drive is the drive, and its table can be made to fail.
pub(crate) fn a_drive_that_fails_under_a_volume(lab: &mut Lab) {
    let drive = scsi("FAILS");
    lab.guest.plug(&drive).unwrap();
    let below = path(&lab.until_present("FAILS"));
    let sectors = SIZE / 512;
    let linear = format!("0 {sectors} linear {below} 0");
    lab.ok(&format!("dmsetup create paths --uuid mpath-paths --table '{linear}'"));
    lab.until("FAILS", "reached by its paths", |drive: &Value| {
        path(drive).starts_with("/dev/dm-") && drive["status"]["denied"] == serde_json::json!([])
    });
    lab.add(&["FAILS"]);
    precious(lab, "fails");
    replace_table(lab, &format!("0 {sectors} error"));
    restart_pod(lab, "fails");
    is_dummy(lab, "fails");
    // It answers now and then, for a moment; not in these seconds.
    replace_table(lab, &format!("0 {sectors} flakey {below} 0 0 600"));
    restart_pod(lab, "fails");
    is_dummy(lab, "fails");
    replace_table(lab, &linear);
    // Its reads failed, so that it is looked at again now and then, and at once when its label changes.
    lab.ok("hotbay volume create other --size 4MiB && hotbay volume delete other --yes");
    until_operational(lab, "fails", "OPERATIVE");
    is_itself_again(lab, "fails");
    unmount_and_delete(lab, "fails");
    lab.remove(&["FAILS"]);
    lab.ok("dmsetup remove --retry paths");
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("FAILS");
}

fn replace_table(lab: &mut Lab, table: &str) {
    lab.ok(&format!(
        "echo '{table}' | dmsetup load paths && dmsetup suspend --noflush --nolockfs paths && dmsetup resume paths"
    ));
}

fn is_dummy(lab: &mut Lab, name: &str) {
    let seen = until_operational(lab, name, "MISSING");
    assert_eq!(seen["annotations"]["fake-attach"], "yes", "{seen:#}");
    assert_eq!(mounted(lab, name), seen["metadata"]["uid"], "a tmpfs, named after it");
    lab.ok(&format!("test ! -e /mnt/{name}/file && echo lost >/mnt/{name}/other"));
}

fn is_itself_again(lab: &mut Lab, name: &str) {
    restart_pod(lab, name);
    assert!(mounted(lab, name).starts_with("/dev/dm-"));
    assert_eq!(lab.ok(&format!("cat /mnt/{name}/file")), "precious\n");
    let seen = until_operational(lab, name, "OPERATIVE");
    assert_eq!(seen["annotations"]["fake-attach"], Value::Null, "{seen:#}");
}
