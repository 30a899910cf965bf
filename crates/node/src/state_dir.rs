//! The agent's own folder: its record, its identity, and the id that tells this folder from a copy on another machine.
//!
//! ```text
//! DIR/identity    cluster and node id
//! DIR/term        the newest term accepted
//! DIR/record      goals and orders, per drive
//! DIR/folder-id   drawn once; part of the machine's id
//! DIR/stagings/   how each staged volume is shown to pods, see [`crate::volumes`]
//! DIR/dummies/    the files behind the dummies of block volumes
//! DIR/tls/        membership of a registry on another machine, see [`crate::membership`]
//! ```
//!
//! Each file is one line with magic and checksum, then JSON. It is replaced by rename, so that a crash leaves the old
//! or the new one whole. Damage is told from absence: a file that does not check is never taken for none.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hotbay_core::agent::{AgentRecord, Identity, Kept, RecordFound};
use hotbay_core::ids::MachineId;
use hotbay_core::order::Term;
use hotbay_core::words::plain;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use uuid::Uuid;

const MAGIC: &str = "hotbay-agent 1";
/// Larger than any record: a thousand drives take less than 1 MiB.
const FILE_LIMIT_BYTES: u64 = 64 << 20;

/// Why the folder cannot be used.
#[derive(Debug, Error)]
pub enum StateDirError {
    #[error("cannot use the folder {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is damaged: {why}; move it away to give this machine a new identity", path.display())]
    FolderId { path: PathBuf, why: String },
}

/// What a file held.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<T> {
    Nothing,
    Damaged(String),
    Value(T),
}

/// The folder, open for business.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    path: PathBuf,
    checkpoint: fn(&'static str),
}

impl StateDir {
    /// Makes the folder if it is missing.
    pub(crate) fn open(path: &Path, checkpoint: fn(&'static str)) -> Result<Self, StateDirError> {
        let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(path);
        made.map_err(|source| StateDirError::Folder { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), checkpoint })
    }

    /// The folder as it is, to be read alone.
    pub(crate) fn as_it_is(path: &Path) -> Self {
        Self { path: path.to_owned(), checkpoint: |_| {} }
    }

    /// What is on disk from earlier starts.
    pub(crate) fn load(&self) -> RecordFound {
        let kept = match (self.read("identity"), self.read("term")) {
            (Found::Value(identity), Found::Value(term)) => {
                Some(Kept { identity, term: Some(term) })
            }
            (Found::Value(identity), Found::Nothing | Found::Damaged(_)) => {
                Some(Kept { identity, term: None })
            }
            // A term of nobody knows which cluster says nothing.
            (Found::Nothing | Found::Damaged(_), _) => None,
        };
        match self.read::<AgentRecord>("record") {
            Found::Value(record) => RecordFound::Usable(record),
            Found::Nothing => RecordFound::Absent(kept),
            Found::Damaged(why) => RecordFound::Damaged { kept, why },
        }
    }

    /// Writes the record; durable when it returns.
    pub(crate) fn save(&self, record: &AgentRecord) -> Result<(), StateDirError> {
        (self.checkpoint)("agent-record-decided");
        // Before the record: nothing is answered under a term that would be lost with it. Before the identity: a term
        // left over from another cluster never stands beside it.
        if let Some(term) = record.term
            && self.read::<Term>("term") != Found::Value(term)
        {
            self.write("term", &term)?;
        }
        if let Some(identity) = record.identity
            && self.read::<Identity>("identity") != Found::Value(identity)
        {
            self.write("identity", &identity)?;
        }
        self.write("record", record)?;
        (self.checkpoint)("agent-record-durable");
        Ok(())
    }

    /// Tells this machine from others: by what the system and the firmware say, and by this folder, because images
    /// of one system share the first.
    pub(crate) fn machine(&self, fresh: u128) -> Result<MachineId, StateDirError> {
        let folder = match self.read::<u128>("folder-id") {
            Found::Value(folder) => folder,
            Found::Nothing => {
                self.write("folder-id", &fresh)?;
                fresh
            }
            Found::Damaged(why) => {
                return Err(StateDirError::FolderId { path: self.path.join("folder-id"), why });
            }
        };
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let told = format!(
            "{}\n{}\n{folder:032x}",
            text("/etc/machine-id").trim(),
            text("/sys/class/dmi/id/product_uuid").trim()
        );
        let hash = Uuid::new_v5(
            &Uuid::from_u128(0x6c1f_2f0e_7a54_4b0f_9d59_3c8a_1b6e_40d2),
            told.as_bytes(),
        );
        Ok(MachineId::from_bits(hash.as_u128()))
    }

    /// The file called `name`; damage is told from absence.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Found<T> {
        let path = self.path.join(name);
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Nothing,
            Err(error) => return Found::Damaged(error.to_string()),
            Ok(found) if found.len() > FILE_LIMIT_BYTES => {
                return Found::Damaged(format!("it is {} bytes long", found.len()));
            }
            Ok(_) => {}
        }
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => return Found::Damaged(error.to_string()),
        };
        match decode(&bytes) {
            Ok(value) => Found::Value(value),
            Err(why) => Found::Damaged(why),
        }
    }

    /// Replaces the file called `name`; durable when it returns.
    pub(crate) fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<(), StateDirError> {
        let path = self.path.join(name);
        let replaced = self.replace(&path, &encode(value));
        replaced.map_err(|source| StateDirError::Write { path, source })
    }

    /// Removes the file called `name`, if it is there; lasts when it returns.
    pub(crate) fn remove(&self, name: &str) -> Result<(), StateDirError> {
        let path = self.path.join(name);
        let removed = match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => File::open(&self.path).and_then(|folder| folder.sync_all()),
        };
        removed.map_err(|source| StateDirError::Write { path, source })
    }

    /// The names of its files.
    pub(crate) fn names(&self) -> Result<Vec<String>, StateDirError> {
        let failed = |source| StateDirError::Folder { path: self.path.clone(), source };
        let entries = fs::read_dir(&self.path).map_err(failed)?.flatten();
        Ok(entries.filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let beside = path.with_extension("new");
        let mut options = File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        drop(file);
        (self.checkpoint)("agent-file-written");
        fs::rename(&beside, path)?;
        (self.checkpoint)("agent-file-renamed");
        File::open(&self.path)?.sync_all()
    }
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    seal(serde_json::to_vec(value).expect("records have text keys"))
}

/// Puts the first line before the content.
pub(crate) fn seal(json: Vec<u8>) -> Vec<u8> {
    let mut bytes = format!("{MAGIC} {:08x}\n", crc32c::crc32c(&json)).into_bytes();
    bytes.extend(json);
    bytes
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or("it has no first line")?;
    let (head, json) = (&bytes[..end], &bytes[end + 1..]);
    let head = std::str::from_utf8(head).map_err(|_| "its first line is not text")?;
    let sum = head.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(' '));
    let sum = sum.ok_or_else(|| format!("its first line is not {MAGIC:?}"))?;
    if sum != format!("{:08x}", crc32c::crc32c(json)) {
        return Err("its checksum is wrong".to_owned());
    }
    serde_json::from_slice(json)
        .map_err(|error| format!("its content is not a record: {}", plain(&error.to_string())))
}

#[cfg(test)]
mod tests {
    use hotbay_core::ids::{ClusterId, NodeId, TermId};

    use super::*;

    fn record() -> AgentRecord {
        AgentRecord {
            identity: Some(Identity {
                cluster: ClusterId::from_bits(1),
                node: NodeId::from_bits(2),
            }),
            term: Some(Term::first(TermId::from_bits(3))),
            ..AgentRecord::default()
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_damage_never_absence() {
        let bytes = encode(&record());
        assert_eq!(decode(&bytes), Ok(record()));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert!(decode::<AgentRecord>(&flipped).is_err(), "bit {bit} of byte {at}");
            }
            assert!(decode::<AgentRecord>(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_damaged_record_leaves_identity_and_term() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path(), |_| {}).unwrap();
        assert_eq!(state.load(), RecordFound::Absent(None));
        state.save(&record()).unwrap();
        assert_eq!(state.load(), RecordFound::Usable(record()));
        fs::write(dir.path().join("record"), b"half a li").unwrap();
        let identity = record().identity.unwrap();
        let left = Some(Kept { identity, term: record().term });
        match state.load() {
            RecordFound::Damaged { kept, .. } => assert_eq!(kept, left),
            other => panic!("{other:?}"),
        }
        fs::remove_file(dir.path().join("record")).unwrap();
        assert_eq!(state.load(), RecordFound::Absent(left));
        fs::write(dir.path().join("term"), b"half a li").unwrap();
        assert_eq!(state.load(), RecordFound::Absent(Some(Kept { identity, term: None })));
        state.save(&record()).unwrap();
        fs::remove_file(dir.path().join("record")).unwrap();
        assert_eq!(state.load(), RecordFound::Absent(left), "the term was written again");
        fs::remove_file(dir.path().join("identity")).unwrap();
        assert_eq!(state.load(), RecordFound::Absent(None));
    }

    #[test]
    fn the_folder_tells_machines_apart_and_stays() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let open = |dir: &tempfile::TempDir| StateDir::open(dir.path(), |_| {}).unwrap();
        let first = open(&one).machine(7).unwrap();
        assert_eq!(open(&one).machine(8).unwrap(), first);
        assert_ne!(open(&two).machine(9).unwrap(), first);
    }
}
