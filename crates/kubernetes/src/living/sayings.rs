//! How what is said of a thing changes: a condition is shown when it has held for a while, its time is that of its last
//! change, and new words for the same are not worth a write at once.

use std::collections::{BTreeMap, HashMap};

use hotbay_control::conditions::Told;
use hotbay_registry::Key;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use crate::store::beside::{Said, Saying};
use crate::view::timestamp;

/// The longest message of a condition, in characters.
const MESSAGE_MOST: usize = 1_000;

/// The same, in other words, is written no more often than this.
pub(super) const REWORDED_EVERY: Duration = Duration::from_secs(30);

/// One condition that is to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) kind: &'static str,
    pub(super) holds: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl From<Told> for Wanted {
    fn from(told: Told) -> Self {
        let Told { kind, reason, message } = told;
        Self { kind, holds: true, reason, message }
    }
}

/// What a thing is said to be next.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) said: Said,
    /// It is worth a write.
    pub(super) is_new: bool,
    /// It will be, when new words may be written again.
    pub(super) is_reworded: bool,
}

/// What is to be said of a thing that this was said of before. `along` are fields that go with a write and cause none.
pub(super) fn next(
    before: Option<&Said>,
    wanted: Vec<Wanted>,
    fields: BTreeMap<&'static str, Value>,
    along: BTreeMap<&'static str, Value>,
    may_reword: bool,
    now_ms: u64,
) -> Next {
    let nothing = Said::default();
    let before = before.unwrap_or(&nothing);
    let mut wanted = wanted;
    wanted.sort_by_key(|wanted| wanted.kind);
    // The server takes one of each.
    wanted.dedup_by_key(|wanted| wanted.kind);
    let mut is_new = before.conditions.len() != wanted.len();
    let mut conditions = Vec::with_capacity(wanted.len());
    let mut reworded = false;
    for Wanted { kind, holds, reason, message } in wanted {
        let (earlier, message) = (before.get(kind), bounded(message));
        let is_same =
            earlier.is_some_and(|earlier| earlier.holds == holds && earlier.reason == reason);
        let is_reworded = earlier.is_some_and(|earlier| earlier.message != message);
        is_new |= !is_same || (is_reworded && may_reword);
        reworded |= is_reworded;
        let since = match earlier.filter(|earlier| earlier.holds == holds) {
            Some(earlier) => earlier.since.clone(),
            None => timestamp(now_ms),
        };
        let (kind, reason) = (kind.to_owned(), reason.to_owned());
        conditions.push(Saying { kind, holds, reason, message, since });
    }
    is_new |= fields.iter().any(|(field, value)| before.fields.get(field) != Some(value));
    let mut fields_before = before.fields.keys();
    is_new |= !fields_before.all(|name| fields.contains_key(name) || along.contains_key(name));
    let fields = fields.into_iter().chain(along).collect();
    let is_reworded = reworded && !is_new;
    Next { said: Said { conditions, fields }, is_new, is_reworded }
}

/// What an agent says may be long.
fn bounded(mut message: String) -> String {
    if let Some((at, _)) = message.char_indices().nth(MESSAGE_MOST) {
        message.truncate(at);
        message.push_str("...");
    }
    message
}

/// The fields of a drive that follow from what is shown of it.
pub(super) fn fields_of_drive(wanted: &[Wanted]) -> BTreeMap<&'static str, Value> {
    let mut fields = BTreeMap::new();
    for wanted in wanted {
        match wanted.kind {
            super::look::WAITING => drop(fields.insert("waitingFor", json!(wanted.message))),
            super::look::MISSING => drop(fields.insert("present", json!(false))),
            _ => {}
        }
    }
    fields
}

/// The same of an attachment.
pub(super) fn fields_of_attachment(wanted: &[Wanted]) -> BTreeMap<&'static str, Value> {
    let is_fake = wanted.iter().any(|wanted| wanted.kind == super::look::FAKE_ATTACH.kind);
    is_fake.then(|| ("staged", json!("Fake"))).into_iter().collect()
}

/// Since when conditions hold that are not shown yet, and when things were last written.
#[derive(Debug, Default)]
pub(super) struct Holds {
    since: HashMap<Key, Vec<(&'static str, Instant)>>,
    written: HashMap<Key, Instant>,
}

impl Holds {
    /// Whether a condition has held for so long.
    pub(super) fn has_held(&mut self, key: Key, kind: &'static str, hold: Duration) -> bool {
        let now = Instant::now();
        let of_thing = self.since.entry(key).or_default();
        if let Some((_, since)) = of_thing.iter().find(|(held, _)| *held == kind) {
            return now - *since >= hold;
        }
        of_thing.push((kind, now));
        hold.is_zero()
    }

    /// Only what holds of a thing is remembered.
    pub(super) fn retain(&mut self, key: Key, told: &[Told]) {
        if let Some(of_thing) = self.since.get_mut(&key) {
            of_thing.retain(|(kind, _)| told.iter().any(|told| told.kind == *kind));
            if of_thing.is_empty() {
                self.since.remove(&key);
            }
        }
    }

    /// When something has held for so long, and was not yet when it was last `looked`.
    pub(super) fn next_look(&self, hold: Duration, looked: Instant) -> Option<Instant> {
        let held = self.since.values().flatten().map(|(_, since)| *since + hold);
        held.filter(|at| *at > looked).min()
    }

    pub(super) fn may_reword(&self, key: Key) -> bool {
        self.written.get(&key).is_none_or(|at| at.elapsed() >= REWORDED_EVERY)
    }

    pub(super) fn note_write(&mut self, key: Key) {
        self.written.insert(key, Instant::now());
    }

    /// The thing is not there any more.
    pub(super) fn forget(&mut self, gone: impl Fn(Key) -> bool) {
        self.since.retain(|key, _| !gone(*key));
        self.written.retain(|key, _| !gone(*key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(holds: bool, reason: &'static str, message: &str) -> Vec<Wanted> {
        vec![Wanted { kind: "Ready", holds, reason, message: message.to_owned() }]
    }

    fn none() -> BTreeMap<&'static str, Value> {
        BTreeMap::new()
    }

    #[test]
    fn only_what_people_should_hear_of_is_worth_a_write() {
        let first = next(None, wanted(true, "A", "a"), none(), none(), true, 1_000);
        assert!(first.is_new);
        let said = Some(&first.said);
        let since = |next: &Next| next.said.conditions[0].since.clone();
        let same = next(said, wanted(true, "A", "a"), none(), none(), true, 2_000);
        assert!(!same.is_new);
        // Another reason is new, and it still holds since then.
        let other = next(said, wanted(true, "B", "a"), none(), none(), true, 2_000);
        assert!(other.is_new && since(&other) == since(&first));
        let over = next(said, wanted(false, "B", "b"), none(), none(), true, 2_000);
        assert!(over.is_new && since(&over) == "1970-01-01T00:00:02Z");
        // New words alone, at their time.
        assert!(!next(said, wanted(true, "A", "b"), none(), none(), false, 2_000).is_new);
        assert!(next(said, wanted(true, "A", "b"), none(), none(), true, 2_000).is_new);
        assert!(next(said, Vec::new(), none(), none(), true, 2_000).is_new);
    }

    /// A round took longer than a condition has to hold. Nobody looked again until something else happened: the drive
    /// said nothing for minutes.
    #[tokio::test(start_paused = true)]
    async fn what_has_held_long_enough_while_nobody_looked_is_looked_at() {
        const HOLD: Duration = Duration::from_secs(5);
        let key = Key { kind: hotbay_registry::Kind::Drive, id: 1 };
        let (mut holds, looked) = (Holds::default(), Instant::now());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!holds.has_held(key, "Waiting", HOLD));
        tokio::time::advance(2 * HOLD).await;
        assert_eq!(holds.next_look(HOLD, looked), Some(looked + Duration::from_secs(6)));
        let looked = Instant::now();
        assert!(holds.has_held(key, "Waiting", HOLD));
        assert_eq!(holds.next_look(HOLD, looked), None);
    }

    #[test]
    fn fields_that_go_along_cause_no_write_and_others_do() {
        let field = |value: u64| BTreeMap::from([("drives", json!(value))]);
        let first = next(None, Vec::new(), field(1), none(), true, 0);
        assert!(first.is_new);
        let said = Some(&first.said);
        assert!(!next(said, Vec::new(), field(1), none(), true, 0).is_new);
        assert!(next(said, Vec::new(), field(2), none(), true, 0).is_new);
        assert!(next(said, Vec::new(), none(), none(), true, 0).is_new, "a field that goes");
        let along = next(said, Vec::new(), none(), field(2), true, 0);
        assert!(!along.is_new && along.said.fields == field(2));
    }
}
