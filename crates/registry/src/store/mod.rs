//! The bytes under the registry: which records exist, and when a change to them is durable.
//!
//! The registry's actor is the only caller. It loads everything once at its start, then only
//! commits; what a record means is none of this module's business. Two stores keep the same
//! promises: [`RedbStore`](embedded::RedbStore), one redb file in the data directory, and
//! [`MemoryStore`](memory::MemoryStore), its twin for tests and simulation, with faults on request.
//!
//! ```text
//! data directory ── lock ── file (made, named, opened) ── verify (on a scratch copy) ── embedded
//!                     └──── check (reads only)  ────────────┘
//! ```

pub mod check;
pub mod embedded;
pub mod error;
pub mod file;
pub mod fill;
pub mod lock;
pub mod medium;
pub mod memory;
mod verify;

use std::fmt;

use error::StoreError;

/// The longest value a store takes. A record is a few KiB; one this long is a mistake of the
/// caller.
pub const VALUE_MAX_BYTES: usize = 16 << 20;

/// What a record is about. The code is part of the file format: never re-used, never re-numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    Registry = 1,
    Node = 2,
    Drive = 3,
    Volume = 4,
    Attachment = 5,
}

impl Kind {
    /// Every kind, in the order of the keys.
    pub const ALL: [Self; 5] =
        [Self::Registry, Self::Node, Self::Drive, Self::Volume, Self::Attachment];

    /// The byte that stands for this kind in a key.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind behind a byte of a key, or nothing if this program does not know it.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The word for it in messages and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registry => "registry",
            Self::Node => "node",
            Self::Drive => "drive",
            Self::Volume => "volume",
            Self::Attachment => "attachment",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Names one record. Ordered by kind, then by id, as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    pub id: u128,
}

impl Key {
    /// Length of [`Key::to_bytes`].
    pub const BYTES: usize = 17;

    /// The key as the file has it: the kind's code, then the id with its highest byte first, so
    /// that bytes sort as keys do.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.kind.code();
        bytes[1..].copy_from_slice(&self.id.to_be_bytes());
        bytes
    }

    /// Reads a key back; nothing if its kind is unknown.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (code, id) = bytes.split_first().expect("a key has 17 bytes");
        let id = u128::from_be_bytes(id.try_into().expect("16 bytes follow the kind"));
        Some(Self { kind: Kind::from_code(*code)?, id })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:032x}", self.kind, self.id)
    }
}

/// One change to one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Makes the record or replaces it as a whole.
    Put { key: Key, value: Vec<u8> },
    /// Removes the record; one that is not there is no error.
    Delete { key: Key },
}

/// Keeps records. Calls block for as long as the disk takes.
pub trait Store: Send + 'static {
    /// Every record, in key order. Called once at start.
    fn load(&mut self) -> Result<Vec<(Key, Vec<u8>)>, StoreError>;

    /// Applies the writes in their order, all or none; durable when it returns `Ok`.
    ///
    /// After an error the outcome is unknown (unless it is [`StoreError::TooLong`]: nothing was
    /// written): the writes may be there as a whole, or not at all. [`Store::read`] tells which.
    /// The same writes may be committed again as long as [`StoreError::retryable`] says so.
    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError>;

    /// The record as it is durable now.
    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError>;
}

/// Refuses a value that is too long before anything of its commit is written.
fn refuse_too_long(writes: &[Write]) -> Result<(), StoreError> {
    for write in writes {
        if let Write::Put { key, value } = write
            && value.len() > VALUE_MAX_BYTES
        {
            return Err(StoreError::TooLong { key: *key, bytes: value.len() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_bytes_do_and_read_back() {
        let ids = [0, 1, 0xff, 0x100, u128::MAX / 2, u128::MAX];
        let mut keys: Vec<Key> =
            Kind::ALL.iter().flat_map(|&kind| ids.map(|id| Key { kind, id })).collect();
        keys.sort();
        let bytes: Vec<_> = keys.iter().map(|key| key.to_bytes()).collect();
        assert!(bytes.is_sorted());
        for (key, bytes) in keys.iter().zip(&bytes) {
            assert_eq!(Key::from_bytes(bytes), Some(*key));
        }
    }

    #[test]
    fn a_key_of_an_unknown_kind_is_no_key() {
        let mut bytes = Key { kind: Kind::Drive, id: 7 }.to_bytes();
        bytes[0] = 9;
        assert_eq!(Key::from_bytes(&bytes), None);
    }
}
