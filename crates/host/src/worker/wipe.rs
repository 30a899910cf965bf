//! Wipes a drive that a person gave up, so that it is empty and can be labelled. The last place that can say no.
//!
//! The caller holds the drive's writer lock and has it open exclusively, with its identity proved. Here it is looked at
//! once more, from outside and inside, and nothing is written if anything is found that the permission does not cover,
//! or that no wipe cures. Then:
//!
//! ```text
//! edges of every partition -> sync -> head -> tail -> sync -> the kernel forgets the partitions
//! ```
//!
//! The partitions come first, while there is still a table that tells where they are. The head comes before the tail,
//! because a RAID member that is known by its tail may have a filesystem in its head that nobody was shown. What a cut
//! leaves is less than was there, and the same order finishes it. That the drive is empty is then proved as for every
//! other one, before its label is written.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use hotbay_core::device::Denied;
use hotbay_core::label::Found;
use hotbay_core::wipe::{contents_of, uncovered};
use rustix::io::Errno;

use super::look::{BLKID_LIMIT, sectors};
use super::open::failed;
use super::protocol::{Attach, AttachError, chain};
use crate::block_ioctl::{forget_partition, reread_partitions};
use crate::kernel_id::KernelId;
use crate::label::{self, EMPTY_EDGE_BYTES, FileSectors, Sectors};
use crate::proof::{Blocker, has_sole_opener, loops_over};
use crate::scan::sysfs::{Disk, Sysfs};
use crate::scan::{
    Candidate, Signatures, blkid, candidate_at, denied_by_contents, denied_from_outside, partx,
};

/// How much is written at once: a whole number of blocks of any drive.
const PIECE_BYTES: usize = 1 << 20;

/// Most partitions that are wiped one by one. No table in use has so many.
const MOST_PARTITIONS: usize = 1024;

/// Others look at partitions for moments (udev, blkid): so long the kernel is asked again to forget them.
const FORGET_LIMIT: Duration = Duration::from_secs(5);
const FORGET_PAUSE: Duration = Duration::from_millis(50);

/// Wipes what is permitted, unless the drive is empty or has the label that is wanted.
pub(super) fn wipe(
    file: &File,
    id: KernelId,
    request: &Attach,
    checkpoint: &dyn Fn(&'static str),
) -> Result<(), AttachError> {
    let drive = sectors(file, id).map_err(failed("ask for the drive's size"))?;
    let Some(parts) = look(file, id, request, &drive)? else { return Ok(()) };
    let writing = failed("wipe the drive");
    for part in &parts {
        zero_edges(&drive, part).map_err(&writing)?;
    }
    drive.sync().map_err(&writing)?;
    checkpoint("wipe-parts");
    let [head, tail] = edges(&drive, &(0..drive.size_bytes()));
    zero(&drive, head).map_err(&writing)?;
    checkpoint("wipe-head");
    zero(&drive, tail).map_err(&writing)?;
    drive.sync().map_err(&writing)?;
    checkpoint("wipe-synced");
    if let KernelId::Block(number) = id {
        let sysfs = Sysfs::of_machine();
        let (name, _) = sysfs.device(number).ok_or_else(|| missing(request))?;
        forget_partitions(file, &sysfs.disk(&name))?;
    }
    checkpoint("wipe-forgotten");
    Ok(())
}

/// The partitions that are to be wiped with the drive, if all that is on it may go; `None` if there is nothing to wipe.
fn look(
    file: &File,
    id: KernelId,
    request: &Attach,
    drive: &FileSectors,
) -> Result<Option<Vec<Range<u64>>>, AttachError> {
    let want = &request.want.0;
    let reading = failed("read the drive");
    let mut denied = match label::read(drive).map_err(&reading)? {
        Found::Valid { header, .. } if header.cluster != want.cluster => {
            vec![Denied::ForeignCluster { cluster: header.cluster }]
        }
        // Wiped and labelled before, or never to be wiped: what the label allows is decided where it is written.
        Found::Valid { .. } | Found::UnknownVersion(_) => return Ok(None),
        Found::Damaged => vec![Denied::DamagedLabel],
        Found::Absent => vec![],
    };
    let candidate = unused(file, id, request)?;
    let signatures = blkid::probe(&request.path, BLKID_LIMIT);
    let first_nonzero = label::first_nonzero(drive).map_err(&reading)?;
    denied.extend(denied_by_contents(&candidate, &signatures, first_nonzero));
    let contents = contents_of(&denied).map_err(|uncured| refused(&uncured))?;
    if let Some(new) = uncovered(&request.wipe, &contents) {
        let why = format!(
            "it is not wiped: {new} is on it, which was not there when the wipe was asked for"
        );
        return Err(AttachError::NotOurs { why });
    }
    if contents.is_empty() {
        return Ok(None);
    }
    parts(id, request, &signatures).map(Some)
}

/// The drive from outside, if nothing has it in use and nothing else speaks against it.
fn unused(file: &File, id: KernelId, request: &Attach) -> Result<Candidate, AttachError> {
    let looking = "look at what uses the drive";
    let candidate = candidate_at(Path::new(&request.path))
        .map_err(|error| AttachError::Failed { step: looking.into(), error: chain(&error) })?
        .filter(|candidate| candidate.id == id)
        .ok_or_else(|| missing(request))?;
    let denied = denied_from_outside(&candidate);
    if !denied.is_empty() {
        return Err(refused(&denied));
    }
    let mut by = loops_over(id).map_err(failed(looking))?;
    if !has_sole_opener(file, id).map_err(failed(looking))? {
        by.push(Blocker::Leased);
    }
    if by.is_empty() { Ok(candidate) } else { Err(AttachError::Busy { by }) }
}

/// Where partitions are, by the table and as the kernel knows them.
fn parts(
    id: KernelId,
    request: &Attach,
    signatures: &Signatures,
) -> Result<Vec<Range<u64>>, AttachError> {
    let mut parts = match signatures {
        Signatures::Found { table: Some(_), .. } => partx::partitions(&request.path, BLKID_LIMIT)
            .map_err(|error| AttachError::Failed {
            step: "find the partitions to wipe".into(),
            error,
        })?,
        Signatures::Found { table: None, .. } | Signatures::Nothing | Signatures::Unclear(_) => {
            vec![]
        }
    };
    if let KernelId::Block(number) = id {
        let sysfs = Sysfs::of_machine();
        let (name, _) = sysfs.device(number).ok_or_else(|| missing(request))?;
        parts.extend(sysfs.disk(&name).partition_places().into_values());
    }
    if parts.len() > MOST_PARTITIONS {
        let error = format!(
            "there are {} of them, and more than {MOST_PARTITIONS} are not wiped",
            parts.len()
        );
        return Err(AttachError::Failed { step: "wipe the partitions".into(), error });
    }
    Ok(parts)
}

fn refused(denied: &[Denied]) -> AttachError {
    let why = denied.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    AttachError::NotOurs { why: format!("it is not wiped: {why}") }
}

fn missing(request: &Attach) -> AttachError {
    AttachError::Missing { path: request.path.clone() }
}

fn zero_edges(drive: &FileSectors, range: &Range<u64>) -> std::io::Result<()> {
    edges(drive, range).into_iter().try_for_each(|edge| zero(drive, edge))
}

/// The first and the last bytes of a range, as far as that is on the drive: whole blocks, of which none is there twice.
fn edges(drive: &dyn Sectors, range: &Range<u64>) -> [Range<u64>; 2] {
    let block = u64::from(drive.block_bytes()).max(1);
    let size = drive.size_bytes();
    let start = (range.start / block * block).min(size);
    let end =
        range.end.checked_next_multiple_of(block).map_or(size, |end| end.min(size)).max(start);
    let head_end = end.min(start.saturating_add(EMPTY_EDGE_BYTES));
    let tail_start = end.saturating_sub(EMPTY_EDGE_BYTES).max(head_end);
    [start..head_end, tail_start..end]
}

fn zero(drive: &dyn Sectors, range: Range<u64>) -> std::io::Result<()> {
    let zeros = vec![0; PIECE_BYTES];
    let mut at = range.start;
    while at < range.end {
        let length = usize::try_from(range.end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        drive.write_at(at, &zeros[..length])?;
        at += length as u64;
    }
    Ok(())
}

/// Has the kernel read the table anew, of which nothing is left, until it shows no partition.
fn forget_partitions(file: &File, disk: &Disk) -> Result<(), AttachError> {
    let end = Instant::now() + FORGET_LIMIT;
    loop {
        let parts = disk.partition_table();
        if parts.is_empty() {
            return Ok(());
        }
        let forgotten = match reread_partitions(file) {
            // A device whose table the kernel does not read; somebody named its partitions one by one.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                let numbers = disk.partition_places().into_keys();
                numbers.into_iter().try_for_each(|number| forget_partition(file, number))
            }
            answer => answer,
        };
        match forgotten {
            Err(error) if Instant::now() >= end => {
                let names: Vec<_> = parts.into_iter().map(|part| part.name).collect();
                let step = format!("have the kernel forget {}", names.join(", "));
                return Err(failed(&step)(error));
            }
            Ok(()) if disk.partition_table().is_empty() => return Ok(()),
            Ok(()) if Instant::now() >= end => {
                let error = "it goes on showing them".into();
                let step = "have the kernel forget the partitions".into();
                return Err(AttachError::Failed { step, error });
            }
            Ok(()) | Err(_) => std::thread::sleep(FORGET_PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn file_of(bytes: u64, block_bytes: u32) -> FileSectors {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        FileSectors::new(file, bytes, block_bytes)
    }

    #[test]
    fn edges_are_whole_blocks_on_the_drive_and_do_not_overlap() {
        let drive = file_of(64 * MIB, 4096);
        assert_eq!(edges(&drive, &(0..64 * MIB)), [0..4 * MIB, 60 * MIB..64 * MIB]);
        assert_eq!(edges(&drive, &(MIB..7 * MIB)), [MIB..5 * MIB, 5 * MIB..7 * MIB]);
        assert_eq!(edges(&drive, &(MIB..2 * MIB)), [MIB..2 * MIB, 2 * MIB..2 * MIB]);
        assert_eq!(edges(&drive, &(MIB + 512..2 * MIB - 512))[0], MIB..2 * MIB);
        // What a damaged table says may be anywhere.
        assert_eq!(edges(&drive, &(63 * MIB..900 * MIB)), [63 * MIB..64 * MIB, 64 * MIB..64 * MIB]);
        for beyond in [900 * MIB..901 * MIB, u64::MAX - 1..u64::MAX] {
            assert!(edges(&drive, &beyond).iter().all(Range::is_empty), "{beyond:?}");
        }
    }
}
