//! Reads the ends of a device from the device itself: what the page cache still has says nothing about a drive. Called
//! in a child, because a drive may take its time.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::loop_ioctl::open;

/// As much as is read at each end; a multiple of every block size.
const BYTES: usize = 4096;

/// Where the kernel wants memory that a drive writes to by itself.
#[repr(align(4096))]
struct Aligned([u8; BYTES]);

/// Reads the first and the last 4 KiB between two places. What cannot be read past the cache, such as a file on a
/// filesystem in memory, is read through it.
pub(crate) fn read_ends(path: &str, start_bytes: u64, end_bytes: u64) -> io::Result<()> {
    let length = BYTES as u64;
    if end_bytes < start_bytes.saturating_add(length) {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "there is nothing to read"));
    }
    let path = Path::new(path);
    let file = match open(path, OFlags::RDONLY | OFlags::DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(path, OFlags::RDONLY)?,
        opened => opened?,
    };
    let mut buffer = Aligned([0; BYTES]);
    for at in [start_bytes, end_bytes - length] {
        file.read_exact_at(&mut buffer.0, at)?;
    }
    Ok(())
}

/// Whether a read failed because of the drive, and not for want of memory or descriptors.
pub(crate) fn is_the_drives(error: &io::Error) -> bool {
    let errors =
        [libc::EIO, libc::ENXIO, libc::ENODEV, libc::ENODATA, libc::EREMOTEIO, libc::ETIMEDOUT];
    error.kind() == io::ErrorKind::UnexpectedEof
        || error.raw_os_error().is_some_and(|error| errors.contains(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("drive");
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        let path = path.to_str().unwrap();
        read_ends(path, 0, 1 << 20).unwrap();
        read_ends(path, 8192, 16384).unwrap();
        file.set_len(12288).unwrap();
        let cut = read_ends(path, 8192, 16384).unwrap_err();
        assert!(is_the_drives(&cut), "its last bytes are gone: {cut}");
        assert!(!is_the_drives(&io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(read_ends(path, 0, 0).is_err(), "no size");
        assert!(read_ends(path, 4096, 4096).is_err());
    }
}
