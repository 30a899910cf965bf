//! The control plane as tests use it: it starts and ends, notes every request, can be paused, stopped and put back to a
//! snapshot.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::process::Command;

use hotbay_rig::{ControlPlane, Kubectl, Settings};

const RECORD: &str =
    "{apiVersion: v1, kind: ConfigMap, metadata: {name: record}, data: {generation: '1'}}";

fn generation(kubectl: &Kubectl) -> String {
    kubectl.run(&["get", "configmap", "record", "-o", "jsonpath={.data.generation}"]).unwrap()
}

/// How often the API server was asked to create or change this object.
fn writes(plane: &ControlPlane, name: &str) -> usize {
    let log = fs::read_to_string(plane.audit_log()).unwrap();
    let verbs = ["create", "update", "patch", "delete"];
    let is_write = |event: &serde_json::Value| {
        verbs.iter().any(|verb| event["verb"] == *verb) && event["objectRef"]["name"] == name
    };
    let events = log.lines().map(|line| serde_json::from_str(line).unwrap());
    events.filter(is_write).count()
}

fn is_running(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn api_server_is_paused_stopped_and_put_back() {
    let place = tempfile::tempdir().unwrap();
    let mut plane = ControlPlane::start(place.path(), &Settings::default()).unwrap();
    let kubectl = plane.kubectl().clone();
    kubectl.apply(RECORD).unwrap();
    let snapshot = place.path().join("snapshot");
    plane.save_snapshot(&snapshot).unwrap();
    kubectl
        .run(&["patch", "configmap", "record", "-p", r#"{"data": {"generation": "2"}}"#])
        .unwrap();
    assert_eq!(generation(&kubectl), "2");
    assert_eq!(writes(&plane, "record"), 2, "one create and one patch");

    plane.pause_api_server().unwrap();
    let mut asked = Command::new("timeout");
    let mut command = kubectl.command();
    command.args(["get", "configmap", "record"]);
    asked.arg("2").arg(command.get_program()).args(command.get_args());
    asked.env("KUBECONFIG", kubectl.kubeconfig());
    assert_eq!(asked.status().unwrap().code(), Some(124), "a paused server must not answer");
    plane.resume_api_server().unwrap();
    assert_eq!(generation(&kubectl), "2");

    plane.stop_api_server().unwrap();
    let error = kubectl.run(&["get", "configmap", "record"]).unwrap_err().to_string();
    assert!(error.contains("refused"), "{error}");
    plane.start_api_server().unwrap();
    assert_eq!(generation(&kubectl), "2");

    plane.restore_snapshot(&snapshot).unwrap();
    assert_eq!(generation(&kubectl), "1", "the cluster is as it was");
    kubectl
        .run(&["patch", "configmap", "record", "-p", r#"{"data": {"generation": "3"}}"#])
        .unwrap();
    assert_eq!(generation(&kubectl), "3");
}

#[test]
fn nothing_runs_afterwards_and_two_do_not_meet() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let settings = Settings { controllers: true, scheduler: true };
    let plane = ControlPlane::start(first.path(), &settings).unwrap();
    let other = ControlPlane::start(second.path(), &Settings::default()).unwrap();
    plane.kubectl().apply(RECORD).unwrap();
    assert!(other.kubectl().run(&["get", "configmap", "record"]).is_err(), "they are two clusters");
    assert!(ControlPlane::start(first.path(), &settings).is_err(), "one runs there already");
    let running = fs::read_dir(first.path().join("running")).unwrap();
    let notes: Vec<_> =
        running.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
    let pids: Vec<_> = notes.iter().map(|note| note.split(' ').next().unwrap()).collect();
    assert_eq!(pids.len(), 4, "{notes:?}");
    assert!(pids.iter().all(|pid| is_running(pid)), "{notes:?}");
    plane.stop().unwrap();
    drop(other);
    assert!(!pids.iter().any(|pid| is_running(pid)), "{notes:?}");
}
