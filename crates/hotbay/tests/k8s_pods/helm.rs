//! Helm itself, as docs/kubernetes.md has administrators call it. `k8s_pods` and `k8s_manifests` do.

use std::process::{Command, Output, Stdio};

use hotbay_rig::Kubectl;
use hotbay_rig::chart::{self, NAMESPACE};
use hotbay_rig::components::HELM;
use serde_json::Value;

/// The definitions of the kinds.
const DEFINITIONS: usize = 5;
/// Every kind of the chart's objects.
const KINDS: &str = "deployments,daemonsets,services,configmaps,serviceaccounts,poddisruptionbudgets,roles,\
                     rolebindings,clusterroles,clusterrolebindings,csidrivers,storageclasses";

/// Runs it with the chart of this clone; it must succeed.
pub(crate) fn helm(kubectl: &Kubectl, action: &str, more: &[&str]) {
    let mut helm = Command::new(HELM.program("helm").unwrap());
    helm.args([action, "hotbay", "--namespace", NAMESPACE]);
    if action != "uninstall" {
        helm.arg(chart::deploy().join("chart"));
    }
    helm.args(more).env("KUBECONFIG", kubectl.kubeconfig()).stdin(Stdio::null());
    let Output { status, stdout, stderr } = helm.output().unwrap();
    let said = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(status.success(), "helm {action} {}: {said}", more.join(" "));
}

/// Who the authority of Hotbay's certificates is, by its Secret: made once, it stays.
pub(crate) fn authority(kubectl: &Kubectl) -> String {
    let uid =
        ["get", "secret", "hotbay-authority", "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}"];
    kubectl.run(&uid).unwrap()
}

/// Nothing of the chart is left, and everything else is: the definitions, the namespace, the authority.
pub(crate) fn only_the_records_are_left(kubectl: &Kubectl, authority_before: &str) {
    let ours = ["get", KINDS, "-A", "-l", "app.kubernetes.io/instance=hotbay", "-o", "name"];
    assert_eq!(kubectl.run(&ours).unwrap(), "", "of the chart");
    let list = kubectl.run(&["get", "crd,namespace", "-o", "json"]).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let stays = |object: &&Value| object["metadata"]["deletionTimestamp"].is_null();
    let stay: Vec<_> = list["items"].as_array().unwrap().iter().filter(stays).collect();
    let definitions = stay.iter().filter(|each| each["spec"]["group"] == "hotbay.dev").count();
    let is_namespace =
        |each: &&Value| each["kind"] == "Namespace" && each["metadata"]["name"] == NAMESPACE;
    assert_eq!(definitions, DEFINITIONS, "{list:#}");
    assert!(stay.into_iter().any(|each| is_namespace(&each)), "{list:#}");
    assert_eq!(authority(kubectl), authority_before, "another authority");
}
