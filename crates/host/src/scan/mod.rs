//! Which devices of this machine could be drives, and what is known of each.
//!
//! Two steps, so that whoever watches for hot-plug can repeat either alone: [`list`] reads what the kernel shows
//! without touching a device, [`observe()`] has a child look at one of them. The agent calls both.

mod again;
pub(crate) mod blkid;
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod machine;
mod member;
pub(crate) mod mountinfo;
mod observe;
pub(crate) mod partx;
pub(crate) mod sysfs;
pub(crate) mod udev;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use hotbay_core::device::{Details, DeviceKind, Media, Partition, Transport};
use hotbay_core::evidence::Evidence;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::kernel_id::{DeviceNumber, KernelId};
use machine::Machine;
use sysfs::Sysfs;

pub use again::{MountedNow, below, name_of};
pub use blkid::Signatures;
pub use glob::PatternError;
pub use observe::{Inside, Observation, compose, look, looked_in, observe, unlooked};
pub(crate) use observe::{denied_by_contents, denied_from_outside};
pub use sysfs::Holder;

/// What a plain file counts as a block. Loop devices have the same unless told otherwise, so that a file can serve
/// either way.
pub(crate) const FILE_BLOCK_BYTES: u32 = 512;

/// Where the system lives; a drive mounted at one of these is never taken.
pub(crate) const SYSTEM_MOUNTS: [&str; 7] =
    ["/", "/boot", "/boot/efi", "/efi", "/usr", "/var", mountinfo::SWAP];

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
    /// Where it is, and in which enclosure, if the machine can tell.
    pub bay: Option<String>,
    pub enclosure: Option<String>,
    pub vendor: Option<String>,
    pub firmware: Option<String>,
    pub transport: Transport,
    /// Zero if it is not told.
    pub physical_block_bytes: u32,
    pub read_only: bool,
    pub removable: bool,
    pub zoned: bool,
    /// Its names below `/dev/disk/by-id`.
    pub links: Vec<String>,
    /// Block devices that hold it or a partition of it.
    pub holders: Vec<Holder>,
    pub partitions: Vec<Partition>,
    /// The drive and everything that stands on it, by name and number.
    pub stack: Vec<(String, DeviceNumber)>,
    /// Where it, or anything that stands on it, is mounted.
    pub mounts: Vec<String>,
    /// The devices on it, or it itself, that the machine swaps to.
    pub swaps: Vec<String>,
    /// Loop devices over it or a partition of it, as far as their paths tell.
    pub loops: Vec<String>,
}

impl Candidate {
    /// The mounts that make it the system drive.
    pub fn system_mounts(&self) -> Vec<String> {
        self.mounts.iter().filter(|at| SYSTEM_MOUNTS.contains(&at.as_str())).cloned().collect()
    }

    /// What people want to know of it, all but its contents: these take a look at the device.
    pub fn details(&self) -> Details {
        Details {
            vendor: self.vendor.clone(),
            firmware: self.firmware.clone(),
            transport: self.transport,
            enclosure: self.enclosure.clone(),
            physical_block_bytes: self.physical_block_bytes,
            read_only: self.read_only,
            removable: self.removable,
            zoned: self.zoned,
            links: self.links.clone(),
            contents: None,
            partitions: self.partitions.clone(),
            mounts: self.mounts.clone(),
            holders: self.holders.iter().map(|holder| holder.name.clone()).collect(),
            filter: None,
        }
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
    list_of(&Machine::read(Sysfs::of_machine())?, selection)
}

/// [`list`] of all drives that a tree of files shows, made as sysfs is. For measurements.
#[doc(hidden)]
pub fn list_below(root: &Path) -> Result<Vec<Candidate>, ScanError> {
    list_of(&Machine::read(Sysfs::at(root))?, &Selection::All)
}

/// [`list`] for many selections, in their order. What all devices need is read once.
pub fn list_each<'a>(
    selections: impl IntoIterator<Item = &'a Selection>,
) -> Result<Vec<Vec<Candidate>>, ScanError> {
    let machine = Machine::read(Sysfs::of_machine())?;
    selections.into_iter().map(|selection| list_of(&machine, selection)).collect()
}

fn list_of(machine: &Machine, selection: &Selection) -> Result<Vec<Candidate>, ScanError> {
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

/// One device by its number, as [`list`] would show it; `None` if it is not there, is no drive, or is not selected.
/// Reads the files of that device and of what stands on it, the mount table, and what the loop devices are over.
pub fn one(number: DeviceNumber, selection: &Selection) -> Result<Option<Candidate>, ScanError> {
    let sysfs = Sysfs::of_machine();
    let Some(name) = selected(&sysfs, number, selection)? else { return Ok(None) };
    Ok(Machine::read(sysfs)?.block_device(&name))
}

/// The name of a device, if it is a whole one and selected.
fn selected(
    sysfs: &Sysfs,
    number: DeviceNumber,
    selection: &Selection,
) -> Result<Option<String>, ScanError> {
    let Some((name, false)) = sysfs.find(number).map_err(ScanError::Sysfs)? else {
        return Ok(None);
    };
    let disk = sysfs.disk(&name);
    let is_selected = match selection {
        Selection::All => disk.is_physical(),
        Selection::Patterns(patterns) => names_device(patterns, &disk.path(), number)?,
    };
    Ok(is_selected.then_some(name))
}

/// Whether one of the patterns leads to a device. Most are written as the kernel names it, and then no directory is
/// listed.
fn names_device(
    patterns: &[String],
    path: &str,
    number: DeviceNumber,
) -> Result<bool, PatternError> {
    let parsed = patterns.iter().map(|pattern| glob::Pattern::parse(pattern));
    let patterns: Vec<glob::Pattern> = parsed.collect::<Result<_, _>>()?;
    let is_it = |path: &Path| matches!(KernelId::of_path(path), Ok(Some(KernelId::Block(found))) if found == number);
    if patterns.iter().any(|pattern| pattern.fits(path)) && is_it(Path::new(path)) {
        return Ok(true);
    }
    for pattern in &patterns {
        if pattern.matches()?.iter().any(|path| is_it(path)) {
            return Ok(true);
        }
    }
    Ok(false)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::mountinfo::Mounts;

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

    fn number_of(candidate: &Candidate) -> DeviceNumber {
        match candidate.id {
            KernelId::Block(number) => number,
            KernelId::File { .. } => panic!("{candidate:?}"),
        }
    }

    #[test]
    fn one_device_is_seen_as_among_all() {
        let Ok(all) = list(&Selection::All) else {
            eprintln!("SKIPPED: this machine shows no block devices");
            return;
        };
        let by_path = |path: &str| Selection::Patterns(vec![path.to_owned()]);
        for candidate in &all {
            let number = number_of(candidate);
            assert_eq!(one(number, &Selection::All).unwrap().as_ref(), Some(candidate));
            if Path::new(&candidate.path).exists() {
                let named = one(number, &by_path(&candidate.path)).unwrap();
                assert_eq!(named.as_ref(), Some(candidate));
            }
            assert_eq!(one(number, &by_path("/dev/null")).unwrap(), None);
        }
        let nowhere = DeviceNumber { major: 4_095, minor: 1_048_575 };
        assert_eq!(one(nowhere, &Selection::All).unwrap(), None);
        assert!(one(nowhere, &by_path("relative")).unwrap().is_none(), "there is nothing to match");
    }

    #[test]
    fn a_sysfs_that_cannot_be_read_is_no_answer_about_a_device() {
        let empty = tempfile::tempdir().unwrap();
        let number = DeviceNumber { major: 8, minor: 0 };
        let answer = selected(&Sysfs::at(empty.path()), number, &Selection::All);
        assert!(matches!(answer, Err(ScanError::Sysfs(_))), "{answer:?}");
    }
}
