//! A drive that does not answer: the machine's other drives are none the worse for it, and neither is the agent, not
//! even one that starts meanwhile.

use serde_json::Value;

use crate::denied::reasons;
use crate::lab::{Lab, SIZE, agents, id, path, scsi, virtio};

pub(crate) fn a_drive_that_hangs_delays_nobody(lab: &mut Lab) {
    let (hangs, other) = (scsi("HANGS"), virtio("ANSWERS", 14));
    lab.guest.plug(&hangs).unwrap();
    lab.guest.plug(&other).unwrap();
    let before = lab.until_present("HANGS");
    lab.until_present("ANSWERS");
    // The one device that stands for all paths to the drive, which has one; it is the drive from now on.
    let table = format!("0 {} linear {} 0", SIZE / 512, path(&before));
    lab.ok(&format!(
        "modprobe dm_mod && dmsetup create paths --uuid mpath-paths --table '{table}'"
    ));
    let is_mapped =
        |drive: &Value| path(drive).starts_with("/dev/dm-") && reasons(drive).is_empty();
    let mapped = lab.until("HANGS", "reached by its paths", is_mapped);
    assert_eq!(id(&mapped), id(&before));

    lab.ok("dmsetup suspend --noflush --nolockfs paths");
    let killed = lab.agent();
    lab.ok(&format!("kill -9 {killed}"));
    lab.wait_until(
        "another agent runs",
        |guest| matches!(agents(guest)[..], [agent] if agent != killed),
    );
    lab.wait_ready();
    // It is there, and nothing is known of what is on it.
    let hanging = lab.until("HANGS", "hanging", |drive| reasons(drive) == ["Unreadable"]);
    assert_eq!((id(&hanging), &hanging["status"]["present"]), (id(&before), &true.into()));
    lab.guest.resize(&other, 2 * SIZE).unwrap();
    lab.until("ANSWERS", "grown", |drive| drive["status"]["sizeBytes"] == 2 * SIZE);
    lab.add(&["ANSWERS"]);
    lab.remove(&["ANSWERS"]);
    assert_eq!(reasons(&lab.with_serial("HANGS")[0]), ["Unreadable"], "it hung all the time");

    lab.ok("dmsetup resume paths");
    assert_eq!(id(&lab.until("HANGS", "answering", is_mapped)), id(&before));
    lab.ok("dmsetup remove --retry paths");
    lab.until("HANGS", "there by itself", |drive| {
        path(drive) == path(&before) && reasons(drive).is_empty()
    });
    for drive in [&hangs, &other] {
        lab.guest.unplug(drive).unwrap();
        lab.until_missing(&drive.serial);
    }
}
