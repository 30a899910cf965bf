//! What people do with claims every day.

use hotbay_rig::chart::NAMESPACE;
use hotbay_rig::image::BUSYBOX;
use serde_json::{Value, json};

use crate::DRIVE_BYTES;
use crate::cluster::{Installed, until};
use crate::pods::{self, DEVICE, FILESYSTEM, Kind};

const TOPOLOGY_KEY: &str = "hotbay.dev/node";
/// Two such volumes do not fit on a drive.
const LARGE_MIB: u64 = 1200;

pub(crate) fn claim(installed: &Installed) {
    let kubectl = installed.kubectl();
    pods::claim(installed, "letters", 320, Kind::Xfs);
    pods::start(installed, "writer", "letters", FILESYSTEM, "");
    assert_eq!(pods::write(kubectl, "writer", "one"), "one\n");

    let patch = r#"{"spec": {"resources": {"requests": {"storage": "640Mi"}}}}"#;
    kubectl.run(&["patch", "pvc", "letters", "-p", patch]).unwrap();
    until("the claim has grown", || {
        let claim = installed.json(&["pvc", "letters"]);
        let capacity = claim["status"]["capacity"]["storage"].as_str().unwrap_or_default();
        if capacity == "640Mi" { Ok(()) } else { Err(capacity.to_owned()) }
    });
    let kib = pods::run(kubectl, "writer", "df -k /v | tail -n 1 | awk '{print $2}'");
    assert!(kib.trim().parse::<u64>().unwrap() > 500 << 10, "{kib} KiB in the pod");

    let agents = "app.kubernetes.io/component=node";
    pods::delete(installed, &["pods", "-n", NAMESPACE, "-l", agents]);
    assert_eq!(pods::write(kubectl, "writer", "two"), "one\ntwo\n");
    installed.until_ready();

    pods::delete(installed, &["pod", "writer"]);
    pods::start(installed, "reader", "letters", FILESYSTEM, "");
    assert_eq!(pods::write(kubectl, "reader", "three"), "one\ntwo\nthree\n");
    pods::delete(installed, &["pod/reader", "pvc/letters"]);
    installed.until_empty();
}

pub(crate) fn raw_block(installed: &Installed) {
    let kubectl = installed.kubectl();
    pods::claim(installed, "raw", 64, Kind::Block);
    pods::start(installed, "raw", "raw", DEVICE, "");
    let script =
        "echo on the device | dd of=/dev/v bs=512 seek=8 conv=notrunc,sync 2>/dev/null && sync";
    pods::run(kubectl, "raw", script);
    pods::delete(installed, &["pod", "raw"]);
    pods::start(installed, "raw", "raw", DEVICE, "");
    let read =
        pods::run(kubectl, "raw", "dd if=/dev/v bs=512 skip=8 count=1 2>/dev/null | head -n 1");
    assert_eq!(read, "on the device\n");
    pods::delete(installed, &["pod/raw", "pvc/raw"]);
    installed.until_empty();
}

/// By what Kubernetes knows a node's drives.
fn storage_node_id(installed: &Installed, node: &str) -> String {
    let object = installed.json(&["storagenodes", node]);
    object["status"]["id"].as_str().unwrap().to_owned()
}

/// A volume is made where its pod is to be, and keeps later pods there: Kubernetes is told so.
fn lands_where_its_volume_is(installed: &Installed, node: &str) {
    pods::claim(installed, node, 64, Kind::Ext4);
    pods::start(installed, node, node, FILESYSTEM, node);
    let volumes = installed.json(&["volumes.hotbay.dev"]);
    assert_eq!(volumes["items"][0]["status"]["node"], node);
    let name = installed.json(&["pvc", node])["spec"]["volumeName"].as_str().unwrap().to_owned();
    let volume = installed.json(&["pv", &name]);
    let id = storage_node_id(installed, node);
    let only_there = json!({ "key": TOPOLOGY_KEY, "operator": "In", "values": [id] });
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    assert_eq!(*terms, json!([{ "matchExpressions": [only_there] }]), "{volume:#}");
    // With its volume there, a pod without any wish of its own lands on that node.
    pods::delete(installed, &["pod", node]);
    pods::start(installed, "any", node, FILESYSTEM, "");
    assert_eq!(installed.json(&["pod", "any"])["spec"]["nodeName"], node);
    pods::delete(installed, &["pod/any", &format!("pvc/{node}")]);
    installed.until_empty();
}

/// Waits until the scheduler is told that a large volume fits on a node, or that none does any more.
fn until_told(installed: &Installed, node: &str, fits: bool) {
    let id = storage_node_id(installed, node);
    until(&format!("the scheduler knows of {node}: a large volume fits: {fits}"), || {
        let capacities = installed.json(&["csistoragecapacities", "-n", NAMESPACE]);
        let is_it = |each: &&Value| {
            let topology = &each["nodeTopology"]["matchLabels"][TOPOLOGY_KEY];
            each["storageClassName"] == "hotbay" && *topology == *id
        };
        let capacity = capacities["items"].as_array().unwrap().iter().find(is_it);
        let room = capacity.and_then(|it| it["capacity"].as_str()).and_then(mib);
        let told = room.filter(|mib| *mib < DRIVE_BYTES >> 20).map(|mib| mib >= LARGE_MIB);
        if told == Some(fits) { Ok(()) } else { Err(capacities.to_string()) }
    });
}

/// A quantity of bytes, as Kubernetes writes it, in whole MiB.
fn mib(quantity: &str) -> Option<u64> {
    let digits = quantity.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let bytes = match &quantity[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    Some((digits.parse::<u64>().ok()? * bytes) >> 20)
}

/// With one drive full, a pod without any wish of its own lands on the node of the other one.
fn lands_where_there_is_room(installed: &Installed, full: &str, other: &str) {
    until_told(installed, full, true);
    until_told(installed, other, true);
    pods::claim(installed, "filler", LARGE_MIB, Kind::Ext4);
    pods::start(installed, "filler", "filler", FILESYSTEM, full);
    until_told(installed, full, false);
    pods::claim(installed, "large", LARGE_MIB, Kind::Ext4);
    pods::start(installed, "large", "large", FILESYSTEM, "");
    assert_eq!(installed.json(&["pod", "large"])["spec"]["nodeName"], other);
    pods::delete(installed, &["pod/filler", "pod/large", "pvc/filler", "pvc/large"]);
    installed.until_empty();
}

pub(crate) fn topology(installed: &Installed) {
    lands_where_its_volume_is(installed, "node1");
    lands_where_its_volume_is(installed, "node2");
    lands_where_there_is_room(installed, "node2", "node1");
    pods::claim(installed, "huge", 100 << 10, Kind::Ext4);
    pods::apply(installed, "huge", "huge", FILESYSTEM, "");
    until("the scheduler says that there is not enough", || {
        let pod = installed.json(&["pod", "huge"]);
        let said = pod["status"]["conditions"][0]["message"].as_str().unwrap_or_default();
        if said.contains("free storage") { Ok(()) } else { Err(pod["status"].to_string()) }
    });
    pods::delete(installed, &["pod/huge", "pvc/huge"]);
}

pub(crate) fn stateful_set(installed: &Installed) {
    let kubectl = installed.kubectl();
    let set = format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: web}}\nspec:\n  replicas: 1\n  serviceName: \
         web\n  selector: {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web}}}}\n    \
         spec:\n      terminationGracePeriodSeconds: 0\n      containers: [{{name: c, image: {BUSYBOX}, \
         imagePullPolicy: Never, command: [sleep, '3600'], {FILESYSTEM}}}]\n  volumeClaimTemplates:\n  - metadata: \
         {{name: v}}\n    spec: {{storageClassName: hotbay, accessModes: [ReadWriteOnce], resources: {{requests: \
         {{storage: 64Mi}}}}}}\n"
    );
    kubectl.apply(&set).unwrap();
    let scaled = |replicas: &str| {
        kubectl.run(&["scale", "statefulset/web", &format!("--replicas={replicas}")]).unwrap();
        let rollout = ["rollout", "status", "statefulset/web", "--timeout=120s"];
        let rollout: Vec<_> = ["--request-timeout=0"].into_iter().chain(rollout).collect();
        kubectl.run(&rollout).unwrap_or_else(|error| panic!("{error}\n{}", installed.said()));
    };
    for (replicas, pod) in [("1", "web-0"), ("2", "web-1")] {
        scaled(replicas);
        assert_eq!(pods::write(kubectl, pod, pod), format!("{pod}\n"));
    }
    scaled("0");
    until("both pods are gone", || {
        let left = kubectl.run(&["get", "pods", "-l", "app=web", "-o", "name"]).unwrap();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    scaled("2");
    for pod in ["web-0", "web-1"] {
        assert_eq!(pods::write(kubectl, pod, "again"), format!("{pod}\nagain\n"));
    }
    pods::delete(installed, &["statefulset/web", "pvc/v-web-0", "pvc/v-web-1"]);
    installed.until_empty();
}
