//! What is built on drives while everything runs: device mapper, LVM, LUKS. The drive below is somebody's from the
//! first moment to the last, and nobody's afterwards.

use serde_json::{Value, json};

use crate::denied::reasons;
use crate::follow::Follower;
use crate::lab::{Lab, SIZE, path, scsi};

fn member_of(of: &str, by: &[&str]) -> impl Fn(&Value) -> bool {
    move |drive| {
        let denied = &drive["status"]["denied"];
        reasons(drive) == ["Member"] && denied[0]["of"] == of && denied[0]["by"] == json!(by)
    }
}

pub(crate) fn a_mapped_drive_is_held(lab: &mut Lab) {
    let drive = scsi("MAPPED");
    lab.guest.plug(&drive).unwrap();
    let path = path(&lab.until_present("MAPPED"));
    lab.ok("modprobe dm_mod");
    let follower = Follower::start(lab);
    let table = format!("0 {} linear {path} 0", SIZE / 512);
    // It comes empty, gets its table, and is what it is only when it is resumed.
    lab.ok(&format!("dmsetup create --notable mapped && echo '{table}' | dmsetup load mapped"));
    lab.ok("dmsetup resume mapped");
    let held = lab.until("MAPPED", "held", |drive| reasons(drive) == ["Held"]);
    let name = held["status"]["denied"][0]["by"].clone();
    assert!(name[0].as_str().unwrap().starts_with("dm-"), "{held:#}");
    assert_eq!(held["status"]["holders"], name, "{held:#}");
    let refused = lab.run("hotbay drive add MAPPED --wait");
    assert_eq!(refused.code, 5, "{refused:?}");
    lab.ok("dmsetup suspend mapped && dmsetup resume mapped && dmsetup remove mapped");
    let is_free = |drive: &Value| reasons(drive).is_empty();
    let seen = follower.seen_until(lab, "MAPPED", is_free);
    follower.end(lab);
    let states: Vec<_> = seen.iter().map(reasons).collect();
    assert_eq!(states, [vec![], vec!["Held".to_owned()], vec![]], "once each: {seen:#?}");
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("MAPPED");
}

pub(crate) fn volumes_of_lvm_come_grow_and_go(lab: &mut Lab) {
    let drive = scsi("LVM");
    lab.guest.plug(&drive).unwrap();
    let path = path(&lab.until_present("LVM"));
    lab.ok(&format!("modprobe dm_mod && lvm pvcreate -q {path}"));
    lab.until("LVM", "a physical volume", member_of("LVM", &[]));
    lab.ok(&format!("lvm vgcreate -q pool {path} && lvm lvcreate -q -y -Zn -L 8M -n one pool"));
    lab.until("LVM", "below a volume", member_of("LVM", &["pool-one"]));
    let refused = lab.run("hotbay drive add LVM --wait");
    assert_eq!(refused.code, 5, "{refused:?}");
    let follower = Follower::start(lab);
    lab.ok("lvm lvextend -q -L 16M pool/one && lvm lvcreate -q -y -Zn -L 8M -n two pool");
    // That the first grew is nothing to the drive.
    let two = member_of("LVM", &["pool-one", "pool-two"]);
    let seen = follower.seen_until(lab, "LVM", two);
    assert_eq!(seen.len(), 2, "as it was, and below two volumes: {seen:#?}");
    lab.ok("lvm lvremove -q -y pool");
    lab.until("LVM", "below no volume", member_of("LVM", &[]));
    lab.ok(&format!("lvm vgremove -q pool && lvm pvremove -q {path}"));
    lab.until("LVM", "no member", |drive| reasons(drive) != ["Member"]);
    lab.zero(&path);
    let seen = follower.seen_until(lab, "LVM", |drive| reasons(drive).is_empty());
    follower.end(lab);
    let free = seen.iter().filter(|drive| reasons(drive).is_empty()).count();
    assert_eq!(free, 1, "never free in between: {seen:#?}");
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("LVM");
}

pub(crate) fn an_encrypted_drive_is_opened_and_closed(lab: &mut Lab) {
    let drive = scsi("LUKS");
    lab.guest.plug(&drive).unwrap();
    let path = path(&lab.until_present("LUKS"));
    lab.ok("for module in dm_crypt ecb xts algif_skcipher; do modprobe $module; done; mkdir -p /run/cryptsetup");
    let format =
        "cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000";
    lab.ok(&format!("echo secret | {format} {path} -"));
    lab.until("LUKS", "encrypted", member_of("LUKS", &[]));
    lab.ok(&format!("echo secret | cryptsetup open --key-file=- {path} vault"));
    lab.until("LUKS", "opened", member_of("LUKS", &["vault"]));
    let refused = lab.run("hotbay drive add LUKS --wait");
    assert_eq!(refused.code, 5, "{refused:?}");
    // What is mounted from inside it is on the drive.
    lab.ok("mkfs.ext4 -q /dev/mapper/vault && mkdir -p /mnt/vault && mount /dev/mapper/vault /mnt/vault");
    lab.until("LUKS", "mounted", |drive| reasons(drive) == ["Mounted", "Member"]);
    lab.ok("umount /mnt/vault && cryptsetup close vault");
    lab.until("LUKS", "closed", member_of("LUKS", &[]));
    lab.zero(&path);
    lab.until_present("LUKS");
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("LUKS");
}
