//! A drive in operation whose machine dies is moved to another one: nobody takes it there but a person, and what comes
//! back of the old machine neither opens it nor is believed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cluster::{Cluster, Part, descriptors, eventually};
use serde_json::Value;

fn agent(cluster: &Cluster, name: &str, bay: u32, drive: &Path) -> Part {
    let mut command = cluster.hotbay();
    command.args(["node", "--no-config", "--join"]).arg(cluster.api()).args(["--name", name]);
    command.arg("--data-dir").arg(cluster.path().join(name)).stdout(Stdio::null());
    command.arg("--drives").arg(format!("{bay}={}", drive.display()));
    Part::of(command.spawn().unwrap())
}

fn listed(cluster: &Cluster, node: &str) -> Option<Value> {
    let list = cluster.client(&["get", "drives", "-o", "json"]);
    let list: Value = serde_json::from_slice(&list.stdout).ok()?;
    let drives = list["items"].as_array()?;
    drives.iter().find(|drive| drive["status"]["node"] == node).cloned()
}

/// What is on the drive beside the label: two places in its first MiB, and a copy before the table at its end.
fn contents(drive: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(drive).unwrap();
    let end = bytes.len();
    bytes[..2 << 20].fill(0);
    bytes[end - (2 << 20)..].fill(0);
    bytes
}

/// The state of a machine that knows nothing of what happened since.
fn copy(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).ok();
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

fn names(cluster: &Cluster) -> (String, String, PathBuf) {
    let name = |end: &str| format!("{}-{end}", cluster.name);
    (name("a"), name("b"), cluster.drives[0].path.clone())
}

/// The newcomer is denied, and whoever looks at it is told what to do. Gives the drive's name, and what is to be typed.
fn denied(cluster: &Cluster, node: &str, here: &str) -> (String, String) {
    let row = eventually("the newcomer is listed", || listed(cluster, node));
    let name = row["status"]["denied"][0]["drive"].as_str().unwrap().to_owned();
    assert_eq!(row["status"]["denied"][0]["reason"], "IdentityConflict");
    for looks in [&["describe", "drive"][..], &["drive", "explain"], &["drive", "add"]] {
        let arguments: Vec<_> = looks.iter().copied().chain([here]).collect();
        let output = cluster.client(&arguments);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(&format!("hotbay drive take-over {node}:/")), "{looks:?}: {text}");
    }
    let word = row["status"]["serial"].as_str().unwrap_or(&name).to_owned();
    (name, word)
}

#[test]
fn a_drive_of_a_dead_machine_is_taken_over_by_a_persons_word() {
    let mut cluster = Cluster::new(1, false);
    cluster.start_registry();
    let (a, b, drive) = names(&cluster);
    let old = agent(&cluster, &a, 0, &drive);
    eventually("the drive is listed", || listed(&cluster, &a));
    cluster.expect(&["drive", "add", &format!("{a}:bay-0"), "--wait"], 0);
    let mine = b"what a volume has written";
    let file = std::fs::File::options().write(true).open(&drive).unwrap();
    file.write_all_at(mine, 8 << 20).unwrap();
    drop(file);
    let before = contents(&drive);

    // Both machines reach it: that is refused.
    let new = agent(&cluster, &b, 3, &drive);
    let here = format!("{b}:bay-3");
    let (name, word) = denied(&cluster, &b, &here);
    let refused = cluster.expect(&["drive", "take-over", &here, "--serial", &word], 5);
    assert!(refused.contains("SeenOnTwoNodes"), "{refused}");

    old.kill();
    let as_it_was = cluster.path().join("as-it-was");
    copy(&cluster.path().join(&a), &as_it_was);
    eventually("the registry has noticed", || {
        cluster.expect(&["describe", "node", &a], 0).contains("not connected for").then_some(())
    });
    let shown = cluster.expect(&["drive", "take-over", &here, "--dry-run"], 0);
    assert!(shown.contains("both would write to it") && shown.contains("nothing was"), "{shown}");
    cluster.expect(&["drive", "take-over", &here], 2);
    let wrong = cluster.expect(&["drive", "take-over", &here, "--serial", "S-OTHER"], 5);
    assert!(wrong.contains("is not its serial number"), "{wrong}");
    let still = listed(&cluster, &a).unwrap();
    assert_eq!(still["status"]["state"], "AttachedDevice", "{still}");

    let told = cluster.expect(&["drive", "take-over", &here, "--serial", &word, "--wait"], 0);
    assert!(told.contains("in operation"), "{told}");
    let taken = listed(&cluster, &b).unwrap();
    assert_eq!(taken["metadata"]["name"], name.as_str(), "it keeps its name");
    assert_eq!(taken["status"]["state"], "AttachedDevice");
    assert_eq!(descriptors(new.pid(), &drive).len(), 1);
    cluster.expect(&["drive", "take-over", &here, "--serial", &word], 0);
    let events = cluster.expect(&["events"], 0);
    assert!(events.contains(&format!("was taken over from {a}, asked by ")), "{events}");

    // What comes back of the old machine has the drive in its record, and tries it: with the new machine alive, and
    // with only its label left.
    let labelled = std::fs::read(&drive).unwrap();
    let mut new = Some(new);
    for alive in [true, false] {
        if !alive {
            new.take().unwrap().kill();
        }
        copy(&as_it_was, &cluster.path().join(&a));
        let tried = cluster.logged("proving that it is closed\"");
        let back = agent(&cluster, &a, 0, &drive);
        eventually("it is told to close", || {
            (cluster.logged("proving that it is closed\"") > tried).then_some(())
        });
        let row = listed(&cluster, &a).unwrap();
        assert_eq!(row["status"]["denied"][0]["reason"], "IdentityConflict", "{row}");
        assert_eq!(descriptors(back.pid(), &drive), []);
        let kept = listed(&cluster, &b).unwrap();
        assert_eq!(kept["status"]["state"], "AttachedDevice");
        assert_eq!(kept["status"]["goal"], taken["status"]["goal"]);
        assert!(std::fs::read(&drive).unwrap() == labelled, "the old machine wrote to it");
        back.kill();
    }
    let new = agent(&cluster, &b, 3, &drive);
    eventually("it is open again", || (descriptors(new.pid(), &drive).len() == 1).then_some(()));
    assert_eq!(cluster.logged("RegistryRewound"), 0);
    assert!(contents(&drive) == before, "only the label may change");
}
