//! The label on real block devices, and what other programs make of the table. Needs root and loop devices.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Output};

use hotbay_core::label::{Found, SlotNumber};

use super::memory::{BLOCK_SIZES, SIZE_BYTES, WANT};
use super::{FileSectors, Outcome, bring_up_to_date, read};

/// A loop device over a sparse file, gone with the test.
pub(crate) struct LoopDevice {
    pub(crate) path: String,
    _file: tempfile::NamedTempFile,
}

impl LoopDevice {
    pub(crate) fn new(block_bytes: u32) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(SIZE_BYTES).unwrap();
        let output = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &block_bytes.to_string()])
            .arg(file.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "losetup: {output:?}");
        let path = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        Self { path, _file: file }
    }

    fn open(&self, block_bytes: u32) -> FileSectors {
        let file = OpenOptions::new().read(true).write(true).open(&self.path).unwrap();
        FileSectors::new(file, SIZE_BYTES, block_bytes)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.path]).status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("{} is still there: losetup --detach has failed", self.path);
        }
    }
}

/// Why the test cannot run on this machine.
pub(crate) fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        Some("not root")
    } else if !Path::new("/dev/loop-control").exists() {
        Some("no /dev/loop-control")
    } else if run("losetup", &["--version"]).is_none() {
        Some("no losetup")
    } else {
        None
    }
}

/// What the program says, or `None` if it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("NOT CHECKED: {program} is not installed");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn other_programs_see_a_sound_partition_table() {
    if let Some(why) = missing() {
        eprintln!("SKIPPED: other_programs_see_a_sound_partition_table: {why}");
        return;
    }
    for block_bytes in BLOCK_SIZES {
        let device = LoopDevice::new(block_bytes);
        let sectors = device.open(block_bytes);
        assert_eq!(read(&sectors).unwrap(), Found::Absent);
        let outcome = bring_up_to_date(&sectors, &WANT, || Ok(()), &|_| ()).unwrap();
        let Outcome::Written(header) = outcome else { panic!("{outcome:?}") };
        drop(sectors);
        let found = read(&device.open(block_bytes)).unwrap();
        assert_eq!(found, Found::Valid { header, slot: SlotNumber::Zero });
        check_blkid(&device.path);
        check_partx(&device.path);
        check_verifiers(&device.path);
    }
}

fn check_blkid(path: &str) {
    let Some(output) = run("blkid", &["-p", "-o", "export", path]) else { return };
    let text = text(&output);
    assert!(text.lines().any(|line| line == "PTTYPE=gpt"), "blkid: {text}");
    let uuid = text.lines().find_map(|line| line.strip_prefix("PTUUID=")).expect("a disk id");
    assert_eq!(uuid.replace('-', ""), WANT.drive.to_string(), "it is the drive's id");
}

fn check_partx(path: &str) {
    let columns = "START,END,NAME,TYPE";
    let Some(output) = run("partx", &["--raw", "--noheadings", "-o", columns, path]) else {
        return;
    };
    // partx counts in 512 bytes, whatever the device's blocks are.
    let last = (SIZE_BYTES - (1 << 20)) / 512 - 1;
    let expected = format!("2048 {last} hotbay a5975055-b42a-4bdf-83d6-0f346b852b56");
    assert_eq!(text(&output).trim(), expected);
}

fn check_verifiers(path: &str) {
    for (program, arguments, fine) in [
        ("sfdisk", ["--verify", path], "No errors detected."),
        ("sgdisk", ["-v", path], "No problems found."),
    ] {
        let Some(output) = run(program, &arguments) else { continue };
        let text = text(&output);
        assert!(output.status.success() && text.contains(fine), "{program}: {text}");
    }
}
