//! Proves a store's file sound before anything is written to it, and knows what is in it.
//!
//! redb finds damaged pages only when asked, and repairs by writing. So each open, and `hotbay
//! store check`, first walks the whole file through a scratch copy: every checksum, the lists of
//! free pages, the format version, every key. What is refused here is untouched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{
    Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition, TableError,
};

use super::Key;
use super::error::StoreError;
use super::medium::Scratch;

/// The format this program writes, and the only one it reads.
pub(super) const FORMAT: u64 = 1;
pub(super) const FORMAT_ENTRY: &str = "format";
pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
pub(super) const RECORDS: TableDefinition<'_, &[u8; Key::BYTES], &[u8]> =
    TableDefinition::new("records");

/// The registry keeps its records in memory itself; redb's own cache (1 GiB unless told) can be
/// small.
pub(super) const CACHE_BYTES: usize = 8 << 20;

/// What is known of a file that was found sound.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verified {
    /// The last process that wrote to it did not close it.
    pub(super) unclean_stop: bool,
}

/// Walks all of `backend` without changing it, and hands each record to `each`.
pub(super) fn verify(
    path: &Path,
    backend: impl StorageBackend,
    each: &mut dyn FnMut(&[u8; Key::BYTES], &[u8]),
) -> Result<Verified, StoreError> {
    let scratch =
        Scratch::over(backend).map_err(|error| StoreError::from_io(path, "read", error))?;
    if scratch.len().map_err(|error| StoreError::from_io(path, "read", error))? == 0 {
        return Err(StoreError::Empty { path: path.to_path_buf() });
    }
    // On damaged pages redb may stop by a panic as well as by an error.
    match catch_unwind(AssertUnwindSafe(|| walk(scratch, each))) {
        Ok(Ok((FORMAT, verified))) => Ok(verified),
        Ok(Ok((found, _))) => {
            Err(StoreError::OtherFormat { path: path.to_path_buf(), found, reads: FORMAT })
        }
        Ok(Err(error)) => Err(StoreError::from_redb(path, "read", error)),
        Err(_) => Err(StoreError::Damaged {
            path: path.to_path_buf(),
            what: "its pages contradict each other".into(),
        }),
    }
}

fn walk(
    scratch: impl StorageBackend,
    each: &mut dyn FnMut(&[u8; Key::BYTES], &[u8]),
) -> Result<(u64, Verified), redb::Error> {
    let repaired = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&repaired);
    let mut database = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .set_repair_callback(move |_| told.store(true, Ordering::Relaxed))
        .create_with_backend(scratch)?;
    // A commit that was cut short is left out by the open itself, and what remains must be whole.
    if !database.check_integrity()? {
        return Err(redb::Error::Corrupted(
            "its lists of pages in use do not match its pages".to_owned(),
        ));
    }
    let format = format_of(&database)?;
    if format == FORMAT {
        let records = database.begin_read()?.open_table(RECORDS)?;
        for entry in records.iter()? {
            let (key, value) = entry?;
            each(key.value(), value.value());
        }
    }
    let unclean_stop = repaired.load(Ordering::Relaxed);
    Ok((format, Verified { unclean_stop }))
}

fn format_of(database: &Database) -> Result<u64, redb::Error> {
    let none = || redb::Error::Corrupted("it holds no format version".to_owned());
    let meta = match database.begin_read()?.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Err(none()),
        Err(error) => return Err(error.into()),
    };
    let format = meta.get(FORMAT_ENTRY)?.ok_or_else(none)?;
    Ok(format.value())
}
