//! The loop devices that a cluster leaves: a driver that was killed with volumes in use keeps them, over files in the
//! rig's folder, and kubelets make more over these. They are found by what they are over, not by a path: within a
//! node's mounts the kernel has another one for the same file. `cluster` is the caller.

use std::collections::HashSet;
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::RigError;

/// Who a file is on this machine: its device, as losetup writes it, and its inode.
type File = (String, u64);

/// Detaches them when it is dropped, which must be after the nodes have ended.
#[derive(Debug)]
pub(crate) struct Loops {
    folder: PathBuf,
    kept: bool,
}

impl Loops {
    pub(crate) fn of(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), kept: false }
    }

    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = detach(&self.folder)
        {
            eprintln!("hotbay-rig: {error}");
        }
    }
}

/// Detaches all loop devices over files in this folder, and those over such loop devices. One that fails does not keep
/// the others; the first failure is told.
pub(crate) fn detach(folder: &Path) -> Result<(), RigError> {
    let mut files = HashSet::new();
    add_files(folder, &mut files);
    let mut others = devices()?;
    let mut ours = Vec::new();
    // Each round finds at least one, or is the last.
    loop {
        let (found, rest): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(_, over)| files.contains(over));
        if found.is_empty() {
            break;
        }
        files.extend(found.iter().filter_map(|(device, _)| file(Path::new(device))));
        ours.extend(found.into_iter().map(|(device, _)| device));
        others = rest;
    }
    let mut first = Ok(());
    // The last are over others.
    for device in ours.iter().rev() {
        let detached = losetup(&["--detach", device]).map(drop);
        // One that has gone by itself since they were listed is no failure.
        if is_attached(device) {
            first = first.and(detached);
        }
    }
    first
}

/// Whether a loop device has something behind it.
fn is_attached(device: &str) -> bool {
    let name = device.trim_start_matches("/dev/");
    Path::new("/sys/block").join(name).join("loop/backing_file").exists()
}

/// Every loop device with what it is over.
fn devices() -> Result<Vec<(String, File)>, RigError> {
    let listed = losetup(&["--list", "--noheadings", "--output", "NAME,BACK-MAJ:MIN,BACK-INO"])?;
    let device = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        Some((name, (words.next()?.to_owned(), words.next()?.parse().ok()?)))
    };
    Ok(listed.lines().filter_map(device).collect())
}

fn add_files(folder: &Path, files: &mut HashSet<File>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => add_files(&entry.path(), files),
            Ok(kind) if kind.is_file() => files.extend(file(&entry.path())),
            Ok(_) | Err(_) => {}
        }
    }
}

fn file(path: &Path) -> Option<File> {
    let found = fs::symlink_metadata(path).ok()?;
    let device = found.st_dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Some((format!("{major}:{minor}"), found.st_ino()))
}

fn losetup(args: &[&str]) -> Result<String, RigError> {
    let output = Command::new("losetup").args(args).output();
    let output =
        output.map_err(|source| RigError::Start { program: "losetup".to_owned(), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(RigError::Command { command: format!("losetup {}", args.join(" ")), said })
}
