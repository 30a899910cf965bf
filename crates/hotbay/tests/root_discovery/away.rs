//! One of the two is away for a while: what did not change meanwhile is not told again, and what did is.

use crate::cluster::{eventually, signal};
use crate::rig::{FIRST_BYTES, MIB, Rig, id};

#[test]
fn an_agent_that_starts_again_has_nothing_to_tell() {
    let mut rig = Rig::started(3);
    rig.cluster.expect(&["drive", "add", &rig.cluster.target(0), "--wait"], 0);
    let sorted = |rig: &Rig| {
        let mut drives = rig.drives();
        drives.sort_by_key(id);
        drives
    };
    for how in ["KILL", "TERM"] {
        let before = sorted(&rig);
        let commits = rig.registry_numbers().get("hotbay_store_commits_total");
        let mut agent = rig.cluster.agent.take().unwrap();
        signal(agent.pid(), how);
        eventually("the agent ends", || agent.has_ended().then_some(()));
        rig.start_agent(&[]);
        eventually(&format!("all is as before {how}"), || (sorted(&rig) == before).then_some(()));
        let more = rig.registry_numbers().get("hotbay_store_commits_total") - commits;
        println!("start after {how}: {more} commits, {} reports", rig.reports());
        assert_eq!((more, rig.reports()), (0, 0), "after {how}");
        // What changes while it is away is told when it registers, which takes no report.
        let agent = rig.cluster.agent.take().unwrap();
        agent.kill();
        rig.loops[2].resize(FIRST_BYTES + MIB);
        rig.start_agent(&[]);
        rig.wait_size(&rig.loops[2], FIRST_BYTES + MIB);
        assert_eq!(rig.reports(), 0, "after {how}");
        rig.loops[2].resize(FIRST_BYTES);
        rig.wait_size(&rig.loops[2], FIRST_BYTES);
    }
    assert_eq!(rig.told_missing(), 0, "{:?}", rig.told());
}

#[test]
fn what_changes_while_the_registry_is_away_is_told_when_it_is_back() {
    let mut rig = Rig::started(2);
    rig.cluster.registry.take().unwrap().kill();
    // The second one has its old size again when the registry is back.
    for (drive, bytes) in [(0, 96), (1, 96), (0, 80), (1, 64)] {
        rig.loops[drive].resize(bytes * MIB);
    }
    rig.cluster.start_registry();
    rig.cluster.wait_ready();
    rig.wait_size(&rig.loops[0], 80 * MIB);
    rig.wait_size(&rig.loops[1], FIRST_BYTES);
    let told = rig.told();
    assert!(!told.iter().any(|text| text.contains("is not on its machine")), "{told:?}");
}

#[test]
fn what_changes_while_the_registry_does_not_answer_is_told_when_it_does() {
    let rig = Rig::started(2);
    let registry = rig.cluster.registry.as_ref().unwrap().pid();
    signal(registry, "STOP");
    for (drive, mib) in (65..85).flat_map(|mib| [(0, mib), (1, 150 - mib)]) {
        rig.loops[drive].resize(mib * MIB);
    }
    signal(registry, "CONT");
    rig.wait_size(&rig.loops[0], 84 * MIB);
    rig.wait_size(&rig.loops[1], 66 * MIB);
    assert_eq!(rig.told_missing(), 0, "{:?}", rig.told());
}
