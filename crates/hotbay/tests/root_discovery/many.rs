//! Many: changes, which must leave no descriptor behind, and drives.

use std::time::Instant;

use serde_json::Value;

use crate::cluster::eventually;
use crate::rig::{FIRST_BYTES, MIB, Rig, reasons};

fn descriptors(rig: &Rig) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", rig.agent_pid())).unwrap().count()
}

#[test]
fn no_descriptor_is_left_of_many_changes() {
    let rig = Rig::started(2);
    let (drive, other) = (&rig.loops[0], &rig.loops[1]);
    let round = |resizes: u64, attaches: u64| {
        for number in 1..=resizes {
            drive.resize(FIRST_BYTES + number * MIB);
        }
        rig.wait_size(drive, FIRST_BYTES + resizes * MIB);
        for _ in 0..attaches {
            other.detach();
            rig.wait(&other.path, "missing", |status| status["present"] == false);
            other.attach(&other.file);
            rig.wait(&other.path, "there", |status| status["present"] == true);
        }
        // The last child has answered, and is closed before the next begins.
        drive.resize(FIRST_BYTES);
        rig.wait_size(drive, FIRST_BYTES);
    };
    round(5, 2);
    let before = descriptors(&rig);
    round(200, 20);
    let after = eventually("the descriptors are closed", || {
        let now = descriptors(&rig);
        (now <= before).then_some(now)
    });
    println!("descriptors of the agent: {before} before, {after} after");
}

/// Children of the agent that are there now.
fn children(rig: &Rig) -> usize {
    let pid = rig.agent_pid();
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace().count()
}

#[test]
fn two_hundred_drives_are_found() {
    const DRIVES: usize = 200;
    /// Those that read, those that are kept for the next, and as many that are about to end.
    const MOST_CHILDREN: usize = 2 * (16 + 4);
    let mut rig = Rig::new(DRIVES);
    rig.cluster.start_registry();
    let started = Instant::now();
    rig.cluster.start_agent();
    let usable =
        |drive: &Value| drive["status"]["present"] == true && reasons(&drive["status"]).is_empty();
    let mut most = 0;
    eventually("all drives are there", || {
        most = most.max(children(&rig));
        (rig.drives().iter().filter(|drive| usable(drive)).count() == DRIVES).then_some(())
    });
    let found = started.elapsed();
    let changed = Instant::now();
    let last = &rig.loops[DRIVES - 1];
    last.resize(FIRST_BYTES + MIB);
    rig.wait_size(last, FIRST_BYTES + MIB);
    println!(
        "{DRIVES} drives: found after {found:?}, by at most {most} children, a resize known after {:?}; memory {} KiB, \
         descriptors {}",
        changed.elapsed(),
        rig.agent_memory(),
        descriptors(&rig),
    );
    assert!(most <= MOST_CHILDREN, "{most} children at a time");
    assert_eq!(rig.told_missing(), 0, "{:?}", rig.told());
}
