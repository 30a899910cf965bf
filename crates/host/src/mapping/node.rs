//! The node by which a device is opened. Mostly the one under `/dev`; where that is missing (a container with a `/dev`
//! of its own and nobody who fills it) one is made in the runtime directory.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};

use crate::kernel_id::{DeviceNumber, KernelId};
use crate::runtime_dir::RuntimeDir;

/// A path that leads to the device with this number, and that the kernel calls `name`.
pub(super) fn node(dir: &RuntimeDir, name: &str, number: DeviceNumber) -> io::Result<PathBuf> {
    let usual = Path::new("/dev").join(name);
    if is_node_of(&usual, number)? {
        return Ok(usual);
    }
    let made = dir.path().join(format!("block-{number}"));
    let device = rustix::fs::makedev(number.major, number.minor);
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::mknodat(CWD, &made, FileType::BlockDevice, mode, device) {
        Ok(()) => Ok(made),
        Err(rustix::io::Errno::EXIST) if is_node_of(&made, number)? => Ok(made),
        Err(error) => Err(error.into()),
    }
}

fn is_node_of(path: &Path, number: DeviceNumber) -> io::Result<bool> {
    match KernelId::of_path(path) {
        Ok(found) => Ok(found == Some(KernelId::Block(number))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_missing_or_leads_elsewhere_is_made() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::at(parent.path().join("run")).unwrap();
        let number = DeviceNumber { major: 7, minor: 3 };
        for name in ["no-such-device", "null"] {
            let made = node(&dir, name, number).unwrap();
            assert!(made.starts_with(dir.path()), "{}", made.display());
            assert_eq!(KernelId::of_path(&made).unwrap(), Some(KernelId::Block(number)));
        }
    }
}
