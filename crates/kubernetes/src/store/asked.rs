//! Which objects somebody has asked to be written again, and what became of that.
//!
//! ```text
//!  ask ──▶ open ── durable, or shown ──▶ forgotten
//!   ▲        │ cannot be written now
//!   │        ▼
//!   │     unwritten ── written at last, with all that is to be shown ──▶ forgotten
//!   └─ late ◀── written at last, and begun before there was more to show
//! ```
//!
//! The registry goes on trying to write what it could not write, and what is shown is put together with every try. So
//! whatever there is to say of such an object meanwhile needs no new asking, which would leave one decision more open
//! each time: of those the registry takes so many, and then none of anybody.

use std::collections::HashMap;

use hotbay_registry::Key;

#[derive(Debug, Default)]
pub(super) struct Asked {
    of: HashMap<Key, Asking>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Asking {
    /// Who asked has heard that it cannot be written now.
    is_unwritten: bool,
    /// A write has ended since, and does not show all that is to be shown.
    is_behind: bool,
}

impl Asking {
    fn is_late(self) -> bool {
        self.is_unwritten && self.is_behind
    }
}

impl Asked {
    /// Whether the registry has to be asked for a write: not while it tries one.
    pub(super) fn ask(&mut self, key: Key) -> bool {
        match self.of.get(&key) {
            Some(Asking { is_unwritten: false, .. }) => true,
            Some(asking) if !asking.is_late() => false,
            Some(_) | None => {
                self.of.insert(key, Asking::default());
                true
            }
        }
    }

    /// What the registry said to it.
    pub(super) fn answered(&mut self, key: Key, is_durable: bool) {
        if is_durable {
            self.of.remove(&key);
        } else if let Some(asking) = self.of.get_mut(&key) {
            asking.is_unwritten = true;
        }
    }

    /// A write of the object has ended well, whoever asked for it.
    pub(super) fn written(&mut self, key: Key, shows_all: bool) {
        if shows_all {
            self.of.remove(&key);
        } else if let Some(asking) = self.of.get_mut(&key) {
            asking.is_behind = true;
        }
    }

    /// What was written at last, and has to be once more.
    pub(super) fn late(&self) -> impl Iterator<Item = Key> {
        self.of.iter().filter(|(_, asking)| asking.is_late()).map(|(key, _)| *key)
    }

    /// All of them.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.of.keys().copied()
    }

    /// Forgets those of which there are no records.
    pub(super) fn retain(&mut self, is_there: impl Fn(Key) -> bool) {
        self.of.retain(|key, _| is_there(*key));
    }
}

#[cfg(test)]
mod tests {
    use hotbay_registry::Kind;

    use super::*;

    const KEY: Key = Key { kind: Kind::Node, id: 1 };

    fn is_late(asked: &Asked) -> bool {
        asked.late().next().is_some()
    }

    fn unwritten() -> Asked {
        let mut asked = Asked::default();
        assert!(asked.ask(KEY));
        asked.answered(KEY, false);
        asked
    }

    #[test]
    fn what_cannot_be_written_is_asked_for_once() {
        let mut asked = unwritten();
        assert!(!asked.ask(KEY) && !asked.ask(KEY));
        asked.written(KEY, true);
        assert!(asked.keys().next().is_none() && asked.ask(KEY));
        // What is only under way may still be asked for: nobody knows yet how long it takes.
        assert!(asked.ask(KEY));
        asked.answered(KEY, true);
        assert!(asked.keys().next().is_none());
    }

    /// What is said while the write is under way that succeeds at last is in none.
    #[test]
    fn what_was_said_too_late_for_the_last_write_is_asked_for_again() {
        let mut asked = unwritten();
        asked.written(KEY, false);
        assert!(is_late(&asked) && asked.ask(KEY) && !is_late(&asked));
        // The same before it was heard that another object, asked for with this one, cannot be written.
        asked.written(KEY, false);
        assert!(!is_late(&asked));
        asked.answered(KEY, false);
        assert!(is_late(&asked));
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut asked = unwritten();
        asked.retain(|_| false);
        assert!(asked.ask(KEY));
    }
}
