//! The bytes under the registry: which records exist, and when a change to them is durable.
//!
//! The registry's actor is the only caller. It loads everything once at its start, then only
//! commits; what a record means is none of this module's business. Two stores here keep the same
//! promises: [`RedbStore`](embedded::RedbStore), one redb file in the data directory, and
//! [`MemoryStore`](memory::MemoryStore), its twin for tests and simulation, with faults on request.
//! On Kubernetes a third keeps each record as an object of its own.
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
use hotbay_core::cluster::RecordKey;
use hotbay_core::ids::{AttachmentId, ClusterId, DriveId, NodeId, VolumeId};
use hotbay_core::order::Term;

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
    /// Of the registry's own record.
    pub const REGISTRY: Self = Self { kind: Kind::Registry, id: 0 };

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

impl From<RecordKey> for Key {
    fn from(key: RecordKey) -> Self {
        let (kind, id) = match key {
            RecordKey::Registry => (Kind::Registry, 0),
            RecordKey::Node(id) => (Kind::Node, id.to_bits()),
            RecordKey::Drive(id) => (Kind::Drive, id.to_bits()),
            RecordKey::Volume(id) => (Kind::Volume, id.to_bits()),
            RecordKey::Attachment(id) => (Kind::Attachment, id.to_bits()),
        };
        Self { kind, id }
    }
}

impl From<Key> for RecordKey {
    fn from(key: Key) -> Self {
        match key.kind {
            Kind::Registry => Self::Registry,
            Kind::Node => Self::Node(NodeId::from_bits(key.id)),
            Kind::Drive => Self::Drive(DriveId::from_bits(key.id)),
            Kind::Volume => Self::Volume(VolumeId::from_bits(key.id)),
            Kind::Attachment => Self::Attachment(AttachmentId::from_bits(key.id)),
        }
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

impl Write {
    /// The record that it changes.
    pub const fn key(&self) -> Key {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => *key,
        }
    }
}

/// Hears how a write has ended, on any thread.
pub type WhenEnded = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// What a store knows of a registry that is new, or has lost its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// The cluster that every registry in this store is of. None: a new one is drawn.
    pub cluster: Option<ClusterId>,
    /// The newest term that other records were written under, where each record tells.
    pub newest_term: Option<Term>,
}

/// Keeps records. Calls block for as long as the disk, or the server, takes.
pub trait Store: Send + 'static {
    /// Every record, in key order. Called at start.
    fn load(&mut self) -> Result<Vec<(Key, Vec<u8>)>, StoreError>;

    /// Applies the writes of one action in their order; durable when it returns `Ok`.
    ///
    /// After an error the outcome is unknown (unless it is [`StoreError::TooLong`]: nothing was
    /// written). A store of one process then has all of the writes or none; a shared one keeps each
    /// record by itself, and may have any first few of them: each such state is one that the planner
    /// finishes. [`Store::read`] tells. The same writes may be committed again as long as
    /// [`StoreError::retryable`] says so.
    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError>;

    /// Begins to write one record, where each is kept by itself; `ended` hears when it is durable,
    /// or why it is not. Several may be under way, of different records. What is not durable may be
    /// begun again, with a later state of the record too.
    fn begin(&mut self, write: Write, ended: WhenEnded) {
        ended(self.commit(std::slice::from_ref(&write)));
    }

    /// Whether other processes may write to it, until they hear that another leads, and each record
    /// is kept by itself. The records are loaded after a new term stands in it, and written by
    /// [`Store::begin`].
    fn is_shared(&self) -> bool {
        false
    }

    /// The record as it is durable now.
    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError>;

    /// What is known of a registry whose own record is not there.
    fn origin(&mut self) -> Result<Origin, StoreError> {
        Ok(Origin::default())
    }
}

/// Refuses a value that is too long before anything of its commit is written.
pub fn refuse_too_long(writes: &[Write], most: usize) -> Result<(), StoreError> {
    for write in writes {
        if let Write::Put { key, value } = write
            && value.len() > most
        {
            return Err(StoreError::TooLong { key: *key, bytes: value.len(), most });
        }
    }
    Ok(())
}

/// For a store that writes all as one: each write carries a whole record, so only the last of each
/// counts.
pub(crate) fn keep_last_of_each(writes: &mut Vec<Write>) {
    let mut later = std::collections::BTreeSet::new();
    let mut kept: Vec<_> = std::mem::take(writes)
        .into_iter()
        .rev()
        .filter(|write| later.insert(write.key()))
        .collect();
    kept.reverse();
    *writes = kept;
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
