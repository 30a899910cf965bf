//! What is known of the objects, shared by the store, which writes them, and by those who watch what people do to them
//! ([`crate::people`]).
//!
//! The store notes every object as the server answered its last write. By that a watch can tell the store's own writes
//! from those of others: whoever has waited for the registry ([`hotbay_registry::Registry::read`]) after seeing an
//! object finds here every write of ours that it could come from.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hotbay_core::order::Term;
use hotbay_registry::{Key, Kind};

pub(crate) use super::beside::Noticed;
use super::beside::{Beside, Said};
use super::entry::Entry;

/// A handle on what is known; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Nothing is known before the first load.
    is_loaded: bool,
    entries: HashMap<Key, Entry>,
    keys: HashMap<String, Key>,
    beside: HashMap<Key, Beside>,
    /// The term that the registry's record was last written with.
    term: Option<Term>,
    /// The newest version that the server answered a load or a write with.
    newest: u64,
    /// The uids of objects that are gone, the last ones: news of them may still be on their way.
    gone: VecDeque<String>,
}

/// So many objects that are gone are remembered.
const GONE_MOST: usize = 10_000;

impl Known {
    fn set(&mut self, key: Key, entry: Option<Entry>) {
        let before = match entry {
            Some(entry) => {
                self.newest = self.newest.max(entry.version.parse().unwrap_or(0));
                self.keys.insert(entry.uid.clone(), key);
                let uid = entry.uid.clone();
                self.entries.insert(key, entry).filter(|before| before.uid != uid)
            }
            None => self.entries.remove(&key),
        };
        if let Some(before) = before {
            self.keys.remove(&before.uid);
            if self.gone.len() >= GONE_MOST {
                self.gone.pop_front();
            }
            self.gone.push_back(before.uid);
            // It was noticed of the spec of another object.
            if let Some(beside) = self.beside.get_mut(&key) {
                beside.noticed = None;
            }
        }
    }
}

impl Objects {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.known().is_loaded
    }

    pub(super) fn len(&self) -> usize {
        self.known().entries.len()
    }

    /// Takes in all that was loaded.
    pub(super) fn load(&self, entries: HashMap<Key, Entry>, beside: HashMap<Key, Beside>) {
        let mut known = self.known();
        let term = known.term;
        *known = Known { is_loaded: true, beside, term, ..Known::default() };
        for (key, entry) in entries {
            known.set(key, Some(entry));
        }
    }

    /// From now on the store writes under this term.
    pub(crate) fn lead(&self, term: Option<Term>) {
        let mut known = self.known();
        if known.term != term {
            known.term = term;
            known.entries.values_mut().for_each(|entry| entry.ours = false);
        }
    }

    /// The term that the store writes under.
    pub(crate) fn term(&self) -> Option<Term> {
        self.known().term
    }

    /// The newest version of any object that is known: whatever is written now has a newer one.
    pub(super) fn newest(&self) -> u64 {
        self.known().newest
    }

    /// The object of a record.
    pub(crate) fn get(&self, key: Key) -> Option<Entry> {
        self.known().entries.get(&key).cloned()
    }

    /// The record whose object this is.
    pub(crate) fn key_of(&self, uid: &str) -> Option<Key> {
        self.known().keys.get(uid).copied()
    }

    /// Whether it was the object of a record, and is gone: whatever is heard of it is from before.
    pub(crate) fn is_gone(&self, uid: &str) -> bool {
        self.known().gone.iter().any(|gone| gone == uid)
    }

    /// All objects of a kind, by what the server calls them.
    pub(crate) fn of_kind(&self, kind: Kind) -> Vec<(Key, String)> {
        let known = self.known();
        let meant = known.entries.iter().filter(|(key, _)| key.kind == kind);
        meant.map(|(key, entry)| (*key, entry.uid.clone())).collect()
    }

    /// Notes what became of a write.
    pub(super) fn set(&self, key: Key, entry: Option<Entry>) {
        self.known().set(key, entry);
    }

    /// Others changed what is theirs in an object, and ours is as it was: the next write replaces that version.
    pub(crate) fn refresh(&self, key: Key, seen: &Entry) {
        if let Some(entry) = self.known().entries.get_mut(&key)
            && entry.uid == seen.uid
            && entry.status == seen.status
        {
            entry.version.clone_from(&seen.version);
            entry.has_finalizer = seen.has_finalizer;
        }
    }

    /// Lets the object of somebody's wish become that of a record that is about to be made.
    pub(crate) fn adopt(&self, key: Key, entry: Entry) {
        self.known().set(key, Some(entry));
    }

    /// The record was not made after all.
    pub(crate) fn disown(&self, key: Key, uid: &str) {
        let mut known = self.known();
        if known.entries.get(&key).is_some_and(|entry| entry.uid == uid && entry.checksum.is_none())
        {
            // It is there, and may be wished for again.
            known.entries.remove(&key);
            known.keys.remove(uid);
            if let Some(beside) = known.beside.get_mut(&key) {
                beside.noticed = None;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn forget(&self, key: Key) {
        self.set(key, None);
    }

    /// What was made of the wish in the spec of a record's object.
    pub(crate) fn noticed(&self, key: Key) -> Option<Noticed> {
        self.known().beside.get(&key)?.noticed.clone()
    }

    /// Has it stand in the status from the next write on.
    pub(crate) fn notice(&self, key: Key, noticed: Noticed) {
        self.known().beside.entry(key).or_default().noticed = Some(noticed);
    }

    /// All that stands beside a record.
    pub(super) fn beside(&self, key: Key) -> Beside {
        self.known().beside.get(&key).cloned().unwrap_or_default()
    }

    /// What is said of things beside their records, by this controller or one before it.
    pub(crate) fn all_said(&self) -> HashMap<Key, Said> {
        let known = self.known();
        let said = known.beside.iter().filter(|(_, beside)| !beside.said.is_empty());
        said.map(|(key, beside)| (*key, beside.said.clone())).collect()
    }

    /// Has it stand in the status from the next write on.
    pub(crate) fn say(&self, key: Key, said: Said) {
        let mut known = self.known();
        known.beside.entry(key).or_default().said = said;
        if known.beside.get(&key).is_some_and(Beside::is_empty) {
            known.beside.remove(&key);
        }
    }
}
