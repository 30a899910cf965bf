//! Block devices as sysfs shows them. Nothing here opens a device, so nothing here waits for one.
//!
//! Files of sysfs come and go with the devices; what has vanished between two reads is simply not there.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use hotbay_core::device::Media;
use hotbay_core::evidence::Evidence;

use crate::kernel_id::DeviceNumber;

/// The unit of `size` in sysfs, whatever the device's own block is.
const SYSFS_SECTOR: u64 = 512;

/// Most devices that one drive's stack of partitions and holders may have.
const MAX_STACK: usize = 1024;

/// A mounted sysfs; tests give a directory of their own.
#[derive(Debug)]
pub(crate) struct Sysfs {
    root: PathBuf,
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
        Self::at("/sys")
    }

    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
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

    /// Whether the machine has no device of that number. A sysfs that cannot be read says nothing about devices.
    pub(crate) fn lacks(&self, number: DeviceNumber) -> bool {
        let numbers = self.root.join("dev/block");
        let absent = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        let entry = std::fs::symlink_metadata(numbers.join(number.to_string()));
        entry.is_err_and(absent) && numbers.is_dir()
    }

    pub(crate) fn disk(&self, name: &str) -> Disk {
        Disk { name: name.to_owned(), directory: self.root.join("block").join(name) }
    }

    /// Loop devices with something behind them.
    pub(crate) fn loops(&self) -> io::Result<Vec<Loop>> {
        let names = self.disks()?;
        let loops = names.into_iter().filter(|name| name.starts_with("loop"));
        Ok(loops
            .filter_map(|name| Some(Loop { backing: self.disk(&name).backing()?, name }))
            .collect())
    }

    /// Everything that stands on a drive: itself, its partitions, what holds one of these, and so on upwards.
    /// Device-mapper and software RAID are holders.
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
            open.extend(disk.holders());
        }
        stack
    }
}

/// One whole block device.
#[derive(Debug)]
pub(crate) struct Disk {
    name: String,
    directory: PathBuf,
}

impl Disk {
    /// Where its node is. Sysfs writes `!` for a `/` in a name.
    pub(crate) fn path(&self) -> String {
        format!("/dev/{}", self.name.replace('!', "/"))
    }

    /// A drive that a person could hold: not a kernel-made device, an optical drive, a floppy, or a second way to
    /// a part of another drive.
    pub(crate) fn is_physical(&self) -> bool {
        let kernel_made = ["loop", "ram", "zram", "dm-", "md", "nbd"];
        let numbered = |prefix: &str| {
            self.name
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let part_of_card = self.name.starts_with("mmcblk")
            && (self.name.contains("boot") || self.name.contains("rpmb"));
        self.directory.join("device").exists()
            && !kernel_made.iter().any(|prefix| self.name.starts_with(prefix))
            && !numbered("sr")
            && !numbered("fd")
            && !part_of_card
            && !self.flag("hidden")
    }

    pub(crate) fn number(&self) -> Option<DeviceNumber> {
        DeviceNumber::parse(&self.text("dev")?)
    }

    /// Zero if it cannot be read: a size is never guessed.
    pub(crate) fn size_bytes(&self) -> u64 {
        let sectors = self.text("size").and_then(|text| text.parse::<u64>().ok());
        sectors.and_then(|sectors| sectors.checked_mul(SYSFS_SECTOR)).unwrap_or(0)
    }

    /// Zero if it cannot be read.
    pub(crate) fn block_bytes(&self) -> u32 {
        self.text("queue/logical_block_size").and_then(|text| text.parse().ok()).unwrap_or(0)
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
        match (self.name.starts_with("nvme"), self.text("queue/rotational").as_deref()) {
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

    /// What holds the drive or one of its partitions: names of other block devices.
    pub(crate) fn holders(&self) -> BTreeSet<String> {
        let mut holders = names_in(&self.directory.join("holders"));
        for partition in self.partitions().keys() {
            holders.extend(names_in(&self.directory.join(partition).join("holders")));
        }
        holders
    }

    /// What sysfs has to tell this drive from others. Evidence of a file needs its filesystem to be asked, and is
    /// not here.
    pub(crate) fn evidence(&self) -> Evidence {
        let first = |files: &[&str], read: fn(String) -> Option<String>| {
            files.iter().find_map(|file| self.text(file).and_then(read))
        };
        Evidence {
            nvme: first(&["nguid", "eui"], hex_digits),
            wwn: first(&["device/wwid", "wwid"], world_wide_name),
            serial: first(&["device/serial", "serial"], meaningful).or_else(|| self.serial_page()),
            model: first(&["device/model", "device/name"], meaningful),
            file: None,
        }
    }

    fn serial_page(&self) -> Option<String> {
        serial_in_page(&std::fs::read(self.directory.join("device/vpd_pg80")).ok()?)
    }

    fn text(&self, file: &str) -> Option<String> {
        read_text(&self.directory.join(file))
    }

    fn flag(&self, file: &str) -> bool {
        self.text(file).is_some_and(|text| text != "0")
    }
}

fn read_text(path: &Path) -> Option<String> {
    text(&std::fs::read(path).ok()?)
}

pub(super) fn text(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The "unit serial number" page of a SCSI or ATA drive: four bytes of header, then text.
pub(super) fn serial_in_page(page: &[u8]) -> Option<String> {
    let length = usize::from(u16::from_be_bytes([*page.get(2)?, *page.get(3)?]));
    let text = page.get(4..4 + length)?;
    meaningful(String::from_utf8_lossy(text).trim_matches(['\0', ' ']).to_owned())
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Makers that have nothing to say write zeroes.
pub(super) fn meaningful(text: String) -> Option<String> {
    let says_something = |c: char| !matches!(c, '0' | '-' | ' ' | '.' | ':');
    text.chars().any(says_something).then_some(text)
}

/// One spelling for a number that is written with dashes, spaces or neither. No digits, or only zeroes, is no number.
pub(super) fn hex_digits(text: String) -> Option<String> {
    let digits = text.chars().filter(char::is_ascii_hexdigit).collect::<String>();
    meaningful(digits.to_ascii_lowercase())
}

/// Only `naa.` and `eui.` are given by a registry of makers; `t10.` repeats model and serial number.
pub(super) fn world_wide_name(wwid: String) -> Option<String> {
    let name = wwid.strip_prefix("naa.").or_else(|| wwid.strip_prefix("eui."))?;
    hex_digits(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &[u8])]) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            for (path, contents) in files {
                let path = tree.0.path().join("block").join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, contents).unwrap();
            }
            tree
        }

        fn sysfs(&self) -> Sysfs {
            Sysfs::at(self.0.path())
        }
    }

    #[test]
    fn only_a_sysfs_that_can_be_read_lacks_a_device() {
        let tree = Tree::new(&[]);
        let (there, gone) =
            (DeviceNumber { major: 8, minor: 16 }, DeviceNumber { major: 8, minor: 32 });
        assert!(!tree.sysfs().lacks(gone), "there is no sysfs");
        let numbers = tree.0.path().join("dev/block");
        std::fs::create_dir_all(&numbers).unwrap();
        std::os::unix::fs::symlink("../../devices/sdb", numbers.join("8:16")).unwrap();
        assert!(!tree.sysfs().lacks(there));
        assert!(tree.sysfs().lacks(gone));
    }

    #[test]
    fn an_nvme_drive_is_told_by_its_nguid() {
        let tree = Tree::new(&[
            ("nvme0n1/dev", b"259:0\n"),
            ("nvme0n1/size", b"2048\n"),
            ("nvme0n1/ro", b"0\n"),
            ("nvme0n1/queue/logical_block_size", b"4096\n"),
            ("nvme0n1/queue/rotational", b"0\n"),
            ("nvme0n1/nguid", b"36344730-5280-0130-0025-38450000000A\n"),
            ("nvme0n1/eui", b"00 00 00 00 00 00 00 00\n"),
            ("nvme0n1/wwid", b"eui.363447305280013000253845000000 0a\n"),
            ("nvme0n1/device/serial", b"S4GRNX0R800013      \n"),
            ("nvme0n1/device/model", b"FAST 980 PRO        \n"),
        ]);
        let disk = tree.sysfs().disk("nvme0n1");
        assert!(disk.is_physical());
        assert_eq!(disk.media(), Media::Nvme);
        assert_eq!((disk.size_bytes(), disk.block_bytes()), (1 << 20, 4096));
        let evidence = disk.evidence();
        assert_eq!(
            evidence.nvme.as_deref(),
            Some("36344730528001300025384500 00000a".replace(' ', "").as_str())
        );
        assert_eq!(evidence.serial.as_deref(), Some("S4GRNX0R800013"));
        assert_eq!(evidence.model.as_deref(), Some("FAST 980 PRO"));
    }

    #[test]
    fn a_scsi_drive_is_told_by_its_world_wide_name_and_serial_page() {
        let tree = Tree::new(&[
            ("sda/device/wwid", b"naa.5000C500A1B2C3D4\n"),
            ("sda/device/model", b"ST4000NM0035-1V4\n"),
            ("sda/device/vpd_pg80", b"\x00\x80\x00\x0a  ZC1ABCDE\x00\x00"),
            ("sda/queue/rotational", b"1\n"),
            ("sdb/device/wwid", b"t10.ATA     QEMU HARDDISK   QM00001 \n"),
            ("sdb/device/serial", b"00000000\n"),
            ("sdb/device/vpd_pg80", b"\x00\x80\x00\xff short"),
        ]);
        let evidence = tree.sysfs().disk("sda").evidence();
        assert_eq!(evidence.wwn.as_deref(), Some("5000c500a1b2c3d4"));
        assert_eq!(evidence.serial.as_deref(), Some("ZC1ABCDE"));
        assert_eq!(tree.sysfs().disk("sda").media(), Media::Hdd);
        assert!(tree.sysfs().disk("sdb").evidence().is_empty());
    }

    /// Drives behind a cheap bridge had `naa.` and zeroes, and all of them were taken for one: the prefix made the
    /// zeroes look like something. A name without a digit became an empty one, which is as bad.
    #[test]
    fn zeroes_behind_a_prefix_tell_nothing() {
        let tree = Tree::new(&[
            ("sda/device/wwid", b"naa.0000000000000000\n"),
            ("sdb/device/wwid", b"eui.xyz\n"),
            ("nvme0n1/nguid", b"x-y\n"),
            ("nvme0n1/eui", b"00 25 38 45 00 00 00 0a\n"),
        ]);
        let evidence = |name| tree.sysfs().disk(name).evidence();
        assert!(evidence("sda").is_empty() && evidence("sdb").is_empty());
        assert_eq!(evidence("nvme0n1").nvme.as_deref(), Some("002538450000000a"));
    }

    #[test]
    fn only_drives_that_a_person_could_hold_are_physical() {
        let names =
            ["sda", "nvme0n1", "vdb", "mmcblk0", "loop0", "ram0", "zram0", "dm-0", "md127", "sr0"];
        let more = ["fd0", "nbd0", "mmcblk0boot0", "mmcblk0rpmb"];
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
            // A circle must not be walked for ever.
            ("dm-3/holders/md0", b""),
            ("sdb/dev", b"8:16"),
        ]);
        let stack = tree.sysfs().stack("sda");
        assert_eq!(stack.keys().collect::<Vec<_>>(), ["dm-3", "md0", "sda", "sda1"]);
        assert_eq!(tree.sysfs().disk("sda").holders(), BTreeSet::from(["md0".to_owned()]));
    }

    #[test]
    fn what_has_vanished_is_just_not_there() {
        let disk = Tree::new(&[("sda/dev", b"8:0")]).sysfs().disk("sda");
        assert_eq!((disk.size_bytes(), disk.block_bytes(), disk.number()), (0, 0, None));
        assert!(
            disk.partitions().is_empty() && disk.holders().is_empty() && disk.evidence().is_empty()
        );
    }
}
