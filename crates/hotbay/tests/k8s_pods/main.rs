//! Hotbay in the pods of its chart, on a real Kubernetes with two nodes. One cluster for all cases, one after the
//! other: each leaves the drives empty and in operation.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod agents;
mod cluster;
mod drives;
mod fake;
#[path = "../controllers/moment.rs"]
mod moment;
mod objects;
mod pods;
mod volumes;
mod writer;

use std::time::Instant;

use cluster::{Installed, VALUES};

type Case = (&'static str, fn(&Installed));

const DRIVE_BYTES: u64 = 2 << 30;

/// The cases, in this order: the last ones disturb the most. CI has time for twelve on a whole cluster; what takes
/// longer is a case of `soak_k8s_cluster`.
const CASES: [Case; 11] = [
    ("a claim grows while its pod runs, and outlives agents and pods", volumes::claim),
    ("a raw block volume", volumes::raw_block),
    ("a pod lands where its drive is, and no claim is larger than what is free", volumes::topology),
    ("a StatefulSet is scaled up and down", volumes::stateful_set),
    ("a drive is taken out of operation and back by its object", drives::by_patch),
    ("a pod starts although its volume is dead", fake::attach),
    ("an agent is killed while it stages volumes", agents::killed_during_stage),
    ("the leading controller is killed while volumes are made", agents::leader_killed),
    ("a namespace is deleted with a claim and the pod that uses it", objects::namespace),
    ("everything is deleted with kubectl under a running pod", objects::deleted),
    (
        "the chart allows enough; an uninstall leaves everything, and a new install finds it",
        objects::reinstalled,
    ),
];

#[test]
fn chart_serves_claims() {
    let installed = Installed::new(VALUES, DRIVE_BYTES);
    // HOTBAY_K8S_CASE='word|word' runs those with one of the words in their names, for whoever looks for a fault.
    let wanted = std::env::var("HOTBAY_K8S_CASE").unwrap_or_default();
    let is_wanted = |name: &str| wanted.split('|').any(|word| name.contains(word));
    for (name, case) in CASES.into_iter().filter(|(name, _)| is_wanted(name)) {
        let began = Instant::now();
        println!("case: {name}");
        case(&installed);
        println!("      {:.1} s", began.elapsed().as_secs_f64());
    }
}
