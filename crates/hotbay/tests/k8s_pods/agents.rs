//! Agents and controllers that are killed at the worst moment.

use std::collections::BTreeSet;
use std::fs;

use hotbay_rig::Node;
use hotbay_rig::chart::NAMESPACE;
use serde_json::Value;

use crate::cluster::{Installed, kill, process, until, volume_mounts};
use crate::pods::{self, FILESYSTEM, Kind};

/// Each with a volume, all on one node.
const PODS: [&str; 4] = ["ann", "bob", "cyd", "dan"];
/// More than a provisioner does at once before the leader is gone.
const CLAIMS: usize = 30;

/// How many volumes a node's agent is just staging: it says so in a file of each before it does anything.
fn staging(node: &Node) -> usize {
    let stagings = fs::read_dir(node.folder().join("lib/hotbay/node/stagings"));
    let files = stagings.into_iter().flatten().flatten();
    let texts = files.map(|file| fs::read_to_string(file.path()).unwrap_or_default());
    texts.filter(|text| text.contains(r#""done":false"#)).count()
}

/// Each volume is staged, and shown to its pod, once: no place has a mount over another one.
fn mounted_once(node: &Node) {
    let places = volume_mounts(node);
    let different: BTreeSet<_> = places.iter().collect();
    assert_eq!((places.len(), different.len()), (PODS.len() * 2, PODS.len() * 2), "{places:#?}");
}

pub(crate) fn killed_during_stage(installed: &Installed) {
    let kubectl = installed.kubectl();
    let node = &installed.cluster.nodes()[0];
    for name in PODS {
        pods::claim(installed, name, 64, Kind::Ext4);
    }
    let agent = process(node, "/usr/bin/hotbay node ").unwrap();
    let all = PODS.map(|name| pods::pod(name, name, FILESYSTEM, node.name(), "[sleep, '3600']"));
    kubectl.apply(&all.concat()).unwrap();
    until("a volume is being staged", || {
        if staging(node) > 0 { Ok(()) } else { Err("none is".to_owned()) }
    });
    kill(node, &agent);
    assert!(staging(node) > 0, "the stage was over before the agent was killed");
    until("another agent runs", || match process(node, "/usr/bin/hotbay node ") {
        Ok(now) if now != agent => Ok(()),
        other => Err(format!("{other:?}")),
    });
    for name in PODS {
        pods::until_runs(installed, name);
        assert_eq!(pods::write(kubectl, name, name), format!("{name}\n"));
    }
    mounted_once(node);
    // What was made under those circumstances is good for a second time.
    kubectl.run(&[&["delete", "pod"][..], &PODS].concat()).unwrap();
    kubectl.apply(&all.concat()).unwrap();
    for name in PODS {
        pods::until_runs(installed, name);
        assert_eq!(pods::write(kubectl, name, "again"), format!("{name}\nagain\n"));
    }
    kubectl.run(&[&["delete", "pod"][..], &PODS].concat()).unwrap();
    kubectl.run(&[&["delete", "pvc"][..], &PODS].concat()).unwrap();
    installed.until_empty();
}

/// What each of the claims is bound to; fails as long as one is not bound.
fn bound(installed: &Installed) -> Result<BTreeSet<String>, String> {
    let claims = installed.json(&["pvc"]);
    let claims = claims["items"].as_array().unwrap();
    let waits = claims.iter().filter(|claim| claim["status"]["phase"] != "Bound").count();
    if waits > 0 || claims.len() != CLAIMS {
        return Err(format!("{waits} of {} claims wait", claims.len()));
    }
    Ok(texts(claims, "/spec/volumeName"))
}

fn texts(objects: &[Value], pointer: &str) -> BTreeSet<String> {
    let text = |object: &Value| object.pointer(pointer)?.as_str().map(str::to_owned);
    objects.iter().filter_map(text).collect()
}

pub(crate) fn leader_killed(installed: &Installed) {
    let kubectl = installed.kubectl();
    kubectl.apply(&pods::claims_at_once("many", CLAIMS)).unwrap();
    until("some of the volumes are made", || {
        let made = installed.json(&["volumes.hotbay.dev"])["items"].as_array().unwrap().len();
        if made > 0 { Ok(()) } else { Err("none is".to_owned()) }
    });
    let leader = installed.kill_leader();
    let force = ["--force", "--grace-period=0", "--wait=false"];
    let pod = ["-n", NAMESPACE, "delete", "pod", &leader];
    kubectl.run(&[&pod[..], &force].concat()).unwrap();
    let names = until("every claim is bound", || bound(installed));
    assert_eq!(names.len(), CLAIMS, "two claims have one volume");
    assert_ne!(installed.leader(), leader);
    let volumes = installed.json(&["volumes.hotbay.dev"]);
    let volumes = volumes["items"].as_array().unwrap();
    assert_eq!(volumes.len(), CLAIMS, "a volume was made twice");
    assert_eq!(texts(volumes, "/metadata/name"), names);
    let pvs = installed.json(&["pv"]);
    let handles = texts(pvs["items"].as_array().unwrap(), "/spec/csi/volumeHandle");
    assert_eq!(handles, texts(volumes, "/status/id"));
    installed.until_ready();
    pods::delete(installed, &["pvc", "--all"]);
    pods::delete(installed, &["storageclass", "at-once"]);
    installed.until_empty();
}
