//! What is put on a drive while everything runs, and taken off again: partitions and filesystems. The guest has no udev
//! that would tell of writers.

use serde_json::{Value, json};

use crate::denied::reasons;
use crate::lab::{Lab, path, scsi};

const MIB: u64 = 1 << 20;

pub(crate) fn partitions_are_told_with_their_sizes(lab: &mut Lab) {
    let drive = scsi("PARTITIONS");
    lab.guest.plug(&drive).unwrap();
    let path = path(&lab.until_present("PARTITIONS"));
    let name = path.replace("/dev/", "");
    let parts = |sizes: &[u64]| -> Value {
        let parts = sizes.iter().enumerate();
        let part = |(n, size): (usize, &u64)| json!({"name": format!("{name}{}", n + 1), "sizeBytes": size * MIB});
        parts.map(part).collect()
    };
    lab.ok(&format!("printf ',16M\\n,8M\\n' | sfdisk -q -X dos {path}"));
    lab.until("PARTITIONS", "in two parts", |drive| {
        reasons(drive) == ["Partitioned"] && drive["status"]["partitions"] == parts(&[16, 8])
    });
    // The kernel is told to take the second for smaller, and tells nobody: neither the table nor any event says so.
    lab.ok(&format!("resizepart {path} 2 {}", 4 * MIB / 512));
    lab.until("PARTITIONS", "in two parts, one resized", |drive| {
        drive["status"]["partitions"] == parts(&[16, 4])
    });
    // What is mounted is a part of it.
    lab.ok(&format!("mkfs.ext4 -q {path}1 && mkdir -p /mnt/part && mount {path}1 /mnt/part"));
    lab.until("PARTITIONS", "mounted", |drive| {
        reasons(drive) == ["Mounted", "Partitioned"]
            && drive["status"]["mounts"] == json!(["/mnt/part"])
    });
    lab.ok("umount /mnt/part");
    lab.until("PARTITIONS", "no longer mounted", |drive| reasons(drive) == ["Partitioned"]);
    lab.ok(&format!("wipefs -q -a {path}"));
    lab.until("PARTITIONS", "in one piece, with traces of a table", |drive| {
        reasons(drive) == ["NotEmpty"] && drive["status"]["partitions"] == json!(null)
    });
    lab.zero(&path);
    lab.until_present("PARTITIONS");
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("PARTITIONS");
}

pub(crate) fn a_filesystem_is_mounted_and_unmounted(lab: &mut Lab) {
    let drive = scsi("MOUNTS");
    lab.guest.plug(&drive).unwrap();
    let path = path(&lab.until_present("MOUNTS"));
    lab.ok(&format!("mkfs.ext4 -q {path}"));
    let on_it = lab.until("MOUNTS", "with a filesystem", |drive| reasons(drive) == ["Filesystem"]);
    assert_eq!(on_it["status"]["contents"], "ext4", "{on_it:#}");
    lab.ok(&format!("mkdir -p '/mnt/a b' /mnt/again && mount {path} '/mnt/a b'"));
    let is_at = |places: Value| {
        move |drive: &Value| {
            drive["status"]["denied"][0]["reason"] == "Mounted"
                && drive["status"]["mounts"] == places
        }
    };
    lab.until("MOUNTS", "mounted", is_at(json!(["/mnt/a b"])));
    lab.ok("mount -o bind '/mnt/a b' /mnt/again");
    lab.until("MOUNTS", "mounted twice", is_at(json!(["/mnt/a b", "/mnt/again"])));
    lab.ok("umount '/mnt/a b'");
    lab.until("MOUNTS", "mounted at the second place", is_at(json!(["/mnt/again"])));
    lab.ok("umount /mnt/again");
    lab.until("MOUNTS", "not mounted", |drive| reasons(drive) == ["Filesystem"]);
    lab.zero(&path);
    lab.until_present("MOUNTS");
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("MOUNTS");
}

/// Of a real drive the kernel itself has read the table, and must let go of the partitions.
pub(crate) fn a_partitioned_drive_is_wiped_and_added(lab: &mut Lab) {
    let drive = scsi("WIPED");
    lab.guest.plug(&drive).unwrap();
    let path = path(&lab.until_present("WIPED"));
    lab.ok(&format!("printf ',16M\\n,8M\\n' | sfdisk -q -X gpt {path}"));
    lab.ok(&format!("mkfs.ext4 -q {path}1 && mkfs.ext4 -q {path}2"));
    lab.ok(&format!("mkdir -p /mnt/wiped && mount {path}2 /mnt/wiped"));
    lab.until("WIPED", "mounted", |drive| reasons(drive) == ["Mounted", "Partitioned"]);
    let add = "hotbay drive add WIPED --wipe --wait --serial";
    let mounted = lab.run(&format!("{add} WIPED"));
    assert!(!mounted.success() && format!("{mounted:?}").contains("mounted"), "{mounted:?}");
    lab.ok(&format!("umount /mnt/wiped && blkid -p {path}2"));
    lab.until("WIPED", "no longer mounted", |drive| reasons(drive) == ["Partitioned"]);
    let mistaken = lab.run(&format!("{add} WIPE"));
    assert!(!mistaken.success(), "{mistaken:?}");
    lab.ok(&format!("blkid -p {path}1 && blkid -p {path}2"));
    lab.ok(&format!("{add} WIPED"));
    lab.until("WIPED", "in operation", |drive| drive["status"]["state"] == "AttachedDevice");
    let parts = lab.ok(&format!("ls {path}*; blkid -p -o export {path}; blkid -p {path}1; true"));
    assert!(parts.contains("PTTYPE=gpt") && !parts.contains(&format!("{path}2")), "{parts}");
    assert!(!parts.contains("ext4"), "nothing is left at its old place: {parts}");
    lab.remove(&["WIPED"]);
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("WIPED");
}
