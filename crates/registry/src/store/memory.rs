//! The embedded store's twin: the same promises, in memory, with faults on request.
//!
//! Tests of the actor and the simulation run on it. A [`MemoryStore`] is a handle to a disk that
//! lives on: one handle goes into the actor, another stays with the test, and a third is what the
//! next start of the actor opens.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::StoreError;
use super::{Key, Store, VALUE_MAX_BYTES, Write, refuse_too_long};

/// How a commit is to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is applied.
    Before,
    /// Everything is applied and durable, and an error is answered all the same.
    After,
    /// Nothing is applied, for want of space.
    NoSpace,
}

/// A handle to records in memory. Clones share the same records and faults.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Debug, Default)]
struct Disk {
    durable: BTreeMap<Key, Vec<u8>>,
    commits: u64,
    commit_faults: BTreeMap<u64, Fault>,
    failing_reads: u64,
    commit_delay: Duration,
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    /// What is durable now.
    pub fn durable(&self) -> BTreeMap<Key, Vec<u8>> {
        self.disk().durable.clone()
    }

    /// A store of its own that begins with what is durable here, and has no faults.
    pub fn fork(&self) -> Self {
        let disk = Disk { durable: self.durable(), ..Disk::default() };
        Self { disk: Arc::new(Mutex::new(disk)) }
    }

    /// How many commits were tried so far, failed ones included.
    pub fn commits(&self) -> u64 {
        self.disk().commits
    }

    /// Makes the `nth` commit since the store was made (the first is 1) fail.
    pub fn fail_commit(&self, nth: u64, fault: Fault) {
        self.disk().commit_faults.insert(nth, fault);
    }

    /// From now on commits succeed.
    pub fn heal(&self) {
        self.disk().commit_faults.clear();
    }

    /// Makes the next `count` calls of `load` and `read` fail.
    pub fn fail_reads(&self, count: u64) {
        self.disk().failing_reads = count;
    }

    /// Makes each commit take this long, as a disk's sync does.
    pub fn set_commit_delay(&self, delay: Duration) {
        self.disk().commit_delay = delay;
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    fn apply(&mut self, writes: &[Write]) {
        for write in writes {
            match write {
                Write::Put { key, value } => drop(self.durable.insert(*key, value.clone())),
                Write::Delete { key } => drop(self.durable.remove(key)),
            }
        }
    }

    fn check_read(&mut self) -> Result<(), StoreError> {
        match self.failing_reads.checked_sub(1) {
            None => Ok(()),
            Some(left) => {
                self.failing_reads = left;
                Err(injected("read", io::ErrorKind::Other))
            }
        }
    }
}

impl Store for MemoryStore {
    fn load(&mut self) -> Result<Vec<(Key, Vec<u8>)>, StoreError> {
        let mut disk = self.disk();
        disk.check_read()?;
        Ok(disk.durable.iter().map(|(key, value)| (*key, value.clone())).collect())
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        refuse_too_long(writes, VALUE_MAX_BYTES)?;
        if writes.is_empty() {
            return Ok(());
        }
        // The delay is slept outside of the lock: the test's handle stays usable meanwhile.
        let delay = self.disk().commit_delay;
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let mut disk = self.disk();
        disk.commits += 1;
        let nth = disk.commits;
        match disk.commit_faults.remove(&nth) {
            None => {
                disk.apply(writes);
                Ok(())
            }
            Some(Fault::Before) => Err(injected("write", io::ErrorKind::Other)),
            Some(Fault::NoSpace) => Err(injected("write", io::ErrorKind::StorageFull)),
            Some(Fault::After) => {
                disk.apply(writes);
                Err(injected("write", io::ErrorKind::Other))
            }
        }
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        let mut disk = self.disk();
        disk.check_read()?;
        Ok(disk.durable.get(key).cloned())
    }
}

fn injected(action: &'static str, kind: io::ErrorKind) -> StoreError {
    let source = io::Error::new(kind, "this failure was asked for");
    StoreError::from_io(Path::new("(memory)"), action, source)
}
