//! The pods find in the image what they run.

use hotbay_rig::product::HOTBAY;

use crate::cluster::{Installed, until};
use crate::pods;

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

pub(crate) fn has_every_program(installed: &Installed) {
    let kubectl = installed.kubectl();
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
    pods::delete(installed, &["pod", "calls"]);
}
