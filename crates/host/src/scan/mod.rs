//! Which devices of this machine could be drives, and what is known of each.
//!
//! Two steps, so that whoever watches for hot-plug can repeat either alone: [`list`] reads what the kernel shows
//! without touching a device, [`observe()`] has a child look at one of them. The agent calls both.

pub(crate) mod blkid;
#[doc(hidden)]
pub mod fuzzing;
mod glob;
pub(crate) mod mountinfo;
mod observe;
pub(crate) mod sysfs;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use hotbay_core::device::{DeviceKind, Media};
use hotbay_core::evidence::Evidence;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::kernel_id::{DeviceNumber, KernelId};
use mountinfo::Mounts;
use sysfs::{Loop, Sysfs};

pub use blkid::Signatures;
pub use glob::PatternError;
pub use observe::{Observation, identify, observe, unlooked};
pub(crate) use observe::{denied_by_contents, denied_from_outside};

/// What a plain file counts as a block. Loop devices have the same unless told otherwise, so that a file can serve
/// either way.
pub(crate) const FILE_BLOCK_BYTES: u32 = 512;

/// Where the system lives; a drive mounted at one of these is never taken.
const SYSTEM_MOUNTS: [&str; 6] = ["/", "/boot", "/boot/efi", "/efi", "/usr", "[swap]"];

/// Which devices an agent looks at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Selection {
    /// All physical drives.
    All,
    /// Block devices, loop devices and plain files, by path or pattern (`*`, `?`, `[a-z]`). Partitions and whatever
    /// else matches are left out.
    Patterns(Vec<String>),
}

/// A device that could be a drive, as the kernel shows it from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub id: KernelId,
    /// Another one for every device that has had this number. Kernels before 5.15 do not count.
    pub sequence: Option<u64>,
    pub kind: DeviceKind,
    pub path: String,
    /// Zero if it could not be read, as is the size of its blocks.
    pub size_bytes: u64,
    pub block_bytes: u32,
    pub media: Media,
    /// All but the evidence of a file, which needs its filesystem to be asked.
    pub evidence: Evidence,
    pub read_only: bool,
    pub removable: bool,
    /// Block devices that hold it or a partition of it.
    pub holders: Vec<String>,
    pub partitions: Vec<String>,
    /// Where it, or anything that stands on it, is mounted.
    pub mounts: Vec<String>,
    /// Loop devices over it or a partition of it, as far as their paths tell.
    pub loops: Vec<String>,
}

impl Candidate {
    /// The mounts that make it the system drive.
    pub fn system_mounts(&self) -> Vec<String> {
        self.mounts.iter().filter(|at| SYSTEM_MOUNTS.contains(&at.as_str())).cloned().collect()
    }
}

/// Why the devices are unknown. Not that they are gone.
#[derive(Debug, Error)]
pub enum ScanError {
    #[error("cannot list the block devices in /sys/block")]
    Sysfs(#[source] io::Error),
    #[error("cannot read the mount table")]
    Mounts(#[source] io::Error),
    #[error("cannot look for devices by pattern")]
    Pattern(#[from] PatternError),
}

/// Lists the selected devices. Opens none of them; a pattern for plain files asks the filesystem they are on.
pub fn list(selection: &Selection) -> Result<Vec<Candidate>, ScanError> {
    let machine = Machine::read(Sysfs::of_machine())?;
    let candidates = match selection {
        Selection::All => machine.physical()?,
        Selection::Patterns(patterns) => {
            let mut found = BTreeMap::new();
            for pattern in patterns {
                for path in glob::Pattern::parse(pattern)?.matches()? {
                    // Two paths to one device are one device.
                    if let Some(candidate) = machine.at_path(&path) {
                        found.entry(candidate.id).or_insert(candidate);
                    }
                }
            }
            found.into_values().collect()
        }
    };
    Ok(candidates)
}

/// Whether a text is a pattern that [`list`] takes. Looks at nothing.
pub fn check_pattern(text: &str) -> Result<(), PatternError> {
    glob::Pattern::parse(text).map(drop)
}

/// Whether a drive that is held open is gone from the machine. While anyone has it open its number is given to no other
/// device, so that a number which the machine does not have means this drive. A plain file does not go like that.
pub fn is_gone(id: KernelId) -> bool {
    match id {
        KernelId::Block(number) => Sysfs::of_machine().lacks(number),
        KernelId::File { .. } => false,
    }
}

/// What is at one path now, as [`list`] would show it; `None` if it cannot be a drive.
pub(crate) fn candidate_at(path: &Path) -> Result<Option<Candidate>, ScanError> {
    Ok(Machine::read(Sysfs::of_machine())?.at_path(path))
}

/// What is read once for all devices of one listing.
struct Machine {
    sysfs: Sysfs,
    mounts: Mounts,
    loops: Vec<Loop>,
}

impl Machine {
    fn read(sysfs: Sysfs) -> Result<Self, ScanError> {
        let loops = sysfs.loops().map_err(ScanError::Sysfs)?;
        Ok(Self { sysfs, mounts: Mounts::read().map_err(ScanError::Mounts)?, loops })
    }

    fn physical(&self) -> Result<Vec<Candidate>, ScanError> {
        let names = self.sysfs.disks().map_err(ScanError::Sysfs)?;
        let physical = names.iter().filter(|name| self.sysfs.disk(name).is_physical());
        Ok(physical.filter_map(|name| self.block_device(name)).collect())
    }

    fn at_path(&self, path: &Path) -> Option<Candidate> {
        match KernelId::of_path(path).ok()?? {
            KernelId::Block(number) => match self.sysfs.device(number)? {
                (name, false) => self.block_device(&name),
                (_, true) => None,
            },
            id @ KernelId::File { .. } => self.plain_file(path, id),
        }
    }

    fn block_device(&self, name: &str) -> Option<Candidate> {
        let disk = self.sysfs.disk(name);
        let number = disk.number()?;
        let is_loop = name.starts_with("loop");
        if is_loop && disk.backing().is_none() {
            return None;
        }
        let partitions = disk.partitions();
        let stack = self.sysfs.stack(name);
        let mounts = stack.values().flat_map(|number| self.mounts.of(*number));
        let numbers: BTreeSet<DeviceNumber> =
            partitions.values().copied().chain([number]).collect();
        Some(Candidate {
            id: KernelId::Block(number),
            sequence: disk.sequence(),
            kind: if is_loop { DeviceKind::Loop } else { DeviceKind::Block },
            path: disk.path(),
            size_bytes: disk.size_bytes(),
            block_bytes: disk.block_bytes(),
            media: if is_loop { Media::File } else { disk.media() },
            evidence: disk.evidence(),
            read_only: disk.read_only(),
            removable: disk.removable(),
            holders: disk.holders().into_iter().collect(),
            partitions: partitions.into_keys().collect(),
            mounts: mounts.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect(),
            loops: self.loops_over(|backing| match backing_in_dev(backing) {
                Some(KernelId::Block(number)) => numbers.contains(&number),
                Some(KernelId::File { .. }) | None => false,
            }),
        })
    }

    fn plain_file(&self, path: &Path, id: KernelId) -> Option<Candidate> {
        let path = path.canonicalize().ok()?;
        let metadata = path.metadata().ok()?;
        let text = path.to_str()?.to_owned();
        Some(Candidate {
            id,
            sequence: None,
            kind: DeviceKind::File,
            size_bytes: metadata.len(),
            block_bytes: FILE_BLOCK_BYTES,
            media: Media::File,
            evidence: Evidence::default(),
            read_only: metadata.permissions().readonly(),
            removable: false,
            holders: Vec::new(),
            partitions: Vec::new(),
            mounts: Vec::new(),
            loops: self.loops_over(|backing| backing == text),
            path: text,
        })
    }

    fn loops_over(&self, is_this: impl Fn(&str) -> bool) -> Vec<String> {
        let over = self.loops.iter().filter(|device| is_this(&device.backing));
        over.map(|device| format!("/dev/{}", device.name)).collect()
    }
}

/// Only under `/dev`, which is in memory: a backing file elsewhere may be on a filesystem that hangs.
fn backing_in_dev(backing: &str) -> Option<KernelId> {
    let path = PathBuf::from(backing);
    path.starts_with("/dev").then(|| KernelId::of_path(&path).ok().flatten()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_files_are_listed_once_however_often_they_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let dir_path = dir.path().canonicalize().unwrap();
        for name in ["a.img", "b.img", "c.txt"] {
            std::fs::write(dir_path.join(name), [0; 1024]).unwrap();
        }
        std::os::unix::fs::symlink("a.img", dir_path.join("link.img")).unwrap();
        std::fs::create_dir(dir_path.join("directory.img")).unwrap();
        let patterns = ["*.img", "a.img", "missing.img"]
            .map(|pattern| format!("{}/{pattern}", dir_path.display()));
        let found = list(&Selection::Patterns(patterns.to_vec())).unwrap();
        let mut paths: Vec<_> = found.iter().map(|c| c.path.rsplit('/').next().unwrap()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["a.img", "b.img"]);
        assert!(found.iter().all(|c| c.kind == DeviceKind::File && c.size_bytes == 1024));
    }

    #[test]
    fn devices_that_are_no_drives_are_left_out() {
        let patterns = ["/dev/null", "/dev", "/dev/loop-control", "/proc/self/status*"];
        let found = list(&Selection::Patterns(patterns.map(str::to_owned).to_vec())).unwrap();
        // A file of procfs is plain enough, but has no size: it is listed, and denied when looked at.
        assert!(found.iter().all(|c| c.kind == DeviceKind::File && c.size_bytes == 0), "{found:?}");
    }

    #[test]
    fn the_drive_below_the_root_is_the_system_drive() {
        let Ok(all) = list(&Selection::All) else {
            eprintln!("SKIPPED: this machine shows no block devices");
            return;
        };
        let root = Mounts::read().unwrap();
        let root_is_a_drive = all.iter().any(|c| match c.id {
            KernelId::Block(number) => root.of(number).any(|at| at == "/"),
            KernelId::File { .. } => false,
        });
        if !root_is_a_drive {
            eprintln!("SKIPPED: the root of this machine is not directly on a listed drive");
            return;
        }
        assert!(all.iter().any(|c| c.system_mounts().contains(&"/".to_owned())));
    }
}
