//! The controllers with the rights that the manifests give them, and with less.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::controllers::mounted::{Writer, mount, unmount};
use crate::controllers::{Rig, until};
use crate::others::Others;
use crate::{empty_drive, object, said, until_said};

const MANIFESTS: &str = include_str!("../../../../deploy/hotbay.yaml");
const CLUSTER_ROLE: [&str; 2] = ["clusterrole", "hotbay-controller"];
const ROLE: [&str; 4] = ["role", "hotbay-controller", "-n", "hotbay"];

/// For a client with the rights of a controller's pod.
pub(crate) fn kubeconfig(rig: &Rig) -> PathBuf {
    let kubectl = rig.plane.kubectl();
    let is_ours = |document: &&str| {
        let kinds = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
        let has = |line: &str| document.lines().any(|there| there == line);
        kinds.iter().any(|kind| has(&format!("kind: {kind}"))) && has("  name: hotbay-controller")
    };
    let rights: Vec<_> = MANIFESTS.split("\n---\n").filter(is_ours).collect();
    assert_eq!(rights.len(), 5, "an account, two roles and their bindings: {rights:?}");
    kubectl.apply(&rights.join("\n---\n")).unwrap();
    let token = ["create", "token", "hotbay-controller", "-n", "hotbay", "--duration", "2h"];
    let token = kubectl.run(&token).unwrap();
    let config = kubectl.run(&["config", "view", "--raw", "-o", "json"]).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    for user in config["users"].as_array_mut().unwrap() {
        user["user"] = json!({ "token": token.trim() });
    }
    let path = rig.path("controller.kubeconfig");
    fs::write(&path, config.to_string()).unwrap();
    path
}

/// Takes a resource out of all rules of a role; gives the role as it was. From then on the server says no.
fn take_away(rig: &Rig, role: &[&str], resource: &str) -> Value {
    let before = object(rig, role);
    let mut role = before.clone();
    let rules = role["rules"].as_array_mut().unwrap();
    let mut taken = Vec::new();
    for rule in rules.iter_mut() {
        let whole = rule.clone();
        let resources = rule["resources"].as_array_mut().unwrap();
        let count = resources.len();
        resources.retain(|there| there != resource);
        taken.extend((resources.len() < count).then_some(whole));
    }
    rules.retain(|rule| !rule["resources"].as_array().unwrap().is_empty());
    assert!(!taken.is_empty(), "{before} says nothing of {resource}");
    replace(rig, role);
    for rule in &taken {
        until("the server says no", || match may(rig, rule, resource).as_str() {
            "no" => Ok(()),
            said => Err(said.to_owned()),
        });
    }
    before
}

/// What the server says to the first of what a rule allows with this resource, in the controllers' name: it takes a
/// moment until it keeps to a role that was changed.
fn may(rig: &Rig, rule: &Value, resource: &str) -> String {
    let first = |field: &str| rule[field][0].as_str().unwrap_or_default();
    let (resource, below) = resource.split_once('/').unwrap_or((resource, ""));
    let dot = |group: &str| if group.is_empty() { String::new() } else { format!(".{group}") };
    let slash = |name: &str| if name.is_empty() { String::new() } else { format!("/{name}") };
    let what = format!("{resource}{}{}", dot(first("apiGroups")), slash(first("resourceNames")));
    let mut kubectl = rig.plane.kubectl().command();
    kubectl.args(["auth", "can-i", first("verbs"), &what, "--subresource", below]);
    kubectl.args(["-n", "hotbay", "--as", "system:serviceaccount:hotbay:hotbay-controller"]);
    // It says no with an error's code.
    let output = kubectl.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if said.is_empty() { String::from_utf8_lossy(&output.stderr).into_owned() } else { said }
}

fn replace(rig: &Rig, mut role: Value) {
    role["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    rig.plane.kubectl().with_input(&["replace", "-f", "-"], &role.to_string()).unwrap();
}

pub(crate) fn too_small(rig: &mut Rig) {
    to_write_drives(rig);
    to_tell_events(rig);
    to_start(rig);
}

/// Requests are refused with the reason, until the right is there again; but not those that write other objects.
fn to_write_drives(rig: &mut Rig) {
    let others = Others::start(rig);
    let (before, drive) = (said(rig), empty_drive(rig));
    let role = take_away(rig, &CLUSTER_ROLE, "drives/status");
    let mut in_operation = true;
    until("a drive cannot be written", || {
        in_operation = !in_operation;
        let action = if in_operation { "add" } else { "remove" };
        let answer = rig.try_client(&["drive", action, &drive]).unwrap_or_else(|error| error);
        answer.contains("cannot update resource").then_some(()).ok_or(answer)
    });
    until_said(
        rig,
        r#"cannot update resource \"drives/status\" in API group \"hotbay.dev\""#,
        &before,
    );
    others.go_on(rig);
    replace(rig, role);
    until_said(rig, "can be written again", &before);
    rig.client(&["drive", "add", &drive, "--wait"]);
    others.end(rig);
}

/// A volume is made and deleted: whatever is missing, all else is done.
fn volumes_come_and_go(rig: &Rig) {
    rig.client(&["volume", "create", "beside", "--size", "16MiB"]);
    rig.client(&["volume", "delete", "beside", "--yes"]);
}

/// Nothing waits for events.
fn to_tell_events(rig: &mut Rig) {
    let before = said(rig);
    let role = take_away(rig, &CLUSTER_ROLE, "events");
    let delete = |rig: &Rig| {
        let drive = rig.drive_name(0);
        let delete = ["delete", "drives.hotbay.dev", &drive, "--wait=false"];
        rig.plane.kubectl().run(&delete).unwrap();
        until("the object is there again", || {
            let events = rig.client(&["events"]);
            let told = events.contains("was deleted and is written again");
            let there = rig.objects("drives").len() == rig.agent().drives.len();
            if told && there { Ok(()) } else { Err(events) }
        });
    };
    delete(rig);
    until_said(rig, r#"cannot create resource \"events\" in API group \"events.k8s.io\""#, &before);
    volumes_come_and_go(rig);
    replace(rig, role);
    until("events are there again", || {
        delete(rig);
        let events = rig.plane.kubectl().run(&["get", "events", "-A"]).unwrap();
        events.contains("ObjectDeleted").then_some(()).ok_or(events)
    });
}

/// Controllers that start without the rights that they need for it wait, and say for which, one after the other. Nobody
/// leads meanwhile, and volumes in use need nobody.
fn to_start(rig: &mut Rig) {
    let writer = Writer::start(&mount(rig, "kept"));
    rig.end_controllers();
    let before = said(rig);
    let cluster_role = take_away(rig, &CLUSTER_ROLE, "persistentvolumeclaims");
    let drives = take_away(rig, &CLUSTER_ROLE, "drives");
    let leases = take_away(rig, &ROLE, "leases");
    let secrets = take_away(rig, &ROLE, "secrets");
    (0..rig.controllers.len()).for_each(|number| rig.restart(number));
    until_said(rig, "may not read the Secret hotbay/hotbay-authority", &before);
    // What waits is not to be restarted.
    for controller in &rig.controllers {
        until("it is well", || controller.probe("/healthz"));
        assert!(controller.probe("/readyz").is_err());
    }
    writer.goes_on();
    replace(rig, secrets);
    until_said(rig, r#"cannot get resource \"leases\""#, &before);
    assert!(rig.controllers.iter().all(|controller| controller.probe("/readyz").is_err()));
    writer.goes_on();
    replace(rig, leases);
    until_said(rig, r#"cannot list resource \"drives\""#, &before);
    writer.goes_on();
    replace(rig, drives);
    until_said(rig, r#"cannot list resource \"persistentvolumeclaims\""#, &before);
    volumes_come_and_go(rig);
    replace(rig, cluster_role);
    until_said(rig, "claims are followed again", &before);
    writer.end();
    unmount(rig, "kept");
}
