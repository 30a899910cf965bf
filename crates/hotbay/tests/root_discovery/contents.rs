//! What is on a drive and where it is mounted, on a machine without udev: whoever writes to it is noticed.

use std::collections::BTreeMap;
use std::fs::DirEntry;

use serde_json::{Value, json};

use crate::cluster::signal;
use crate::rig::{Loop, Mounted, Rig, reasons, run};

/// Waits until a drive is denied for exactly these reasons.
fn wait_denied(rig: &Rig, drive: &Loop, expected: &[&str]) -> Value {
    let what = format!("denied for {expected:?}");
    rig.wait(&drive.path, &what, |status| reasons(status) == expected)
}

#[test]
fn a_filesystem_is_shown_from_its_making_to_its_end() {
    let rig = Rig::started(1);
    let drive = &rig.loops[0];
    run("mkfs.ext4", &["-q", drive.node()]);
    let made = wait_denied(&rig, drive, &["Filesystem"]);
    assert_eq!(made["status"]["contents"], "ext4");

    let wait_mounts = |expected: &[&str]| {
        let expected: Vec<_> = expected.iter().map(|name| rig.file(name)).collect();
        let expected = json!(expected);
        let is = |status: &Value| match &status["mounts"] {
            Value::Null => expected == json!([]),
            mounts => *mounts == expected,
        };
        rig.wait(&drive.path, &format!("mounted at {expected}"), is)
    };
    let mounted = Mounted::new(&[], drive.node(), rig.file("a"));
    let seen = wait_mounts(&["a"]);
    assert_eq!(reasons(&seen["status"]), ["Mounted", "Filesystem"]);
    let bound = Mounted::new(&["--bind"], rig.file("a").to_str().unwrap(), rig.file("b"));
    wait_mounts(&["a", "b"]);
    let spaced = Mounted::new(&[], drive.node(), rig.file("c with space"));
    wait_mounts(&["a", "b", "c with space"]);
    drop(mounted);
    wait_mounts(&["b", "c with space"]);
    drop((bound, spaced));
    wait_mounts(&[]);

    // Its name goes, its bytes stay; then these go too.
    run("wipefs", &["-q", "-a", drive.node()]);
    let wiped = wait_denied(&rig, drive, &["NotEmpty"]);
    assert_eq!(wiped["status"]["contents"], Value::Null);
    run("blkdiscard", &["-f", "-z", drive.node()]);
    wait_denied(&rig, drive, &[]);
    rig.cluster.expect(&["drive", "add", &rig.cluster.target(0), "--wait"], 0);
    assert_eq!(rig.told_missing(), 0, "{:?}", rig.told());
}

/// As on a machine that is very busy for a while: nobody has to touch the drive again for it to be read in the end.
#[test]
fn a_drive_that_answers_late_is_read_when_it_does() {
    let rig = Rig::started(1);
    let drive = &rig.loops[0];
    let children = children(rig.agent_pid());
    assert!(!children.is_empty(), "the child that has looked at the drive waits for the next look");
    children.iter().for_each(|child| signal(*child, "STOP"));
    drive.scribble();
    let late = wait_denied(&rig, drive, &["Unreadable"]);
    let quarantined = || rig.numbers().get("hotbay_discovery_quarantined");
    assert_eq!(quarantined(), 1, "{late}");
    let before = rig.numbers();
    children.iter().for_each(|child| signal(*child, "CONT"));
    wait_denied(&rig, drive, &["NotEmpty"]);
    assert_eq!(quarantined(), 0);
    let again = rig.numbers().since(&before, "hotbay_probe_runs_total");
    assert_eq!(again, BTreeMap::new(), "its late answer was taken");
    assert_eq!(rig.told_missing(), 0, "{:?}", rig.told());
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_thread = |thread: std::io::Result<DirEntry>| {
        let text = std::fs::read_to_string(thread.unwrap().path().join("children")).unwrap();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()
    };
    threads.flat_map(of_thread).collect()
}

/// As when many containers start and end.
#[test]
fn mounts_of_others_cost_no_look_at_a_drive() {
    let rig = Rig::started(1);
    let drive = &rig.loops[0];
    let before = rig.numbers();
    let at = |number| rig.file(&format!("other-{number}"));
    let others: Vec<_> =
        (0..100).map(|number| Mounted::new(&["-t", "tmpfs"], "none", at(number))).collect();
    drop(others);
    // This one is told after all that came before it.
    drive.scribble();
    wait_denied(&rig, drive, &["NotEmpty"]);
    let after = rig.numbers();
    let more = |series: &str| after.get(series) - before.get(series);
    assert_eq!(more("hotbay_discovery_reports_total"), 1);
    assert_eq!(more("hotbay_probe_seconds_count"), 1, "devices were read");
}

/// The kernel tells nobody of this flag.
#[test]
fn a_drive_that_is_set_read_only_is_found_so() {
    let rig = Rig::started(1);
    let drive = &rig.loops[0];
    let before = rig.reports();
    run("blockdev", &["--setro", drive.node()]);
    let seen = wait_denied(&rig, drive, &["ReadOnly"]);
    assert_eq!(seen["status"]["readOnly"], true);
    run("blockdev", &["--setrw", drive.node()]);
    wait_denied(&rig, drive, &[]);
    assert_eq!(rig.reports() - before, 2);
}

#[test]
fn a_loop_device_over_a_drive_keeps_it_from_being_added() {
    let rig = Rig::started(1);
    let drive = &rig.loops[0];
    let over = Loop::detached(drive.path.clone());
    for _ in 0..2 {
        over.attach(&drive.path);
        let seen = wait_denied(&rig, drive, &["Looped"]);
        assert_eq!(seen["status"]["denied"][0]["by"], json!([over.node()]));
        over.detach();
        wait_denied(&rig, drive, &[]);
    }
}

/// The table and its partitions are told to the kernel one by one: not every kernel reads tables of loop devices.
#[test]
fn a_partition_table_is_shown_with_its_partitions() {
    let rig = Rig::started(1);
    let drive = &rig.loops[0];
    let table = rig.file("table");
    std::fs::write(&table, "label: gpt\nsize=8MiB\nsize=16MiB\n").unwrap();
    let sfdisk = "sfdisk -q --no-reread --no-tell-kernel";
    run("sh", &["-c", &format!("{sfdisk} {} < {}", drive.node(), table.display())]);
    let seen = wait_denied(&rig, drive, &["Partitioned"]);
    assert_eq!(seen["status"]["contents"], "gpt");
    let wait_parts = |expected: &[(u64, u64)]| {
        let part = |(number, mib): &(u64, u64)| {
            let name = format!("{}p{number}", drive.name());
            json!({ "name": name, "sizeBytes": mib << 20 })
        };
        let expected = match expected {
            [] => Value::Null,
            parts => parts.iter().map(part).collect(),
        };
        let is = |status: &Value| status["partitions"] == expected;
        rig.wait(&drive.path, &format!("parted as {expected}"), is);
    };
    let (first, second) = ((2048, 8), (2048 + 8 * 2048, 16));
    for (number, (start, mib)) in [("1", first), ("2", second)] {
        run("addpart", &[drive.node(), number, &start.to_string(), &(mib * 2048).to_string()]);
    }
    wait_parts(&[(1, 8), (2, 16)]);
    // No event tells of this one.
    run("resizepart", &[drive.node(), "1", &(4 * 2048).to_string()]);
    wait_parts(&[(1, 4), (2, 16)]);
    run("delpart", &[drive.node(), "1"]);
    wait_parts(&[(2, 16)]);
    run("delpart", &[drive.node(), "2"]);
    wait_parts(&[]);
    run("wipefs", &["-q", "-a", drive.node()]);
    run("blkdiscard", &["-f", "-z", drive.node()]);
    wait_denied(&rig, drive, &[]);
}

/// A table is written in several places. Nobody sees a drive that is neither the one nor the other.
#[test]
fn a_table_that_is_written_anew_is_one_change() {
    let rig = Rig::started(1);
    let drive = &rig.loops[0];
    let write = |label: &str| {
        let sfdisk = "sfdisk -q -w always -W always --no-reread --no-tell-kernel";
        run(
            "sh",
            &["-c", &format!("printf 'label: {label}\\n,8M\\n' | {sfdisk} {}", drive.node())],
        );
    };
    let before = rig.reports();
    for (reports, label) in [(1, "gpt"), (2, "dos"), (3, "gpt")] {
        write(label);
        let is = |status: &Value| status["contents"] == label;
        let seen = rig.wait(&drive.path, &format!("parted by {label}"), is);
        assert_eq!(reasons(&seen["status"]), ["Partitioned"]);
        assert_eq!(rig.reports() - before, reports, "once for each table");
    }
}
