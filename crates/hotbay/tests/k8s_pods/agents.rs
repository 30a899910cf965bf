//! Agents and controllers that are killed at the worst moment.

use std::collections::BTreeSet;
use std::fs;
use std::thread::scope;
use std::time::Duration;

use hotbay_rig::Node;
use hotbay_rig::chart::NAMESPACE;
use serde_json::Value;

use crate::cluster::{Installed, kill, process, until, volume_mounts, within};
use crate::moment::{Requests, catch};
use crate::pods::{self, FILESYSTEM, Kind};

/// Each with a volume, all on one node.
const PODS: [&str; 4] = ["ann", "bob", "cyd", "dan"];
/// How often an agent is killed until it was in the middle of a stage.
const KILLS: usize = 3;
const AGENT: &str = "/usr/bin/hotbay node ";
/// More than a provisioner does at once before the leader is gone.
const CLAIMS: usize = 30;
/// The lease of the one that was killed must end first, and its provisioner's; those that failed meanwhile are tried
/// again ever more rarely.
const BOUND_LIMIT: Duration = Duration::from_secs(240);

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

/// Has new volumes staged, and kills the agent when the first one is. Says whether it was in the middle of it.
fn kill_during_stage(installed: &Installed, node: &Node, pods: &str) -> bool {
    for name in PODS {
        pods::claim(installed, name, 64, Kind::Ext4);
    }
    let agent = process(node, AGENT).unwrap();
    installed.kubectl().apply(pods).unwrap();
    catch("a volume is being staged", || staging(node) > 0);
    kill(node, &agent);
    let was_staging = staging(node) > 0;
    until("another agent runs", || match process(node, AGENT) {
        Ok(now) if now != agent => Ok(()),
        other => Err(format!("{other:?}")),
    });
    was_staging
}

fn delete_all(installed: &Installed) {
    pods::delete(installed, &[&["pod"][..], &PODS].concat());
    pods::delete(installed, &[&["pvc"][..], &PODS].concat());
    installed.until_empty();
}

pub(crate) fn killed_during_stage(installed: &Installed) {
    let kubectl = installed.kubectl();
    let node = &installed.cluster.nodes()[0];
    let all = PODS.map(|name| pods::pod(name, name, FILESYSTEM, node.name(), "[sleep, '3600']"));
    let all = all.concat();
    let is_killed = (0..KILLS).any(|_| {
        let was_staging = kill_during_stage(installed, node, &all);
        if !was_staging {
            println!("      the stage was over before the agent was killed");
            delete_all(installed);
        }
        was_staging
    });
    assert!(is_killed, "every stage was over before the agent was killed");
    for name in PODS {
        pods::until_runs(installed, name);
        assert_eq!(pods::write(kubectl, name, name), format!("{name}\n"));
    }
    mounted_once(node);
    // What was made under those circumstances is good for a second time.
    pods::delete(installed, &[&["pod"][..], &PODS].concat());
    kubectl.apply(&all).unwrap();
    for name in PODS {
        pods::until_runs(installed, name);
        assert_eq!(pods::write(kubectl, name, "again"), format!("{name}\nagain\n"));
    }
    delete_all(installed);
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

/// Has claims made, and kills the leader when the first of them has a volume. Gives the pod that it was in.
fn kill_while_volumes_are_made(installed: &Installed) -> String {
    let leader = installed.leading();
    let requests = Requests::from_now(installed.cluster.plane().audit_log());
    let claims = pods::claims_at_once("many", CLAIMS);
    scope(|scope| {
        // One after the other: the last ones are not there yet when the first one has its volume.
        let applied = scope.spawn(|| installed.kubectl().apply(&claims));
        catch("a volume is made", || requests.volumes_made() > 0);
        leader.kill();
        // Until another leads nobody makes more.
        let made = requests.volumes_made();
        println!("      {made} of {CLAIMS} volumes were made before the leader was killed");
        assert!(made < CLAIMS, "every volume was made before the leader was killed");
        assert_eq!(installed.leader(), leader.pod, "it did not lead any more");
        applied.join().unwrap().unwrap();
    });
    leader.pod
}

pub(crate) fn leader_killed(installed: &Installed) {
    let kubectl = installed.kubectl();
    let leader = kill_while_volumes_are_made(installed);
    let force = ["--force", "--grace-period=0", "--wait=false"];
    let pod = ["-n", NAMESPACE, "delete", "pod", &leader];
    kubectl.run(&[&pod[..], &force].concat()).unwrap();
    let names = within(BOUND_LIMIT, "every claim is bound", || bound(installed));
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
