//! Bytes of a mounted volume live through the death of everything around them.

use crate::lab::{Lab, nvme};
use crate::volumes::{add, kill_agent, kill_registry, mounted, unmount_and_delete};

/// Writes blocks that tell their round, syncs them, and reads them back from the drive, until it is told to stop. The
/// guest has one processor, and others want some of it.
const WRITER: &str = r#"
n=0
while [ -e /run/write ]; do
    n=$((n + 1))
    yes "round $n" | head -c 262144 | dd of=/mnt/db/bytes conv=fsync 2>/dev/null
    dd if=/mnt/db/bytes of=/run/read bs=256k iflag=direct 2>/dev/null
    yes "round $n" | head -c 262144 | cmp - /run/read || { echo "round $n" >/run/differs; exit; }
    echo $n >/run/rounds
    usleep 100000
done
echo >/run/stopped
"#;

pub(crate) fn bytes_live_through_kills_and_a_power_cut(lab: &mut Lab) {
    let drive = nvme("KEPT", 3);
    add(lab, &drive);
    lab.ok("hotbay volume create db --size 32MiB");
    lab.ok("hotbay volume mount db /mnt/db --persist");
    let device = mounted(lab, "db");
    assert!(device.starts_with("/dev/dm-"), "{device}");
    lab.ok(&format!("touch /run/write && cat >/run/writer <<'END'\n{WRITER}\nEND"));
    lab.ok("setsid sh /run/writer >/dev/console 2>&1 &");
    // Each of them while it writes, and it goes on before the next.
    more_rounds(lab);
    kill_agent(lab);
    more_rounds(lab);
    kill_registry(lab);
    more_rounds(lab);
    assert_eq!(mounted(lab, "db"), device, "the same mapping");
    lab.ok("rm /run/write");
    lab.wait_until("the writer stops", |guest| {
        guest.run("test -e /run/stopped").unwrap().success()
    });
    lab.ok("head -c 4194304 /dev/urandom >/mnt/db/kept && sync");
    let sums = lab.ok("cd /mnt/db && md5sum kept bytes");

    lab.power_cycle(std::slice::from_ref(&drive));
    lab.wait_until("it is mounted again", |guest| {
        guest.run("grep -q ' /mnt/db ' /proc/mounts").unwrap().success()
    });
    assert!(mounted(lab, "db").starts_with("/dev/dm-"));
    assert_eq!(lab.ok("cd /mnt/db && md5sum kept bytes"), sums);
    lab.until("KEPT", "in operation", crate::lab::in_operation);
    unmount_and_delete(lab, "db");
    lab.remove(&["KEPT"]);
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("KEPT");
}

fn more_rounds(lab: &mut Lab) {
    let rounds = "cat /run/rounds 2>/dev/null || echo 0";
    let before: u32 = lab.ok(rounds).trim().parse().unwrap();
    lab.wait_until("it writes on", |guest| {
        let now = guest.run(rounds).unwrap().stdout.trim().parse().unwrap_or(0);
        now > before + 1
    });
    let differs = lab.ok("cat /run/differs 2>/dev/null; true");
    assert_eq!(differs, "", "what was written does not read back");
}
