//! Deleting objects, definitions, a namespace and the whole installation: never the data of a claim that stays.

use std::fs;

use hotbay_rig::chart::{self, NAMESPACE};
use hotbay_rig::product;
use serde_json::Value;

use crate::cluster::{self, Installed, until};
use crate::helm::{authority, helm, only_the_records_are_left};
use crate::pods::{self, FILESYSTEM, Kind};
use crate::writer::Writer;

const KINDS: &str = "storagenodes,drives,volumes.hotbay.dev,attachments";
const INSTALLED: &str = "app.kubernetes.io/instance=hotbay";
/// With the Registry, which has an object of its own.
const DEFINITIONS: usize = 5;

/// Waits until the objects are there again: two nodes with their drives, one volume, used once; none of them is the
/// same as before.
fn until_back(installed: &Installed, before: &[String]) -> Vec<String> {
    until("the objects are there again", || {
        let objects = uids(installed)?;
        let count = |kind: &str| objects.iter().filter(|object| object.starts_with(kind)).count();
        let counts = ["StorageNode", "Drive", "Volume", "Attachment"].map(count);
        let is_new = !objects.iter().any(|object| before.contains(object));
        if counts == [2, 2, 1, 1] && is_new { Ok(objects) } else { Err(objects.join("\n")) }
    })
}

/// Every object of Hotbay: its kind, and who it is.
fn uids(installed: &Installed) -> Result<Vec<String>, String> {
    let uids = r#"jsonpath={range .items[*]}{.kind} {.metadata.uid}{"\n"}{end}"#;
    let list = installed.kubectl().run(&["get", KINDS, "-o", uids]);
    Ok(list.map_err(|error| error.to_string())?.lines().map(str::to_owned).collect())
}

/// Puts the definitions back that are being deleted, once they are gone.
fn restore_definitions(installed: &Installed, definitions: &str) {
    until("the definitions are there again", || {
        installed.kubectl().apply(definitions).map_err(|error| error.to_string())?;
        // It may have found one that has gone since: all must be there, and stay.
        let listed = installed.json(&["crd"]);
        let listed = listed["items"].as_array().unwrap();
        let ours = listed.iter().filter(|each| each["spec"]["group"] == "hotbay.dev");
        let good: Vec<_> = ours.filter(|each| is_established(each)).collect();
        if good.len() == DEFINITIONS { Ok(()) } else { Err(format!("{} of them", good.len())) }
    });
}

fn is_established(definition: &Value) -> bool {
    let mut conditions = definition["status"]["conditions"].as_array().into_iter().flatten();
    let is_it = |condition: &Value| condition["type"] == "Established";
    let status = conditions.find(|each| is_it(each)).map(|condition| &condition["status"]);
    definition["metadata"]["deletionTimestamp"].is_null() && status.is_some_and(|it| it == "True")
}

pub(crate) fn deleted(installed: &Installed) {
    let kubectl = installed.kubectl();
    pods::claim(installed, "kept", 64, Kind::Ext4);
    let keeper = Writer::start(installed, "keeper", "kept", "");
    assert_eq!(pods::write(kubectl, "keeper", "one"), "one\n");

    let first = uids(installed).unwrap();
    kubectl.run(&["delete", KINDS, "--all", "--wait=false"]).unwrap();
    assert_eq!(pods::write(kubectl, "keeper", "two"), "one\ntwo\n");
    let second = until_back(installed, &first);
    until("people are warned", || {
        let events = kubectl.run(&["get", "events", "-A"]).unwrap();
        if events.contains("ObjectDeleted") { Ok(()) } else { Err(events) }
    });

    let definitions = fs::read_to_string(chart::deploy().join("crds.yaml")).unwrap();
    kubectl.with_input(&["delete", "--wait=false", "-f", "-"], &definitions).unwrap();
    assert_eq!(pods::write(kubectl, "keeper", "three"), "one\ntwo\nthree\n");
    restore_definitions(installed, &definitions);
    until_back(installed, &second);
    let waited = keeper.has_never_stopped(installed);
    println!("      the pod's longest wait for a write: {waited:?}");
    pods::delete(installed, &["pod", "keeper"]);
    pods::start(installed, "keeper", "kept", FILESYSTEM, "");
    assert_eq!(pods::write(kubectl, "keeper", "four"), "one\ntwo\nthree\nfour\n");
    pods::delete(installed, &["pod/keeper", "pvc/kept"]);
    installed.until_empty();
}

pub(crate) fn namespace(installed: &Installed) {
    let kubectl = installed.kubectl();
    kubectl.run(&["create", "namespace", "tenant"]).unwrap();
    let objects = pods::manifest("theirs", "hotbay", "Filesystem", 64)
        + &pods::pod("tenant", "theirs", FILESYSTEM, "", "[sleep, '3600']");
    kubectl.with_input(&["-n", "tenant", "apply", "-f", "-"], &objects).unwrap();
    let ready = ["wait", "--for=condition=Ready", "pod/tenant", "--timeout=120s"];
    let ready = [&["--request-timeout=0", "-n", "tenant"][..], &ready].concat();
    kubectl.run(&ready).unwrap_or_else(|error| panic!("{error}\n{}", installed.said()));
    let gone = ["--request-timeout=0", "delete", "namespace", "tenant", "--timeout=120s"];
    kubectl.run(&gone).unwrap_or_else(|error| panic!("{error}\n{}", installed.said()));
    installed.until_empty();
}

/// A drain of machines may take one of the two controllers, and then none before that one is back.
fn one_controller_may_go(installed: &Installed) {
    until("the budget counts the controllers", || {
        let budget = installed.json(&["-n", NAMESPACE, "poddisruptionbudget", "hotbay-controller"]);
        let status = &budget["status"];
        let counted = status["expectedPods"] == 2 && status["disruptionsAllowed"] == 1;
        if counted { Ok(()) } else { Err(status.to_string()) }
    });
}

/// Waits until all pods of the chart have ended.
fn until_nothing_runs(installed: &Installed) {
    until("nothing of Hotbay runs any more", || {
        let pods = ["-n", NAMESPACE, "get", "pods", "-o", "name"];
        let left = installed.kubectl().run(&pods).unwrap();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

/// Without Helm first, and then with it, as docs/kubernetes.md says.
pub(crate) fn reinstalled(installed: &Installed) {
    one_controller_may_go(installed);
    // Whatever the cases before have asked for; from here on rights come and go.
    cluster::rights(installed);
    let kubectl = installed.kubectl();
    pods::claim(installed, "stays", 64, Kind::Ext4);
    let stays = Writer::start(installed, "stays", "stays", "");
    assert_eq!(pods::write(kubectl, "stays", "one"), "one\n");
    let (manifests, made) =
        (fs::read_to_string(chart::deploy().join("hotbay.yaml")).unwrap(), authority(kubectl));
    let delete = ["--request-timeout=0", "delete", "--timeout=120s", "-f", "-", "-l", INSTALLED];
    kubectl.with_input(&delete, &manifests).unwrap();
    until_nothing_runs(installed);
    only_the_records_are_left(kubectl, &made);
    assert_eq!(pods::write(kubectl, "stays", "two"), "one\ntwo\n");
    let values = installed.cluster.plane().folder().join("helm.yaml");
    fs::write(&values, product::values(&installed.cluster, &installed.values)).unwrap();
    helm(kubectl, "install", &["--values", values.to_str().unwrap()]);
    installed.until_ready();
    stays.has_never_stopped(installed);
    pods::delete(installed, &["pod", "stays"]);
    pods::start(installed, "stays", "stays", FILESYSTEM, "");
    assert_eq!(pods::write(kubectl, "stays", "three"), "one\ntwo\nthree\n");
    pods::delete(installed, &["pod/stays", "pvc/stays"]);
    installed.until_empty();
    helm(kubectl, "uninstall", &[]);
    until_nothing_runs(installed);
    only_the_records_are_left(kubectl, &made);
}
