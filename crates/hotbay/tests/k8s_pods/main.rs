//! Hotbay in the pods of its chart, on a real Kubernetes with two nodes. One cluster for all cases; each leaves the
//! drives empty and in operation. Those that disturb nobody run at the same time, the others one after the other.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod agents;
mod cluster;
mod drives;
mod fake;
mod helm;
mod image;
#[path = "../controllers/moment.rs"]
mod moment;
mod objects;
mod pods;
mod volumes;
mod writer;

use std::thread;
use std::time::Instant;

use cluster::{Installed, VALUES};

type Case = (&'static str, fn(&Installed));

const DRIVE_BYTES: u64 = 2 << 30;

/// These mind nobody, and run at the same time. Each ends when no volume is left of any.
const TOGETHER: [Case; 4] = [
    ("the image has every program that Hotbay calls", image::has_every_program),
    ("a raw block volume", volumes::raw_block),
    ("a StatefulSet is scaled up and down", volumes::stateful_set),
    ("a namespace is deleted with a claim and the pod that uses it", objects::namespace),
];

/// These come after them, in this order: the last ones disturb the most. CI has time for twelve on a whole cluster;
/// what takes longer is a case of `soak_k8s_cluster`.
const ONE_BY_ONE: [Case; 8] = [
    ("a claim grows while its pod runs, and outlives agents and pods", volumes::claim),
    ("a pod lands where its drive is, and no claim is larger than what is free", volumes::topology),
    ("a drive is taken out of operation and back by its object", drives::by_patch),
    ("a pod starts although its volume is dead", fake::attach),
    ("an agent is killed while it stages volumes", agents::killed_during_stage),
    ("the leading controller is killed while volumes are made", agents::leader_killed),
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
    let run = |(name, case): Case| {
        let began = Instant::now();
        println!("case: {name}");
        case(&installed);
        println!("      {:.1} s: {name}", began.elapsed().as_secs_f64());
    };
    thread::scope(|scope| {
        for case in TOGETHER.into_iter().filter(|(name, _)| is_wanted(name)) {
            scope.spawn(move || run(case));
        }
    });
    ONE_BY_ONE.into_iter().filter(|(name, _)| is_wanted(name)).for_each(run);
}
