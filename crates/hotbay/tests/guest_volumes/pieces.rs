//! A volume that has grown by another piece of its drive.

use serde_json::json;

use crate::lab::{Lab, nvme, path};
use crate::volumes::{add, kill_agent, mapped, mounted, unmount_and_delete, volume};

/// The first drive in operation: who looks at it sees nothing of what stands on it.
pub(crate) fn a_volume_grows_by_another_piece(lab: &mut Lab) {
    let drive = nvme("PIECES", 1);
    add(lab, &drive);
    assert_eq!(mapped(lab).len(), 1, "the guard");
    lab.ok("hotbay volume create db --size 16MiB && hotbay volume create behind --size 8MiB");
    lab.ok("hotbay volume mount db /mnt/db");
    let before = lab.with_serial("PIECES")[0].clone();
    lab.ok("head -c 8388608 /dev/urandom >/mnt/db/first && sync");
    lab.ok("hotbay volume expand db --size 32MiB");
    // Under the mounted filesystem, by the same command that mounted it.
    let device = mounted(lab, "db");
    lab.ok("hotbay volume mount db /mnt/db");
    assert_eq!(mounted(lab, "db"), device);
    lab.ok("head -c 14680064 /dev/urandom >/mnt/db/second && sync && cd /mnt/db && md5sum first second >/run/sums");
    let uid = volume(lab, "db")["metadata"]["uid"].as_str().unwrap().to_owned();
    let table = lab.ok(&format!("dmsetup table hotbay-{uid}"));
    assert_eq!(table.lines().count(), 2, "{table}");
    // From the drive, not from memory.
    let check = "cd /mnt/db && for file in first second; do dd if=$file iflag=direct bs=1M 2>/dev/null | md5sum; \
                 done | cut -c1-32 >/run/read && cut -c1-32 /run/sums | cmp - /run/read";
    lab.ok(check);

    kill_agent(lab);
    lab.ok(check);
    let after = lab.with_serial("PIECES")[0].clone();
    // Neither mapping, mount nor growth is anything that the drive is told by.
    for field in ["denied", "mounts", "holders", "present", "state"] {
        assert_eq!(after["status"][field], before["status"][field], "{field}");
    }
    assert_eq!(after["status"]["denied"], json!([]), "{after:#}");
    let path = path(&after);
    let events = lab.ok("hotbay events");
    assert!(!events.contains("Held") && !events.contains("Mounted"), "{events}");
    let claimed = lab.run(&format!("mkfs.ext4 -q -F {path}"));
    assert!(!claimed.success(), "nobody else has it: {claimed:?}");
    let scan = "hotbay node scan --data-dir /var/lib/hotbay/node --drives '/dev/dm-*'";
    assert_eq!(lab.run(scan).code, 4, "ours are no drives");

    // Unmounted and mounted again it is the same volume.
    lab.ok("hotbay volume unmount db && hotbay volume mount db /mnt/db");
    lab.ok(check);
    let refused = lab.run("hotbay volume expand db --size 60MiB");
    assert!(!refused.success() && format!("{refused:?}").contains("room for"), "{refused:?}");
    unmount_and_delete(lab, "db");
    lab.ok("hotbay volume delete behind --yes");
    lab.until("PIECES", "erased", |drive| drive["status"]["dirtyBytes"] == 0);
    lab.remove(&["PIECES"]);
    assert_eq!(mapped(lab), Vec::<String>::new());
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("PIECES");
}
