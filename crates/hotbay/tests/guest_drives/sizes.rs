//! Drives grow and shrink while everything runs.

use hotbay_guest::Drive;
use serde_json::{Value, json};

use crate::follow::Follower;
use crate::lab::{Lab, SIZE, in_operation, path, scsi, virtio};

fn has_size(size_bytes: u64) -> impl Fn(&Value) -> bool {
    move |drive| drive["status"]["sizeBytes"] == size_bytes
}

fn resize(lab: &mut Lab, drive: &Drive, size_bytes: u64) -> Value {
    lab.guest.resize(drive, size_bytes).unwrap();
    lab.until(&drive.serial, &format!("of {size_bytes} bytes"), has_size(size_bytes))
}

fn events(lab: &mut Lab, drive: &Value, what: &str) -> Vec<String> {
    let name = format!("Drive {} ", drive["metadata"]["name"].as_str().unwrap());
    let events = lab.ok("hotbay events");
    let about = events.lines().filter(|line| line.contains(&name) && line.contains(what));
    about.map(str::to_owned).collect()
}

/// Virtio tells of it by an event of the disk, SCSI by one of the device below it.
pub(crate) fn a_resized_drive_is_published_once(lab: &mut Lab) {
    for drive in [virtio("RESIZED-VIRTIO", 13), scsi("RESIZED-SCSI")] {
        let serial = drive.serial.as_str();
        lab.guest.plug(&drive).unwrap();
        let before = lab.until_present(serial);
        let name = path(&before).replace("/dev/", "");
        let follower = Follower::start(lab);
        resize(lab, &drive, 2 * SIZE);
        // Nothing differs: nothing is published.
        lab.ok(&format!("echo change >/sys/class/block/{name}/uevent"));
        resize(lab, &drive, SIZE);
        let seen = follower.seen_until(lab, serial, has_size(SIZE));
        follower.end(lab);
        let sizes: Vec<_> = seen.iter().map(|drive| drive["status"]["sizeBytes"].clone()).collect();
        assert_eq!(sizes, [SIZE, 2 * SIZE, SIZE].map(Value::from), "{seen:#?}");
        assert!(seen.iter().all(|drive| drive["status"]["denied"] == json!([])), "{seen:#?}");
        let grown = events(lab, &before, "has grown from 64 MiB to 128 MiB.");
        assert_eq!(grown.len(), 1, "{grown:?}");
        let shrunk = events(lab, &before, "has shrunk from 128 MiB to 64 MiB.");
        assert_eq!(shrunk.len(), 1, "{shrunk:?}");
        assert!(!shrunk[0].contains("warning"), "nothing is on it: {shrunk:?}");
        lab.guest.unplug(&drive).unwrap();
        lab.until_missing(serial);
    }
}

pub(crate) fn a_drive_that_shrinks_in_operation_says_so(lab: &mut Lab) {
    let drive = virtio("SHRINKS", 13);
    lab.guest.plug(&drive).unwrap();
    let before = lab.until_present("SHRINKS");
    lab.add(&["SHRINKS"]);
    let grown = resize(lab, &drive, 2 * SIZE);
    assert_eq!(grown["status"]["conditions"], json!([]), "{grown:#}");
    let shrunk = resize(lab, &drive, SIZE / 2);
    assert_eq!(shrunk["status"]["conditions"][0]["type"], "Shrunk", "{shrunk:#}");
    assert!(in_operation(&shrunk), "{shrunk:#}");
    let told = events(lab, &before, "has shrunk from 128 MiB to 32 MiB while in operation");
    assert!(told.len() == 1 && told[0].contains("warning"), "{told:?}");
    let whole = resize(lab, &drive, SIZE);
    assert_eq!(whole["status"]["conditions"], json!([]), "{whole:#}");
    assert!(in_operation(&whole), "{whole:#}");
    lab.remove(&["SHRINKS"]);
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("SHRINKS");
}
