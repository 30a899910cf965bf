//! Sizes: what grows, shrinks, becomes empty or goes away is published once, by the cheapest look that tells it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cluster::eventually;
use crate::rig::{FIRST_BYTES, MIB, Rig, reasons};

#[test]
fn every_other_size_is_published_once() {
    let rig = Rig::started(2);
    let drive = &rig.loops[0];
    let first = rig.at(&drive.path).unwrap();
    let before = rig.reports();
    for (reports, bytes) in [(1, 96 * MIB), (2, 80 * MIB)] {
        drive.resize(bytes);
        rig.wait_size(drive, bytes);
        assert_eq!(rig.reports() - before, reports);
    }
    // A file without a byte: the device stays, and there is no room on it.
    drive.resize(0);
    let empty = rig.wait_size(drive, 0);
    assert!(reasons(&empty["status"]).contains(&"Unreadable".to_owned()), "{empty}");
    assert_eq!(rig.reports() - before, 3);
    drive.resize(FIRST_BYTES);
    let again = rig.wait_size(drive, FIRST_BYTES);
    assert_eq!(reasons(&again["status"]), [""; 0]);
    assert_eq!(again["metadata"]["name"], first["metadata"]["name"], "{again} was {first}");
    assert_eq!(rig.reports() - before, 4);
    // The same size again is nothing, whatever the kernel says; another one follows it.
    for _ in 0..3 {
        drive.take_size();
    }
    drive.resize(96 * MIB);
    rig.wait_size(drive, 96 * MIB);
    assert_eq!(rig.reports() - before, 5);
    assert_eq!(rig.told_missing(), 0, "{:?}", rig.told());
}

#[test]
fn a_drive_without_a_file_is_missing_and_comes_back_as_itself() {
    let rig = Rig::started(1);
    let drive = &rig.loops[0];
    let first = rig.at(&drive.path).unwrap();
    for round in 1..=3 {
        let before = rig.reports();
        drive.detach();
        rig.wait(&drive.path, "missing", |status| status["present"] == false);
        assert_eq!((rig.reports() - before, rig.told_missing()), (1, round));
        drive.attach(&drive.file);
        let again = rig.wait(&drive.path, "there again", |status| status["present"] == true);
        assert_eq!(again["metadata"], first["metadata"], "round {round}");
        assert_eq!(rig.reports() - before, 2, "round {round}");
    }
    assert_eq!(rig.drives().len(), 1, "{:?}", rig.drives());
}

/// Other devices of the machine may have events of their own at any time, which are looked into as well: one try of
/// many without any is enough, because a look that reads more does so every time.
#[test]
fn a_resize_costs_one_look_at_sysfs() {
    let rig = Rig::started(1);
    let drive = &rig.loops[0];
    let alone = BTreeMap::from([(
        "hotbay_probe_runs_total{probe=\"sysfs-probe\",action=\"change\"}".to_owned(),
        1,
    )]);
    let mut bytes = FIRST_BYTES;
    let mut seen = Vec::new();
    eventually("a resize that ran one probe", || {
        let before = rig.numbers();
        bytes += MIB;
        drive.resize(bytes);
        rig.wait_size(drive, bytes);
        let ran = rig.numbers().since(&before, "hotbay_probe_runs_total");
        let is_it = ran == alone;
        seen.push(ran);
        assert!(seen.len() < 30, "each ran more: {seen:?}");
        is_it.then_some(())
    });
    println!("a resize ran one probe, at try {}", seen.len());
}

/// The first look takes a while, and nobody may miss what happens in it.
#[test]
fn a_resize_while_the_agent_starts_is_not_missed() {
    let mut rig = Rig::new(1);
    rig.cluster.start_registry();
    for round in 1..=5_u64 {
        rig.cluster.start_agent_with(&[]);
        // Somewhere between its first step and its first report.
        for step in 1..=20 {
            rig.loops[0].resize(FIRST_BYTES + (round * 20 + step) * MIB);
        }
        rig.wait_size(&rig.loops[0], FIRST_BYTES + (round * 20 + 20) * MIB);
        assert!(rig.cluster.agent.take().unwrap().stop());
    }
}

/// For a moment there is nothing to read where its end was, whoever reads it.
#[test]
fn a_drive_that_shrinks_while_it_is_read_stays_the_same_drive() {
    let rig = Rig::started(1);
    let drive = &rig.loops[0];
    for round in 1..=20 {
        drive.says_changed(1);
        drive.resize(if round % 2 == 0 { FIRST_BYTES } else { FIRST_BYTES / 2 });
    }
    let is = |status: &Value| status["sizeBytes"] == FIRST_BYTES && reasons(status).is_empty();
    rig.wait(&drive.path, "as it was", is);
    assert_eq!((rig.drives().len(), rig.told_missing()), (1, 0), "{:?}", rig.told());
}
