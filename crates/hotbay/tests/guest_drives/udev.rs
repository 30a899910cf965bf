//! udev is started late: what it knows of drives is shown from then on, also of those that were there before.

use serde_json::{Value, json};

use crate::lab::{Lab, virtio};

fn has_link(drive: &Value, link: &str) -> bool {
    drive["status"]["links"].as_array().is_some_and(|links| links.contains(&json!(link)))
}

pub(crate) fn the_names_of_udev_are_shown(lab: &mut Lab) {
    let before = lab.until_present("COLD-NVME");
    assert_eq!(before["status"]["links"], json!(null), "{before:#}");
    lab.ok("ln -sf udevadm /bin/systemd-udevd && /bin/systemd-udevd --daemon");
    lab.ok("udevadm trigger --action=change --subsystem-match=block && udevadm settle");
    lab.until("COLD-NVME", "known to udev", |drive| {
        has_link(drive, "nvme-QEMU_NVMe_Ctrl_COLD-NVME")
    });
    let drive = virtio("UDEV", 15);
    lab.guest.plug(&drive).unwrap();
    lab.until("UDEV", "known to udev", |drive| has_link(drive, "virtio-UDEV"));
    lab.add(&["UDEV"]);
    lab.remove(&["UDEV"]);
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("UDEV");
    // Those who make mappings wait for a udev that is there to tell them that it is done.
    lab.ok("udevadm control --exit");
    lab.wait_until("udev has ended", |guest| guest.run("! pidof systemd-udevd").unwrap().success());
    lab.ok("rm -rf /run/udev");
}
