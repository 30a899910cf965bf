//! What people install Hotbay with: the manifests are those of the chart, a real API server takes every field of them,
//! and the pods find in the image what they run.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hotbay_rig::chart::{self, NAMESPACE};
use hotbay_rig::components::HELM;
use hotbay_rig::product::{self, HOTBAY};
use hotbay_rig::{Cluster, Kubectl};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hotbay");
/// How long anything may take, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(120);

/// What the image is there for, each with a word of its answer. Those that make a filesystem make one.
const CALLS: [(&str, &str); 15] = [
    ("hotbay --version", "hotbay"),
    ("blkid -V", "libblkid"),
    ("btrfs --version", "btrfs-progs"),
    ("e2fsck -V", "Using EXT2FS Library"),
    ("fsck -V", "util-linux"),
    ("ledctl --version", "Intel"),
    ("losetup --version", "util-linux"),
    ("mkfs.btrfs --version", "mkfs.btrfs"),
    ("mkfs.ext4 -F /tmp/volume 16M", "Writing superblocks"),
    ("mkfs.xfs -d file,name=/tmp/volume,size=300m", "meta-data=/tmp/volume"),
    ("mount --version", "util-linux"),
    ("partx --version", "util-linux"),
    ("resize2fs", "Usage: resize2fs"),
    ("smartctl -V", "smartctl"),
    ("xfs_growfs -V", "xfs_growfs"),
];

/// Asks until there is an answer; fails with what was heard last.
fn until<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let give_up = Instant::now() + LIMIT;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(heard) => {
                let in_time = Instant::now() < give_up;
                assert!(in_time, "not within {LIMIT:?}: {what}; last heard: {heard}");
            }
        }
        sleep(Duration::from_millis(200));
    }
}

/// The name of the container of the call of this number.
fn container(number: usize) -> String {
    format!("call-{number}")
}

/// A pod with a container for each call: there is no shell in the image that could make them one after the other.
fn pod_of_calls() -> String {
    let containers = CALLS.iter().enumerate().map(|(number, (call, _))| {
        let command: Vec<_> = call.split(' ').collect();
        format!(
            "  - {{name: {}, image: {HOTBAY}, imagePullPolicy: Never, command: {command:?}, \
             volumeMounts: [{{name: tmp, mountPath: /tmp, subPath: '{number}'}}]}}\n",
            container(number)
        )
    });
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: calls}}\nspec:\n  restartPolicy: Never\n  \
         volumes: [{{name: tmp, emptyDir: {{}}}}]\n  containers:\n{}",
        containers.collect::<String>()
    )
}

fn image_has_every_program(kubectl: &Kubectl) {
    kubectl.apply(&pod_of_calls()).unwrap();
    let state = ["get", "pod", "calls", "-o", "jsonpath={.status.containerStatuses[*].state}"];
    until("every call has ended", || {
        let states = kubectl.run(&state).unwrap();
        let ended = states.matches("terminated").count();
        if ended == CALLS.len() { Ok(()) } else { Err(states) }
    });
    for (number, (call, word)) in CALLS.iter().enumerate() {
        let said = kubectl.run(&["logs", "calls", "-c", &container(number)]).unwrap();
        assert!(said.contains(word), "{call} said: {said}");
    }
}

/// The first container of a new controller's pod has made its folders: image, user and security settings fit together.
/// (The old ones have an image that is not here, and stay until the new one is ready.)
fn a_controller_makes_its_folders(kubectl: &Kubectl) {
    let pods = "app.kubernetes.io/component=controller";
    let path = "jsonpath={.items[*].status.initContainerStatuses[*].state.terminated.reason}";
    let question = ["-n", NAMESPACE, "get", "pods", "-l", pods, "-o", path];
    until("a controller has made its folders", || {
        let reasons = kubectl.run(&question).unwrap();
        if reasons.contains("Completed") { Ok(()) } else { Err(reasons) }
    });
}

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

#[test]
fn chart_is_taken_and_its_image_runs() {
    let place = tempfile::Builder::new().prefix("hotbay-k8s-").tempdir().unwrap();
    let cluster = Cluster::start(place.path(), 1).unwrap();
    let kubectl = cluster.plane().kubectl();
    let manifests = fs::read_to_string(chart::deploy().join("hotbay.yaml")).unwrap();
    kubectl.apply_strictly(&manifests).unwrap();
    // The same objects with the images that are here: an upgrade.
    kubectl.run(&["-n", NAMESPACE, "delete", "service", "hotbay-controller"]).unwrap();
    product::install(&cluster, Path::new(PROGRAM), "").unwrap();

    image_has_every_program(kubectl);
    a_controller_makes_its_folders(kubectl);

    // Uninstalling as docs/kubernetes.md says leaves the records, and the namespace with the authority.
    let all = ["delete", "-f", "-", "-l", "app.kubernetes.io/instance=hotbay"];
    kubectl.with_input(&all, &manifests).unwrap();
    let left = kubectl.run(&["get", "crd,namespace,csidriver", "-o", "name"]).unwrap();
    assert_eq!(left.matches(".hotbay.dev\n").count(), 5, "{left}");
    assert!(left.contains("namespace/hotbay\n") && !left.contains("csidriver"), "{left}");
}
