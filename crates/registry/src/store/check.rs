//! `hotbay store check`: says whether a data directory holds a sound store, and changes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use thiserror::Error;

use super::error::StoreError;
use super::file::{self, STORE_NAME};
use super::lock::{DataLock, LockError};
use super::verify::{FORMAT, verify};
use super::{Key, Kind};

/// Bad records listed one by one; more of them are only counted.
const LISTED_MAX: usize = 100;

/// Why there is nothing to report.
#[derive(Debug, Error)]
pub enum CheckError {
    #[error(
        "{} does not exist: no registry has been started on this data directory", path.display()
    )]
    NoStore { path: PathBuf },

    #[error(transparent)]
    Locked(#[from] LockError),

    #[error("cannot read {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What a check found.
#[derive(Debug)]
pub struct Report {
    pub path: PathBuf,
    pub size_bytes: u64,
    /// Its format version; `None` if it could not be read as a store of this program.
    pub format: Option<u64>,
    /// The last process that wrote to it did not close it. Normal after a crash or a power cut.
    pub unclean_stop: bool,
    /// Records per kind, good and bad; empty if the file could not be read as a store.
    pub records: BTreeMap<Kind, u64>,
    /// What is wrong: the first hundred.
    pub problems: Vec<Problem>,
    /// How many problems more there are.
    pub unlisted: u64,
}

/// One thing that is wrong with a store.
#[derive(Debug)]
pub enum Problem {
    /// The file as a whole is refused; a registry would not start on it.
    File(StoreError),
    /// A record of a kind that this program does not know.
    UnknownKind { code: u8 },
    /// A record whose value cannot be understood.
    Record { key: Key, what: String },
}

impl Report {
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn add(&mut self, problem: Problem) {
        if self.problems.len() < LISTED_MAX {
            self.problems.push(problem);
        } else {
            self.unlisted += 1;
        }
    }

    fn add_record(&mut self, key: &[u8; Key::BYTES], value: &[u8], judge: Judge<'_>) {
        let Some(key) = Key::from_bytes(key) else {
            return self.add(Problem::UnknownKind { code: key[0] });
        };
        *self.records.entry(key.kind).or_default() += 1;
        if let Err(what) = json_object(value).and_then(|()| judge(&key, value)) {
            self.add(Problem::Record { key, what });
        }
    }
}

/// Says in words what is wrong with the value of a record, beyond its being a JSON object.
pub type Judge<'a> = &'a mut dyn FnMut(&Key, &[u8]) -> Result<(), String>;

/// Reads all of the store in a data directory and reports what is wrong. Writes nothing. Refuses
/// while a registry runs on it, and keeps one from starting until it is done.
pub fn check(data_dir: &Path) -> Result<Report, CheckError> {
    check_with(data_dir, &mut |_, _| Ok(()))
}

/// As [`check`], with a closer look at each record by the caller, who knows what it should say.
pub fn check_with(data_dir: &Path, judge: Judge<'_>) -> Result<Report, CheckError> {
    let path = data_dir.join(STORE_NAME);
    let unreadable = |source| CheckError::Io { path: path.clone(), source };
    let size_bytes = match fs::metadata(&path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(CheckError::NoStore { path });
        }
        Err(error) => return Err(unreadable(error)),
    };
    let _lock = DataLock::shared(data_dir)?;
    let mut report = Report {
        path: path.clone(),
        size_bytes,
        format: None,
        unclean_stop: false,
        records: BTreeMap::new(),
        problems: Vec::new(),
        unlisted: 0,
    };
    let verified = match file::is_there(&path) {
        Ok(_) => {
            let backend = file::open_to_read(&path).map_err(unreadable)?;
            verify(&path, backend, &mut |key, value| report.add_record(key, value, judge))
        }
        Err(error) => Err(error),
    };
    match verified {
        Ok(verified) => {
            report.format = Some(FORMAT);
            report.unclean_stop = verified.unclean_stop;
        }
        Err(StoreError::Io { path, source, .. }) => return Err(CheckError::Io { path, source }),
        Err(error) => report.add(Problem::File(error)),
    }
    Ok(report)
}

fn json_object(value: &[u8]) -> Result<(), String> {
    match serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(value) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("not a JSON object: {error}")),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} bytes", self.path.display(), self.size_bytes)?;
        match self.format {
            Some(format) => writeln!(f, ", format {format}")?,
            None => writeln!(f)?,
        }
        for (kind, count) in &self.records {
            writeln!(f, "  {kind}: {count}")?;
        }
        if self.unclean_stop {
            writeln!(f, "  not closed at the last stop (a crash or a power cut)")?;
        }
        for problem in &self.problems {
            writeln!(f, "  problem: {problem}")?;
        }
        match (self.is_sound(), self.unlisted) {
            (true, _) => writeln!(f, "sound"),
            (false, 0) => writeln!(f, "not sound"),
            (false, more) => writeln!(f, "  and {more} problems more\nnot sound"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "{error}"),
            Self::UnknownKind { code } => write!(f, "a record of the unknown kind {code}"),
            Self::Record { key, what } => write!(f, "{key}: {what}"),
        }
    }
}
