//! Fills a store that holds nothing with the records of a registry that was lost: `hotbay recover`.

use std::path::{Path, PathBuf};

use hotbay_core::cluster::{Records, Write as Change};
use thiserror::Error;

use super::Store;
use super::embedded::RedbStore;
use super::error::StoreError;
use super::file::STORE_NAME;
use crate::codec;

/// Why a store was not filled. Nothing has changed in it.
#[derive(Debug, Error)]
pub enum FillError {
    #[error("{} is not empty: it holds {records} records", path.display())]
    NotEmpty { path: PathBuf, records: usize },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writes records into the store of a data directory, all of them or none; durable when it returns. Makes the store if
/// there is none, and refuses one that holds anything, or that a registry runs on.
pub fn fill(data_dir: &Path, records: Records) -> Result<(), FillError> {
    let mut store = RedbStore::open(data_dir)?;
    let held = store.load()?.len();
    if held > 0 {
        return Err(FillError::NotEmpty { path: data_dir.join(STORE_NAME), records: held });
    }
    let Records { registry, nodes, drives, volumes, attachments } = records;
    let changes = registry.into_iter().map(Change::Registry);
    let changes = changes.chain(nodes.into_iter().map(Change::Node));
    let changes = changes.chain(volumes.into_iter().map(|record| Change::Volume(Box::new(record))));
    let changes = changes.chain(drives.into_iter().map(|record| Change::Drive(Box::new(record))));
    let changes = changes.chain(attachments.into_iter().map(Change::Attachment));
    let writes: Vec<_> = changes.map(|change| codec::encode(&change)).collect();
    Ok(store.commit(&writes)?)
}

#[cfg(test)]
mod tests {
    use hotbay_core::cluster::RegistryRecord;
    use hotbay_core::ids::{CertificateNumber, ClusterId};

    use super::*;

    fn records(cluster: u128) -> Records {
        let registry = RegistryRecord {
            cluster: ClusterId::from_bits(cluster),
            terms: Vec::new(),
            newest_certificate: CertificateNumber::default(),
        };
        Records { registry: Some(registry), ..Records::default() }
    }

    #[test]
    fn only_an_empty_store_is_filled() {
        let dir = tempfile::tempdir().expect("a folder");
        drop(RedbStore::open(dir.path()).expect("an empty store"));
        fill(dir.path(), records(1)).expect("it is empty");
        let load = || RedbStore::open(dir.path()).and_then(|mut store| store.load());
        let before = load().expect("a sound store");
        assert_eq!(codec::decode(before.clone()).expect("readable"), records(1));
        let refused = fill(dir.path(), records(2)).expect_err("it holds a cluster");
        assert!(matches!(refused, FillError::NotEmpty { records: 1, .. }), "{refused:?}");
        assert_eq!(load().expect("a sound store"), before);
    }
}
