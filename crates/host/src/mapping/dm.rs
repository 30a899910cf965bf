//! Mappings by device-mapper, and the guard that holds the claim on a drive while it has them.
//!
//! A claim by `O_EXCL` keeps device-mapper out as well. So a drive that is to have such mappings is claimed by a small
//! device of ours over its label instead, the guard: device-mapper shares its claim among its own devices, and keeps
//! everyone else out.
//!
//! The kernel allows one device of a name, so a volume cannot be mapped twice. A device is made in steps, and a killed
//! child may leave one without a table, or a suspended one: both are known as that and made whole by the next call.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use hotbay_core::ids::{DriveId, VolumeId};
use hotbay_core::label::extents::FIRST_EXTENT_BYTES;

use super::dm_control::{Control, Status};
use super::dm_message::Target;
use super::error::failed;
use super::name::{dm_name, dm_uuid, guard_name, guard_uuid, is_dm_name, is_guard, of_uuid};
use super::node::node;
use super::{Checkpoint, Mapping, MappingError, MappingKind, OpenDrive, Segment, Wanted};
use crate::kernel_id::{DeviceNumber, KernelId};
use crate::proof::users_of;
use crate::runtime_dir::RuntimeDir;

/// The unit of tables, whatever the drive's own block is.
const SECTOR: u64 = 512;

/// How long others that only look at a device (udev, blkid) may keep it from going.
const REMOVE_PATIENCE: Duration = Duration::from_secs(2);
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

const LISTING: &str = "list the devices of device-mapper";
const NO_DEVICE_MAPPER: &str = "the kernel has no device-mapper";

/// All device-mapper devices that are mappings of ours.
pub(super) fn all(dir: &RuntimeDir) -> Result<Vec<Mapping>, MappingError> {
    let mut found = Vec::new();
    for (status, table) in ours()? {
        let node = node(dir, &format!("dm-{}", status.number.minor), status.number);
        let path = node.map_err(failed(LISTING))?.display().to_string();
        found.extend(mapping(&status, &table, path));
    }
    Ok(found)
}

/// Everything with a name of a mapping, and its table.
fn ours() -> Result<Vec<(Status, Vec<Target>)>, MappingError> {
    let listing = failed(LISTING);
    let Some(control) = Control::open().map_err(&listing)? else { return Ok(vec![]) };
    let mut found = Vec::new();
    for (name, _) in control.list().map_err(&listing)? {
        if !is_dm_name(&name) {
            continue;
        }
        // Gone since it was listed.
        let Some(status) = control.status(&name).map_err(&listing)? else { continue };
        found.push((status, control.table(&name).map_err(&listing)?));
    }
    Ok(found)
}

fn mapping(status: &Status, table: &[Target], path: String) -> Option<Mapping> {
    let (volume, epoch) = of_uuid(&status.uuid)?;
    let linear: Option<Vec<(DeviceNumber, Segment)>> = table.iter().map(segment).collect();
    let parts = linear.unwrap_or_default();
    Some(Mapping {
        volume,
        epoch,
        kind: MappingKind::DeviceMapper,
        path,
        number: status.number,
        drive: parts.first().map(|(drive, _)| KernelId::Block(*drive)),
        parts: parts.into_iter().map(|(_, part)| part).collect(),
        read_only: status.read_only,
        fenced: table.iter().any(|target| target.kind == "error"),
        direct: true,
        leaving: false,
    })
}

/// The part of a drive that a line of a table shows.
fn segment(target: &Target) -> Option<(DeviceNumber, Segment)> {
    let (drive, start) = target.parameters.split_once(' ')?;
    let segment = Segment {
        start_bytes: start.parse::<u64>().ok()?.checked_mul(SECTOR)?,
        length_bytes: target.length.checked_mul(SECTOR)?,
    };
    (target.kind == "linear").then_some((DeviceNumber::parse(drive)?, segment))
}

fn table_of(drive: DeviceNumber, parts: &[Segment]) -> Vec<Target> {
    let mut start = 0;
    let line = |part: &Segment| {
        let length = part.length_bytes / SECTOR;
        let parameters = format!("{drive} {}", part.start_bytes / SECTOR);
        start += length;
        Target { start: start - length, length, kind: "linear".into(), parameters }
    };
    parts.iter().map(line).collect()
}

/// Whether volumes on a drive are to be mapped by device-mapper: its guard is there.
pub(super) fn is_guarded(drive: KernelId) -> Result<bool, MappingError> {
    let KernelId::Block(number) = drive else { return Ok(false) };
    let looking = failed("look for the guard of the drive");
    let Some(control) = Control::open().map_err(&looking)? else { return Ok(false) };
    let mut devices = control.list().map_err(&looking)?;
    devices.retain(|(name, _)| is_guard(name));
    for (name, _) in devices {
        let table = control.table(&name).map_err(&looking)?;
        if table.iter().filter_map(segment).any(|(over, _)| over == number) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a mapping was begun and not finished.
pub(super) fn is_half_made(found: &Mapping) -> bool {
    found.kind == MappingKind::DeviceMapper && !found.fenced && found.parts.is_empty()
}

/// Lets a device go on whose child was killed while it was suspended.
pub(super) fn wake(found: &Mapping) -> Result<(), MappingError> {
    let waking = failed("let a suspended mapping go on");
    let control = control(&waking)?;
    let name = dm_name(found.volume);
    match control.status(&name).map_err(&waking)? {
        Some(status) if status.suspended && status.has_table => {
            control.resume(&name).map_err(waking)
        }
        Some(_) | None => Ok(()),
    }
}

/// Makes the device of a volume that has none.
pub(super) fn map(
    wanted: &Wanted,
    drive: &OpenDrive,
    checkpoint: Checkpoint<'_>,
) -> Result<(), MappingError> {
    let mapping = failed("map the volume by device-mapper");
    let KernelId::Block(number) = drive.id else { return Err(MappingError::DriveGone) };
    let control = control(&mapping)?;
    let name = dm_name(wanted.volume);
    let uuid = dm_uuid(wanted.volume, wanted.epoch);
    control.create(&name, &uuid, wanted.read_only).map_err(&mapping)?;
    checkpoint("map-created");
    let table = table_of(number, &wanted.parts);
    let filled = control.replace_table(&name, &table, wanted.read_only, checkpoint);
    if filled.is_err() {
        // Nobody can have it open yet; if this fails too, the next call finds it without a table.
        let _ = control.remove(&name);
    }
    filled.map_err(mapping)
}

/// Removes a device that nobody uses.
pub(super) fn unmap(found: &Mapping, checkpoint: Checkpoint<'_>) -> Result<(), MappingError> {
    let removing = failed("remove the mapping");
    let control = control(&removing)?;
    checkpoint("unmap-opened");
    let in_use = || MappingError::InUse {
        path: found.path.clone(),
        by: users_of(Path::new(&found.path), found.number),
    };
    remove(&control, &dm_name(found.volume), &removing, in_use)?;
    checkpoint("unmap-cleared");
    Ok(())
}

/// Puts `error` in place of the whole table. What is under way on the drive ends first.
pub(super) fn fence(found: &Mapping, checkpoint: Checkpoint<'_>) -> Result<(), MappingError> {
    let fencing = failed("replace the mapping's table");
    let control = control(&fencing)?;
    let name = dm_name(found.volume);
    let table = control.table(&name).map_err(&fencing)?;
    let length = table.iter().map(|target| target.length).sum();
    let error = Target { start: 0, length, kind: "error".into(), parameters: String::new() };
    // A device without a table fails all I/O anyway.
    if length == 0 {
        return Ok(());
    }
    control.replace_table(&name, &[error], found.read_only, checkpoint).map_err(fencing)
}

/// Shows more of the drive.
pub(super) fn grow(
    found: &Mapping,
    wanted: &Wanted,
    drive: &OpenDrive,
    checkpoint: Checkpoint<'_>,
) -> Result<(), MappingError> {
    let growing = failed("grow the mapping");
    let KernelId::Block(number) = drive.id else { return Err(MappingError::DriveGone) };
    let table = table_of(number, &wanted.parts);
    let name = dm_name(found.volume);
    control(&growing)?.replace_table(&name, &table, wanted.read_only, checkpoint).map_err(growing)
}

/// Puts the guard on a drive that nobody has claimed, or finds it there. The whole claim is device-mapper's then.
pub(super) fn guard(
    drive: DriveId,
    number: DeviceNumber,
    checkpoint: Checkpoint<'_>,
) -> Result<(), MappingError> {
    let guarding = failed("put a guard on the drive");
    let control = control(&guarding)?;
    let name = guard_name(drive);
    let area = Segment { start_bytes: 0, length_bytes: FIRST_EXTENT_BYTES };
    let wanted = table_of(number, &[area]);
    if let Some(status) = control.status(&name).map_err(&guarding)? {
        let found = control.table(&name).map_err(&guarding)?;
        if found == wanted && !status.suspended {
            return Ok(());
        }
    } else {
        control.create(&name, &guard_uuid(drive), true).map_err(&guarding)?;
    }
    checkpoint("guard-created");
    let filled = control.replace_table(&name, &wanted, true, checkpoint);
    if filled.is_err() {
        let _ = control.remove(&name);
    }
    filled.map_err(guarding)
}

/// Takes the guard of this name away; false if there is none.
pub(super) fn unguard(drive: DriveId) -> Result<bool, MappingError> {
    let removing = failed("take the guard from the drive");
    let Some(control) = Control::open().map_err(&removing)? else { return Ok(false) };
    let name = guard_name(drive);
    let Some(status) = control.status(&name).map_err(&removing)? else { return Ok(false) };
    let path = format!("/dev/dm-{}", status.number.minor);
    let in_use = || MappingError::InUse {
        path: path.clone(),
        by: users_of(Path::new(&path), status.number),
    };
    remove(&control, &name, &removing, in_use)
}

/// Every volume that is mapped, with the path of its device and the numbers of what that is over.
pub(super) fn over_numbers() -> Result<Vec<(VolumeId, String, Vec<DeviceNumber>)>, MappingError> {
    let mut found = Vec::new();
    for (status, table) in ours()? {
        let Some((volume, _)) = of_uuid(&status.uuid) else { continue };
        let over = table.iter().filter_map(segment).map(|(over, _)| over).collect();
        found.push((volume, format!("/dev/dm-{}", status.number.minor), over));
    }
    Ok(found)
}

fn remove(
    control: &Control,
    name: &str,
    removing: &dyn Fn(io::Error) -> MappingError,
    in_use: impl Fn() -> MappingError,
) -> Result<bool, MappingError> {
    let until = Instant::now() + REMOVE_PATIENCE;
    loop {
        match control.remove(name) {
            Ok(removed) => return Ok(removed),
            Err(error) if error.raw_os_error() != Some(libc::EBUSY) => return Err(removing(error)),
            Err(_) if Instant::now() >= until => return Err(in_use()),
            Err(_) => std::thread::sleep(REMOVE_PAUSE),
        }
    }
}

fn control(step: &dyn Fn(io::Error) -> MappingError) -> Result<Control, MappingError> {
    let absent = || step(io::Error::new(io::ErrorKind::Unsupported, NO_DEVICE_MAPPER));
    Control::open().map_err(step)?.ok_or_else(absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SDB: DeviceNumber = DeviceNumber { major: 8, minor: 16 };
    const MIB: u64 = 1 << 20;

    fn status(uuid: &str) -> Status {
        Status {
            number: DeviceNumber { major: 253, minor: 3 },
            uuid: uuid.into(),
            read_only: false,
            suspended: false,
            has_table: true,
        }
    }

    #[test]
    fn parts_become_a_table_and_back() {
        let parts = [
            Segment { start_bytes: 4 * MIB, length_bytes: 2 * MIB },
            Segment { start_bytes: 64 * MIB, length_bytes: MIB },
        ];
        let table = table_of(SDB, &parts);
        let lines: Vec<_> =
            table.iter().map(|t| (t.start, t.length, t.parameters.as_str())).collect();
        assert_eq!(lines, [(0, 4096, "8:16 8192"), (4096, 2048, "8:16 131072")]);
        let volume = VolumeId::from_bits(0xab);
        let seen = mapping(&status(&dm_uuid(volume, 7)), &table, "/dev/dm-3".into()).unwrap();
        assert_eq!((seen.volume, seen.epoch, seen.fenced), (volume, 7, false));
        assert_eq!((seen.drive, seen.parts.as_slice()), (Some(KernelId::Block(SDB)), &parts[..]));
        assert!(!is_half_made(&seen));
    }

    #[test]
    fn what_is_fenced_half_made_or_not_ours_is_known() {
        let volume = VolumeId::from_bits(1);
        let ours = status(&dm_uuid(volume, 1));
        let error = Target { start: 0, length: 8, kind: "error".into(), parameters: String::new() };
        let fenced = mapping(&ours, &[error], String::new()).unwrap();
        assert!(fenced.fenced && fenced.parts.is_empty() && !is_half_made(&fenced));
        assert_eq!(fenced.drive, None);
        assert!(is_half_made(&mapping(&ours, &[], String::new()).unwrap()));
        let guard = status(&guard_uuid(DriveId::from_bits(1)));
        assert_eq!(mapping(&guard, &[], String::new()), None);
        assert_eq!(mapping(&status("LVM-x"), &[], String::new()), None);
    }

    #[test]
    fn a_line_that_is_not_ours_shows_no_part() {
        let line = |kind: &str, parameters: &str| Target {
            start: 0,
            length: 8,
            kind: kind.into(),
            parameters: parameters.into(),
        };
        assert!(segment(&line("linear", "8:16 8")).is_some());
        for bad in ["", "8:16", "8:16 x", "sda 8", "8:16 18446744073709551615"] {
            assert_eq!(segment(&line("linear", bad)), None, "{bad:?}");
        }
        assert_eq!(segment(&line("crypt", "8:16 8")), None);
    }
}
