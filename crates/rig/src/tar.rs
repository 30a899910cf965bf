//! Just enough of the tar format, as POSIX has it (ustar), to write an image. `image` is the only caller.

use std::io;

const BLOCK: usize = 512;
const NAME_MAX: usize = 100;

/// An archive being written. Everything in it belongs to root and is of 1970: the same files make the same archive.
#[derive(Debug, Default)]
pub(crate) struct Tar {
    bytes: Vec<u8>,
}

impl Tar {
    pub(crate) fn file(&mut self, path: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.header(path, mode, contents.len(), b'0', "")?;
        self.bytes.extend_from_slice(contents);
        self.pad();
        Ok(())
    }

    pub(crate) fn link(&mut self, path: &str, to: &str) -> io::Result<()> {
        self.header(path, 0o777, 0, b'2', to)
    }

    pub(crate) fn folder(&mut self, path: &str) -> io::Result<()> {
        self.header(&format!("{path}/"), 0o755, 0, b'5', "")
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&[0; 2 * BLOCK]);
        self.bytes
    }

    fn header(
        &mut self,
        name: &str,
        mode: u32,
        size: usize,
        kind: u8,
        link: &str,
    ) -> io::Result<()> {
        if name.len() > NAME_MAX || link.len() > NAME_MAX {
            let why = format!("{name}: at most {NAME_MAX} bytes fit");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut header = [0; BLOCK];
        let mut put = |at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, name);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{size:011o}"));
        put(136, "00000000000");
        // The sum is over the header with spaces in its own place.
        put(148, "        ");
        put(157, link);
        put(257, "ustar");
        put(263, "00");
        header[156] = kind;
        let sum: u32 = header.iter().copied().map(u32::from).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.bytes.extend_from_slice(&header);
        Ok(())
    }

    fn pad(&mut self) {
        let length = self.bytes.len().next_multiple_of(BLOCK);
        self.bytes.resize(length, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_does_not_fit_is_refused() {
        let mut tar = Tar::default();
        assert!(tar.file(&"x".repeat(101), 0o644, b"").is_err());
        assert!(tar.link("x", &"y".repeat(101)).is_err());
        assert_eq!(tar.finish().len(), 2 * BLOCK);
    }
}
