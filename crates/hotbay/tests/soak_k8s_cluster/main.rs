//! What takes too long for CI, on one cluster with the chart's pods: the API server away for a minute, etcd put back to
//! a snapshot, five hundred volumes at once, a kubelet that is restarted. `cargo xtask soak-k8s` runs it; what came out
//! is in docs/kubernetes-soak.md.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../k8s_pods/cluster.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod cluster;
mod faults;
mod many;
#[path = "../k8s_pods/pods.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod pods;
mod restored;
#[path = "../k8s_pods/writer.rs"]
mod writer;

use std::time::Instant;

use cluster::{Installed, VALUES};

type Case = (&'static str, fn(&mut Installed));

/// Sparse files: only what is written takes room.
const DRIVE_BYTES: u64 = 16 << 30;

/// The cases, in this order: the last one disturbs the most.
const CASES: [Case; 4] = [
    ("five hundred volumes are made and deleted at once", many::volumes),
    ("a kubelet is restarted under pods with volumes", faults::kubelet_restarted),
    ("the API server is away for a minute under load", faults::api_server_away),
    ("etcd is put back to a snapshot under running pods", restored::snapshot),
];

#[test]
fn cluster_lives_through_it() {
    let mut installed = Installed::new(VALUES, DRIVE_BYTES);
    // HOTBAY_K8S_CASE='word|word' runs those with one of the words in their names.
    let wanted = std::env::var("HOTBAY_K8S_CASE").unwrap_or_default();
    let is_wanted = |name: &str| wanted.split('|').any(|word| name.contains(word));
    for (name, case) in CASES.into_iter().filter(|(name, _)| is_wanted(name)) {
        let began = Instant::now();
        println!("case: {name}");
        case(&mut installed);
        println!("      {:.1} s", began.elapsed().as_secs_f64());
    }
}
