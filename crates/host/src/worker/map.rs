//! Mappings, with one descriptor of the drive beside the request.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use hotbay_core::ids::VolumeId;

use super::look::kernel_id;
use crate::direct_read::{is_the_drives, read_ends};
use crate::kernel_id::KernelId;
use crate::mapping::{self, Mapping, MappingError, MappingPage, OpenDrive, Segment, Wanted};
use crate::runtime_dir::RuntimeDir;
use crate::scan::FILE_BLOCK_BYTES;

/// Maps a volume on the drive that came along.
pub(super) fn map(
    dir: &RuntimeDir,
    wanted: &Wanted,
    given: Vec<OwnedFd>,
    checkpoint: &dyn Fn(&'static str),
) -> Result<Mapping, MappingError> {
    mapping::map(dir, wanted, &open_drive(given)?, checkpoint)
}

/// Grows the mapping of a volume on the drive that came along.
pub(super) fn grow(
    dir: &RuntimeDir,
    wanted: &Wanted,
    given: Vec<OwnedFd>,
    checkpoint: &dyn Fn(&'static str),
) -> Result<Mapping, MappingError> {
    mapping::grow(dir, wanted, &open_drive(given)?, checkpoint)
}

/// Reads pieces of the drive that came along, past the page cache where that is possible. With a volume, after a look
/// whether the drive's label gives them to it.
pub(super) fn read(
    parts: Vec<Segment>,
    of: Option<VolumeId>,
    given: Vec<OwnedFd>,
) -> Result<(), MappingError> {
    let drive = open_drive(given)?;
    if let Some(volume) = of {
        mapping::on_label(volume, &parts, &drive)?;
    }
    let reading = |error: std::io::Error| {
        let (step, text) = ("read the drive".to_owned(), error.to_string());
        match is_the_drives(&error) {
            true => MappingError::Unreadable { error: text },
            false => MappingError::Failed { step, error: text },
        }
    };
    if !super::is_current(&drive.file, drive.id) {
        return Err(MappingError::DriveGone);
    }
    let path = format!("/proc/self/fd/{}", drive.file.as_raw_fd());
    for part in &parts {
        let end = part.start_bytes.saturating_add(part.length_bytes);
        read_ends(&path, part.start_bytes, end).map_err(reading)?;
    }
    Ok(())
}

/// The next of the machine's mappings.
pub(super) fn list(dir: &RuntimeDir, after: Option<VolumeId>) -> Result<MappingPage, MappingError> {
    Ok(mapping::page(mapping::find_all(dir)?, after))
}

fn open_drive(given: Vec<OwnedFd>) -> Result<OpenDrive, MappingError> {
    let file = File::from(given.into_iter().next().ok_or(MappingError::NoDescriptor)?);
    let failed = |error: std::io::Error| MappingError::Failed {
        step: "look at the drive".into(),
        error: error.to_string(),
    };
    let id = kernel_id(&file).map_err(failed)?;
    let block_bytes = match id {
        KernelId::Block(_) => {
            rustix::fs::ioctl_blksszget(&file).map_err(|error| failed(error.into()))?
        }
        KernelId::File { .. } => FILE_BLOCK_BYTES,
    };
    Ok(OpenDrive { file, id, block_bytes })
}
