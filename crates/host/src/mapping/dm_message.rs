//! Messages to device-mapper and back, as bytes: a header, and behind it a table or a list.
//!
//! ```text
//! header  312 bytes: version, sizes, counts, flags, device, name, uuid
//! table   for each target: start, length, status, next (32 bits), kind (16 bytes), then its parameters as text
//! list    for each device: number, next (32 bits), its name as text
//! ```
//!
//! Fixed layouts of the kernel, in the byte order of the machine. What comes back is read with every length checked.

use std::io;

use crate::kernel_id::{DeviceNumber, device_number};

pub(super) const HEADER_BYTES: usize = 312;
const DATA_STARTS: u32 = 312;
const TARGET_BYTES: usize = 40;
const KIND_BYTES: usize = 16;

const DATA_SIZE_AT: usize = 12;
const DATA_START_AT: usize = 16;
const TARGET_COUNT_AT: usize = 20;
const FLAGS_AT: usize = 28;
const DEVICE_AT: usize = 40;
const NAME_AT: usize = 48;
const UUID_AT: usize = 176;
const NAME_BYTES: usize = 128;
const UUID_BYTES: usize = 129;

pub(super) const READ_ONLY: u32 = 1;
pub(super) const SUSPENDED: u32 = 1 << 1;
pub(super) const STATUS_TABLE: u32 = 1 << 4;
pub(super) const HAS_TABLE: u32 = 1 << 5;
pub(super) const BUFFER_FULL: u32 = 1 << 8;
pub(super) const SKIP_LOCKFS: u32 = 1 << 10;
pub(super) const NO_FLUSH: u32 = 1 << 11;

/// One line of a table, in sectors of 512 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) start: u64,
    pub(super) length: u64,
    /// Such as `linear` or `error`.
    pub(super) kind: String,
    pub(super) parameters: String,
}

/// A message, with room for the answer behind the header.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) bytes: Vec<u8>,
}

impl Message {
    /// A question about the device of that name, with `room` bytes for the answer.
    pub(super) fn new(name: &str, flags: u32, room: usize) -> io::Result<Self> {
        let mut message = Self { bytes: vec![0; HEADER_BYTES + room] };
        let size = u32::try_from(message.bytes.len()).map_err(|_| too_long("a message"))?;
        // The interface of every kernel since 2.6; newer minors only add to it.
        message.put(0, &4_u32.to_ne_bytes());
        message.put(DATA_SIZE_AT, &size.to_ne_bytes());
        message.put(DATA_START_AT, &DATA_STARTS.to_ne_bytes());
        message.put(FLAGS_AT, &flags.to_ne_bytes());
        message.put_text(NAME_AT, NAME_BYTES, name)?;
        Ok(message)
    }

    /// With the uuid that a new device gets.
    pub(super) fn with_uuid(mut self, uuid: &str) -> io::Result<Self> {
        self.put_text(UUID_AT, UUID_BYTES, uuid)?;
        Ok(self)
    }

    /// With a table.
    pub(super) fn with_table(name: &str, flags: u32, targets: &[Target]) -> io::Result<Self> {
        let mut data = Vec::new();
        for target in targets {
            let text = target.parameters.as_bytes();
            let kind = target.kind.as_bytes();
            if kind.len() >= KIND_BYTES || text.contains(&0) {
                return Err(too_long("a target"));
            }
            let length = (TARGET_BYTES + text.len() + 1).next_multiple_of(8);
            let mut spec = vec![0; length];
            let next = u32::try_from(length).map_err(|_| too_long("a target"))?;
            spec[0..8].copy_from_slice(&target.start.to_ne_bytes());
            spec[8..16].copy_from_slice(&target.length.to_ne_bytes());
            spec[20..24].copy_from_slice(&next.to_ne_bytes());
            spec[24..24 + kind.len()].copy_from_slice(kind);
            spec[TARGET_BYTES..TARGET_BYTES + text.len()].copy_from_slice(text);
            data.extend(spec);
        }
        let count = u32::try_from(targets.len()).map_err(|_| too_long("a table"))?;
        let mut message = Self::new(name, flags, data.len())?;
        message.put(TARGET_COUNT_AT, &count.to_ne_bytes());
        message.put(HEADER_BYTES, &data);
        Ok(message)
    }

    pub(super) fn flags(&self) -> u32 {
        self.u32_at(FLAGS_AT).unwrap_or(0)
    }

    pub(super) fn device(&self) -> DeviceNumber {
        device_number(self.u64_at(DEVICE_AT).unwrap_or(0))
    }

    pub(super) fn uuid(&self) -> String {
        self.text_at(UUID_AT, UUID_AT + UUID_BYTES).unwrap_or_default()
    }

    /// The table in an answer. Offsets in it count from its beginning.
    pub(super) fn table(&self) -> io::Result<Vec<Target>> {
        let count = self.u32_at(TARGET_COUNT_AT)?;
        // A device without a table answers with less than a header.
        if count == 0 {
            return Ok(vec![]);
        }
        let (begin, end) = self.data()?;
        let mut targets = Vec::new();
        let mut at = begin;
        for _ in 0..count {
            if at + TARGET_BYTES > end {
                return Err(cut());
            }
            let next = begin + usize::try_from(self.u32_at(at + 20)?).map_err(|_| cut())?;
            if next <= at + TARGET_BYTES {
                return Err(cut());
            }
            // Behind the last one the answer ends without what would align the next.
            let text_end = next.min(end);
            targets.push(Target {
                start: self.u64_at(at)?,
                length: self.u64_at(at + 8)?,
                kind: self.text_at(at + 24, at + TARGET_BYTES)?,
                parameters: self.text_at(at + TARGET_BYTES, text_end)?,
            });
            at = next;
        }
        Ok(targets)
    }

    /// The devices in an answer. Offsets in it count from each entry.
    pub(super) fn devices(&self) -> io::Result<Vec<(String, DeviceNumber)>> {
        const NAME_BEGINS: usize = 12;
        let (begin, end) = self.data()?;
        let mut devices = Vec::new();
        let mut at = begin;
        if begin == end {
            return Ok(devices);
        }
        loop {
            if at + NAME_BEGINS > end {
                return Err(cut());
            }
            let (device, next) = (self.u64_at(at)?, self.u32_at(at + 8)?);
            if device != 0 {
                let name = self.text_at(at + NAME_BEGINS, end)?;
                devices.push((name, device_number(device)));
            }
            // The list ends so; some kernels give a single entry without a device for an empty one, others nothing.
            if next == 0 {
                return Ok(devices);
            }
            at += usize::try_from(next).map_err(|_| cut())?;
        }
    }

    fn data(&self) -> io::Result<(usize, usize)> {
        let begin = usize::try_from(self.u32_at(DATA_START_AT)?).map_err(|_| cut())?;
        let end = usize::try_from(self.u32_at(DATA_SIZE_AT)?).map_err(|_| cut())?;
        if begin < HEADER_BYTES || begin > end || end > self.bytes.len() {
            return Err(cut());
        }
        Ok((begin, end))
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Zeros follow: the message was made of them.
    fn put_text(&mut self, at: usize, room: usize, text: &str) -> io::Result<()> {
        if text.len() >= room || text.contains('\0') {
            return Err(too_long("a name"));
        }
        self.put(at, text.as_bytes());
        Ok(())
    }

    fn u32_at(&self, at: usize) -> io::Result<u32> {
        let bytes = self.bytes.get(at..at + 4).ok_or_else(cut)?;
        Ok(u32::from_ne_bytes(bytes.try_into().map_err(|_| cut())?))
    }

    fn u64_at(&self, at: usize) -> io::Result<u64> {
        let bytes = self.bytes.get(at..at + 8).ok_or_else(cut)?;
        Ok(u64::from_ne_bytes(bytes.try_into().map_err(|_| cut())?))
    }

    /// The text that begins at a byte and ends with a zero, or at `end`.
    fn text_at(&self, at: usize, end: usize) -> io::Result<String> {
        let bytes = self.bytes.get(at..end).ok_or_else(cut)?;
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "device-mapper's answer is cut")
}

fn too_long(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{what} is too long for device-mapper"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(start: u64, length: u64, parameters: &str) -> Target {
        Target { start, length, kind: "linear".into(), parameters: parameters.into() }
    }

    #[test]
    fn a_question_is_laid_out_as_the_kernel_reads_it() {
        let message =
            Message::new("hotbay-1", READ_ONLY, 8).unwrap().with_uuid("HOTBAY-1").unwrap();
        assert_eq!(message.bytes.len(), 320);
        assert_eq!(message.bytes[..4], 4_u32.to_ne_bytes());
        assert_eq!(message.bytes[12..16], 320_u32.to_ne_bytes());
        assert_eq!(message.bytes[16..20], 312_u32.to_ne_bytes());
        assert_eq!(message.bytes[28..32], 1_u32.to_ne_bytes());
        assert_eq!(message.bytes[48..57], *b"hotbay-1\0");
        assert_eq!(message.bytes[176..185], *b"HOTBAY-1\0");
        assert!(Message::new(&"n".repeat(127), 0, 0).is_ok());
        assert!(Message::new(&"n".repeat(128), 0, 0).is_err());
        assert!(Message::new("a\0b", 0, 0).is_err());
    }

    #[test]
    fn a_table_is_laid_out_as_the_kernel_reads_it() {
        let targets = [linear(0, 8, "8:0 4096"), linear(8, 16, "8:16 0")];
        let message = Message::with_table("x", 0, &targets).unwrap();
        assert_eq!(message.bytes[20..24], 2_u32.to_ne_bytes());
        let data = &message.bytes[HEADER_BYTES..];
        assert_eq!(data[8..16], 8_u64.to_ne_bytes());
        // From this target to the next: 40 bytes, the text and its zero, to a whole multiple of 8.
        assert_eq!(data[20..24], 56_u32.to_ne_bytes());
        assert_eq!(data[24..31], *b"linear\0");
        assert_eq!(data[40..49], *b"8:0 4096\0");
        assert_eq!(data[56..64], 8_u64.to_ne_bytes());
        assert_eq!(data[96..103], *b"8:16 0\0");
        assert_eq!(data.len(), 104);
    }

    /// As the kernel answers: `next` counts from the beginning of the table, and the answer ends with the zero of the
    /// last text.
    fn answered(targets: &[Target]) -> Message {
        let mut message = Message::with_table("x", 0, targets).unwrap();
        let mut at = HEADER_BYTES;
        for _ in targets {
            let next = message.u32_at(at + 20).unwrap() + u32::try_from(at - HEADER_BYTES).unwrap();
            message.put(at + 20, &next.to_ne_bytes());
            at = HEADER_BYTES + usize::try_from(next).unwrap();
        }
        let last = targets.last().unwrap().parameters.len() + 1;
        let padding = (TARGET_BYTES + last).next_multiple_of(8) - TARGET_BYTES - last;
        let size = message.bytes.len() - padding;
        message.put(DATA_SIZE_AT, &u32::try_from(size).unwrap().to_ne_bytes());
        message.bytes.truncate(size);
        message
    }

    #[test]
    fn a_table_is_read_and_a_cut_one_is_not() {
        let error = Target { kind: "error".into(), ..linear(24, 8, "") };
        let targets = [linear(0, 8, "8:0 4096"), linear(8, 16, "8:16 0"), error];
        let whole = answered(&targets);
        assert_eq!(whole.table().unwrap(), targets);
        let mut none = whole.clone();
        none.put(TARGET_COUNT_AT, &[0; 4]);
        none.put(DATA_SIZE_AT, &305_u32.to_ne_bytes());
        assert_eq!(none.table().unwrap(), []);
        for end in 0..whole.bytes.len() {
            let mut cut = whole.clone();
            cut.bytes.truncate(end);
            assert!(cut.table().is_err(), "{end}");
        }
        for at in 0..whole.bytes.len() {
            let mut changed = whole.clone();
            changed.bytes[at] ^= 0xff;
            // Whatever it comes to, it ends and stays within the message.
            let _ = (changed.table(), changed.devices());
        }
    }

    #[test]
    fn a_list_is_read_and_ends() {
        let list = |entries: &[(u64, u32, &[u8])]| {
            let mut data = Vec::new();
            for (device, next, name) in entries {
                data.extend(device.to_ne_bytes());
                data.extend(next.to_ne_bytes());
                data.extend(*name);
                data.resize(data.len().next_multiple_of(8), 0);
            }
            let mut message = Message::new("", 0, data.len()).unwrap();
            message.put(HEADER_BYTES, &data);
            message.devices()
        };
        assert_eq!(list(&[(0, 0, b"")]).unwrap(), []);
        assert_eq!(list(&[]).unwrap(), []);
        let found = list(&[(0xfd00, 24, b"hotbay-1\0"), (0xfd01, 0, b"swap\0")]).unwrap();
        let number = |minor| DeviceNumber { major: 253, minor };
        assert_eq!(found, [("hotbay-1".into(), number(0)), ("swap".into(), number(1))]);
        assert!(list(&[(0xfd00, 4096, b"a\0")]).is_err());
    }
}
