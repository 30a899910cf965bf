//! What cases ask about volumes, and what must be left of them in the end.

use hotbay_guest::Drive;
use serde_json::Value;

use crate::lab::{Lab, agents};

/// By which a volume's owner says that its pod is to start although the volume is dead.
const IGNORE: &str = "pv.attach.kubernetes.io/ignore-if-inaccessible";

/// Plugs a drive and puts it into operation.
pub(crate) fn add(lab: &mut Lab, drive: &Drive) {
    lab.guest.plug(drive).unwrap();
    lab.until_present(&drive.serial);
    lab.add(&[&drive.serial]);
}

/// A volume whose user can live with a dummy, mounted, with a file on it that is on the drive.
pub(crate) fn precious(lab: &mut Lab, name: &str) {
    lab.ok(&format!("hotbay volume create {name} --size 16MiB"));
    lab.ok(&format!("hotbay volume annotate {name} {IGNORE}=yes"));
    lab.ok(&format!("hotbay volume mount {name} /mnt/{name}"));
    lab.ok(&format!("echo precious >/mnt/{name}/file && sync"));
    assert!(mounted(lab, name).starts_with("/dev/dm-"), "it is not mapped by device-mapper");
}

/// As a kubelet does with a pod that starts again.
pub(crate) fn restart_pod(lab: &mut Lab, name: &str) {
    lab.ok(&format!("hotbay volume unmount {name}"));
    lab.ok(&format!("hotbay volume mount {name} /mnt/{name}"));
}

pub(crate) fn unmount_and_delete(lab: &mut Lab, name: &str) {
    lab.ok(&format!("hotbay volume unmount {name}"));
    lab.ok(&format!("hotbay volume delete {name} --yes"));
}

/// What is mounted at the place of a volume.
pub(crate) fn mounted(lab: &mut Lab, name: &str) -> String {
    lab.ok(&format!("awk '$2 == \"/mnt/{name}\" {{ print $1 }}' /proc/mounts")).trim().to_owned()
}

pub(crate) fn volume(lab: &mut Lab, name: &str) -> Value {
    let list = lab.ok("hotbay get volumes -o json");
    let list: Value = serde_json::from_str(&list).unwrap();
    let mut items = list["items"].as_array().unwrap().iter();
    items.find(|item| item["metadata"]["name"] == name).cloned().unwrap_or_default()
}

/// Waits until people see a volume so.
pub(crate) fn until_operational(lab: &mut Lab, name: &str, status: &str) -> Value {
    let mut last = Value::Null;
    let found = lab.guest.wait_until(&format!("{name} is {status}"), |guest| {
        let output = guest.run("hotbay get volumes -o json").unwrap();
        let list: Value = serde_json::from_str(&output.stdout).ok()?;
        let mut items = list["items"].as_array()?.iter();
        last = items.find(|item| item["metadata"]["name"] == name)?.clone();
        (last["status"]["operationalStatus"] == status).then(|| last.clone())
    });
    found.unwrap_or_else(|error| panic!("{error}; it is {last:#}"))
}

/// Kills the agent, and waits until another one is registered.
pub(crate) fn kill_agent(lab: &mut Lab) {
    let killed = lab.agent();
    lab.ok(&format!("kill -9 {killed}"));
    lab.wait_until(
        "another agent runs",
        |guest| matches!(agents(guest)[..], [agent] if agent != killed),
    );
    lab.wait_ready();
}

/// Kills the registry, and waits until the agent is registered with another one.
pub(crate) fn kill_registry(lab: &mut Lab) {
    let registries = "for p in /proc/[0-9]*; do case \"$(tr '\\0' ' ' <$p/cmdline)\" in \
                      'hotbay controller '*) echo ${p#/proc/} ;; esac; done";
    let killed = lab.ok(registries);
    assert!(killed.trim().parse::<u32>().is_ok(), "not one registry: {killed:?}");
    lab.ok(&format!("kill -9 {}", killed.trim()));
    lab.wait_until("another registry runs", |guest| {
        let running = guest.run(registries).unwrap().stdout;
        !running.trim().is_empty() && running != killed
    });
    lab.wait_ready();
}

/// The devices of device-mapper, by name.
pub(crate) fn mapped(lab: &mut Lab) -> Vec<String> {
    let names = lab.ok("cat /sys/block/dm-*/dm/name 2>/dev/null; true");
    names.lines().map(str::to_owned).collect()
}

pub(crate) fn nothing_is_left(lab: &mut Lab) {
    assert_eq!(mapped(lab), Vec::<String>::new());
    assert_eq!(lab.ok("losetup -a"), "");
    let mounts = lab.ok("awk '{ print $2 }' /proc/mounts");
    let ours = |at: &&str| at.starts_with("/mnt") || at.starts_with("/var/lib/");
    assert_eq!(mounts.lines().filter(ours).collect::<Vec<_>>(), Vec::<&str>::new());
    assert_eq!(lab.ok("hotbay get volumes -o name"), "");
    assert_eq!(lab.ok("ls -A /var/lib/hotbay/node/dummies 2>/dev/null; true"), "");
}
