//! The parsers of what the machine says, for `hotbay-fuzz-targets` alone: a fuzzer needs them without a machine.

use hotbay_core::evidence::Evidence;

use super::blkid::{self, Signatures};
use super::glob::{Pattern, PatternError};
use super::mountinfo::Mounts;
use super::sysfs;
use super::udev::Record;
use crate::kernel_id::DeviceNumber;

/// Where a device is mounted or swaps, by a mount table and a swap table. Every path under `/dev` is that device.
pub fn mounts(table: &[u8], swaps: &[u8], device: DeviceNumber) -> Vec<String> {
    let device_at = |path: &str| path.starts_with("/dev/").then_some(device);
    let mut mounts = Mounts::parse(table, device_at);
    mounts.add_swaps(swaps, device_at);
    mounts.of(device).map(str::to_owned).collect()
}

/// What an answer of `blkid` means.
pub fn signatures(code: Option<i32>, stdout: &[u8], stderr: &[u8]) -> Signatures {
    blkid::judge(code, stdout, stderr)
}

/// Whether a text is a pattern for devices.
pub fn check_pattern(text: &str) -> Result<(), PatternError> {
    Pattern::parse(text).map(drop)
}

/// Whether a name fits one component of a pattern; nothing if that is none.
pub fn name_fits(component: &str, name: &str) -> Option<bool> {
    Some(component.parse::<hotbay_core::filter::Pattern>().ok()?.fits(name))
}

/// What a drive is known by, if its files in sysfs have these contents.
pub fn evidence(nguid: &[u8], wwid: &[u8], serial: &[u8], serial_page: &[u8]) -> Evidence {
    let serial = sysfs::text(serial).and_then(sysfs::meaningful);
    Evidence {
        nvme: sysfs::text(nguid).and_then(sysfs::hex_digits),
        wwn: sysfs::text(wwid).and_then(sysfs::world_wide_name),
        serial: serial.or_else(|| sysfs::serial_in_page(serial_page)),
        ..Evidence::default()
    }
}

/// What a drive is known by, and its links, if a file of udev's database has these contents and sysfs tells `known`.
pub fn udev(file: &[u8], known: Evidence) -> (Evidence, Vec<String>) {
    let record = Record::parse(file);
    (record.fill(known), record.links)
}

/// A device number, as sysfs and the mount table write it.
pub fn device_number(text: &str) -> Option<DeviceNumber> {
    DeviceNumber::parse(text)
}
