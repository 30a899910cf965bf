//! What people install Hotbay with: the manifests are those of the chart, a real API server takes every field of them,
//! and Helm installs, upgrades and removes it. That it runs is what `k8s_pods` shows.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "k8s_pods/helm.rs"]
mod helm;

use std::fs;
use std::process::{Command, Output};

use hotbay_kubernetes::client::{Client, Server};
use hotbay_rig::chart::{self, NAMESPACE};
use hotbay_rig::components::HELM;
use hotbay_rig::{ControlPlane, Kubectl, Settings};

use helm::{authority, helm, only_the_records_are_left};

const IMAGE: &str = "registry.example/hotbay";

#[test]
fn checked_in_manifests_are_those_of_the_chart() {
    let path = chart::deploy().join("hotbay.yaml");
    let checked_in = fs::read_to_string(path).unwrap_or_default();
    assert!(checked_in == chart::manifests().unwrap(), "run: cargo xtask manifests");
}

/// What Helm says of a value of the chart, and whether it takes it.
fn told(value: &str) -> (bool, String) {
    let mut helm = Command::new(HELM.program("helm").unwrap());
    helm.args(["template", "hotbay"])
        .arg(chart::deploy().join("chart"))
        .args(["--set-json", value]);
    let Output { status, stderr, .. } = helm.output().unwrap();
    (status.success(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_misspelt_value_is_refused_by_its_name() {
    for (value, place, misspelt) in [
        (r#"node={"extraArg": []}"#, "node", "extraArg"),
        ("controller.replica=3", "controller", "replica"),
        ("sidecars.attacher.args=[]", "attacher", "args"),
        (r#"storageClasses=[{"nam": "fast"}]"#, "storageClasses", "nam"),
        ("controler={}", "", "controler"),
    ] {
        let (taken, said) = told(value);
        assert!(!taken, "{value} is taken");
        // In quotes, so that it is not part of the right name, which may be told as well.
        let named = said.contains(&format!("'{misspelt}'"));
        assert!(named && said.contains(place), "{value}: {said}");
    }
    for value in [r#"node={"extraArgs": ["--x"]}"#, "controller.replicas=3"] {
        let (taken, said) = told(value);
        assert!(taken, "{value}: {said}");
    }
}

/// What the chart has made of the controllers: how many, and of which image.
fn controllers(kubectl: &Kubectl) -> (String, String) {
    let ask = |path: &str| {
        let path = format!("jsonpath={{.spec.{path}}}");
        let ask = ["get", "deployment", "hotbay-controller", "-n", NAMESPACE, "-o", &path];
        kubectl.run(&ask).unwrap()
    };
    (ask("replicas"), ask("template.spec.containers[?(@.name=='hotbay')].image"))
}

/// Step by step as docs/kubernetes.md says it; the first controller makes the authority.
#[tokio::test]
async fn helm_installs_upgrades_and_removes_and_so_does_kubectl() {
    let place = tempfile::Builder::new().prefix("hotbay-k8s-").tempdir().unwrap();
    let plane = ControlPlane::start(place.path(), &Settings::default()).unwrap();
    let kubectl = plane.kubectl();
    kubectl.run(&["create", "namespace", NAMESPACE]).unwrap();
    let privileged = "pod-security.kubernetes.io/enforce=privileged";
    kubectl.run(&["label", "namespace", NAMESPACE, privileged]).unwrap();
    helm(kubectl, "install", &["--set", &format!("image.repository={IMAGE}")]);
    let client = Client::new(Server::from_kubeconfig(plane.kubeconfig()).unwrap());
    hotbay_kubernetes::authority::load_or_make(&client, NAMESPACE).await.unwrap();
    let made = authority(kubectl);
    let (replicas, image) = controllers(kubectl);
    assert!(replicas == "2" && image.starts_with(&format!("{IMAGE}:")), "{replicas} of {image}");

    let definitions = fs::read_to_string(chart::deploy().join("crds.yaml")).unwrap();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    kubectl.with_input(&apply, &definitions).unwrap();
    helm(kubectl, "upgrade", &["--reset-then-reuse-values", "--set", "controller.replicas=3"]);
    // One value is another; what was set before stays so.
    assert_eq!(controllers(kubectl), ("3".to_owned(), image));
    assert_eq!(authority(kubectl), made);
    helm(kubectl, "uninstall", &[]);
    only_the_records_are_left(kubectl, &made);

    let manifests = fs::read_to_string(chart::deploy().join("hotbay.yaml")).unwrap();
    kubectl.apply_strictly(&manifests).unwrap();
    let all = ["--request-timeout=0", "delete", "--timeout=120s", "-f", "-"];
    let all = [&all[..], &["--selector", "app.kubernetes.io/instance=hotbay"]].concat();
    kubectl.with_input(&all, &manifests).unwrap();
    only_the_records_are_left(kubectl, &made);
}
