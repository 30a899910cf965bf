//! One id follows an order through the logs of the registry and of the agent, from the decision to the proof.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;

use cluster::{Cluster, eventually};
use serde_json::Value;

/// What one side has logged about an order, at the level that is the default.
fn lines(cluster: &Cluster, order: &str, side: &str) -> Vec<String> {
    let log = std::fs::read_to_string(cluster.path().join("log")).unwrap();
    let parsed = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_it = parsed.filter(|line| {
        line["fields"]["order"] == order && line["target"].as_str().unwrap().starts_with(side)
    });
    of_it.map(|line| line["fields"]["message"].as_str().unwrap().to_owned()).collect()
}

/// The two sides have logged these parts, in this order. An order that is repeated may have more lines.
fn expect_lines(cluster: &Cluster, order: &str, registry: &[&str], agent: &[&str]) {
    for (side, expected) in [("hotbay_registry", registry), ("hotbay_node", agent)] {
        let found = lines(cluster, order, side);
        let mut rest = found.iter();
        let fits = expected.iter().all(|part| rest.any(|line| line.contains(part)));
        assert!(fits, "{side} logged of {order}: {found:#?}, not {expected:#?}");
    }
}

fn order(cluster: &Cluster) -> String {
    cluster.drive(0)["status"]["goal"]["order"].as_str().unwrap().to_owned()
}

#[test]
fn the_chain_of_an_order_is_complete_on_both_sides() {
    let mut cluster = Cluster::new(1, false);
    cluster.set("HOTBAY_LOG", "info");
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    assert_eq!(cluster.drive(0)["status"]["goal"]["order"], Value::Null, "nobody asked anything");

    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let added = order(&cluster);
    expect_lines(
        &cluster,
        &added,
        &["goes into operation, asked by", "sent: attach", "answered: done", "is in operation"],
        &["ordered to attach", "attaching", "answering: done"],
    );
    let described = cluster.expect(&["describe", "drive", &cluster.target(0)], 0);
    assert!(described.contains(&added), "{described}");

    // Something stands in the way: both sides say what, and then that it is done.
    let foreign = std::fs::File::open(&cluster.drives[0].path).unwrap();
    cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
    let removed = order(&cluster);
    assert_ne!(removed, added);
    eventually("the agent's obstacle is heard of", || {
        let answered = lines(&cluster, &removed, "hotbay_registry");
        answered.iter().any(|line| line.contains("waiting")).then_some(())
    });
    drop(foreign);
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
    expect_lines(
        &cluster,
        &removed,
        &[
            "goes out of operation, asked by",
            "sent: detach",
            "answered: waiting: still in use by",
            "answered: done",
            "is out of operation: closed and proved",
        ],
        &["ordered to detach", "closing", "answering: waiting: still in use by", "answering: done"],
    );
}
