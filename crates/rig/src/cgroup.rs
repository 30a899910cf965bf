//! The control groups of a rig's nodes: one folder for each in every hierarchy, of the kernel's first or second kind,
//! named so that they can be found and removed when the node is gone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::RigError;
use crate::folder::Folder;

const ROOT: &str = "/sys/fs/cgroup";
/// The file in the rig's folder that has the name of its control group.
const NOTE: &str = "cgroup";
/// What the second kind hands down only when it is told to.
const CONTROLLERS: &str = "+cpuset +cpu +io +memory +pids";
/// How deep kubelets and containers nest them.
const DEPTH_MAX: u32 = 12;

/// Goes when it is dropped, with all below it. Everything that ran in it must have ended.
#[derive(Debug)]
pub(crate) struct Cgroup {
    name: String,
    kept: bool,
}

impl Cgroup {
    pub(crate) fn make(folder: &Folder) -> Result<Self, RigError> {
        let name = format!("hotbay-rig-{}", std::process::id());
        folder.write(NOTE, &name)?;
        Ok(Self { name, kept: false })
    }

    /// Makes the control group of one node, and tells how the kubelet calls it.
    pub(crate) fn of_node(&self, node: &str) -> Result<String, RigError> {
        let inner = format!("{}/{node}", self.name);
        for hierarchy in hierarchies() {
            let path = hierarchy.join(&inner);
            fs::create_dir_all(&path).map_err(RigError::file("make the control group", &path))?;
            if hierarchy.join("cgroup.controllers").exists() {
                for above in [hierarchy.clone(), hierarchy.join(&self.name), path] {
                    // Each of them may be absent, which the kubelet will say.
                    drop(fs::write(above.join("cgroup.subtree_control"), CONTROLLERS));
                }
            } else if hierarchy.join("cpuset.cpus").exists() {
                hand_down_cpuset(&hierarchy, &[self.name.as_str(), &inner]);
            }
        }
        Ok(format!("/{inner}"))
    }

    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = remove_named(&self.name)
        {
            eprintln!("hotbay-rig: {error}");
        }
    }
}

/// Removes the control groups that are noted in a rig's folder, if they are there.
pub(crate) fn remove(folder: &Folder) -> Result<(), RigError> {
    fs::read_to_string(folder.join(NOTE)).map_or(Ok(()), |name| remove_named(&name))
}

fn remove_named(name: &str) -> Result<(), RigError> {
    for hierarchy in hierarchies() {
        let path = hierarchy.join(name);
        if path.exists() {
            remove_tree(&path, DEPTH_MAX)
                .map_err(RigError::file("remove the control group", path))?;
        }
    }
    Ok(())
}

/// Folders alone: the files in them are the kernel's, and go with them.
fn remove_tree(path: &Path, depth: u32) -> io::Result<()> {
    if depth > 0 {
        for entry in fs::read_dir(path)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_tree(&entry.path(), depth - 1)?;
            }
        }
    }
    fs::remove_dir(path)
}

/// In the first kind a group has neither processors nor memory until it is told which.
fn hand_down_cpuset(hierarchy: &Path, groups: &[&str]) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let Ok(all) = fs::read(hierarchy.join(file)) else { continue };
        for group in groups {
            drop(fs::write(hierarchy.join(group).join(file), &all));
        }
    }
}

/// The one of the second kind, or all of the first.
fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        return vec![root.to_owned()];
    }
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}
