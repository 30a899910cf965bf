//! Parts of a look at a device that is known, for events that say which part may have changed. Called by the agent's
//! discovery; nothing here opens a device.

use std::collections::BTreeSet;

use hotbay_core::device::{DeviceKind, DeviceNumber};
use hotbay_core::discovery::Probes;

use super::machine::{backing_in_dev, mounts_of, swaps_of};
use super::mountinfo::Mounts;
use super::sysfs::Sysfs;
use super::{Candidate, ScanError};
use crate::kernel_id::KernelId;
use crate::mapping;

/// Most devices that are walked through on the way down from one.
const MAX_BELOW: usize = 1024;

/// Where devices are mounted, read once for many of them.
#[derive(Debug)]
pub struct MountedNow(Mounts);

impl MountedNow {
    pub fn read() -> Result<Self, ScanError> {
        Mounts::read().map(Self).map_err(ScanError::Mounts)
    }
}

impl Candidate {
    /// The probes that one or two files of sysfs answer.
    pub const QUICK: Probes = Probes::SIZE.and(Probes::READ_ONLY);

    /// Reads what [`Candidate::QUICK`] probes need, and says whether anything is different. What cannot be read any
    /// more stays as it was: whether the device has gone is asked otherwise.
    pub fn read_quickly(&mut self, probes: Probes) -> bool {
        let KernelId::Block(_) = self.id else { return false };
        let Some(name) = self.path.strip_prefix("/dev/") else { return false };
        let disk = Sysfs::of_machine().disk(&name.replace('/', "!"));
        let before = (self.size_bytes, self.read_only);
        if probes.contains(Probes::SIZE)
            && let Some(size_bytes) = disk.size_if_known()
        {
            self.size_bytes = size_bytes;
        }
        if probes.contains(Probes::READ_ONLY) {
            self.read_only = disk.read_only();
        }
        before != (self.size_bytes, self.read_only)
    }

    /// Whether the kernel has this very device under its name, and not another one or none, and no medium has come or
    /// gone. What was read of it up to now was read of it, then.
    pub fn is_still_there(&self) -> bool {
        let KernelId::Block(number) = self.id else { return true };
        let Some(name) = self.path.strip_prefix("/dev/") else { return true };
        let disk = Sysfs::of_machine().disk(&name.replace('/', "!"));
        let is_backed = self.kind != DeviceKind::Loop || disk.backing().is_some();
        let same_device = (disk.number(), disk.sequence()) == (Some(number), self.sequence);
        same_device && is_backed && (disk.size_bytes() == 0) == (self.size_bytes == 0)
    }

    /// Looks up where it is mounted and what of it is swapped to, and says whether that is different.
    pub fn read_mounts(&mut self, now: &MountedNow) -> bool {
        let mounts = mounts_of(&now.0, &self.stack);
        let swaps = swaps_of(&now.0, &self.stack);
        let other = (&self.mounts, &self.swaps) != (&mounts, &swaps);
        (self.mounts, self.swaps) = (mounts, swaps);
        other
    }

    /// Whether another block device, by its name, stands on it or is over it.
    pub fn carries(&self, name: &str) -> bool {
        let is_it = |loop_device: &String| loop_device.strip_prefix("/dev/") == Some(name);
        self.stack.iter().any(|(above, _)| above == name) || self.loops.iter().any(is_it)
    }
}

/// The whole devices that a device stands on, through mappings, RAID and loop devices, itself not among them. A mapping
/// of ours and a guard stand on nothing: what becomes of them is no news about a drive.
pub fn below(number: DeviceNumber) -> BTreeSet<DeviceNumber> {
    below_in(&Sysfs::of_machine(), number)
}

fn below_in(sysfs: &Sysfs, number: DeviceNumber) -> BTreeSet<DeviceNumber> {
    let mut found = BTreeSet::new();
    let mut open = vec![number];
    while let Some(number) = open.pop() {
        let Some(name) = sysfs.whole_device(number) else { continue };
        let disk = sysfs.disk(&name);
        if mapping::is_ours_by_sysfs(&disk) {
            continue;
        }
        let backing = disk.backing().and_then(|backing| match backing_in_dev(&backing)? {
            KernelId::Block(number) => Some(number),
            KernelId::File { .. } => None,
        });
        let next = disk.slaves().into_iter().chain(backing);
        let whole = next.filter_map(|part| sysfs.disk(&sysfs.whole_device(part)?).number());
        for whole in whole {
            if found.len() < MAX_BELOW && found.insert(whole) {
                open.push(whole);
            }
        }
    }
    found
}

/// The name of the device that has this number now.
pub fn name_of(number: DeviceNumber) -> Option<String> {
    Sysfs::of_machine().device(number).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A volume over an encrypted partition of one drive and the whole of another.
    #[test]
    fn the_drives_below_a_mapping_are_found_through_its_layers() {
        let tree = tempfile::tempdir().unwrap();
        let root = tree.path();
        let device = |place: &str, number: &str| {
            std::fs::create_dir_all(root.join(place).join("slaves")).unwrap();
            std::fs::write(root.join(place).join("dev"), number).unwrap();
            std::fs::create_dir_all(root.join("dev/block")).unwrap();
            symlink(format!("../../{place}"), root.join("dev/block").join(number)).unwrap();
        };
        device("block/sda", "8:0");
        device("block/sda/sda2", "8:2");
        std::fs::write(root.join("block/sda/sda2/partition"), "2").unwrap();
        device("block/sdb", "8:16");
        device("block/dm-0", "253:0");
        device("block/dm-1", "253:1");
        symlink("../../sda/sda2", root.join("block/dm-0/slaves/sda2")).unwrap();
        symlink("../../dm-0", root.join("block/dm-1/slaves/dm-0")).unwrap();
        symlink("../../sdb", root.join("block/dm-1/slaves/sdb")).unwrap();
        let sysfs = Sysfs::at(root);
        let number = |major, minor| DeviceNumber { major, minor };
        let below = |major, minor| below_in(&sysfs, number(major, minor)).into_iter();
        assert_eq!(
            below(253, 1).collect::<Vec<_>>(),
            [number(8, 0), number(8, 16), number(253, 0)]
        );
        assert_eq!(below(8, 0).count(), 0);
        std::fs::create_dir_all(root.join("block/dm-1/dm")).unwrap();
        let ours = "HOTBAY-000000000000000000000000000000ab-7";
        std::fs::write(root.join("block/dm-1/dm/uuid"), ours).unwrap();
        assert_eq!(below(253, 1).count(), 0);
        assert_eq!(below(7, 9).count(), 0, "it has gone");
    }
}
