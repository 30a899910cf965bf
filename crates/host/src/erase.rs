//! Zeroes bytes of a drive: those of a deleted volume, before another one may have them.
//!
//! Called in a child, for it takes long and may wait for the drive. Zeroing is left to the drive where it can do that
//! itself. A discard alone is never enough: what is read back after it is up to the drive.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::block_ioctl::zero_out;
use crate::kernel_id::KernelId;

/// How much the kernel is asked for at once: between two of these a child can be stopped.
const PIECE_BYTES: u64 = 16 << 20;

/// How much is written at once where zeroes have to be written.
const WRITE_BYTES: usize = 1 << 20;

/// How a piece is zeroed, from what costs the drive least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    PunchHole,
    /// A block device that cannot punch holes: the kernel has it zeroed, or writes zeroes.
    ZeroOut,
    /// A plain file on a filesystem that cannot punch holes.
    Write,
}

/// Zeroes whole blocks, at this speed at most. They may come back until the drive is synced.
///
/// `checkpoint` is called after each piece.
pub(crate) fn zero(
    file: &File,
    id: KernelId,
    range: Range<u64>,
    bytes_per_second: Option<u64>,
    checkpoint: &dyn Fn(&'static str),
) -> io::Result<()> {
    let mut way = Way::PunchHole;
    let mut at = range.start;
    let started = Instant::now();
    while at < range.end {
        let length = PIECE_BYTES.min(range.end - at);
        way = zero_piece(file, id, way, at..at + length)?;
        checkpoint("erase-piece");
        at += length;
        let due = bytes_per_second.map(|speed| time_for(at - range.start, speed));
        // Not after the last one: whoever orders the next piece has waited by then.
        if let Some(early) = due.and_then(|due| due.checked_sub(started.elapsed()))
            && at < range.end
        {
            std::thread::sleep(early);
        }
    }
    Ok(())
}

/// How long so many bytes take at this speed; a speed of zero is taken for one byte per second.
fn time_for(bytes: u64, bytes_per_second: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// Zeroes one piece, and returns the way that worked.
fn zero_piece(file: &File, id: KernelId, first: Way, piece: Range<u64>) -> io::Result<Way> {
    let mut way = first;
    loop {
        let error = match zero_by(file, way, &piece) {
            Ok(()) => return Ok(way),
            Err(error) => error,
        };
        way = match (way, id) {
            (Way::PunchHole, KernelId::Block(_)) if is_unsupported(&error) => Way::ZeroOut,
            (Way::PunchHole, KernelId::File { .. }) if is_unsupported(&error) => Way::Write,
            (Way::PunchHole | Way::ZeroOut | Way::Write, _) => return Err(error),
        };
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    let unsupported = [Errno::OPNOTSUPP, Errno::NOSYS, Errno::NODEV];
    unsupported.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn zero_by(file: &File, way: Way, piece: &Range<u64>) -> io::Result<()> {
    let length = piece.end - piece.start;
    match way {
        Way::PunchHole => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            loop {
                match fallocate(file, flags, piece.start, length) {
                    Err(Errno::INTR) => {}
                    other => return Ok(other?),
                }
            }
        }
        Way::ZeroOut => zero_out(file, piece.start, length),
        Way::Write => {
            let zeros = vec![0; WRITE_BYTES];
            let mut at = piece.start;
            while at < piece.end {
                let length =
                    usize::try_from(piece.end - at).unwrap_or(WRITE_BYTES).min(WRITE_BYTES);
                file.write_all_at(&zeros[..length], at)?;
                at += length as u64;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::loop_tests::{LoopDevice, missing};

    #[test]
    fn a_block_device_is_zeroed_by_the_kernel_either_way() {
        if let Some(why) = missing() {
            eprintln!("SKIPPED: a_block_device_is_zeroed_by_the_kernel_either_way: {why}");
            return;
        }
        for way in [Way::PunchHole, Way::ZeroOut] {
            let device = LoopDevice::new(4096);
            let file = File::options().read(true).write(true).open(&device.path).unwrap();
            zeroes_its_piece(&file, way);
        }
    }

    #[test]
    fn a_plain_file_is_zeroed_either_way_and_no_byte_beside_it() {
        for way in [Way::PunchHole, Way::Write] {
            zeroes_its_piece(&tempfile::tempfile().unwrap(), way);
        }
    }

    fn zeroes_its_piece(file: &File, way: Way) {
        file.write_all_at(&vec![7; 5 << 20], 0).unwrap();
        file.sync_all().unwrap();
        match zero_by(file, way, &(1 << 20..4 << 20)) {
            Err(error) if is_unsupported(&error) && way == Way::PunchHole => {
                eprintln!("SKIPPED {way:?}: {error}");
                return;
            }
            other => other.unwrap(),
        }
        let mut expected = vec![7; 5 << 20];
        expected[1 << 20..4 << 20].fill(0);
        let mut seen = vec![1; 5 << 20];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen == expected, "{way:?}");
    }

    #[test]
    fn a_large_range_goes_piece_by_piece_and_no_faster_than_allowed() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(40 << 20).unwrap();
        let id = KernelId::of_descriptor(&file).unwrap().unwrap();
        let pieces = std::cell::Cell::new(0);
        let count = |_| pieces.set(pieces.get() + 1);
        let started = Instant::now();
        zero(&file, id, 0..40 << 20, Some(320 << 20), &count).unwrap();
        assert_eq!(pieces.get(), 3);
        assert!(started.elapsed() >= Duration::from_millis(100), "two pieces of three were due");
        assert_eq!(file.metadata().unwrap().len(), 40 << 20, "a file keeps its size");
        assert_eq!(time_for(u64::MAX, 0), Duration::from_nanos(u64::MAX));
    }
}
