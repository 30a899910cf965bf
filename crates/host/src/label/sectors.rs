//! A drive as the label needs it: bytes at offsets, and a way to make them last.
//!
//! The label code knows only [`Sectors`], so that its crash tests can stand in for the drive; in the product it is
//! an open block device or plain file, [`FileSectors`].

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, fadvise};

/// Whole aligned blocks of a drive.
pub trait Sectors {
    /// The size of the drive, a whole number of blocks.
    fn size_bytes(&self) -> u64;

    /// The smallest unit that the drive writes.
    fn block_bytes(&self) -> u32;

    /// Fills `buf`. Offset and length are whole blocks.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `buf`; it may be lost again until [`Self::sync`] has returned. Offset and length are whole
    /// blocks.
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Returns when all that was written will survive a power cut. After an error nothing is known about the writes
    /// since the last success.
    fn sync(&self) -> io::Result<()>;
}

/// An open block device or plain file.
#[derive(Debug)]
pub struct FileSectors {
    file: File,
    size_bytes: u64,
    block_bytes: u32,
}

impl FileSectors {
    /// Wraps an open device of which the caller knows size and block size.
    pub fn new(file: impl Into<OwnedFd>, size_bytes: u64, block_bytes: u32) -> Self {
        let device = Self { file: File::from(file.into()), size_bytes, block_bytes };
        device.forget_cached();
        device
    }

    /// Asks the kernel to drop what it has cached of the device and need not write: after a failed sync the cache
    /// still shows what never reached the drive, and a read after a sync is meant to prove what is there. A hint: if
    /// it is not taken, reads are as good as those of any other program.
    fn forget_cached(&self) {
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    /// A write past the end would make a plain file longer, and one of part of a block would be read, changed and
    /// written back by the kernel.
    fn check_range(&self, offset: u64, length: usize) -> io::Result<()> {
        let block = u64::from(self.block_bytes);
        let end = u64::try_from(length).ok().and_then(|length| offset.checked_add(length));
        let whole = |at: u64| at.checked_rem(block) == Some(0);
        match end {
            Some(end) if end <= self.size_bytes && whole(offset) && whole(end) => Ok(()),
            Some(_) | None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{length} bytes at {offset} are not whole blocks of the drive"),
            )),
        }
    }
}

impl Sectors for FileSectors {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check_range(offset, buf.len())?;
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check_range(offset, buf.len())?;
        self.file.write_all_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        let synced = self.file.sync_all();
        self.forget_cached();
        synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_inside_the_drive_are_touched() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(16384).unwrap();
        let device = FileSectors::new(file, 16384, 4096);
        device.write_at(12288, &[7; 4096]).unwrap();
        device.sync().unwrap();
        let mut back = [0; 4096];
        device.read_at(12288, &mut back).unwrap();
        assert_eq!(back, [7; 4096]);

        let refused = io::ErrorKind::InvalidInput;
        for (offset, length) in [(12288, 8192), (512, 4096), (0, 512), (16384, 4096), (!0, 4096)] {
            let written = device.write_at(offset, &vec![1; length]);
            assert_eq!(written.unwrap_err().kind(), refused, "{length} bytes at {offset}");
            let read = device.read_at(offset, &mut vec![0; length]);
            assert_eq!(read.unwrap_err().kind(), refused, "{length} bytes at {offset}");
        }
        assert_eq!(device.file.metadata().unwrap().len(), 16384);
    }
}
