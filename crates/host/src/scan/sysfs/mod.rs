//! Block devices as sysfs shows them. Nothing here opens a device, so nothing here waits for one.
//!
//! Files of sysfs come and go with the devices; what has vanished between two reads is simply not there.
//!
//! - [`identity`]: what tells a drive from others, who made it and how it is reached. udev's database may add to it.
//! - [`stack`]: what stands on a drive, and what it is a member of.
//! - [`slot`]: where a person finds it.

mod identity;
#[cfg(test)]
pub(super) mod recorded;
mod slot;
mod stack;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use hotbay_core::device::{Media, Partition};
use hotbay_core::words::plain;

use super::udev::Database;
use crate::kernel_id::DeviceNumber;
pub(crate) use identity::{hex_digits, meaningful, serial_in_page, world_wide_name};
pub(crate) use slot::PciSlots;
pub use stack::Holder;

/// The unit of `size` in sysfs, whatever the device's own block is.
const SYSFS_SECTOR: u64 = 512;

/// A mounted sysfs, with udev's database beside it; tests give directories of their own.
#[derive(Debug, Clone)]
pub(crate) struct Sysfs {
    root: PathBuf,
    udev: Database,
}

/// A loop device that has something behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loop {
    pub(crate) name: String,
    /// What the kernel says is behind it: a path as it was when the loop device was made.
    pub(crate) backing: String,
}

impl Sysfs {
    pub(crate) fn of_machine() -> Self {
        Self { udev: Database::of_machine(), ..Self::at("/sys") }
    }

    /// Without a database of udev.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), udev: Database::none() }
    }

    /// The names of all whole block devices.
    pub(crate) fn disks(&self) -> io::Result<BTreeSet<String>> {
        std::fs::read_dir(self.root.join("block"))?
            .map(|entry| entry.map(|e| e.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    /// The device of a number: its name, and whether it is a partition.
    pub(crate) fn device(&self, number: DeviceNumber) -> Option<(String, bool)> {
        self.find(number).ok().flatten()
    }

    /// The same, where it matters whether the device is gone or sysfs cannot be asked.
    pub(crate) fn find(&self, number: DeviceNumber) -> io::Result<Option<(String, bool)>> {
        let link = self.root.join("dev/block").join(number.to_string());
        let target = match std::fs::read_link(&link) {
            Ok(target) => target,
            Err(_) if self.lacks(number) => return Ok(None),
            Err(error) => return Err(error),
        };
        let name = target.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        Ok(name.map(|name| (name, link.join("partition").exists())))
    }

    /// The name of the whole device of a number: that of its disk for a partition.
    pub(crate) fn whole_device(&self, number: DeviceNumber) -> Option<String> {
        let link = self.root.join("dev/block").join(number.to_string());
        let target = std::fs::read_link(&link).ok()?;
        let of_disk = if link.join("partition").exists() { target.parent()? } else { &target };
        Some(of_disk.file_name()?.to_str()?.to_owned())
    }

    /// Whether the machine has no device of that number. A sysfs that cannot be read says nothing about devices.
    pub(crate) fn lacks(&self, number: DeviceNumber) -> bool {
        let numbers = self.root.join("dev/block");
        let absent = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        let entry = std::fs::symlink_metadata(numbers.join(number.to_string()));
        entry.is_err_and(absent) && numbers.is_dir()
    }

    pub(crate) fn disk(&self, name: &str) -> Disk {
        let directory = self.root.join("block").join(name);
        Disk { name: name.to_owned(), directory, sysfs: self.clone() }
    }

    /// Loop devices with something behind them.
    pub(crate) fn loops(&self) -> io::Result<Vec<Loop>> {
        let names = self.disks()?;
        let loops = names.into_iter().filter(|name| name.starts_with("loop"));
        Ok(loops
            .filter_map(|name| Some(Loop { backing: self.disk(&name).backing()?, name }))
            .collect())
    }
}

/// One whole block device.
#[derive(Debug)]
pub(crate) struct Disk {
    name: String,
    directory: PathBuf,
    sysfs: Sysfs,
}

impl Disk {
    /// Where its node is. Sysfs writes `!` for a `/` in a name.
    pub(crate) fn path(&self) -> String {
        format!("/dev/{}", self.name.replace('!', "/"))
    }

    /// A drive that a person could hold: not a kernel-made device, an optical drive, a floppy, or a second way to
    /// another drive. The one device that stands for all paths to a drive is that drive.
    pub(crate) fn is_physical(&self) -> bool {
        if self.is_multipath() {
            return true;
        }
        let kernel_made =
            ["loop", "ram", "zram", "dm-", "md", "nbd", "rbd", "zd", "bcache", "drbd", "ublkb"];
        let numbered = |prefix: &str| {
            self.name
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        self.directory.join("device").exists()
            && !kernel_made.iter().any(|prefix| self.name.starts_with(prefix))
            && !numbered("sr")
            && !numbered("fd")
            && !self.is_second_way()
            && !self.is_multipath_member()
    }

    /// Whether another device leads to the same bytes, and is the one to use: the boot areas of an eMMC card, and the
    /// single paths below an NVMe drive that the kernel joins, which it hides.
    pub(crate) fn is_second_way(&self) -> bool {
        let part_of_card = self.name.starts_with("mmcblk")
            && (self.name.contains("boot") || self.name.contains("rpmb"));
        part_of_card || self.flag("hidden")
    }

    pub(crate) fn number(&self) -> Option<DeviceNumber> {
        DeviceNumber::parse(&self.text("dev")?)
    }

    /// Zero if it cannot be read: a size is never guessed.
    pub(crate) fn size_bytes(&self) -> u64 {
        size_in(&self.directory)
    }

    /// The same, where what cannot be read stays as it was.
    pub(crate) fn size_if_known(&self) -> Option<u64> {
        known_size_in(&self.directory)
    }

    /// Zero if it cannot be read.
    pub(crate) fn block_bytes(&self) -> u32 {
        self.text("queue/logical_block_size").and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// The unit that the medium writes; zero if it cannot be read.
    pub(crate) fn physical_block_bytes(&self) -> u32 {
        self.text("queue/physical_block_size").and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Whether parts of it can only be written in sequence.
    pub(crate) fn zoned(&self) -> bool {
        self.text("queue/zoned").is_some_and(|model| model != "none")
    }

    pub(crate) fn read_only(&self) -> bool {
        self.flag("ro")
    }

    pub(crate) fn removable(&self) -> bool {
        self.flag("removable")
    }

    /// Counts up whenever other contents may be behind the same number.
    pub(crate) fn sequence(&self) -> Option<u64> {
        self.text("diskseq")?.parse().ok()
    }

    /// What a loop device is over.
    pub(crate) fn backing(&self) -> Option<String> {
        self.text("loop/backing_file")
    }

    pub(crate) fn media(&self) -> Media {
        let is_nvme = self.bearer().name.starts_with("nvme");
        match (is_nvme, self.text("queue/rotational").as_deref()) {
            (true, _) => Media::Nvme,
            (false, Some("1")) => Media::Hdd,
            (false, Some("0")) => Media::Ssd,
            (false, _) => Media::Unknown,
        }
    }

    /// Partitions that the kernel knows, with their numbers.
    pub(crate) fn partitions(&self) -> BTreeMap<String, DeviceNumber> {
        let names = names_in(&self.directory).into_iter();
        let partition = |name: String| {
            let directory = self.directory.join(&name);
            directory.join("partition").exists().then_some(())?;
            let number = DeviceNumber::parse(&read_text(&directory.join("dev"))?)?;
            Some((name, number))
        };
        names.filter(|name| name.starts_with(&self.name)).filter_map(partition).collect()
    }

    /// The same for people, in the order of their numbers.
    pub(crate) fn partition_table(&self) -> Vec<Partition> {
        let position = |name: &str| {
            let text = read_text(&self.directory.join(name).join("partition"));
            text.and_then(|text| text.parse::<u32>().ok())
        };
        let mut names: Vec<String> = self.partitions().into_keys().collect();
        names.sort_by_cached_key(|name| position(name));
        let sized = names.into_iter().map(|name| {
            let size_bytes = size_in(&self.directory.join(&name));
            Partition { name: plain(&name), size_bytes }
        });
        sized.collect()
    }

    /// Where each partition is, in bytes, by its number; without those that go while they are read.
    pub(crate) fn partition_places(&self) -> BTreeMap<i32, Range<u64>> {
        let place = |name: String| {
            let directory = self.directory.join(name);
            let number = |file| read_text(&directory.join(file))?.parse::<u64>().ok();
            let start = number("start")?.checked_mul(SYSFS_SECTOR)?;
            let end = start.checked_add(known_size_in(&directory)?)?;
            Some((i32::try_from(number("partition")?).ok()?, start..end))
        };
        self.partitions().into_keys().filter_map(place).collect()
    }

    pub(crate) fn text(&self, file: &str) -> Option<String> {
        read_text(&self.directory.join(file))
    }

    fn flag(&self, file: &str) -> bool {
        self.text(file).is_some_and(|text| text != "0")
    }
}

fn size_in(directory: &Path) -> u64 {
    known_size_in(directory).unwrap_or(0)
}

fn known_size_in(directory: &Path) -> Option<u64> {
    read_text(&directory.join("size"))?.parse::<u64>().ok()?.checked_mul(SYSFS_SECTOR)
}

fn read_text(path: &Path) -> Option<String> {
    text(&std::fs::read(path).ok()?)
}

pub(super) fn text(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::recorded::Tree;
    use super::*;

    #[test]
    fn only_a_sysfs_that_can_be_read_lacks_a_device() {
        let tree = Tree::new(&[]);
        let (there, gone) =
            (DeviceNumber { major: 8, minor: 16 }, DeviceNumber { major: 8, minor: 32 });
        assert!(!tree.sysfs().lacks(gone), "there is no sysfs");
        tree.link("dev/block/8:16", "devices/sdb");
        assert!(!tree.sysfs().lacks(there));
        assert!(tree.sysfs().lacks(gone));
    }

    #[test]
    fn only_drives_that_a_person_could_hold_are_physical() {
        let names =
            ["sda", "nvme0n1", "vdb", "mmcblk0", "loop0", "ram0", "zram0", "dm-0", "md127", "sr0"];
        let more = ["fd0", "nbd0", "rbd0", "zd16", "mmcblk0boot0", "mmcblk0rpmb"];
        let files: Vec<String> =
            names.iter().chain(&more).map(|name| format!("{name}/device/x")).collect();
        let files: Vec<(&str, &[u8])> = files.iter().map(|f| (f.as_str(), &b""[..])).collect();
        let tree = Tree::new(
            &[files.as_slice(), &[("nvme0c0n1/device/x", b""), ("nvme0c0n1/hidden", b"1")]]
                .concat(),
        );
        let sysfs = tree.sysfs();
        let physical =
            sysfs.disks().unwrap().into_iter().filter(|name| sysfs.disk(name).is_physical());
        assert_eq!(physical.collect::<Vec<_>>(), ["mmcblk0", "nvme0n1", "sda", "vdb"]);
    }

    #[test]
    fn what_has_vanished_is_just_not_there() {
        let disk = Tree::new(&[("sda/dev", b"8:0")]).sysfs().disk("sda");
        assert_eq!((disk.size_bytes(), disk.block_bytes(), disk.number()), (0, 0, None));
        assert!(
            disk.partitions().is_empty() && disk.holders().is_empty() && disk.evidence().is_empty()
        );
    }

    #[test]
    fn sizes_are_read_as_they_are_or_not_at_all() {
        let tree = Tree::new(&[
            ("sda/size", b"0\n"),
            ("sda/queue/logical_block_size", b"4096\n"),
            ("sda/queue/physical_block_size", b"4096\n"),
            ("sdb/size", b"1099511627776\n"),
            ("sdb/queue/physical_block_size", b"many\n"),
            ("sdc/size", b"18446744073709551615\n"),
            ("sdd/size", b"-1\n"),
        ]);
        let disk = |name| tree.sysfs().disk(name);
        assert_eq!((disk("sda").size_bytes(), disk("sda").block_bytes()), (0, 4096));
        assert_eq!(disk("sda").physical_block_bytes(), 4096);
        assert_eq!(disk("sdb").size_bytes(), 1 << 49, "2^40 sectors");
        assert_eq!(disk("sdb").physical_block_bytes(), 0);
        assert_eq!((disk("sdc").size_bytes(), disk("sdd").size_bytes()), (0, 0));
    }

    #[test]
    fn partitions_come_in_their_order_with_their_sizes() {
        let tree = Tree::new(&[
            ("sda/sda2/partition", b"2\n"),
            ("sda/sda2/dev", b"8:2\n"),
            ("sda/sda2/size", b"4096\n"),
            ("sda/sda10/partition", b"10\n"),
            ("sda/sda10/dev", b"8:10\n"),
            ("sda/sda1/partition", b"1\n"),
            // This one goes while it is read.
            ("sda/queue/zoned", b"host-managed\n"),
        ]);
        let disk = tree.sysfs().disk("sda");
        let partition = |name: &str, size_bytes| Partition { name: name.to_owned(), size_bytes };
        assert_eq!(disk.partition_table(), [partition("sda2", 2 << 20), partition("sda10", 0)]);
        assert!(disk.zoned() && !tree.sysfs().disk("sdb").zoned());
    }

    #[test]
    fn a_name_that_is_not_text_hides_no_other_device() {
        use std::os::unix::ffi::OsStrExt;
        let tree = Tree::new(&[("sda/dev", b"8:0"), ("sda/device/x", b"")]);
        let strange = std::ffi::OsStr::from_bytes(b"sd\xff");
        std::fs::create_dir(tree.0.path().join("sys/block").join(strange)).unwrap();
        let sysfs = tree.sysfs();
        let names = sysfs.disks().unwrap();
        let numbered = names.iter().filter(|name| sysfs.disk(name).number().is_some());
        assert_eq!(numbered.collect::<Vec<_>>(), ["sda"]);
    }
}
