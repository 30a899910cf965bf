//! What can go wrong with a store, in words that say where and what to do next.
//!
//! The actor asks [`StoreError::retryable`] whether to try the same commit again or to give up; the
//! program prints the rest.

use std::io;
use std::path::{Path, PathBuf};

use hotbay_core::order::Term;
use hotbay_core::words::plain;
use thiserror::Error;

use super::Key;
use super::lock::LockError;

/// Why a store could not be opened, read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error(
        "the data directory {} does not exist, and neither does the directory above it; create it \
         or name another one", path.display()
    )]
    NoDataDirectory { path: PathBuf },

    #[error("{} is not a directory; name a directory for the registry's data", path.display())]
    NotADirectory { path: PathBuf },

    #[error(
        "{} cannot be written: the file system is mounted read-only; remount it read-write or name \
         another data directory", path.display()
    )]
    ReadOnly { path: PathBuf },

    #[error(
        "no permission for {}; run as its owner, or give this user access to it", path.display()
    )]
    NoPermission { path: PathBuf },

    #[error(
        "{} is not a regular file; the registry keeps its records in a file of that name: move \
         away what is there", path.display()
    )]
    NotAFile { path: PathBuf },

    #[error(
        "{} is empty (0 bytes); a registry never leaves it so: restore it from a backup, or move \
         it away and rebuild the registry from the drives with `hotbay recover`", path.display()
    )]
    Empty { path: PathBuf },

    #[error(transparent)]
    Locked(#[from] LockError),

    #[error(
        "{} has format version {found}, and this program reads version {reads}; start the version \
         of hotbay that wrote it. Nothing was changed", path.display()
    )]
    OtherFormat { path: PathBuf, found: u64, reads: u64 },

    #[error(
        "{} was written by another version of the redb library (its file format {found}); start \
         the version of hotbay that wrote it. Nothing was changed", path.display()
    )]
    OtherLibraryFormat { path: PathBuf, found: u8 },

    #[error(
        "{} is damaged: {what}. Nothing was changed. Keep a copy, then restore it from a backup, \
         or move it away and rebuild the registry from the drives with `hotbay recover`",
        path.display()
    )]
    Damaged { path: PathBuf, what: String },

    #[error("no space left for {}; free some space on its file system", path.display())]
    NoSpace {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    #[error("cannot {action} {}", path.display())]
    Io {
        path: PathBuf,
        action: &'static str,
        #[source]
        source: io::Error,
    },

    #[error("the record of {key} has {bytes} bytes, and at most {most} can be stored")]
    TooLong { key: Key, bytes: usize, most: usize },

    #[error("the record of {key} cannot be stored: {what}")]
    Unfit { key: Key, what: String },

    #[error("cannot {action} {object} now")]
    Unreachable {
        action: &'static str,
        object: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    #[error("the server refuses to {action} {object}: {what}")]
    Refused { action: &'static str, object: String, what: String },

    #[error(
        "another controller leads: {object} was written under term {by}, and this one has term {ours}"
    )]
    Deposed { object: String, by: Term, ours: Term },

    #[error(
        "the lead of this controller could not be renewed in time; another one takes over, or this one \
         after a new start"
    )]
    LeadEnded,

    #[error(
        "{object} was written by the controller that led before, after this one had read it; start \
         again"
    )]
    Overtaken { object: String },

    #[error(
        "{object} says that the records have format version {found}, and this release reads up to {reads}: a newer \
         release has written them; start that one. Nothing was changed"
    )]
    NewerFormat { object: String, found: u64, reads: u64 },

    #[error(
        "the records have gone back in time: {object} is older now than it was before, as after etcd was restored \
         from a backup. Nothing is decided on what this controller remembers; the next start compares the records \
         with what the agents know, and `hotbay registry adopt` shows the differences"
    )]
    WentBack { object: String },

    #[error(
        "the status of {object} was changed by hand and is not what a controller has written; \
         restore it from a backup, or delete {object}: it is made again, above all that the other objects say, and \
         what only the agents know is shown and taken over by `hotbay registry adopt`"
    )]
    Edited { object: String },
}

impl StoreError {
    /// Whether the same call may succeed later without anyone changing the store itself.
    pub fn retryable(&self) -> bool {
        match self {
            Self::NoSpace { .. } | Self::Io { .. } => true,
            // A disk that fails is often turned read-only by the kernel; a person can turn it back.
            Self::ReadOnly { .. } | Self::NoPermission { .. } => true,
            // Rights and definitions that are missing are given by a person, while this waits.
            Self::Unreachable { .. } | Self::Refused { .. } => true,
            Self::NoDataDirectory { .. }
            | Self::NotADirectory { .. }
            | Self::NotAFile { .. }
            | Self::Empty { .. }
            | Self::Locked(_)
            | Self::OtherFormat { .. }
            | Self::OtherLibraryFormat { .. }
            | Self::Damaged { .. }
            | Self::TooLong { .. }
            | Self::Unfit { .. }
            | Self::Deposed { .. }
            | Self::LeadEnded
            | Self::Overtaken { .. }
            | Self::WentBack { .. }
            | Self::NewerFormat { .. }
            | Self::Edited { .. } => false,
        }
    }

    /// A lock that could not even be tried for is a matter of the directory, not of another
    /// process.
    pub(super) fn from_lock(error: LockError) -> Self {
        match error {
            LockError::Io { path, source } => Self::from_io(&path, "lock", source),
            held @ LockError::Held { .. } => Self::Locked(held),
        }
    }

    /// An I/O error with its place, sorted by what the administrator must do about it.
    pub(super) fn from_io(path: &Path, action: &'static str, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { path, source }
            }
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            io::ErrorKind::PermissionDenied => Self::NoPermission { path },
            io::ErrorKind::NotADirectory => Self::NotADirectory { path },
            io::ErrorKind::IsADirectory => Self::NotAFile { path },
            _ => Self::Io { path, action, source },
        }
    }

    /// An error of redb's, with its place.
    pub(super) fn from_redb(path: &Path, action: &'static str, error: redb::Error) -> Self {
        let damaged = |what: String| Self::Damaged { path: path.to_path_buf(), what: plain(&what) };
        match error {
            // redb reports a foreign first page and an end before the last page as I/O errors.
            redb::Error::Io(source) => match source.kind() {
                io::ErrorKind::InvalidData => damaged(source.to_string()),
                io::ErrorKind::UnexpectedEof => damaged("it ends before its last page".into()),
                _ => Self::from_io(path, action, source),
            },
            redb::Error::DatabaseAlreadyOpen => {
                LockError::Held { path: path.to_path_buf(), holder: None }.into()
            }
            redb::Error::UpgradeRequired(found) => {
                Self::OtherLibraryFormat { path: path.to_path_buf(), found }
            }
            // The file may be sound: what is held in memory is not, and is dropped and read again.
            error @ (redb::Error::PreviousIo
            | redb::Error::DatabaseClosed
            | redb::Error::TransactionPoisoned
            | redb::Error::LockPoisoned(_)) => {
                Self::Io { path: path.to_path_buf(), action, source: io::Error::other(error) }
            }
            redb::Error::Corrupted(what) => damaged(what),
            other => damaged(other.to_string()),
        }
    }
}
