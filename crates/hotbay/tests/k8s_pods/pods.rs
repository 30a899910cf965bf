//! Pods and claims, as people write them.

use hotbay_rig::Kubectl;
use hotbay_rig::image::BUSYBOX;

use crate::cluster::Installed;

/// What a claim asks for.
pub(crate) enum Kind {
    Block,
    Ext4,
    /// Grows while in use; ext4 does so only for one who has CAP_SYS_RESOURCE. At least 300 MB.
    Xfs,
}

pub(crate) fn claim(installed: &Installed, name: &str, mib: u64, kind: Kind) {
    let (class, mode) = match kind {
        Kind::Block => ("hotbay", "Block"),
        Kind::Ext4 => ("hotbay", "Filesystem"),
        Kind::Xfs => ("hotbay-xfs", "Filesystem"),
    };
    installed.kubectl().apply(&manifest(name, class, mode, mib)).unwrap();
}

pub(crate) fn manifest(name: &str, class: &str, mode: &str, mib: u64) -> String {
    format!(
        "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec: {{storageClassName: \
         {class}, volumeMode: {mode}, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: \
         {mib}Mi}}}}}}\n"
    )
}

/// A class whose claims wait for no pod.
const AT_ONCE: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: at-once}
provisioner: csi.hotbay.dev
volumeBindingMode: Immediate
";

/// Many claims that wait for no pod, as one manifest: NAME-0, NAME-1 and so on, of 8 MiB.
pub(crate) fn claims_at_once(name: &str, count: usize) -> String {
    let claim = |number| manifest(&format!("{name}-{number}"), "at-once", "Filesystem", 8);
    (0..count).map(claim).fold(AT_ONCE.to_owned(), |text, claim| text + &claim)
}

/// What a pod has of its claim.
pub(crate) const FILESYSTEM: &str = "volumeMounts: [{name: v, mountPath: /v}]";
pub(crate) const DEVICE: &str = "volumeDevices: [{name: v, devicePath: /dev/v}]";

/// A pod that sleeps, with its claim; `on` is a node, or empty.
pub(crate) fn apply(installed: &Installed, name: &str, claim: &str, uses: &str, on: &str) {
    let pod = pod(name, claim, uses, on, "[sleep, '3600']");
    installed.kubectl().apply(&pod).unwrap();
}

/// Ends when its command does.
pub(crate) fn pod(name: &str, claim: &str, uses: &str, on: &str, command: &str) -> String {
    let selector = match on {
        "" => String::new(),
        on => format!("  nodeSelector: {{kubernetes.io/hostname: {on}}}\n"),
    };
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n{selector}  \
         terminationGracePeriodSeconds: 0\n  restartPolicy: Never\n  volumes: [{{name: v, persistentVolumeClaim: \
         {{claimName: {claim}}}}}]\n  containers: [{{name: c, image: {BUSYBOX}, imagePullPolicy: Never, command: \
         {command}, {uses}}}]\n"
    )
}

/// Waits until a pod runs.
pub(crate) fn until_runs(installed: &Installed, name: &str) {
    let pod = format!("pod/{name}");
    let ready = ["--request-timeout=0", "wait", "--for=condition=Ready", &pod, "--timeout=120s"];
    if let Err(error) = installed.kubectl().run(&ready) {
        panic!("{error}\n{}", installed.said());
    }
}

pub(crate) fn start(installed: &Installed, name: &str, claim: &str, uses: &str, on: &str) {
    apply(installed, name, claim, uses, on);
    until_runs(installed, name);
}

pub(crate) fn run(kubectl: &Kubectl, pod: &str, script: &str) -> String {
    kubectl.run(&["exec", pod, "--", "sh", "-c", script]).unwrap()
}

/// Writes a line into the volume, and says all that is in it.
pub(crate) fn write(kubectl: &Kubectl, pod: &str, line: &str) -> String {
    run(kubectl, pod, &format!("echo {line} >>/v/letter && sync && cat /v/letter"))
}

/// Deletes, and waits until it is gone.
pub(crate) fn delete(installed: &Installed, what: &[&str]) {
    let delete = [&["--request-timeout=0", "delete", "--timeout=120s"], what].concat();
    if let Err(error) = installed.kubectl().run(&delete) {
        panic!("{error}\n{}", installed.said());
    }
}
