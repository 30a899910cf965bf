//! Gathers the evidence of what is at a path now, and compares it with what was expected.
//!
//! Called in children only: evidence of a file asks its filesystem, which may hang.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use hotbay_core::evidence::Evidence;
use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags};

use crate::kernel_id::{DeviceNumber, KernelId};
use crate::loop_ioctl::{LoopBacking, loop_status};
use crate::scan::sysfs::Sysfs;

/// What tells the drive at `path`, which the kernel calls `id`, from others.
///
/// With the drive open, what a loop device is over is asked of the device itself, and not only read in sysfs as a
/// path, which may mean something else in another mount namespace.
pub(crate) fn evidence_of(
    path: &Path,
    id: KernelId,
    opened: Option<BorrowedFd<'_>>,
) -> io::Result<Evidence> {
    match id {
        KernelId::File { .. } => {
            Ok(Evidence { file: file_evidence(path, None)?, ..Evidence::default() })
        }
        KernelId::Block(number) => {
            let sysfs = Sysfs::of_machine();
            let Some((name, false)) = sysfs.device(number) else {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    "not a whole block device of this machine",
                ));
            };
            let disk = sysfs.disk(&name);
            let mut evidence = disk.evidence();
            if let Some(backing) = disk.backing() {
                let asked = opened.map(loop_status).transpose()?.map(|status| status.backing);
                // A backing file that cannot be reached by its path leaves the drive without this evidence.
                evidence.file = file_evidence(Path::new(&backing), asked.as_ref()).unwrap_or(None);
            }
            Ok(evidence)
        }
    }
}

/// Filesystem id, inode and time of birth as one text; `None` if the path is not a plain file, or not the one that
/// the loop device says it is over.
fn file_evidence(path: &Path, expected: Option<&LoopBacking>) -> io::Result<Option<String>> {
    let mask = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::BTIME;
    let found = rustix::fs::statx(CWD, path, AtFlags::empty(), mask)?;
    let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
    let on = DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor };
    let is_expected = expected.is_none_or(|e| (e.on, e.inode) == (on, found.stx_ino));
    if !is_file || !is_expected {
        return Ok(None);
    }
    let filesystem = rustix::fs::statvfs(path)?.f_fsid;
    Ok(Some(format!("{filesystem:016x}.{}{}", found.stx_ino, birth(&found))))
}

fn birth(found: &Statx) -> String {
    if found.stx_mask & StatxFlags::BTIME.bits() == 0 {
        return String::new();
    }
    format!(".{}.{:09}", found.stx_btime.tv_sec, found.stx_btime.tv_nsec)
}

#[cfg(test)]
mod tests {
    use hotbay_core::evidence::Comparison;

    use super::*;

    fn of(path: &Path) -> Evidence {
        evidence_of(path, KernelId::of_path(path).unwrap().unwrap(), None).unwrap()
    }

    #[test]
    fn a_file_keeps_its_evidence_over_a_rename_and_a_copy_has_another() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("a.img"), dir.path().join("b.img"));
        std::fs::write(&first, "x").unwrap();
        let before = of(&first);
        assert!(!before.is_empty());
        std::fs::rename(&first, &second).unwrap();
        assert_eq!(of(&second), before);
        std::fs::copy(&second, &first).unwrap();
        assert_eq!(of(&first).compare(&before), Comparison::Different);
    }
}
