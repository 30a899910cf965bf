//! Fake attach, asked for on the claim.

use std::fs::File;
use std::os::unix::fs::FileExt;

use hotbay_rig::Kubectl;
use serde_json::Value;

use crate::cluster::{Installed, until};
use crate::pods::{self, Kind};

const IGNORE: &str = "pv.attach.kubernetes.io/ignore-if-inaccessible";

/// One pod has both: a filesystem at `/v`, and a raw device.
const CLAIMS: [&str; 2] = ["dead", "dead-raw"];
const BOTH: &str = "volumeMounts: [{name: v, mountPath: /v}], \
                    volumeDevices: [{name: raw, devicePath: /dev/raw}]";

/// Both labels of a drive are in there; without them nobody knows what is on it.
const LABEL_BYTES: usize = 2 << 20;

/// Waits until what the volume of each claim says of itself is as wanted.
fn until_volumes(installed: &Installed, what: &str, wanted: impl Fn(&Value) -> bool) {
    for claim in CLAIMS {
        until(&format!("{claim}: {what}"), || {
            let volumes = installed.json(&["volumes.hotbay.dev"]);
            let volumes = volumes["items"].as_array().unwrap();
            let name = format!("default/{claim}");
            let volume = volumes.iter().find(|each| each["spec"]["claim"] == *name);
            let volume = volume.ok_or_else(|| format!("{volumes:?}"))?;
            if wanted(volume) { Ok(()) } else { Err(volume["status"].to_string()) }
        });
    }
}

fn until_events(installed: &Installed, reason: &str) {
    for claim in CLAIMS {
        until(&format!("kubectl shows {reason} of {claim}"), || {
            let events = installed.kubectl().run(&["describe", "pvc", claim]).unwrap();
            if events.contains(reason) { Ok(()) } else { Err(events) }
        });
    }
}

fn start_pod(installed: &Installed) {
    let volumes = "volumes: [{name: raw, persistentVolumeClaim: {claimName: dead-raw}}, ";
    let pod = pods::pod("stubborn", "dead", BOTH, "node1", "[sleep, '3600']");
    installed.kubectl().apply(&pod.replace("volumes: [", volumes)).unwrap();
    pods::until_runs(installed, "stubborn");
}

/// Ends the pod, and waits until the kubelet has let go of its volumes: one that is still staged is not staged again.
fn end_pod(installed: &Installed) {
    pods::delete(installed, &["pod", "stubborn"]);
    until("nobody uses the volumes", || {
        let left = installed.kubectl().run(&["get", "attachments", "-o", "name"]).unwrap();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

fn device(kubectl: &Kubectl) -> String {
    pods::run(kubectl, "stubborn", "dd if=/dev/raw bs=512 skip=8 count=1 2>/dev/null | tr -d '\\0'")
}

pub(crate) fn attach(installed: &Installed) {
    let kubectl = installed.kubectl();
    pods::claim(installed, "dead", 64, Kind::Ext4);
    pods::claim(installed, "dead-raw", 64, Kind::Block);
    let annotation = format!("{IGNORE}=yes");
    kubectl.run(&[&["annotate", "pvc"][..], &CLAIMS, &[&annotation]].concat()).unwrap();
    start_pod(installed);
    assert_eq!(pods::write(kubectl, "stubborn", "precious"), "precious\n");
    let raw = "echo gold | dd of=/dev/raw bs=512 seek=8 conv=notrunc,sync,fsync 2>/dev/null";
    pods::run(kubectl, "stubborn", raw);
    until_volumes(installed, "it heard of the claim's annotation", |volume| {
        volume["status"]["record"].to_string().contains(IGNORE)
    });
    end_pod(installed);

    let drive = File::options().read(true).write(true).open(installed.drive(0)).unwrap();
    let mut label = vec![0; LABEL_BYTES];
    drive.read_exact_at(&mut label, 0).unwrap();
    drive.write_all_at(&vec![0; LABEL_BYTES], 0).unwrap();
    drive.sync_all().unwrap();
    start_pod(installed);
    let there = pods::run(kubectl, "stubborn", "ls /v; echo scribble >/v/dummy && cat /v/dummy");
    assert_eq!(there, "scribble\n", "it is the volume itself");
    assert_eq!(device(kubectl), "", "it is the volume itself");
    until_events(installed, "FakeAttachInvolved");
    until_volumes(installed, "it says that its pod has a dummy", |volume| {
        let status = &volume["status"];
        status["record"]["annotations"]["fake-attach"] == "yes"
            && status["operationalStatus"] == "MISSING"
    });

    drive.write_all_at(&label, 0).unwrap();
    drive.sync_all().unwrap();
    until_volumes(installed, "its drive answers again", |volume| {
        volume["status"]["operationalStatus"] == "OPERATIVE"
    });
    end_pod(installed);
    start_pod(installed);
    assert_eq!(pods::write(kubectl, "stubborn", "more"), "precious\nmore\n");
    assert_eq!(device(kubectl), "gold\n");
    until_events(installed, "FakeAttachCleared");
    pods::delete(installed, &["pod/stubborn", "pvc/dead", "pvc/dead-raw"]);
    installed.until_empty();
}
