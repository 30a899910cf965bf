//! The embedded store: one redb file, one write transaction and two syncs per commit.
//!
//! `hotbay up` and `hotbay demo` run on it. redb refuses all further use after an I/O error, so a
//! failed call closes the file, and the next one opens it again, proving it sound as at the start:
//!
//! ```text
//! Open ── a call fails ──▶ Closed ── next call: forget unwritten pages, verify, open ──▶ Open
//!                             ▲                              │ fails
//!                             └──────────────────────────────┘
//! ```

use std::fmt;
use std::path::Path;

use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend};

use super::error::StoreError;
use super::file::{self, FileMedium};
use super::lock::DataLock;
use super::medium::Medium;
use super::verify::{CACHE_BYTES, FORMAT, FORMAT_ENTRY, META, RECORDS, verify};
use super::{Key, Store, VALUE_MAX_BYTES, Write, refuse_too_long};

/// Keeps records in a redb file, or on another [`Medium`] that holds the bytes of one.
pub struct RedbStore<M: Medium = FileMedium> {
    /// `None` after a failure, until the next call has opened it again.
    database: Option<Database>,
    medium: M,
    /// Let go last: after redb has closed its file.
    _lock: Option<DataLock>,
}

impl RedbStore {
    /// Opens the store in a data directory, for this process alone; makes an empty one if there is
    /// none. Anything there that is not a sound store of this format is refused and left as it is.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        file::prepare_directory(data_dir)?;
        let path = data_dir.join(file::STORE_NAME);
        let lock = DataLock::exclusive(data_dir).map_err(StoreError::from_lock)?;
        if !file::is_there(&path)? {
            file::make(data_dir, make_empty)?;
            tracing::info!(path = %path.display(), "made a new, empty store");
        }
        Self::start(FileMedium::at(path), Some(lock))
    }
}

impl<M: Medium> RedbStore<M> {
    /// Opens the store that a medium holds. The caller sees to it that nobody else uses it.
    pub fn over(medium: M) -> Result<Self, StoreError> {
        Self::start(medium, None)
    }

    fn start(medium: M, lock: Option<DataLock>) -> Result<Self, StoreError> {
        let mut store = Self { database: None, medium, _lock: lock };
        store.database = Some(store.open_medium()?);
        Ok(store)
    }

    fn open_medium(&mut self) -> Result<Database, StoreError> {
        let path = self.medium.path().to_path_buf();
        let failed = |error| StoreError::from_io(&path, "open", error);
        let mut unknown = None;
        let verified = verify(&path, self.medium.open().map_err(failed)?, &mut |key, _| {
            if Key::from_bytes(key).is_none() {
                unknown = Some(key[0]);
            }
        })?;
        if let Some(code) = unknown {
            let what = format!("it holds a record of the unknown kind {code}");
            return Err(StoreError::Damaged { path, what });
        }
        if verified.unclean_stop {
            tracing::warn!(path = %path.display(), "the store was not closed; it is sound");
        }
        let backend = self.medium.open().map_err(failed)?;
        Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(backend)
            .map_err(|error| StoreError::from_redb(&path, "open", error.into()))
    }

    /// Runs `call` on the open database, opening it first if the call before failed.
    fn with<T>(
        &mut self,
        action: &'static str,
        call: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => {
                self.medium
                    .forget_unwritten()
                    .map_err(|error| StoreError::from_io(self.medium.path(), "sync", error))?;
                self.open_medium()?
            }
        };
        // On an error the database is dropped, and so closed, here.
        let value = call(&database)
            .map_err(|error| StoreError::from_redb(self.medium.path(), action, error))?;
        self.database = Some(database);
        Ok(value)
    }
}

impl<M: Medium> Store for RedbStore<M> {
    fn load(&mut self) -> Result<Vec<(Key, Vec<u8>)>, StoreError> {
        self.with("read", |database| {
            records(database)?
                .iter()?
                .map(|entry| {
                    let (key, value) = entry?;
                    let known = Key::from_bytes(key.value());
                    let key = known.ok_or_else(|| {
                        redb::Error::Corrupted("it holds a record of an unknown kind".to_owned())
                    })?;
                    Ok((key, value.value().to_vec()))
                })
                .collect()
        })
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        refuse_too_long(writes, VALUE_MAX_BYTES)?;
        if writes.is_empty() {
            return Ok(());
        }
        self.with("write", |database| {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            // With one sync, damage to the last commit looks like a commit that a crash cut short,
            // and redb goes back by one, silently. With two, what counts was whole, and damage is
            // damage.
            transaction.set_two_phase_commit(true);
            {
                let mut records = transaction.open_table(RECORDS)?;
                for write in writes {
                    match write {
                        Write::Put { key, value } => {
                            records.insert(&key.to_bytes(), value.as_slice())?;
                        }
                        Write::Delete { key } => {
                            records.remove(&key.to_bytes())?;
                        }
                    }
                }
            }
            Ok(transaction.commit()?)
        })
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        self.with("read", |database| {
            let value = records(database)?.get(&key.to_bytes())?;
            Ok(value.map(|value| value.value().to_vec()))
        })
    }
}

impl<M: Medium> fmt::Debug for RedbStore<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore")
            .field("path", &self.medium.path())
            .field("open", &self.database.is_some())
            .finish_non_exhaustive()
    }
}

fn records(
    database: &Database,
) -> Result<ReadOnlyTable<&'static [u8; Key::BYTES], &'static [u8]>, redb::Error> {
    Ok(database.begin_read()?.open_table(RECORDS)?)
}

/// Writes an empty store of this program's format to an empty backend.
pub fn make_empty(path: &Path, backend: impl StorageBackend) -> Result<(), StoreError> {
    let make = || -> Result<(), redb::Error> {
        let database =
            Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?;
        let transaction = database.begin_write()?;
        transaction.open_table(META)?.insert(FORMAT_ENTRY, FORMAT)?;
        transaction.open_table(RECORDS)?;
        Ok(transaction.commit()?)
    };
    make().map_err(|error| StoreError::from_redb(path, "make", error))
}
