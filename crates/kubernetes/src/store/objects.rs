//! What is known of the objects, shared by the store, which writes them, and by those who watch what people do to them
//! ([`crate::people`]).
//!
//! The store notes every object as the server answered its last write. By that a watch can tell the store's own writes
//! from those of others: whoever has waited for the registry ([`hotbay_registry::Registry::read`]) after seeing an
//! object finds here every write of ours that it could come from.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hotbay_core::order::Term;
use hotbay_registry::{Key, Kind};

use super::asked::Asked;
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
    asked: Asked,
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
            self.forget_notice(key);
        }
    }

    /// It was noticed of the spec of another object.
    fn forget_notice(&mut self, key: Key) {
        self.change_beside(key, |beside| beside.noticed = None);
    }

    /// Nothing is kept where there is nothing to say: most of what is gone is never heard of again.
    fn change_beside(&mut self, key: Key, change: impl FnOnce(&mut Beside)) {
        let mut beside = self.beside.remove(&key).unwrap_or_default();
        change(&mut beside);
        if !beside.is_empty() {
            self.beside.insert(key, beside);
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

    /// Notes what is known of an object.
    pub(super) fn set(&self, key: Key, entry: Option<Entry>) {
        self.known().set(key, entry);
    }

    /// Notes what became of a write, and what stood beside the record in it if it was made.
    pub(super) fn end_write(&self, key: Key, entry: Option<Entry>, shown: Option<&Beside>) {
        let mut known = self.known();
        if let Some(shown) = shown {
            let is_all = known.beside.get(&key).unwrap_or(&Beside::default()) == shown;
            known.asked.written(key, is_all);
        }
        known.set(key, entry);
    }

    /// Of objects that are to be written again, those for which the registry has to be asked, each once: not the ones
    /// that it could not write before, and tries to.
    pub(crate) fn ask(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Key> {
        let mut known = self.known();
        let keys: BTreeSet<_> = keys.into_iter().collect();
        keys.into_iter().filter(|key| known.asked.ask(*key)).collect()
    }

    /// What the registry said to that: whether all of them are written, or some cannot be.
    pub(crate) fn answered(&self, keys: &[Key], is_durable: bool) {
        let mut known = self.known();
        keys.iter().for_each(|key| known.asked.answered(*key, is_durable));
    }

    /// What could not be written for a time, was written at last, and does not show what was said last.
    pub(crate) fn late(&self) -> Vec<Key> {
        self.known().asked.late().collect()
    }

    pub(crate) fn has_late(&self) -> bool {
        self.known().asked.late().next().is_some()
    }

    /// All objects that the registry was asked for and that are not written yet.
    pub(crate) fn asked(&self) -> Vec<Key> {
        self.known().asked.keys().collect()
    }

    /// Forgets what was asked for of things that are not there any more.
    pub(crate) fn retain_asked(&self, is_there: impl Fn(Key) -> bool) {
        self.known().asked.retain(is_there);
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
            known.forget_notice(key);
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
        self.known().change_beside(key, |beside| beside.noticed = Some(noticed));
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
        self.known().change_beside(key, |beside| beside.said = said);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resource::Resource;

    const KEY: Key = Key { kind: Kind::Volume, id: 7 };

    /// Whatever was once asked for by a spec left something behind, for as long as the process lived.
    #[test]
    fn nothing_is_kept_of_what_is_gone() {
        let objects = Objects::default();
        let object = json!({ "metadata": { "name": "v", "uid": "u", "resourceVersion": "1" } });
        let entry = Entry::of(Resource::Volume, &object, None).unwrap();
        for is_disowned in [false, true] {
            objects.adopt(KEY, entry.clone());
            objects.notice(KEY, Noticed { observed: 1, condition: None });
            assert!(objects.noticed(KEY).is_some());
            match is_disowned {
                true => objects.disown(KEY, "u"),
                false => objects.set(KEY, None),
            }
            assert!(objects.known().beside.is_empty());
        }
    }
}
