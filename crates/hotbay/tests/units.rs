//! The systemd units in `packaging/systemd`: systemd itself checks them, and what locks and drives rest on is still in
//! them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const UNITS: [&str; 2] = ["hotbay.service", "hotbay-node.service"];

fn unit(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn systemd_understands_every_line() {
    if !Command::new("systemd-analyze").arg("--version").output().is_ok_and(|o| o.status.success())
    {
        eprintln!(
            "!! NOT RUN: the units are not verified; install systemd-analyze (package systemd)"
        );
        return;
    }
    let dir = tempfile::tempdir().expect("a folder for tests");
    let paths: Vec<PathBuf> = UNITS.iter().map(|name| dir.path().join(name)).collect();
    for (name, path) in UNITS.iter().zip(&paths) {
        // Where the program will be there is none yet, and systemd looks.
        let text = unit(name).replace("/usr/bin/hotbay", env!("CARGO_BIN_EXE_hotbay"));
        fs::write(path, text).expect("a unit is written");
    }
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args(&paths)
        .output()
        .expect("systemd-analyze runs");
    let said = String::from_utf8_lossy(&output.stderr);
    // It warns of what it ignores and succeeds; here a warning is a mistake.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("hotbay")).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}

#[test]
fn the_program_takes_the_arguments_of_its_units() {
    for name in UNITS {
        let text = unit(name);
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/hotbay "));
        let words: Vec<_> = line.expect("a command").split(' ').collect();
        // What is said here could not be said in the configuration file any more.
        assert_eq!(words.len(), 1, "{name}");
        let output = Command::new(env!("CARGO_BIN_EXE_hotbay")).args(words).arg("--help").output();
        assert!(output.expect("hotbay runs").status.success(), "{name}");
    }
}

#[test]
fn locks_outlive_the_service_and_hung_children_do_not_keep_it() {
    for name in UNITS {
        let text = unit(name);
        for line in [
            "RuntimeDirectory=hotbay",
            "RuntimeDirectoryMode=0700",
            "RuntimeDirectoryPreserve=yes",
            "KillMode=process",
        ] {
            assert!(text.lines().any(|found| found == line), "{name} lacks {line}");
        }
        // Each of them makes a mount namespace, or hides what the proof of closing looks at.
        for directive in
            ["Private", "ProtectSystem", "ProtectHome", "ProtectProc", "ProcSubset", "Device"]
        {
            let found = text.lines().find(|line| line.starts_with(directive));
            assert_eq!(found, None, "{name}");
        }
    }
}
