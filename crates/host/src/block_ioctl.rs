//! The few questions that only an ioctl on an open block device answers. They may wait for the device, so they are
//! asked in a child.

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, NoArg, Opcode, Setter, ioctl, opcode};

const BLKGETDISKSEQ: Opcode = opcode::read::<u64>(0x12, 128);
const BLKRRPART: Opcode = opcode::none(0x12, 95);
const BLKZEROOUT: Opcode = opcode::none(0x12, 127);
const BLKPG: Opcode = opcode::none(0x12, 105);
const BLKPG_DEL_PARTITION: libc::c_int = 2;

/// The number that changes whenever other contents may be behind the same device number.
pub(crate) fn disk_sequence(device: impl AsFd) -> io::Result<u64> {
    #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
    // SAFETY: BLKGETDISKSEQ fills one u64.
    let sequence = unsafe { ioctl(device, Getter::<BLKGETDISKSEQ, u64>::new())? };
    Ok(sequence)
}

/// Has bytes of a block device zeroed, by the drive or by writing zeroes. Whole blocks.
pub(crate) fn zero_out(device: impl AsFd, start_bytes: u64, length_bytes: u64) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
    // SAFETY: BLKZEROOUT reads two u64, and writes to the device alone.
    unsafe {
        ioctl(device, Setter::<BLKZEROOUT, [u64; 2]>::new([start_bytes, length_bytes]))?;
    }
    Ok(())
}

/// `struct blkpg_ioctl_arg`
#[repr(C)]
struct BlkpgArgument {
    operation: libc::c_int,
    flags: libc::c_int,
    data_length: libc::c_int,
    data: *const BlkpgPartition,
}

/// `struct blkpg_partition`
#[repr(C)]
struct BlkpgPartition {
    start: i64,
    length: i64,
    number: libc::c_int,
    device_name: [u8; 64],
    volume_name: [u8; 64],
}

/// Has the kernel read the partition table of a whole device anew. `EBUSY`: a partition is open; `EINVAL`: it does not
/// read tables of this device.
pub(crate) fn reread_partitions(device: impl AsFd) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
    // SAFETY: BLKRRPART takes no argument.
    unsafe {
        ioctl(device, NoArg::<BLKRRPART>::new())?;
    }
    Ok(())
}

/// Has the kernel forget one partition of a whole device. `EBUSY`: it is open.
pub(crate) fn forget_partition(device: impl AsFd, number: i32) -> io::Result<()> {
    let partition =
        BlkpgPartition { start: 0, length: 0, number, device_name: [0; 64], volume_name: [0; 64] };
    let argument = BlkpgArgument {
        operation: BLKPG_DEL_PARTITION,
        flags: 0,
        data_length: i32::try_from(size_of::<BlkpgPartition>()).expect("some hundred bytes"),
        data: &raw const partition,
    };
    #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
    // SAFETY: BLKPG reads one `struct blkpg_ioctl_arg`, and the `struct blkpg_partition` that it points to; both have
    // the kernel's layout and live until the call returns.
    unsafe {
        ioctl(device, Setter::<BLKPG, BlkpgArgument>::new(argument))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(BLKGETDISKSEQ, 0x8008_1280);
        assert_eq!((BLKPG, BLKRRPART, BLKZEROOUT), (0x1269, 0x125f, 0x127f));
        assert_eq!(size_of::<BlkpgPartition>(), 152);
        assert_eq!(std::mem::offset_of!(BlkpgArgument, data), 16);
    }
}
