//! etcd is put back to a snapshot from before two elections, while pods write.

use std::time::Duration;

use crate::cluster::{Installed, until, within};
use crate::pods::{self, FILESYSTEM, Kind};
use crate::writer::Writer;

/// Controllers that lost their records start anew, and wait longer each time.
const CONVERGED: Duration = Duration::from_secs(6 * 60);

/// Kills the leader, and waits until another one leads.
fn election(installed: &Installed) {
    let before = term(installed).unwrap();
    installed.leading().kill();
    within(CONVERGED, "another controller leads", || match term(installed)? {
        now if now > before => Ok(()),
        now => Err(format!("the term is {now}")),
    });
}

fn term(installed: &Installed) -> Result<u64, String> {
    let term = ["get", "registries.hotbay.dev", "-o", "jsonpath={.items[0].status.term.number}"];
    let term = installed.kubectl().run(&term).map_err(|error| error.to_string())?;
    term.parse().map_err(|_| format!("the term is {term:?}"))
}

/// The state that people see of a volume of this name.
fn state(installed: &Installed, name: &str) -> Result<String, String> {
    let volumes = installed.hotbay(&["get", "volumes", "-o", "json"]);
    let volumes: serde_json::Value =
        serde_json::from_str(&volumes.map_err(|error| error.to_string())?).unwrap();
    let volumes = volumes.as_array().or_else(|| volumes["items"].as_array()).cloned();
    let found =
        volumes.unwrap_or_default().into_iter().find(|each| each.to_string().contains(name));
    let state = found.and_then(|volume| volume["status"]["state"].as_str().map(str::to_owned));
    state.ok_or_else(|| "none".to_owned())
}

pub(crate) fn snapshot(installed: &mut Installed) {
    let kubectl = installed.kubectl().clone();
    pods::claim(installed, "old", 64, Kind::Ext4);
    let writer = Writer::start(installed, "old", "old", "node1");
    assert_eq!(pods::write(&kubectl, "old", "one"), "one\n");
    let snapshot = installed.cluster.plane().folder().join("snapshot");
    installed.cluster.plane().save_snapshot(&snapshot).unwrap();

    election(installed);
    election(installed);
    pods::claim(installed, "young", 64, Kind::Ext4);
    pods::start(installed, "young", "young", FILESYSTEM, "node1");
    assert_eq!(pods::write(&kubectl, "young", "two"), "two\n");
    let young = installed.json(&["pvc", "young"])["spec"]["volumeName"].to_string();
    let young = young.trim_matches('"').to_owned();

    installed.cluster.restore_snapshot(&snapshot).unwrap();
    within(CONVERGED, "it is noticed that the records went back", || {
        let nodes = installed.hotbay(&["get", "nodes", "-o", "json"]);
        let nodes = nodes.map_err(|error| error.to_string())?;
        if nodes.contains("RegistryRewound") { Ok(()) } else { Err(nodes) }
    });
    assert_eq!(pods::write(&kubectl, "old", "three"), "one\nthree\n");
    let refused = installed.hotbay(&["registry", "adopt"]).unwrap_err().to_string();
    assert!(refused.contains("nothing was changed"), "adopted without a word: {refused}");
    let adopted = installed.hotbay(&["registry", "adopt", "--yes"]).unwrap();
    println!("      {}", adopted.trim_end().replace('\n', "\n      "));
    within(CONVERGED, "the nodes are back", || {
        let nodes = installed.hotbay(&["get", "nodes", "-o", "json"]);
        let nodes = nodes.map_err(|error| error.to_string())?;
        if nodes.contains("RegistryRewound") { Err(nodes) } else { Ok(()) }
    });
    println!("      longest wait for a write: {:?}", writer.has_never_stopped(installed));
    // What nobody remembers is on the drive all the same, and is not given to anybody.
    let is_orphan = || {
        let shown = "the volume that was made later is shown";
        assert_eq!(until(shown, || state(installed, &young)), "Orphan");
    };
    is_orphan();

    pods::delete(installed, &["pod", "old"]);
    pods::start(installed, "old", "old", FILESYSTEM, "node1");
    assert_eq!(pods::write(&kubectl, "old", "four"), "one\nthree\nfour\n");
    pods::claim(installed, "new", 64, Kind::Ext4);
    pods::start(installed, "new", "new", FILESYSTEM, "node1");
    assert_eq!(pods::write(&kubectl, "new", "five"), "five\n");
    is_orphan();
    pods::delete(installed, &["pod/old", "pod/new", "pvc/old", "pvc/new"]);
    until("the volume that was made later can be deleted", || {
        installed.hotbay(&["volume", "delete", &young, "--yes"]).map_err(|error| error.to_string())
    });
    installed.until_empty();
}
