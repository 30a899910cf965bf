//! What stands on a drive: partitions, and the devices that the kernel makes from it (LVM, LUKS, software RAID, ...).
//!
//! The kernel lists in `holders` who has claimed a device, and device-mapper says in its `uuid` for whom it works. What
//! works for us, the mappings of volumes and the guards of drives, with all that stands on it, is nothing that a drive
//! is judged by: a pod that starts changes no drive.

use std::collections::{BTreeMap, BTreeSet};

use hotbay_core::words::plain;

use super::{Disk, Sysfs, names_in, read_text};
use crate::kernel_id::DeviceNumber;
use crate::mapping;

/// Most devices that one drive's stack of partitions and holders may have.
const MAX_STACK: usize = 1024;

/// What device-mapper writes before its `uuid`, and what people call it.
const MAPPERS: [(&str, &str); 7] = [
    ("LVM-", "LVM"),
    ("CRYPT-LUKS", "LUKS"),
    ("CRYPT-", "encryption"),
    (MULTIPATH, "multipath"),
    ("DMRAID-", "firmware RAID"),
    ("stratis-", "Stratis"),
    ("VDO-", "VDO"),
];
const MULTIPATH: &str = "mpath-";

/// How other holders are named by the kernel.
const NAMED: [(&str, &str); 3] = [("md", "software RAID"), ("bcache", "bcache"), ("drbd", "DRBD")];

/// A block device that stands on a drive or on a part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// As the kernel names it, such as `dm-3`.
    pub name: String,
    /// What people call it, such as `vg0-root`; the kernel's name if it has no other.
    pub called: String,
    /// What the drive is a member of through it, such as `LVM`, if that is known.
    pub member_of: Option<&'static str>,
}

impl Sysfs {
    /// Everything that stands on a drive: itself, its partitions, what holds one of these, and so on upwards, but
    /// nothing of ours. Device-mapper and software RAID are holders.
    pub(crate) fn stack(&self, name: &str) -> BTreeMap<String, DeviceNumber> {
        let mut stack = BTreeMap::new();
        let mut open = vec![name.to_owned()];
        while let Some(name) = open.pop() {
            let disk = self.disk(&name);
            // A holder can itself be a partition, which has no entry of its own in /sys/block.
            let Some(number) = disk.number() else { continue };
            if stack.len() >= MAX_STACK || stack.insert(name, number).is_some() {
                continue;
            }
            for (partition, number) in disk.partitions() {
                stack.insert(partition, number);
            }
            open.extend(disk.foreign_holders());
        }
        stack
    }
}

impl Disk {
    /// What holds the drive or one of its partitions: names of other block devices.
    pub(crate) fn holders(&self) -> BTreeSet<String> {
        let mut holders = names_in(&self.directory.join("holders"));
        for partition in self.partitions().keys() {
            holders.extend(names_in(&self.directory.join(partition).join("holders")));
        }
        holders
    }

    /// The same, without ours and without those that are just going.
    fn foreign_holders(&self) -> impl Iterator<Item = String> {
        let counts = |name: &String| {
            let holder = self.sysfs.disk(name);
            !holder.is_going() && !mapping::is_ours_by_sysfs(&holder)
        };
        self.holders().into_iter().filter(counts)
    }

    /// Only ours.
    pub(crate) fn own_holders(&self) -> BTreeSet<String> {
        let ours = |name: &String| mapping::is_ours_by_sysfs(&self.sysfs.disk(name));
        self.holders().into_iter().filter(ours).collect()
    }

    /// Whether it is a device of device-mapper that is being removed. It has neither name nor uuid then, and what it
    /// held is free in a moment; every other one can be asked for its uuid, if only to say that it has none.
    pub(crate) fn is_going(&self) -> bool {
        self.name.starts_with("dm-") && std::fs::read(self.directory.join("dm/uuid")).is_err()
    }

    /// What it stands on.
    pub(crate) fn slaves(&self) -> BTreeSet<DeviceNumber> {
        let slaves = self.directory.join("slaves");
        let number =
            |name: String| DeviceNumber::parse(&read_text(&slaves.join(name).join("dev"))?);
        names_in(&slaves).into_iter().filter_map(number).collect()
    }

    /// What holds it or one of its partitions and is not ours, with what each of them is.
    pub(crate) fn known_holders(&self) -> Vec<Holder> {
        let holder = |name: String| {
            let device = self.sysfs.disk(&name);
            let called = device.text("dm/name").unwrap_or_else(|| name.clone());
            Holder { called: plain(&called), member_of: device.makes_members_of(), name }
        };
        self.foreign_holders().map(holder).collect()
    }

    /// What the devices below this one are members of.
    fn makes_members_of(&self) -> Option<&'static str> {
        let among = |known: &[(&str, &'static str)], text: &str| {
            known.iter().find(|(prefix, _)| text.starts_with(prefix)).map(|(_, of)| *of)
        };
        if self.name.starts_with("dm-") {
            // A mapping without a uuid is being made, or nobody said for whom it is.
            return among(&MAPPERS, &self.text("dm/uuid")?);
        }
        among(&NAMED, &self.name)
    }

    /// Whether it is the one device that stands for all paths to a drive.
    pub(super) fn is_multipath(&self) -> bool {
        self.name.starts_with("dm-")
            && self.text("dm/uuid").is_some_and(|uuid| uuid.starts_with(MULTIPATH))
    }

    /// Whether it is one of several paths that a multipath device joins.
    pub(super) fn is_multipath_member(&self) -> bool {
        let holders = names_in(&self.directory.join("holders"));
        holders.iter().any(|name| self.sysfs.disk(name).is_multipath())
    }

    /// The device that shows what the drive itself is: one of the paths below a multipath device, else this one.
    pub(super) fn bearer(&self) -> Disk {
        let paths = if self.is_multipath() {
            names_in(&self.directory.join("slaves"))
        } else {
            BTreeSet::new()
        };
        self.sysfs.disk(paths.first().map_or(&self.name, String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::super::recorded::Tree;
    use super::*;

    #[test]
    fn the_stack_goes_up_through_partitions_and_holders() {
        let tree = Tree::new(&[
            ("sda/dev", b"8:0"),
            ("sda/sda1/partition", b"1"),
            ("sda/sda1/dev", b"8:1"),
            ("sda/sda1/holders/md0", b""),
            ("sda/power/dev", b"no partition"),
            ("md0/dev", b"9:0"),
            ("md0/holders/dm-3", b""),
            ("dm-3/dev", b"253:3"),
            ("dm-3/dm/uuid", b"\n"),
            // A circle must not be walked for ever.
            ("dm-3/holders/md0", b""),
            ("sdb/dev", b"8:16"),
        ]);
        let stack = tree.sysfs().stack("sda");
        assert_eq!(stack.keys().collect::<Vec<_>>(), ["dm-3", "md0", "sda", "sda1"]);
        assert_eq!(tree.sysfs().disk("sda").holders(), BTreeSet::from(["md0".to_owned()]));
    }

    /// A volume that is mounted, or has LVM of its user on it, and a guard: nothing of that is about the drive.
    #[test]
    fn what_is_ours_stands_on_no_drive() {
        let tree = Tree::new(&[
            ("sda/dev", b"8:0"),
            ("sda/holders/dm-0", b""),
            ("sda/holders/dm-1", b""),
            ("sda/holders/dm-2", b""),
            ("sda/holders/dm-3", b""),
            ("dm-0/dev", b"253:0"),
            ("dm-0/dm/uuid", b"HOTBAY-GUARD-000000000000000000000000000000ab\n"),
            ("dm-1/dev", b"253:1"),
            ("dm-1/dm/uuid", b"HOTBAY-000000000000000000000000000000ab-7\n"),
            ("dm-1/holders/dm-9", b""),
            ("dm-9/dev", b"253:9"),
            ("dm-9/dm/uuid", b"LVM-x\n"),
            // Somebody else's, and one that has just lost its uuid.
            ("dm-2/dev", b"253:2"),
            ("dm-2/dm/uuid", b"HOTBAY-x\n"),
            ("dm-3/dev", b"253:3"),
        ]);
        let sysfs = tree.sysfs();
        assert_eq!(sysfs.stack("sda").keys().collect::<Vec<_>>(), ["dm-2", "sda"]);
        let foreign = sysfs.disk("sda").known_holders();
        assert_eq!(foreign.iter().map(|h| h.name.as_str()).collect::<Vec<_>>(), ["dm-2"]);
        let own: Vec<_> = sysfs.disk("sda").own_holders().into_iter().collect();
        assert_eq!(own, ["dm-0", "dm-1"]);
    }

    #[test]
    fn holders_are_told_by_whom_they_work_for() {
        let tree = Tree::new(&[
            ("sda/sda1/partition", b"1"),
            ("sda/sda1/dev", b"8:1"),
            ("sda/sda1/holders/md0", b""),
            ("sda/holders/dm-0", b""),
            ("sda/holders/dm-1", b""),
            ("sda/holders/dm-2", b""),
            ("sda/holders/bcache0", b""),
            ("dm-0/dm/name", b"vg0-root\n"),
            ("dm-0/dm/uuid", b"LVM-0abc\n"),
            ("dm-1/dm/name", b"safe\x1b\n"),
            ("dm-1/dm/uuid", b"CRYPT-LUKS2-1-safe\n"),
            // A mapping that is being made has neither.
            ("dm-2/dm/name", b"\n"),
            ("dm-2/dm/uuid", b"\n"),
        ]);
        let found = tree.sysfs().disk("sda").known_holders();
        let shown: Vec<_> =
            found.iter().map(|h| (h.name.as_str(), h.called.as_str(), h.member_of)).collect();
        assert_eq!(
            shown,
            [
                ("bcache0", "bcache0", Some("bcache")),
                ("dm-0", "vg0-root", Some("LVM")),
                ("dm-1", "safe?", Some("LUKS")),
                ("dm-2", "dm-2", None),
                ("md0", "md0", Some("software RAID")),
            ]
        );
    }

    /// Two paths to one drive looked like two drives with one name. The device that joins them is the drive.
    #[test]
    fn a_drive_with_several_paths_is_one_drive() {
        let tree = Tree::new(&[
            ("sda/device/wwid", b"naa.5000c500a1b2c3d4"),
            ("sda/device/model", b"DUAL"),
            ("sda/holders/dm-0", b""),
            ("sdb/device/wwid", b"naa.5000c500a1b2c3d4"),
            ("sdb/holders/dm-0", b""),
            ("sdc/device/x", b""),
            ("sdc/holders/dm-1", b""),
            ("dm-0/dm/uuid", b"mpath-35000c500a1b2c3d4\n"),
            ("dm-0/slaves/sda", b""),
            ("dm-0/slaves/sdb", b""),
            ("dm-1/dm/uuid", b"\n"),
            ("dm-1/slaves/sdc", b""),
        ]);
        let sysfs = tree.sysfs();
        let names = sysfs.disks().unwrap();
        let physical = names.iter().filter(|name| sysfs.disk(name).is_physical());
        assert_eq!(physical.collect::<Vec<_>>(), ["dm-0", "sdc"]);
        assert_eq!(sysfs.disk("dm-0").evidence(), sysfs.disk("sda").evidence());
        assert_eq!(sysfs.disk("sda").known_holders()[0].member_of, Some("multipath"));
        // A mapping without a uuid is like no other one.
        assert!(sysfs.disk("dm-1").evidence().is_empty());
    }
}
