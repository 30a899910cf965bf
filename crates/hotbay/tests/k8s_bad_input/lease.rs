//! The Lease in the hands of people.

use serde_json::json;

use crate::controllers::{Rig, until};
use crate::{object, said, until_one_is_said, until_said};

const LEASE: [&str; 4] = ["lease", "hotbay-controller", "-n", "hotbay"];

pub(crate) fn stolen(rig: &mut Rig) {
    let (before, leader) = (said(rig), rig.leader(None));
    let patch = r#"{"spec": {"holderIdentity": "thief"}}"#;
    let patch = [&["patch"], &LEASE[..], &["--type", "merge", "-p", patch]].concat();
    rig.plane.kubectl().run(&patch).unwrap();
    until("nobody leads who does not hold the Lease", || {
        let log = rig.controllers[leader].log()[before[leader].len()..].to_owned();
        log.contains("thief holds the Lease").then_some(()).ok_or(log)
    });
    assert!(!rig.controllers[leader].process.ends());
    until_said(rig, "is no controller of Hotbay", &before);
    rig.leader(None);
}

pub(crate) fn deleted_or_nonsense(rig: &mut Rig) {
    rig.plane.kubectl().run(&[&["delete"], &LEASE[..]].concat()).unwrap();
    rig.leader(None);
    until("one of them leads", || {
        rig.restart_ended();
        rig.try_client(&["get", "nodes"])
    });
    rig.leader(None);
    let before = said(rig);
    let mut lease = object(rig, &LEASE);
    lease["metadata"]["annotations"] = json!({ "hotbay.dev/agents": "nowhere", "x": "y" });
    lease["spec"] = json!({
        "holderIdentity": "", "leaseDurationSeconds": i32::MAX, "leaseTransitions": i32::MAX,
        "renewTime": "1970-01-01T00:00:00.000000Z",
    });
    // Whoever leads may renew it in between.
    until("the Lease is nonsense", || {
        lease["metadata"]["resourceVersion"] =
            object(rig, &LEASE)["metadata"]["resourceVersion"].clone();
        let replaced = rig.plane.kubectl().with_input(&["replace", "-f", "-"], &lease.to_string());
        replaced.map_err(|error| error.to_string())
    });
    // By its Lease, or by the first object that the next one has written.
    until_one_is_said(rig, &["the lead is lost", "another controller leads: "], &before);
    rig.leader(None);
}
