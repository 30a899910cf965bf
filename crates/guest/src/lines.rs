//! Lines to and from a socket of QEMU, with a limit on how long an answer may take. `qmp` and `commands` speak so.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::GuestError;

/// The pause between two tries to connect to a socket that QEMU has not made yet.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Lines {
    what: &'static str,
    reader: BufReader<UnixStream>,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
}

impl Lines {
    /// Connects to a socket, within `limit`. `what` it is serves for messages.
    pub(crate) fn connect(
        what: &'static str,
        path: &Path,
        limit: Duration,
    ) -> Result<Self, GuestError> {
        let until = Instant::now() + limit;
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => {
                    return Ok(Self { what, reader: BufReader::new(stream), partial: Vec::new() });
                }
                Err(error) if not_yet(&error) && Instant::now() < until => {
                    std::thread::sleep(CONNECT_PAUSE);
                }
                Err(source) => return Err(GuestError::Broken { what, source }),
            }
        }
    }

    pub(crate) fn send(&mut self, line: &str) -> Result<(), GuestError> {
        let sent = self.reader.get_mut().write_all(format!("{line}\n").as_bytes());
        sent.map_err(|source| GuestError::Broken { what: self.what, source })
    }

    /// The next line, without its end.
    pub(crate) fn next(&mut self, limit: Duration) -> Result<String, GuestError> {
        let until = Instant::now() + limit;
        while !self.partial.ends_with(b"\n") {
            self.wait_at_most(until)?;
            let read = self.reader.read_until(b'\n', &mut self.partial);
            self.progress(read)?;
        }
        let line = std::mem::take(&mut self.partial);
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// So many bytes after the last line.
    pub(crate) fn bytes(&mut self, length: usize, until: Instant) -> Result<Vec<u8>, GuestError> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            self.wait_at_most(until)?;
            let read = self.reader.read(&mut bytes[filled..]);
            filled += self.progress(read)?;
        }
        Ok(bytes)
    }

    fn wait_at_most(&self, until: Instant) -> Result<(), GuestError> {
        let what = self.what;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(GuestError::Silent { what });
        }
        let set = self.reader.get_ref().set_read_timeout(Some(left));
        set.map_err(|source| GuestError::Broken { what, source })
    }

    /// How much was read; nothing if the time was up meanwhile.
    fn progress(&self, read: io::Result<usize>) -> Result<usize, GuestError> {
        let what = self.what;
        let ended = || io::ErrorKind::UnexpectedEof.into();
        match read {
            Ok(0) => Err(GuestError::Broken { what, source: ended() }),
            Ok(length) => Ok(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(source) => Err(GuestError::Broken { what, source }),
        }
    }
}

fn not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Lines, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let lines = Lines { what: "test", reader: BufReader::new(ours), partial: Vec::new() };
        (lines, theirs)
    }

    #[test]
    fn a_line_may_come_in_pieces_with_silence_between() {
        let (mut lines, mut theirs) = pair();
        theirs.write_all(b"hel").unwrap();
        let silent = lines.next(Duration::from_millis(20));
        assert!(matches!(silent, Err(GuestError::Silent { .. })), "{silent:?}");
        theirs.write_all(b"lo\nnext").unwrap();
        assert_eq!(lines.next(Duration::from_secs(5)).unwrap(), "hello");
        let until = Instant::now() + Duration::from_secs(5);
        assert_eq!(lines.bytes(4, until).unwrap(), b"next");
        drop(theirs);
        let broken = lines.next(Duration::from_secs(5));
        assert!(matches!(broken, Err(GuestError::Broken { .. })), "{broken:?}");
    }
}
