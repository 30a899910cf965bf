//! An agent as a process, over files or loop devices. What it leaves mounted or mapped goes with the value, also when a
//! test fails.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{Ended, HOTBAY};

pub(crate) struct Agent {
    pub(crate) process: Ended,
    folder: PathBuf,
    /// The files or devices that are its drives.
    pub(crate) drives: Vec<PathBuf>,
}

impl Agent {
    /// Joins with a token, over new files of these sizes.
    pub(crate) fn start(folder: PathBuf, token: &str, drives: &[u64]) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let mut paths = Vec::new();
        for (number, bytes) in drives.iter().enumerate() {
            let path = folder.join(format!("drive{number}.img"));
            File::create(&path).unwrap().set_len(*bytes).unwrap();
            paths.push(path);
        }
        Self::over(folder, token, paths)
    }

    /// Joins with a token, over these drives.
    pub(crate) fn over(folder: PathBuf, token: &str, drives: Vec<PathBuf>) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let process = Self::run(&folder, &drives, &["--join", token]);
        Self { process, folder, drives }
    }

    fn run(folder: &Path, drives: &[PathBuf], more: &[&str]) -> Ended {
        let mut command = Command::new(HOTBAY);
        command.args(["node", "--no-config", "--data-dir"]).arg(folder.join("data"));
        command.args(drives.iter().map(|drive| format!("--drives={}", drive.display())));
        command.args(more).env_remove("HOTBAY_JOIN");
        Ended::start(command, &folder.join("log"))
    }

    /// Ends it as `kill -9` does, and starts it again.
    pub(crate) fn restart(&mut self) {
        self.process.kill();
        self.process = Self::run(&self.folder, &self.drives, &[]);
    }

    /// The same with a token, as if it had none of its own.
    pub(crate) fn join_again(&mut self, token: &str) {
        self.process.kill();
        self.process = Self::run(&self.folder, &self.drives, &["--join", token]);
    }

    /// What it has stored of its certificate.
    pub(crate) fn membership(&self) -> PathBuf {
        self.folder.join("data/tls/membership")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Its data directory, as an argument.
    pub(crate) fn data_dir(&self) -> String {
        self.folder.join("data").to_str().unwrap().to_owned()
    }

    /// What it remembers of its orders, as it is on its disk.
    pub(crate) fn record(&self) -> String {
        fs::read_to_string(self.folder.join("data/record")).unwrap()
    }

    /// The same as a value.
    pub(crate) fn memory(&self) -> Value {
        serde_json::from_str(self.record().split_once('\n').unwrap().1).unwrap()
    }

    /// The label of each drive.
    pub(crate) fn labels(&self) -> Vec<Value> {
        self.drives.iter().map(|drive| label(drive)).collect()
    }

    /// What is on the drives where volumes are, and between: all but the labels and the table. By drive and MiB.
    pub(crate) fn bytes(&self) -> BTreeMap<(usize, usize), Vec<u8>> {
        const MIB: usize = 1 << 20;
        let mut bytes = BTreeMap::new();
        for (number, drive) in self.drives.iter().enumerate() {
            let all = fs::read(drive).unwrap();
            // The table and two slots; at the end the third copy and the second table.
            for at in 2..(all.len() / MIB).saturating_sub(2) {
                let piece = &all[at * MIB..(at + 1) * MIB];
                if piece.iter().any(|byte| *byte != 0) {
                    bytes.insert((number, at), piece.to_vec());
                }
            }
        }
        bytes
    }
}

/// What a drive says of itself.
pub(crate) fn label(drive: &Path) -> Value {
    let mut inspect = Command::new(HOTBAY);
    inspect.args(["drive", "inspect"]).arg(drive).args(["-o", "json"]);
    serde_json::from_slice(&inspect.output().unwrap().stdout).unwrap()
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process.kill();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| Path::new(point).starts_with(&self.folder)) {
            Command::new("umount").arg(point).status().ok();
        }
        detach_loops(&self.folder);
    }
}

/// Detaches every loop device over a file in this folder.
pub(crate) fn detach_loops(folder: &Path) {
    let columns = ["--list", "--noheadings", "-O", "NAME,BACK-FILE"];
    let Ok(output) = Command::new("losetup").args(columns).output() else { return };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(file)) = (words.next(), words.next())
            && Path::new(file).starts_with(folder)
        {
            Command::new("losetup").args(["--detach", name]).status().ok();
        }
    }
}
