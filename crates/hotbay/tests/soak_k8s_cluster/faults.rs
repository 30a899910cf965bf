//! The kubelet and the API server go away, while pods write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use hotbay_rig::{Kubectl, RigError};

use crate::cluster::{Installed, until, within};
use crate::pods::{self, FILESYSTEM, Kind};
use crate::writer::Writer;

const AWAY: Duration = Duration::from_secs(60);
/// Load before and after: long enough for volumes of every age.
const AROUND: Duration = Duration::from_secs(15);
/// Containers that ended for lack of the API server wait longer each time before they are started again.
const CONVERGED: Duration = Duration::from_secs(6 * 60);
const CHURN: usize = 3;

/// Makes claims, and deletes those that are bound, until it is told to end. Says how many were asked for, how many were
/// deleted, and how many calls failed.
///
/// One that waits is not deleted: a provisioner that is restarted meanwhile forgets what it had made for it.
fn churn(kubectl: &Kubectl, over: &AtomicBool) -> (usize, usize, usize) {
    let (mut made, mut deleted, mut failed) = (0, 0, 0);
    for round in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let claims = pods::claims_at_once(&format!("round{round}"), CHURN);
        match kubectl.with_input(&["-n", "churn", "apply", "-f", "-"], &claims) {
            Ok(_) => made += CHURN,
            Err(_) => failed += 1,
        }
        match bound(kubectl) {
            Ok(names) if names.is_empty() => {}
            Ok(names) => {
                let delete = ["-n", "churn", "delete", "--wait=false", "--ignore-not-found"];
                let names = names.iter().map(String::as_str);
                match kubectl.run(&delete.into_iter().chain(names).collect::<Vec<_>>()) {
                    Ok(said) => deleted += said.lines().count(),
                    Err(_) => failed += 1,
                }
            }
            Err(_) => failed += 1,
        }
        sleep(Duration::from_secs(1));
    }
    (made, deleted, failed)
}

/// The claims that have a volume.
fn bound(kubectl: &Kubectl) -> Result<Vec<String>, RigError> {
    let names = r#"jsonpath={range .items[?(@.status.phase=="Bound")]}pvc/{.metadata.name} {end}"#;
    let names = kubectl.run(&["-n", "churn", "get", "pvc", "-o", names])?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// A writer on each node.
fn writers(installed: &Installed) -> [Writer<'static>; 2] {
    ["node1", "node2"].map(|node| {
        pods::claim(installed, node, 64, Kind::Ext4);
        Writer::start(installed, node, node, node)
    })
}

fn end(installed: &Installed, writers: &[Writer]) {
    for writer in writers {
        let waited = writer.has_never_stopped(installed);
        println!("      longest wait for a write of {}: {waited:?}", writer.pod);
    }
    pods::delete(installed, &["pod/node1", "pod/node2", "pvc/node1", "pvc/node2"]);
    installed.until_empty();
}

pub(crate) fn api_server_away(installed: &mut Installed) {
    let kubectl = installed.kubectl().clone();
    kubectl.run(&["create", "namespace", "churn"]).unwrap();
    let writers = writers(installed);
    let over = AtomicBool::new(false);
    let (made, deleted, failed) = scope(|scope| {
        let churn = scope.spawn(|| churn(&kubectl, &over));
        sleep(AROUND);
        let plane = installed.cluster.plane_mut();
        plane.stop_api_server().unwrap();
        sleep(AWAY);
        plane.start_api_server().unwrap();
        sleep(AROUND);
        over.store(true, Ordering::Relaxed);
        churn.join().unwrap()
    });
    println!("      {made} claims made, {deleted} deleted, {failed} calls failed");
    assert!(failed > 0, "the API server was not away");
    assert!(made > 0 && deleted > 0, "there was no load: {made} made, {deleted} deleted");
    let began = Instant::now();
    within(CONVERGED, "what was asked for is done", || {
        let claims = installed.json(&["-n", "churn", "pvc"]);
        let claims = claims["items"].as_array().unwrap();
        let is_done = |claim: &&serde_json::Value| claim["status"]["phase"] == "Bound";
        let waits: Vec<_> = claims.iter().filter(|claim| !is_done(claim)).collect();
        let volumes = installed.json(&["volumes.hotbay.dev"]);
        let volumes = volumes["items"].as_array().unwrap().len();
        // Those of the claims, and the writers'.
        let wanted = claims.len() + writers.len();
        if waits.is_empty() && volumes == wanted {
            return Ok(());
        }
        Err(format!("{} claims wait, {volumes} volumes instead of {wanted}", waits.len()))
    });
    println!("      converged {:.1} s after the load", began.elapsed().as_secs_f64());
    installed.until_ready();
    let namespace = ["--request-timeout=0", "delete", "namespace/churn", "--timeout=300s"];
    kubectl.run(&namespace).unwrap();
    pods::delete(installed, &["storageclass", "at-once"]);
    end(installed, &writers);
}

pub(crate) fn kubelet_restarted(installed: &mut Installed) {
    let writers = writers(installed);
    pods::claim(installed, "leaves", 64, Kind::Ext4);
    pods::start(installed, "leaves", "leaves", FILESYSTEM, "node1");
    installed.cluster.nodes_mut()[0].stop_kubelet().unwrap();
    // Asked for while nobody is there to do it.
    pods::delete(installed, &["pod/leaves", "--wait=false"]);
    pods::claim(installed, "comes", 64, Kind::Ext4);
    pods::apply(installed, "comes", "comes", FILESYSTEM, "node1");
    sleep(AROUND);
    installed.cluster.nodes_mut()[0].start_kubelet().unwrap();
    let began = Instant::now();
    pods::until_runs(installed, "comes");
    until("the pod that was deleted is gone", || {
        let pods = installed.kubectl().run(&["get", "pods", "-o", "name"]).unwrap();
        if pods.contains("leaves") { Err(pods) } else { Ok(()) }
    });
    println!("      all is done {:.1} s after its start", began.elapsed().as_secs_f64());
    pods::delete(installed, &["pod/comes", "pvc/comes", "pvc/leaves"]);
    end(installed, &writers);
}
