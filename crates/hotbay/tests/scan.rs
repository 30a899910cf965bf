//! `hotbay node scan` as a person runs it, on plain files: no registry, no agent, no rights.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn scan(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
    command.args(["node", "scan", "--no-config"]).args(arguments);
    // Where another run of the tests on this machine is not.
    command.env("XDG_RUNTIME_DIR", dir).env("HOME", dir).env_remove("HOTBAY_JOIN");
    command.arg("--data-dir").arg(dir.join("node")).output().unwrap()
}

/// A folder with an empty drive and one with a filesystem.
fn drives() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    for name in ["empty.img", "full.img"] {
        File::create(dir.path().join(name)).unwrap().set_len(64 << 20).unwrap();
    }
    let full = dir.path().join("full.img");
    assert!(Command::new("mkfs.ext4").arg("-q").arg(full).status().unwrap().success());
    let pattern = format!("{}/*.img", dir.path().canonicalize().unwrap().display());
    (dir, pattern)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_table_says_what_can_be_added_and_why_not() {
    let (dir, pattern) = drives();
    let output = scan(dir.path(), &["--drives", &pattern]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let shown = text(&output.stdout);
    let rows: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["PATH", "BAY", "MODEL", "SERIAL", "SIZE", "MEDIA", "USABLE", "WHY"]);
    assert!(rows[1][0].ends_with("/empty.img"), "{shown}");
    assert_eq!(rows[1][1..], ["-", "-", "-", "64M", "File", "yes"]);
    assert_eq!(rows[2][6..], ["no", "has", "ext4", "on", "it"]);
    assert!(!dir.path().join("node").exists(), "a look makes no folder");
}

#[test]
fn the_objects_are_those_of_get() {
    let (dir, pattern) = drives();
    let bay = format!("7={}", pattern.replace('*', "full"));
    let output = scan(dir.path(), &["-o", "json", "--drives", &bay, &pattern]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&"DriveList".into(), &"hotbay.dev/v1alpha1".into())
    );
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 2, "two ways to a file are one drive: {list:#}");
    let full = &items[1]["status"];
    assert_eq!((&full["bay"], &full["contents"]), (&"7".into(), &"ext4".into()));
    assert_eq!((&full["transport"], &full["readOnly"]), (&"file".into(), &false.into()));
    assert_eq!(full["denied"][0]["reason"], "Filesystem");
    let yaml = text(&scan(dir.path(), &["-o", "yaml", "--drives", &pattern]).stdout);
    assert!(yaml.starts_with("apiVersion: hotbay.dev/v1alpha1\n"), "{yaml}");
}

#[test]
fn what_is_not_there_or_not_a_pattern_is_told_by_the_exit_code() {
    let (dir, _) = drives();
    let missing = scan(dir.path(), &["--drives", "/nowhere/x*"]);
    assert_eq!((missing.status.code(), text(&missing.stdout)), (Some(4), String::new()));
    assert!(text(&missing.stderr).starts_with("Nothing that could be a drive"), "{missing:?}");
    let relative = scan(dir.path(), &["--drives", "sda"]);
    assert_eq!(relative.status.code(), Some(2));
    assert!(text(&relative.stderr).contains("an absolute path"), "{relative:?}");
}

#[test]
fn the_agents_options_are_not_those_of_a_scan() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
        command.args(arguments).output().unwrap()
    };
    assert_eq!(run(&["node", "--join", "/nowhere.sock", "scan"]).status.code(), Some(2));
    let help = text(&run(&["node", "--help"]).stdout);
    assert!(help.contains("--join") && help.contains("scan"), "{help}");
}
