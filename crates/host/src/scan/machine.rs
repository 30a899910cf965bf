//! The machine as one listing sees it: what is read once, and each device made from it. [`super::list`] and
//! [`super::one`] ask.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hotbay_core::device::{DeviceKind, Media, Transport};
use hotbay_core::evidence::Evidence;
use hotbay_core::words::plain;

use super::mountinfo::{Mounts, SWAP};
use super::sysfs::{Loop, PciSlots, Sysfs};
use super::{Candidate, FILE_BLOCK_BYTES, SYSTEM_MOUNTS, ScanError};
use crate::kernel_id::{DeviceNumber, KernelId};
use crate::mapping;

/// Most mounts of one drive that are told, beside those of the system: a drive with more is no better known by them.
const MAX_MOUNTS: usize = 64;

/// What is read once for all devices of one listing.
#[derive(Debug)]
pub(super) struct Machine {
    sysfs: Sysfs,
    mounts: Mounts,
    loops: Vec<Loop>,
    slots: OnceCell<PciSlots>,
}

impl Machine {
    pub(super) fn read(sysfs: Sysfs) -> Result<Self, ScanError> {
        Self::with_mounts(sysfs, Mounts::read().map_err(ScanError::Mounts)?)
    }

    fn with_mounts(sysfs: Sysfs, mounts: Mounts) -> Result<Self, ScanError> {
        let loops = sysfs.loops().map_err(ScanError::Sysfs)?;
        Ok(Self { sysfs, mounts, loops, slots: OnceCell::new() })
    }

    pub(super) fn physical(&self) -> Result<Vec<Candidate>, ScanError> {
        let names = self.sysfs.disks().map_err(ScanError::Sysfs)?;
        let physical = names.iter().filter(|name| self.sysfs.disk(name).is_physical());
        Ok(physical.filter_map(|name| self.block_device(name)).collect())
    }

    pub(super) fn at_path(&self, path: &Path) -> Option<Candidate> {
        match KernelId::of_path(path).ok()?? {
            KernelId::Block(number) => match self.sysfs.device(number)? {
                (name, false) => self.block_device(&name),
                (_, true) => None,
            },
            id @ KernelId::File { .. } => self.plain_file(path, id),
        }
    }

    pub(super) fn block_device(&self, name: &str) -> Option<Candidate> {
        let disk = self.sysfs.disk(name);
        let number = disk.number()?;
        let is_loop = name.starts_with("loop");
        let is_none = is_loop && disk.backing().is_none();
        if is_none || disk.is_second_way() || mapping::is_ours_by_sysfs(&disk) {
            return None;
        }
        let numbers: BTreeSet<DeviceNumber> =
            disk.partitions().into_values().chain([number]).collect();
        let stack: Vec<_> = self.sysfs.stack(name).into_iter().collect();
        let place = disk.place(self.slots.get_or_init(|| self.sysfs.pci_slots()));
        Some(Candidate {
            id: KernelId::Block(number),
            sequence: disk.sequence(),
            kind: if is_loop { DeviceKind::Loop } else { DeviceKind::Block },
            path: disk.path(),
            size_bytes: disk.size_bytes(),
            block_bytes: disk.block_bytes(),
            media: if is_loop { Media::File } else { disk.media() },
            evidence: disk.evidence(),
            bay: place.bay,
            enclosure: place.enclosure,
            vendor: disk.vendor(),
            firmware: disk.firmware(),
            transport: disk.transport(),
            physical_block_bytes: disk.physical_block_bytes(),
            read_only: disk.read_only(),
            removable: disk.removable(),
            zoned: disk.zoned(),
            links: disk.udev().links,
            holders: disk.known_holders(),
            partitions: disk.partition_table(),
            mounts: mounts_of(&self.mounts, &stack),
            swaps: swaps_of(&self.mounts, &stack),
            stack,
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
            bay: None,
            enclosure: None,
            vendor: None,
            firmware: None,
            transport: Transport::File,
            physical_block_bytes: 0,
            read_only: metadata.permissions().readonly(),
            removable: false,
            zoned: false,
            links: Vec::new(),
            holders: Vec::new(),
            partitions: Vec::new(),
            stack: Vec::new(),
            mounts: Vec::new(),
            swaps: Vec::new(),
            loops: self.loops_over(|backing| backing == text),
            path: text,
        })
    }

    fn loops_over(&self, is_this: impl Fn(&str) -> bool) -> Vec<String> {
        let over = self.loops.iter().filter(|device| is_this(&device.backing));
        over.map(|device| format!("/dev/{}", device.name)).collect()
    }
}

/// Where these devices are mounted: all that makes a drive the system's, and as many others as are published.
pub(super) fn mounts_of(mounts: &Mounts, stack: &[(String, DeviceNumber)]) -> Vec<String> {
    let all: BTreeSet<&str> = stack.iter().flat_map(|(_, number)| mounts.of(*number)).collect();
    let is_system = |at: &str| SYSTEM_MOUNTS.contains(&at);
    let others = all.iter().filter(|at| !is_system(at)).take(MAX_MOUNTS);
    let shown: BTreeSet<&str> =
        all.iter().filter(|at| is_system(at)).chain(others).copied().collect();
    shown.into_iter().map(str::to_owned).collect()
}

/// Which of these devices the machine swaps to.
pub(super) fn swaps_of(mounts: &Mounts, stack: &[(String, DeviceNumber)]) -> Vec<String> {
    let swaps = stack.iter().filter(|(_, number)| mounts.of(*number).any(|at| at == SWAP));
    swaps.map(|(name, _)| plain(name)).collect()
}

/// Only under `/dev`, which is in memory: a backing file elsewhere may be on a filesystem that hangs.
pub(super) fn backing_in_dev(backing: &str) -> Option<KernelId> {
    let path = PathBuf::from(backing);
    path.starts_with("/dev").then(|| KernelId::of_path(&path).ok().flatten()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::sysfs::recorded::Tree;
    use crate::scan::{Selection, denied_from_outside, selected};

    fn machine(tree: &Tree, mountinfo: &str, swaps: &str) -> Machine {
        let nowhere = |_: &str| None;
        let mut mounts = Mounts::parse(mountinfo.as_bytes(), nowhere);
        let numbers = |path: &str| match path {
            "/dev/dm-1" => Some(DeviceNumber { major: 253, minor: 1 }),
            "/dev/sdb2" => Some(DeviceNumber { major: 8, minor: 18 }),
            _ => None,
        };
        mounts.add_swaps(swaps.as_bytes(), numbers);
        Machine::with_mounts(tree.sysfs(), mounts).unwrap()
    }

    fn reasons(machine: &Machine, name: &str) -> Vec<String> {
        let candidate = machine.block_device(name).unwrap();
        let reasons = denied_from_outside(&candidate).into_iter().map(|denied| denied.to_string());
        // Sizes are not what is looked at here.
        reasons.filter(|reason| !reason.contains("size")).collect()
    }

    /// After the tree of a machine with its root in LVM on the third partition of an NVMe drive.
    #[test]
    fn the_system_drive_is_guarded_below_lvm() {
        let tree = Tree::new(&[
            ("nvme0n1/dev", b"259:0"),
            ("nvme0n1/device/x", b""),
            ("nvme0n1/nvme0n1p3/dev", b"259:3"),
            ("nvme0n1/nvme0n1p3/partition", b"3"),
            ("nvme0n1/nvme0n1p3/holders/dm-0", b""),
            ("nvme0n1/nvme0n1p3/holders/dm-1", b""),
            ("dm-0/dev", b"253:0"),
            ("dm-0/dm/name", b"vg0-root"),
            ("dm-0/dm/uuid", b"LVM-a"),
            ("dm-1/dev", b"253:1"),
            ("dm-1/dm/name", b"vg0-swap"),
            ("dm-1/dm/uuid", b"LVM-b"),
        ]);
        let table = "22 1 253:0 / / rw - ext4 /dev/mapper/vg0-root rw\n";
        let machine = machine(&tree, table, "Filename\n/dev/dm-1 partition 1 0 -2\n");
        assert_eq!(
            reasons(&machine, "nvme0n1"),
            [
                "it is the system drive (mounted at /, [swap])",
                "it is used for swap (dm-1)",
                "it is a member of LVM (vg0-root, vg0-swap)",
            ]
        );
    }

    /// After the tree of a machine with a mirror for `/boot`, and LVM in LUKS on another one below it.
    #[test]
    fn the_system_drive_is_guarded_below_raid_and_encryption() {
        let tree = Tree::new(&[
            ("sda/dev", b"8:0"),
            ("sda/sda1/dev", b"8:1"),
            ("sda/sda1/partition", b"1"),
            ("sda/sda1/holders/md0", b""),
            ("sdb/dev", b"8:16"),
            ("sdb/holders/md1", b""),
            ("md0/dev", b"9:0"),
            ("md0/md0p1/dev", b"259:9"),
            ("md0/md0p1/partition", b"1"),
            ("md1/dev", b"9:1"),
            ("md1/holders/dm-0", b""),
            ("dm-0/dev", b"253:0"),
            ("dm-0/dm/uuid", b"CRYPT-LUKS2-x"),
            ("dm-0/holders/dm-1", b""),
            ("dm-1/dev", b"253:1"),
            ("dm-1/dm/uuid", b"LVM-x"),
        ]);
        let table = "22 1 259:9 / /boot rw - ext4 /dev/md0p1 rw\n\
            23 1 253:1 / /var rw - xfs /dev/mapper/vg-var rw\n";
        let machine = machine(&tree, table, "");
        let raid = |of: &str| format!("it is a member of software RAID ({of})");
        let system = |at: &str| format!("it is the system drive (mounted at {at})");
        assert_eq!(reasons(&machine, "sda"), [system("/boot"), raid("md0")]);
        assert_eq!(reasons(&machine, "sdb"), [system("/var"), raid("md1")]);
    }

    #[test]
    fn a_drive_that_is_swapped_to_is_the_systems() {
        let tree = Tree::new(&[
            ("sdb/dev", b"8:16"),
            ("sdb/sdb2/dev", b"8:18"),
            ("sdb/sdb2/partition", b"2"),
        ]);
        let machine = machine(&tree, "", "Filename\n/dev/sdb2 partition 1 0 -2\n");
        assert_eq!(machine.block_device("sdb").unwrap().system_mounts(), [SWAP]);
        assert!(reasons(&machine, "sdb").contains(&"it is used for swap (sdb2)".to_owned()));
    }

    #[test]
    fn holders_that_nobody_knows_just_hold() {
        let tree =
            Tree::new(&[("sda/dev", b"8:0"), ("sda/holders/dm-7", b""), ("dm-7/dm/uuid", b"\n")]);
        assert_eq!(reasons(&machine(&tree, "", ""), "sda"), ["it is held by dm-7"]);
    }

    #[test]
    fn second_ways_to_a_drive_are_no_candidates_however_they_are_named() {
        let tree = Tree::new(&[
            ("mmcblk0/dev", b"179:0"),
            ("mmcblk0boot0/dev", b"179:8"),
            ("nvme0c0n1/dev", b"259:1"),
            ("nvme0c0n1/hidden", b"1"),
            ("loop0/dev", b"7:0"),
        ]);
        let machine = machine(&tree, "", "");
        let is_one = |name: &str| machine.block_device(name).is_some();
        assert!(is_one("mmcblk0"));
        assert!(!is_one("mmcblk0boot0") && !is_one("nvme0c0n1"));
        assert!(!is_one("loop0"), "there is nothing behind it");
    }

    #[test]
    fn one_path_of_many_is_not_selected() {
        let tree = Tree::new(&[]);
        tree.disk("sda", "devices/host0/block/sda", "8:0");
        tree.file("block/sda/device/x", b"");
        tree.file("block/sda/holders/dm-0", b"");
        tree.disk("dm-0", "devices/virtual/block/dm-0", "253:0");
        tree.file("block/dm-0/dm/uuid", b"mpath-1");
        let number = |major| DeviceNumber { major, minor: 0 };
        let chosen = |major| selected(&tree.sysfs(), number(major), &Selection::All).unwrap();
        assert_eq!((chosen(8), chosen(253)), (None, Some("dm-0".to_owned())));
    }

    #[test]
    fn of_very_many_mounts_those_of_the_system_are_told() {
        let tree = Tree::new(&[("sda/dev", b"8:0")]);
        let line = |at: &str| format!("22 1 8:0 / {at} rw - ext4 /dev/sda rw\n");
        let table: String = (0..1000).map(|n| line(&format!("/a/{n}"))).collect();
        let mounts =
            machine(&tree, &(table + &line("/usr")), "").block_device("sda").unwrap().mounts;
        assert_eq!(mounts.len(), MAX_MOUNTS + 1);
        assert!(mounts.contains(&"/usr".to_owned()));
    }

    #[test]
    fn all_that_is_known_is_among_the_details() {
        let tree = Tree::new(&[
            ("sda/dev", b"8:0"),
            ("sda/ro", b"1"),
            ("sda/removable", b"1"),
            ("sda/device/vendor", b"ACME"),
            ("sda/sda1/dev", b"8:1"),
            ("sda/sda1/partition", b"1"),
            ("sda/sda1/size", b"8"),
            ("sda/holders/md0", b""),
        ]);
        tree.udev("8:0", b"S:disk/by-id/scsi-1\n");
        let table = "22 1 8:1 /sub /mnt/a\\040b rw - ext4 /dev/sda1 rw\n";
        let details = machine(&tree, table, "").block_device("sda").unwrap().details();
        assert!(details.read_only && details.removable && !details.zoned);
        assert_eq!(details.vendor.as_deref(), Some("ACME"));
        assert_eq!(details.partitions[0].size_bytes, 4096);
        assert_eq!(
            (details.mounts, details.holders),
            (vec!["/mnt/a b".into()], vec!["md0".into()])
        );
        assert_eq!((details.links, details.contents), (vec!["scsi-1".into()], None));
    }
}
