//! udev's database: one small file per device in `/run/udev/data`, written by udevd when its rules have run.
//!
//! Read for the names below `/dev/disk/by-id`, and for evidence that sysfs does not give. A machine without udevd has
//! no such files, and that is simply nothing. Lines that are not text, or not understood, are skipped.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use hotbay_core::evidence::Evidence;

use super::sysfs::{hex_digits, meaningful, world_wide_name};
use crate::kernel_id::DeviceNumber;

/// Longest file that is read; one is some 2 KiB.
const MAX_BYTES: u64 = 256 << 10;

/// Most links of one device that are kept.
const MAX_LINKS: usize = 64;

/// Where the files are, if anywhere.
#[derive(Debug, Clone)]
pub(crate) struct Database(Option<PathBuf>);

/// What it has on one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Record {
    /// Names below `/dev/disk/by-id`, sorted.
    pub(crate) links: Vec<String>,
    pub(crate) vendor: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) serial: Option<String>,
    /// In the spelling of [`Evidence`].
    pub(crate) wwn: Option<String>,
}

impl Database {
    pub(crate) fn of_machine() -> Self {
        Self(Some(PathBuf::from("/run/udev/data")))
    }

    pub(crate) fn none() -> Self {
        Self(None)
    }

    #[cfg(test)]
    pub(crate) fn at(directory: impl Into<PathBuf>) -> Self {
        Self(Some(directory.into()))
    }

    pub(crate) fn read(&self, number: DeviceNumber) -> Record {
        let Some(directory) = &self.0 else { return Record::default() };
        let mut bytes = Vec::new();
        let file = File::open(directory.join(format!("b{number}")));
        match file.and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
            Ok(_) => Record::parse(&bytes),
            Err(_) => Record::default(),
        }
    }
}

impl Record {
    /// Reads lines of a letter, a colon and a value: `S` is a link below `/dev`, `E` a property.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let mut record = Self::default();
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else { continue };
            if line.chars().any(char::is_control) {
                continue;
            }
            match line.split_once(':') {
                Some(("S", link)) => record.links.extend(by_id(link)),
                Some(("E", property)) => {
                    if let Some((name, value)) = property.split_once('=') {
                        record.note(name, value.trim());
                    }
                }
                Some(_) | None => {}
            }
        }
        record.links.sort_unstable();
        record.links.dedup();
        record.links.truncate(MAX_LINKS);
        record
    }

    fn note(&mut self, name: &str, value: &str) {
        let value = || meaningful(value.to_owned());
        match name {
            "ID_VENDOR" => self.vendor = value(),
            "ID_MODEL" => self.model = value(),
            "ID_SERIAL_SHORT" => self.serial = value(),
            "ID_WWN" => self.wwn = value().and_then(wwn),
            _ => {}
        }
    }

    /// Adds what is missing, and contradicts nothing. A serial number counts together with its model, so that the model
    /// comes along only with the serial number; and a drive with an NVMe id needs no other name, which kernels spell
    /// in several ways.
    pub(crate) fn fill(&self, mut evidence: Evidence) -> Evidence {
        if evidence.serial.is_none() && self.serial.is_some() {
            evidence.serial.clone_from(&self.serial);
            evidence.model = evidence.model.or_else(|| self.model.clone());
        }
        if evidence.wwn.is_none() && evidence.nvme.is_none() {
            evidence.wwn.clone_from(&self.wwn);
        }
        evidence
    }
}

fn by_id(link: &str) -> Option<String> {
    let name = link.strip_prefix("disk/by-id/")?;
    let is_name = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
    is_name.then(|| name.to_owned())
}

/// udev writes `0x` where sysfs writes `naa.`.
fn wwn(text: String) -> Option<String> {
    match text.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            hex_digits(digits.to_owned())
        }
        Some(_) => None,
        None => world_wide_name(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As udevd writes it for a SATA drive.
    const SATA: &[u8] = b"S:disk/by-path/pci-0000:00:17.0-ata-3\n\
        S:disk/by-id/wwn-0x5000c500a1b2c3d4\n\
        S:disk/by-id/ata-ST4000NM0035-1V4_ZC1ABCDE\n\
        L:-100\nI:3451221\n\
        E:ID_MODEL=ST4000NM0035-1V4\n\
        E:ID_SERIAL=ST4000NM0035-1V4_ZC1ABCDE\n\
        E:ID_SERIAL_SHORT=ZC1ABCDE\n\
        E:ID_WWN=0x5000C500A1B2C3D4\n\
        G:systemd\nQ:systemd\nV:1\n";

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn names_and_evidence_are_read() {
        let record = Record::parse(SATA);
        assert_eq!(record.links, ["ata-ST4000NM0035-1V4_ZC1ABCDE", "wwn-0x5000c500a1b2c3d4"]);
        assert_eq!(record.serial, some("ZC1ABCDE"));
        assert_eq!(record.wwn, some("5000c500a1b2c3d4"));
    }

    #[test]
    fn garbage_is_skipped_and_hides_nothing() {
        let table = b"\nS\nE:\nE:=\nE:ID_MODEL\n\xff\xfeS:disk/by-id/no\nS:disk/by-id/\n\
            S:disk/by-id/../../vda\nS:disk/by-id/..\nS:/disk/by-id/x\nS:disk/by-id/a\x1b[2J\n\
            E:ID_SERIAL_SHORT=000000\nE:ID_WWN=0x0000000000000000\nE:ID_WWN=0xzz\n\
            S:disk/by-id/ok=1:2\nS:disk/by-id/ok=1:2";
        let record = Record::parse(table);
        assert_eq!(record, Record { links: vec!["ok=1:2".to_owned()], ..Record::default() });
        let many: String = (0..1000).map(|n| format!("S:disk/by-id/{n}\n")).collect();
        assert_eq!(Record::parse(many.as_bytes()).links.len(), MAX_LINKS);
    }

    #[test]
    fn what_sysfs_gives_stays() {
        let record = Record::parse(SATA);
        let told = Evidence { serial: some("OTHER"), wwn: some("50"), ..Evidence::default() };
        assert_eq!(
            record.fill(told.clone()),
            told,
            "nor does another's model get its serial number"
        );
        let nvme = Evidence { nvme: some("0a"), serial: some("S"), ..Evidence::default() };
        assert_eq!(record.fill(nvme.clone()), nvme);
        let model_alone = Evidence { model: some("ST4000NM0035 1V4"), ..Evidence::default() };
        let filled = record.fill(model_alone.clone());
        assert_eq!((&filled.serial, &filled.model), (&record.serial, &model_alone.model));
        let filled = record.fill(Evidence::default());
        assert_eq!((filled.model, filled.wwn), (record.model, record.wwn));
    }

    #[test]
    fn without_udev_there_is_nothing() {
        let number = DeviceNumber { major: 8, minor: 16 };
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(Database::at(empty.path()).read(number), Record::default());
        assert_eq!(Database::none().read(number), Record::default());
        std::fs::write(empty.path().join("b8:16"), SATA).unwrap();
        assert_eq!(Database::at(empty.path()).read(number), Record::parse(SATA));
    }
}
