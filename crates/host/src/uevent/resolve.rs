//! Which device an event concerns, where only sysfs knows: the disk of a partition, the disks on a controller. Called
//! by the agent's loop for every event that is worth a look.

use std::path::{Component, Path};

use hotbay_core::discovery::queue::DeviceKey;
use hotbay_core::discovery::triage::Target;

use crate::scan::sysfs::Sysfs;

/// Most disks that are looked for below one device.
const MAX_BELOW: usize = 1024;

/// Calls `each` with every device that is meant, and returns how many there are. None for a disk: it has gone, and has
/// an event of its own. None below a device: what is on it is shown elsewhere, so that the machine has to be looked at
/// as a whole.
pub fn resolve(target: Target<'_>, each: impl FnMut(DeviceKey)) -> usize {
    resolve_in(Path::new("/sys"), target, each)
}

fn resolve_in(root: &Path, target: Target<'_>, mut each: impl FnMut(DeviceKey)) -> usize {
    let sysfs = Sysfs::at(root);
    let mut found = 0;
    let mut give = |key: Option<DeviceKey>| {
        if let Some(key) = key {
            found += 1;
            each(key);
        }
    };
    let disk = |name: &str, sequence: Option<u64>| {
        let disk = sysfs.disk(name);
        let number = disk.number()?;
        Some(DeviceKey { number, sequence: sequence.or_else(|| disk.sequence()) })
    };
    match target {
        Target::Device(key) => give(Some(key)),
        Target::Disk { name, sequence } if is_plain(name) => give(disk(name, sequence)),
        Target::Disk { .. } => {}
        Target::Below { devpath } => {
            let Some(place) = devpath.strip_prefix('/').filter(|place| is_plain(place)) else {
                return 0;
            };
            // A SCSI device has a directory for its disk, a controller has its namespaces in its own.
            for directory in [root.join(place).join("block"), root.join(place)] {
                let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
                for entry in entries.take(MAX_BELOW) {
                    let name = entry.file_name();
                    // Only a disk has this file; what is not in /sys/block is a hidden path to one.
                    if entry.path().join("diskseq").exists() {
                        give(name.to_str().and_then(|name| disk(name, None)));
                    }
                }
            }
        }
    }
    found
}

/// Whether a path of an event stays below where it is looked for.
fn is_plain(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|c| matches!(c, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use hotbay_core::device::DeviceNumber;

    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (path, contents) in files {
            let path = tree.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, contents).unwrap();
        }
        tree
    }

    fn found(tree: &tempfile::TempDir, target: Target<'_>) -> Vec<DeviceKey> {
        let mut found = Vec::new();
        let count = resolve_in(tree.path(), target, |key| found.push(key));
        assert_eq!(count, found.len());
        found
    }

    fn key(major: u32, minor: u32, sequence: u64) -> DeviceKey {
        DeviceKey { number: DeviceNumber { major, minor }, sequence: Some(sequence) }
    }

    #[test]
    fn a_partition_leads_to_its_disk() {
        let tree = tree(&[("block/sda/dev", "8:0\n"), ("block/sda/diskseq", "4\n")]);
        let disk = |name, sequence| found(&tree, Target::Disk { name, sequence });
        assert_eq!(disk("sda", Some(3)), [key(8, 0, 3)], "the event's own sequence counts");
        assert_eq!(disk("sda", None), [key(8, 0, 4)]);
        assert_eq!(disk("sdb", Some(3)), []);
        for hostile in ["", "..", "../block/sda", "/block/sda"] {
            assert_eq!(disk(hostile, Some(3)), [], "{hostile}");
        }
    }

    #[test]
    fn a_device_leads_to_the_disks_on_it() {
        let tree = tree(&[
            ("block/sda/dev", "8:0"),
            ("block/sda/diskseq", "4"),
            ("block/nvme0n1/dev", "259:0"),
            ("block/nvme0n1/diskseq", "5"),
            ("devices/scsi/0:0:0:0/block/sda/diskseq", "4"),
            ("devices/nvme0/nvme0n1/diskseq", "5"),
            ("devices/nvme0/nvme0c0n2/diskseq", "6"),
            ("devices/nvme0/power/control", "on"),
        ]);
        let below = |devpath| found(&tree, Target::Below { devpath });
        assert_eq!(below("/devices/scsi/0:0:0:0"), [key(8, 0, 4)]);
        assert_eq!(below("/devices/nvme0"), [key(259, 0, 5)]);
        assert_eq!(below("/devices/gone"), []);
        assert_eq!(below("/../devices/nvme0"), []);
    }
}
