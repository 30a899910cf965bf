//! `--attach-at-start`: what a real agent opens before any registry has answered, on plain files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;

use cluster::{Cluster, eventually};

/// Bay 0 in operation, bay 1 removed, bay 2 never added; registry and agent are gone.
fn left_behind() -> Cluster {
    let mut cluster = Cluster::started(3, false);
    let (kept, removed) = (cluster.target(0), cluster.target(1));
    cluster.expect(&["drive", "add", &kept, &removed, "--wait"], 0);
    cluster.expect(&["drive", "remove", &removed, "--wait"], 0);
    cluster.registry.take().unwrap().kill();
    cluster.agent.take().unwrap().kill();
    cluster
}

#[test]
fn all_opens_what_was_removed_until_the_registry_has_answered() {
    let mut cluster = left_behind();
    cluster.start_agent_with(&["--attach-at-start", "all"]);
    for bay in [0, 1] {
        eventually("the drive is open", || {
            (!cluster.agent_descriptors(bay).is_empty()).then_some(())
        });
    }
    assert!(cluster.agent_descriptors(2).is_empty(), "a drive without a label is not ours");

    cluster.start_registry();
    cluster.wait_ready();
    eventually("the removed drive is closed again", || {
        cluster.agent_descriptors(1).is_empty().then_some(())
    });
    assert!(!cluster.agent_descriptors(0).is_empty());
    cluster.wait_state(0, "AttachedDevice");
    let removed = cluster.target(1);
    cluster.expect(&["drive", "remove", &removed, "--wait"], 0);
    assert!(cluster.agent_descriptors(1).is_empty());
}

#[test]
fn the_record_alone_leaves_a_removed_drive_closed() {
    let mut cluster = left_behind();
    // Taken away by whoever opens a drive; only the one in operation may be opened, so it is left out here.
    let kept = cluster.drives.remove(0);
    let once = cluster.path().join("once");
    std::fs::write(&once, "").unwrap();
    cluster.set("HOTBAY_DIE_AT", "open-locked");
    cluster.set("HOTBAY_DIE_ONCE", once.to_str().unwrap());
    cluster.start_agent();
    cluster.start_registry();
    cluster.wait_ready();
    assert!(once.exists(), "a drive was opened");
    drop(kept);
}
