//! Loop devices, as their driver is asked and told: what one is over, a new one, its size, its end.
//!
//! The calls may wait for the device behind it, so they are made in a child. `losetup` is not used: it cannot hand over
//! a descriptor that is open, and the name that it writes is a path.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Getter, NoArg, Opcode, Setter, ioctl};

use crate::kernel_id::{DeviceNumber, KernelId, device_number};

const LOOP_CLR_FD: Opcode = 0x4c01;
const LOOP_SET_STATUS64: Opcode = 0x4c04;
const LOOP_GET_STATUS64: Opcode = 0x4c05;
const LOOP_CONFIGURE: Opcode = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Most bytes of a loop device's name; one more is for the kernel's zero.
pub(crate) const MOST_NAME_BYTES: usize = 63;

/// The kernel's `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// The kernel's `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    descriptor: u32,
    block_bytes: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

/// What is behind a loop device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoopBacking {
    /// The device that the backing file's inode is on.
    pub(crate) on: DeviceNumber,
    pub(crate) inode: u64,
    /// The device that the backing file itself is, `0:0` if it is a plain file.
    pub(crate) device: DeviceNumber,
}

impl LoopBacking {
    /// What the kernel calls it.
    pub(crate) fn id(self) -> KernelId {
        if self.device == (DeviceNumber { major: 0, minor: 0 }) {
            KernelId::File { on: self.on, inode: self.inode }
        } else {
            KernelId::Block(self.device)
        }
    }
}

/// Which bytes of what is behind it a loop device shows, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoopShape {
    pub(crate) offset_bytes: u64,
    /// Zero: up to the end.
    pub(crate) limit_bytes: u64,
    pub(crate) read_only: bool,
    /// Past the page cache, straight to what is behind it.
    pub(crate) direct: bool,
    /// It loses what is behind it with its last user.
    pub(crate) leaving: bool,
    /// What its maker called it, without the zeros behind it.
    pub(crate) name: Vec<u8>,
}

/// A loop device in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoopStatus {
    pub(crate) backing: LoopBacking,
    pub(crate) shape: LoopShape,
}

/// Asks a loop device what it is. `ENXIO`: it has nothing behind it.
pub(crate) fn loop_status(device: impl AsFd) -> io::Result<LoopStatus> {
    #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
    // SAFETY: LOOP_GET_STATUS64 fills one `struct loop_info64`, of which `LoopInfo64` has the layout; any bytes are
    // a valid value of it.
    let info = unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo64>::new())? };
    let length = info.file_name.iter().position(|byte| *byte == 0).unwrap_or(info.file_name.len());
    Ok(LoopStatus {
        backing: LoopBacking {
            on: device_number(info.device),
            inode: info.inode,
            device: device_number(info.rdevice),
        },
        shape: LoopShape {
            offset_bytes: info.offset,
            limit_bytes: info.size_limit,
            read_only: info.flags & LO_FLAGS_READ_ONLY != 0,
            direct: info.flags & LO_FLAGS_DIRECT_IO != 0,
            leaving: info.flags & LO_FLAGS_AUTOCLEAR != 0,
            name: info.file_name[..length].to_vec(),
        },
    })
}

/// The number of a loop device that has nothing behind it. Until it is configured, anyone else may be given the same.
pub(crate) fn free_loop() -> io::Result<u32> {
    let control = open(Path::new("/dev/loop-control"), OFlags::RDWR)?;
    #[expect(
        unsafe_code,
        reason = "the answer is the call's result, for which there is no safe wrapper"
    )]
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and touches no memory of ours.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// Puts an open device or file behind a free loop device, in one step. `EBUSY`: someone else was faster.
pub(crate) fn configure(
    device: impl AsFd,
    behind: BorrowedFd<'_>,
    shape: &LoopShape,
    block_bytes: u32,
) -> io::Result<()> {
    let descriptor = u32::try_from(behind.as_raw_fd())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let config = LoopConfig { descriptor, block_bytes, info: info(shape)?, reserved: [0; 8] };
    #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, of which `LoopConfig` has the layout, and the descriptor
    // in it is open until the call returns.
    unsafe {
        ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config))?;
    }
    Ok(())
}

/// Changes which bytes a loop device shows; whoever has it open or mounted keeps it. What it is over, whether it is
/// read-only and whether its I/O is direct stay.
pub(crate) fn reshape(device: impl AsFd, shape: &LoopShape) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
    // SAFETY: LOOP_SET_STATUS64 reads one `struct loop_info64`, of which `LoopInfo64` has the layout.
    unsafe {
        ioctl(device, Setter::<LOOP_SET_STATUS64, LoopInfo64>::new(info(shape)?))?;
    }
    Ok(())
}

/// Takes away what is behind a loop device, at the latest when the last one who has it open closes it.
pub(crate) fn clear(device: impl AsFd) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
    // SAFETY: LOOP_CLR_FD takes no argument.
    unsafe {
        ioctl(device, NoArg::<LOOP_CLR_FD>::new())?;
    }
    Ok(())
}

/// Opens a device without a claim on it, or with `OFlags::EXCL` among the flags with one.
pub(crate) fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    Ok(File::from(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?))
}

fn info(shape: &LoopShape) -> io::Result<LoopInfo64> {
    let mut file_name = [0; 64];
    if shape.name.len() > MOST_NAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too long a name"));
    }
    file_name[..shape.name.len()].copy_from_slice(&shape.name);
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    Ok(LoopInfo64 {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: shape.offset_bytes,
        size_limit: shape.limit_bytes,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: flag(shape.read_only, LO_FLAGS_READ_ONLY)
            | flag(shape.direct, LO_FLAGS_DIRECT_IO)
            | flag(shape.leaving, LO_FLAGS_AUTOCLEAR),
        file_name,
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(size_of::<LoopInfo64>(), 232);
        assert_eq!(std::mem::offset_of!(LoopInfo64, file_name), 56);
        assert_eq!(size_of::<LoopConfig>(), 304);
        assert_eq!(std::mem::offset_of!(LoopConfig, info), 8);
    }

    #[test]
    fn a_name_that_the_kernel_would_cut_is_refused() {
        let shape = |bytes| LoopShape {
            offset_bytes: 0,
            limit_bytes: 0,
            read_only: true,
            direct: true,
            leaving: true,
            name: vec![b'n'; bytes],
        };
        assert_eq!(info(&shape(63)).unwrap().file_name[62..], [b'n', 0]);
        assert_eq!(info(&shape(0)).unwrap().flags, 21);
        assert!(info(&shape(64)).is_err());
    }
}
