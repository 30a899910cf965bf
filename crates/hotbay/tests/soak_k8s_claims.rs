//! Claims on a real Kubernetes, with Hotbay as a process on one of its nodes: a claim becomes a volume in a pod, its
//! data outlives the pod, it grows while in use, and goes with the claim.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hotbay_rig::image::BUSYBOX;
use hotbay_rig::{Cluster, Kubectl, Node, Process, Sidecars};

const HOTBAY: &str = env!("CARGO_BIN_EXE_hotbay");
const DRIVER: &str = "csi.hotbay.dev";
const API: &str = "/run/hotbay/api.sock";
const CONTROLLER_SOCKET: &str = "/run/hotbay/controller.sock";
const NODE_SOCKET: &str = "/var/lib/kubelet/plugins/csi.hotbay.dev/csi.sock";
const DRIVE_BYTES: u64 = 2 << 30;
/// How long anything may take, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(120);

/// With xfs, because ext4 in use grows only for one who has CAP_SYS_RESOURCE, and root in a container often has not.
const CLASS: &str = r"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: csi.hotbay.dev}
spec: {attachRequired: true, podInfoOnMount: true, fsGroupPolicy: File}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: hotbay}
provisioner: csi.hotbay.dev
parameters: {csi.storage.k8s.io/fstype: xfs}
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: letters}
spec: {storageClassName: hotbay, accessModes: [ReadWriteOnce], resources: {requests: {storage: 320Mi}}}
";

/// Asks until the answer is as wanted; fails with what was heard last.
fn until(what: &str, mut ask: impl FnMut() -> Result<(), String>) {
    let give_up = Instant::now() + LIMIT;
    while let Err(heard) = ask() {
        assert!(Instant::now() < give_up, "not within {LIMIT:?}: {what}; last heard: {heard}");
        sleep(Duration::from_millis(200));
    }
}

fn log(process: &Process) -> String {
    fs::read_to_string(process.log()).unwrap()
}

/// Hotbay on a node, over a plain file that is in operation.
fn hotbay(node: &Node) -> Process {
    let drive = node.folder().join("drive.img");
    File::create(&drive).unwrap().set_len(DRIVE_BYTES).unwrap();
    for socket in [API, NODE_SOCKET] {
        let folder = Path::new(socket).parent().unwrap();
        let made = node.command("mkdir").args(["-p", "-m", "0700"]).arg(folder).status();
        assert!(made.unwrap().success());
    }
    let drive = drive.display().to_string();
    let args = ["up", "--no-config", "--data-dir", "/var/lib/hotbay", "--name", node.name()];
    let sockets = ["--listen", API, "--csi", CONTROLLER_SOCKET, "--csi-node", NODE_SOCKET];
    let args = args.into_iter().chain(sockets).chain(["--drives", &drive]);
    let args: Vec<_> = args.map(str::to_owned).collect();
    let process = node.start_program("hotbay", Path::new(HOTBAY), &args).unwrap();
    until("the drive is in operation", || {
        let mut add = node.command("timeout");
        add.args(["30", HOTBAY, "--api", &format!("unix:{API}")]);
        let output = add.args(["host", "add", node.name(), "--wait"]).output().unwrap();
        if output.status.success() { Ok(()) } else { Err(log(&process)) }
    });
    process
}

fn start_pod(kubectl: &Kubectl, name: &str, script: &str) {
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  \
         nodeSelector: {{kubernetes.io/hostname: node1}}\n  terminationGracePeriodSeconds: 0\n  \
         volumes: [{{name: v, persistentVolumeClaim: {{claimName: letters}}}}]\n  \
         containers: [{{name: c, image: {BUSYBOX}, imagePullPolicy: Never, \
         command: [sh, -c, {script:?}], volumeMounts: [{{name: v, mountPath: /v}}]}}]\n"
    );
    kubectl.apply(&pod).unwrap();
    let pod = format!("pod/{name}");
    // A watch: the rig's own limit for a request would cut it short.
    let ready = ["--request-timeout=0", "wait", "--for=condition=Ready", &pod, "--timeout=120s"];
    if let Err(error) = kubectl.run(&ready) {
        panic!("{error}\n{}", kubectl.run(&["get", "events", "-A"]).unwrap());
    }
}

fn of_claim(kubectl: &Kubectl, path: &str) -> String {
    let path = format!("jsonpath={path}");
    kubectl.run(&["get", "pvc", "letters", "-o", &path]).unwrap()
}

#[test]
fn claim_becomes_a_volume_that_outlives_pods_and_grows() {
    let place = tempfile::Builder::new().prefix("hotbay-k8s-").tempdir().unwrap();
    let cluster = Cluster::start(place.path(), 2).unwrap();
    let (plane, kubectl) = (cluster.plane(), cluster.plane().kubectl());
    let node = &cluster.nodes()[0];
    let _hotbay = hotbay(node);
    let _registrar = Sidecars::register(plane, node, DRIVER, Path::new(NODE_SOCKET)).unwrap();
    let _sidecars = Sidecars::serve(plane, node, Path::new(CONTROLLER_SOCKET)).unwrap();
    kubectl.apply(CLASS).unwrap();

    start_pod(kubectl, "writer", "echo dear reader >/v/letter && sync && sleep 3600");
    assert_eq!(of_claim(kubectl, "{.status.phase}"), "Bound");
    let attached = ["get", "volumeattachments", "-o", "jsonpath={.items[*].status.attached}"];
    assert_eq!(kubectl.run(&attached).unwrap(), "true");

    let patch = r#"{"spec": {"resources": {"requests": {"storage": "640Mi"}}}}"#;
    kubectl.run(&["patch", "pvc", "letters", "-p", patch]).unwrap();
    until("the claim has grown", || match of_claim(kubectl, "{.status.capacity.storage}") {
        capacity if capacity == "640Mi" => Ok(()),
        capacity => Err(capacity),
    });

    kubectl.run(&["delete", "pod", "writer"]).unwrap();
    start_pod(kubectl, "reader", "sleep 3600");
    let letter = kubectl.run(&["exec", "reader", "--", "cat", "/v/letter"]).unwrap();
    assert_eq!(letter, "dear reader\n");

    kubectl.run(&["delete", "pod", "reader"]).unwrap();
    kubectl.run(&["delete", "pvc", "letters"]).unwrap();
    until("the volume is gone", || {
        let left = kubectl.run(&["get", "pv,volumeattachments", "-o", "name"]).unwrap();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    let volumes =
        node.command(HOTBAY).args(["--api", &format!("unix:{API}"), "get", "volumes"]).output();
    let volumes = String::from_utf8(volumes.unwrap().stdout).unwrap();
    assert!(!volumes.contains("pvc-"), "{volumes}");
}
