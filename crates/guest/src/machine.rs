//! What outlives a boot: the images of the drives, the disk for what must survive, and what the guest boots from. All
//! of it is in a temporary folder that goes with this value.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::drive::{Bus, Drive};
use crate::error::GuestError;
use crate::initramfs;
use crate::parts::Parts;

/// The guest's `/var/lib`; `/init` finds it by this serial number.
const STATE_SERIAL: &str = "guest-state";
const STATE_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub struct Machine {
    folder: TempDir,
    parts: Parts,
}

impl Machine {
    /// A machine with `binary` as its `/usr/bin/hotbay`.
    pub fn build(binary: &Path) -> Result<Self, GuestError> {
        let parts = Parts::find()?;
        let temp = std::env::temp_dir();
        let folder = tempfile::Builder::new().prefix("hotbay-guest-").tempdir();
        let folder = folder.map_err(GuestError::file("make a folder in", temp))?;
        let machine = Self { folder, parts };
        initramfs::write(&machine.initramfs(), &machine.parts, binary)?;
        let image = machine.image(&machine.state_drive())?;
        let output = Command::new("mkfs.ext4").arg("-q").arg(&image).output();
        let output = output.map_err(|source| GuestError::Start { program: "mkfs.ext4", source })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(GuestError::Program { program: "mkfs.ext4", path: image, said });
        }
        Ok(machine)
    }

    /// The file that holds the contents of a drive, made of zeroes if it is not there yet. A case that wants something
    /// on a drive writes it here before it plugs the drive.
    pub fn image(&self, drive: &Drive) -> Result<PathBuf, GuestError> {
        let path = self.path(&format!("{}.img", drive.id));
        if !path.exists() {
            let made = File::create(&path).and_then(|file| file.set_len(drive.size_bytes));
            made.map_err(GuestError::file("make", &path))?;
        }
        Ok(path)
    }

    /// Everything that the guest and QEMU printed so far, over all boots.
    pub fn console(&self) -> PathBuf {
        self.path("console.log")
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.parts.kernel()
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.path("initramfs.cpio")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// In the last slot, so that the others begin at 1.
    pub(crate) fn state_drive(&self) -> Drive {
        let bus = Bus::Virtio { slot: crate::drive::SLOTS };
        Drive::new("state", bus, STATE_SERIAL, STATE_BYTES)
    }
}
