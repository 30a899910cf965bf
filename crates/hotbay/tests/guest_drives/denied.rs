//! What is on a drive, or holds it, keeps it from being added; and nothing is ever written to it.

use std::process::Command;

use hotbay_guest::{Bus, Drive};
use serde_json::Value;

use crate::lab::{Lab, SIZE, path, scsi, virtio};

pub(crate) fn reasons(drive: &Value) -> Vec<String> {
    let denied = drive["status"]["denied"].as_array().unwrap().iter();
    denied.map(|denied| denied["reason"].as_str().unwrap().to_owned()).collect()
}

fn with_reason(lab: &mut Lab, serial: &str, reason: &str) {
    lab.until(serial, &format!("denied as {reason}"), |drive| {
        reasons(drive).iter().any(|found| found == reason)
    });
    let refused = lab.run(&format!("hotbay drive add {serial} --wait"));
    assert_eq!(refused.code, 5, "{refused:?}");
    let drive = &lab.with_serial(serial)[0];
    assert_eq!(drive["spec"]["inOperation"], false, "{drive:#}");
}

fn make(program: &mut Command) {
    let output = program.output().unwrap();
    assert!(output.status.success(), "{program:?}: {output:?}");
}

pub(crate) fn what_is_on_a_drive_is_left_as_it_is(lab: &mut Lab) {
    let filesystem = virtio("FILESYSTEM", 7);
    let bus = Bus::Scsi { wwn: None, rotation_rate: 1 };
    let table = Drive::new("table", bus, "TABLE", SIZE);
    make(Command::new("mkfs.ext4").arg("-q").arg(lab.machine.image(&filesystem).unwrap()));
    let image = lab.machine.image(&table).unwrap();
    let script = format!("echo ,16M | sfdisk -q -X dos '{}'", image.display());
    make(Command::new("sh").args(["-c", &script]));
    let drives = [(&filesystem, "Filesystem"), (&table, "Partitioned")];
    let before = drives.map(|(drive, _)| lab.first_mib(drive));
    for (drive, reason) in drives {
        lab.guest.plug(drive).unwrap();
        with_reason(lab, &drive.serial, reason);
    }
    assert_eq!(lab.with_serial("TABLE")[0]["status"]["media"], "SSD");
    // The drive below /var/lib is in use by the guest itself.
    with_reason(lab, "guest-state", "Mounted");
    lab.ok("sync");
    for ((drive, _), before) in drives.iter().zip(before) {
        assert!(lab.first_mib(drive) == before, "{} was written to", drive.serial);
        lab.guest.unplug(drive).unwrap();
    }
}

pub(crate) fn a_member_of_a_software_raid_is_told(lab: &mut Lab) {
    let member = virtio("RAID", 8);
    lab.guest.plug(&member).unwrap();
    let path = path(&lab.until_present("RAID"));
    lab.ok("modprobe raid1");
    let create = "mdadm --create /dev/md0 --run --force --level=1 --raid-devices=1 --metadata=1.2";
    lab.ok(&format!("{create} {path}"));
    lab.ok("sync");
    let before = lab.first_mib(&member);
    with_reason(lab, "RAID", "Member");
    let reason = lab.with_serial("RAID")[0]["status"]["denied"][0].clone();
    assert_eq!((&reason["of"], &reason["by"][0]), (&"software RAID".into(), &"md0".into()));
    assert!(lab.first_mib(&member) == before, "the member was written to");
    lab.ok("mdadm --stop /dev/md0");
    // It is no longer held, and still somebody's.
    lab.until("RAID", "not held", |drive| {
        let denied = &drive["status"]["denied"];
        reasons(drive) == ["Member"] && denied[0]["by"].as_array().is_some_and(Vec::is_empty)
    });
    // Assembled again, and another drive becomes a member of what runs.
    let other = scsi("RAID-2");
    lab.guest.plug(&other).unwrap();
    let added = crate::lab::path(&lab.until_present("RAID-2"));
    lab.ok(&format!("mdadm --assemble --run /dev/md0 {path} && mdadm /dev/md0 --add {added}"));
    lab.ok("mdadm --grow /dev/md0 --raid-devices=2");
    let is_held = |drive: &Value| {
        let denied = &drive["status"]["denied"];
        reasons(drive) == ["Member"] && denied[0]["by"][0] == "md0"
    };
    for serial in ["RAID", "RAID-2"] {
        lab.until(serial, "a member, and named", is_held);
    }
    with_reason(lab, "RAID-2", "Member");
    // Without its superblock it is nobody's; what was copied to it is on it still, until that is gone too.
    lab.ok("mdadm --wait /dev/md0; mdadm --stop /dev/md0");
    for (serial, path) in [("RAID", &path), ("RAID-2", &added)] {
        lab.ok(&format!("mdadm --zero-superblock {path}"));
        lab.until(serial, "no member", |drive| !reasons(drive).contains(&"Member".to_owned()));
        lab.zero(path);
        lab.until_present(serial);
    }
    for drive in [&member, &other] {
        lab.guest.unplug(drive).unwrap();
        lab.until_missing(&drive.serial);
    }
}

pub(crate) fn two_drives_with_one_serial_number_are_not_confused(lab: &mut Lab) {
    let first = virtio("TWIN", 9);
    let second = Drive { id: "twin-2".to_owned(), bus: Bus::Virtio { slot: 10 }, ..first.clone() };
    lab.guest.plug(&first).unwrap();
    let known = lab.until_present("TWIN");
    lab.add(&["TWIN"]);
    lab.guest.plug(&second).unwrap();
    lab.wait_until("somebody says that two drives look like one", |guest| {
        guest.run("hotbay events").unwrap().stdout.contains("IdentityConflict")
    });
    let is_known = |drive: &Value| drive["metadata"]["uid"] == known["metadata"]["uid"];
    let (own, others): (Vec<_>, Vec<_>) = lab.with_serial("TWIN").into_iter().partition(is_known);
    assert_eq!(own.iter().map(path).collect::<Vec<_>>(), [path(&known)], "it is where it was");
    let [other] = &others[..] else { panic!("{others:#?}") };
    assert!(reasons(other).contains(&"IdentityConflict".to_owned()), "{other:#}");
    let name = known["metadata"]["name"].as_str().unwrap();
    lab.ok(&format!("hotbay drive remove {name} --wait"));
    assert!(lab.first_mib(&second).iter().all(|byte| *byte == 0), "the second was written to");
    lab.guest.unplug(&second).unwrap();
    lab.guest.unplug(&first).unwrap();
    lab.until_missing("TWIN");
}
