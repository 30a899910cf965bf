//! By what a mapping of ours is known in the kernel: its volume and epoch, in the name of a loop device or in the uuid
//! of a device-mapper device. Only root can give these names.

use hotbay_core::ids::{DriveId, VolumeId};

use crate::loop_ioctl::LoopStatus;
use crate::scan::sysfs::Disk;

/// `hotbay:<volume>:<epoch>`, at most 60 of the 63 bytes that the kernel keeps.
const LOOP_PREFIX: &str = "hotbay:";
/// `HOTBAY-<volume>-<epoch>`; the name is `hotbay-<volume>`, so that the kernel keeps a volume from two mappings.
const UUID_PREFIX: &str = "HOTBAY-";
const DM_PREFIX: &str = "hotbay-";
const GUARD_UUID_PREFIX: &str = "HOTBAY-GUARD-";
const GUARD_PREFIX: &str = "hotbay-guard-";

pub(super) fn loop_name(volume: VolumeId, epoch: u64) -> Vec<u8> {
    format!("{LOOP_PREFIX}{volume}:{epoch}").into_bytes()
}

pub(super) fn dm_name(volume: VolumeId) -> String {
    format!("{DM_PREFIX}{volume}")
}

pub(super) fn dm_uuid(volume: VolumeId, epoch: u64) -> String {
    format!("{UUID_PREFIX}{volume}-{epoch}")
}

pub(super) fn guard_name(drive: DriveId) -> String {
    format!("{GUARD_PREFIX}{drive}")
}

pub(super) fn guard_uuid(drive: DriveId) -> String {
    format!("{GUARD_UUID_PREFIX}{drive}")
}

/// Whether a device-mapper device is called as a mapping of ours.
pub(super) fn is_dm_name(name: &str) -> bool {
    name.strip_prefix(DM_PREFIX).is_some_and(|volume| volume.parse::<VolumeId>().is_ok())
}

/// Whether a device-mapper device is called as the guard of a drive.
pub(super) fn is_guard(name: &str) -> bool {
    name.strip_prefix(GUARD_PREFIX).is_some_and(|drive| drive.parse::<DriveId>().is_ok())
}

/// The volume and epoch of a loop device of ours.
pub(super) fn of_loop(name: &[u8]) -> Option<(VolumeId, u64)> {
    parse(std::str::from_utf8(name).ok()?.strip_prefix(LOOP_PREFIX)?, ':')
}

/// The volume and epoch of a device-mapper device of ours.
pub(super) fn of_uuid(uuid: &str) -> Option<(VolumeId, u64)> {
    parse(uuid.strip_prefix(UUID_PREFIX)?, '-')
}

/// The volume that a loop device is the mapping of.
pub(crate) fn volume_of(status: &LoopStatus) -> Option<VolumeId> {
    of_loop(&status.shape.name).map(|(volume, _)| volume)
}

/// The volume that a device which stands on a drive is the mapping of.
pub(crate) fn volume_held_by(holder: &Disk) -> Option<VolumeId> {
    of_uuid(&holder.text("dm/uuid")?).map(|(volume, _)| volume)
}

/// Whether a device which stands on a drive is the drive's guard.
pub(crate) fn is_guard_by_sysfs(holder: &Disk) -> bool {
    holder.text("dm/uuid").is_some_and(|uuid| {
        uuid.strip_prefix(GUARD_UUID_PREFIX).is_some_and(|drive| drive.parse::<DriveId>().is_ok())
    })
}

/// Whether a device which stands on a drive is ours: the mapping of a volume, or a guard.
pub(crate) fn is_ours_by_sysfs(holder: &Disk) -> bool {
    volume_held_by(holder).is_some() || is_guard_by_sysfs(holder)
}

fn parse(text: &str, separator: char) -> Option<(VolumeId, u64)> {
    let (volume, epoch) = text.split_once(separator)?;
    let epoch_is_plain = epoch.bytes().all(|byte| byte.is_ascii_digit());
    Some((volume.parse().ok()?, epoch.parse().ok().filter(|_| epoch_is_plain)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loop_ioctl::MOST_NAME_BYTES;

    #[test]
    fn a_name_is_read_as_it_was_written_and_fits() {
        for (volume, epoch) in [(0, 0), (u128::MAX, u64::MAX)] {
            let volume = VolumeId::from_bits(volume);
            let name = loop_name(volume, epoch);
            assert!(name.len() <= MOST_NAME_BYTES, "{}", name.len());
            assert_eq!(of_loop(&name), Some((volume, epoch)));
        }
        let volume = VolumeId::from_bits(0xab);
        assert_eq!(dm_uuid(volume, 7), "HOTBAY-000000000000000000000000000000ab-7");
        assert_eq!(of_uuid(&dm_uuid(volume, 7)), Some((volume, 7)));
        let drive = DriveId::from_bits(0xab);
        assert!(is_dm_name(&dm_name(volume)) && !is_guard(&dm_name(volume)));
        assert!(is_guard(&guard_name(drive)) && !is_dm_name(&guard_name(drive)));
    }

    #[test]
    fn no_other_name_is_ours() {
        for other in [
            "",
            "/var/lib/images/a.img",
            "hotbay",
            "hotbay:",
            "hotbay:ab:1",
            "hotbay:000000000000000000000000000000ab",
            "hotbay:000000000000000000000000000000ab:",
            "hotbay:000000000000000000000000000000ab:+1",
            "hotbay:000000000000000000000000000000ab:18446744073709551616",
            "xhotbay:000000000000000000000000000000ab:1",
        ] {
            assert_eq!(of_loop(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(of_loop(b"hotbay:\xff"), None);
        // The guard of a drive is no mapping.
        assert_eq!(of_uuid(&guard_uuid(DriveId::from_bits(0xab))), None);
        assert_eq!(of_uuid("LVM-000000000000000000000000000000ab-1"), None);
    }
}
