//! Many: changes, which must leave no descriptor behind, and drives.

use std::time::Instant;

use crate::rig::{FIRST_BYTES, MIB, Rig};

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
    let after = crate::cluster::eventually("the descriptors are closed", || {
        let now = descriptors(&rig);
        (now <= before).then_some(now)
    });
    println!("descriptors of the agent: {before} before, {after} after");
}

#[test]
fn two_hundred_drives_are_found() {
    const DRIVES: usize = 200;
    let mut rig = Rig::new(DRIVES);
    rig.cluster.start_registry();
    let started = Instant::now();
    rig.cluster.start_agent();
    rig.cluster.wait_ready();
    let registered = started.elapsed();
    let present = || rig.drives().iter().filter(|drive| drive["status"]["present"] == true).count();
    crate::cluster::eventually("all drives are there", || (present() == DRIVES).then_some(()));
    let found = started.elapsed();
    let changed = Instant::now();
    rig.loops[DRIVES - 1].resize(FIRST_BYTES + MIB);
    rig.wait_size(&rig.loops[DRIVES - 1], FIRST_BYTES + MIB);
    println!(
        "{DRIVES} drives: registered after {registered:?}, found after {found:?}, {} reports, a resize known after {:?}; \
         memory {} KiB, descriptors {}",
        rig.reports(),
        changed.elapsed(),
        rig.agent_memory(),
        descriptors(&rig),
    );
    assert_eq!(rig.told_missing(), 0, "{:?}", rig.told());
}
