//! Looks at what is on a device, without writing and without keeping anyone else from it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use hotbay_core::device::LabelSeen;
use hotbay_core::evidence::Evidence;
use hotbay_core::label::Found;
use rustix::fs::{Mode, OFlags, SeekFrom};

use super::protocol::{LabelLook, LookError, Looked};
use crate::identity::evidence_of;
use crate::kernel_id::KernelId;
use crate::label::{self, FileSectors, Sectors};
use crate::proof::{Blocker, loops_over};
use crate::scan::sysfs::Sysfs;
use crate::scan::{FILE_BLOCK_BYTES, blkid};

/// How long blkid may take; a drive that is slower is not one to be added now.
pub(super) const BLKID_LIMIT: Duration = Duration::from_secs(20);

pub(super) fn look(path: &str) -> Result<Looked, LookError> {
    look_at(path).map_err(unreadable)
}

/// Which drive is at a path: its evidence, gathered without opening it.
pub(super) fn identify(path: &str) -> Result<Evidence, LookError> {
    let at = Path::new(path);
    let id = KernelId::of_path(at).map_err(unreadable)?;
    let id = id.ok_or_else(|| unreadable(not_a_drive()))?;
    evidence_of(at, id, None).map_err(unreadable)
}

fn unreadable(error: io::Error) -> LookError {
    match error.kind() {
        io::ErrorKind::NotFound => LookError::Missing,
        _ => LookError::Unreadable { error: error.to_string() },
    }
}

fn not_a_drive() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "neither a block device nor a plain file")
}

/// The drive at a path, opened for reading.
pub(crate) fn open_sectors(path: &Path) -> io::Result<FileSectors> {
    let (file, id) = open_to_look(path)?;
    sectors(&file, id)
}

fn open_to_look(path: &Path) -> io::Result<(File, KernelId)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let id = kernel_id(&file)?;
    Ok((file, id))
}

fn look_at(path: &str) -> io::Result<Looked> {
    let at = Path::new(path);
    if !at.is_absolute() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an absolute path"));
    }
    let (file, id) = open_to_look(at)?;
    let evidence = evidence_of(at, id, Some(file.as_fd()))?;
    let sectors = sectors(&file, id)?;
    if sectors.size_bytes() == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has a size of zero"));
    }
    let label = match label::read(&sectors)? {
        Found::Absent => LabelLook::Absent {
            first_nonzero: label::first_nonzero(&sectors)?,
            signatures: blkid::probe(path, BLKID_LIMIT),
        },
        Found::Valid { header, slot: _ } => match LabelSeen::from(header) {
            seen if seen.is_countable() => LabelLook::Valid(seen),
            // Nobody counts so far: whoever made it, no registry did.
            _ => LabelLook::Damaged,
        },
        Found::Damaged => LabelLook::Damaged,
        Found::UnknownVersion(version) => LabelLook::UnknownVersion(version),
    };
    // blkid went by the path: it must have seen the same device.
    if KernelId::of_path(at)? != Some(id) || evidence_of(at, id, Some(file.as_fd()))? != evidence {
        return Err(io::Error::other("the device changed while it was looked at"));
    }
    let (mappings, stray) = match &label {
        LabelLook::Valid(_) => (mappings_over(id)?, vec![]),
        LabelLook::Absent { .. } | LabelLook::Damaged | LabelLook::UnknownVersion(_) => {
            (vec![], stray_on(id))
        }
    };
    Ok(Looked { id, evidence, label, mappings, stray })
}

/// The names of devices of ours that stand on a drive.
pub(super) fn stray_on(id: KernelId) -> Vec<String> {
    let KernelId::Block(number) = id else { return vec![] };
    let sysfs = Sysfs::of_machine();
    let Some((name, _)) = sysfs.device(number) else { return vec![] };
    sysfs.disk(&name).own_holders().into_iter().collect()
}

fn mappings_over(id: KernelId) -> io::Result<Vec<String>> {
    let path = |blocker| match blocker {
        Blocker::Mapping { path, .. } => Some(path),
        _ => None,
    };
    Ok(loops_over(id)?.into_iter().filter_map(path).collect())
}

pub(super) fn kernel_id(file: &File) -> io::Result<KernelId> {
    KernelId::of_descriptor(file)?.ok_or_else(not_a_drive)
}

/// A second descriptor of an open drive, for its label.
pub(crate) fn sectors(file: &File, id: KernelId) -> io::Result<FileSectors> {
    let size_bytes = rustix::fs::seek(file, SeekFrom::End(0))?;
    let block_bytes = match id {
        KernelId::Block(_) => rustix::fs::ioctl_blksszget(file)?,
        KernelId::File { .. } => FILE_BLOCK_BYTES,
    };
    Ok(FileSectors::new(file.try_clone()?, size_bytes, block_bytes))
}
