//! Annotations of volumes: those of the record stand on its object, and those that people change there count.
//!
//! ```text
//!   hotbay volume annotate, the claim, agents ──▶ record ──▶ object        (written when they differ)
//!   kubectl annotate                          ──▶ object ──▶ record        (asked for as the API would)
//! ```
//!
//! What counts on a claim counts on the Volume, too, where whoever looks after an application says how far it is with
//! releasing it. Where both say something under one key the claim's word counts: it is its owner's, and stays where it
//! is read again. What is written onto the Volume then is written over, and that is told.
//!
//! Who has changed something is known by [`SHOWN`], which is written with them: what was last shown. So an old
//! manifest that is applied again turns nothing back, and what other programs write beside them is left alone.

use std::collections::{BTreeMap, BTreeSet};

use hotbay_core::cluster::{Cluster, Notice, VolumeRequest};
use hotbay_core::ids::VolumeId;
use hotbay_core::volume::{FAKE_ATTACH, FAKE_DEVICE};
use hotbay_registry::{CallError, Key, Kind, Registry};
use serde_json::{Map, Value, json};

use super::calls::Change;
use super::seen::Seen;
use super::{Stopped, WHO, decided, patiently, words};
use crate::claims::{COUNTED, FROM_CLAIM, is_of_claim};

/// Annotations as they are written.
pub(super) type Annotations = BTreeMap<String, String>;

/// On the object: the annotations that it was last given, as JSON.
pub(super) const SHOWN: &str = "hotbay.dev/shown-annotations";

/// What is Hotbay's own to say.
const KEPT: [&str; 3] = [FAKE_ATTACH, FAKE_DEVICE, FROM_CLAIM];

/// A longer value is not taken over; those that count are words.
const VALUE_MAX_BYTES: usize = 4 << 10;

/// The annotations of an object, as far as they count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Annotated {
    shown: Annotations,
    now: Annotations,
    /// Those whose values are not taken over.
    too_long: BTreeSet<String>,
}

impl Annotated {
    pub(super) fn of(object: &Value) -> Self {
        let all = &object["metadata"]["annotations"];
        let shown = all[SHOWN].as_str().and_then(|text| serde_json::from_str(text).ok());
        let shown: Annotations = shown.unwrap_or_default();
        let mut this = Self { shown, ..Self::default() };
        let keys = this.shown.keys().cloned().chain(COUNTED.map(str::to_owned));
        for key in keys.collect::<BTreeSet<_>>() {
            match all[&key].as_str() {
                None => {}
                Some(value) if value.len() > VALUE_MAX_BYTES => drop(this.too_long.insert(key)),
                Some(value) => drop(this.now.insert(key, value.to_owned())),
            }
        }
        this
    }

    /// What people have changed since it was shown, as far as that is theirs.
    fn changed<'a>(&'a self, record: &'a Annotations) -> impl Iterator<Item = &'a String> {
        let keys: BTreeSet<_> = self.shown.keys().chain(self.now.keys()).collect();
        let is_changed = |key: &&String| {
            let (shown, now) = (self.shown.get(*key), self.now.get(*key));
            shown != now && now != record.get(*key) && !self.too_long.contains(*key)
        };
        let is_theirs = |key: &&String| !KEPT.contains(&key.as_str());
        keys.into_iter().filter(is_theirs).filter(is_changed)
    }

    /// What of it is asked for.
    fn asked(&self, record: &Annotations) -> BTreeMap<String, Option<String>> {
        let changed = self.changed(record).filter(|key| !is_of_claim(record, key));
        changed.map(|key| (key.clone(), self.now.get(key).cloned())).collect()
    }

    /// What of it the claim says already.
    fn disputed<'a>(&'a self, record: &'a Annotations) -> Option<&'a String> {
        self.changed(record).find(|key| is_of_claim(record, key))
    }

    fn is(&self, record: &Annotations) -> bool {
        self.shown == *record && self.now == *record && self.too_long.is_empty()
    }

    /// Has an object say what the record says; says whether there was anything to change. An object that was changed
    /// since it was seen is left for the next look.
    pub(super) fn show(&self, record: &Annotations, object: &mut Value) -> bool {
        if Self::of(object) != *self || self.is(record) {
            return false;
        }
        let metadata = &mut object["metadata"];
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = Value::Object(Map::new());
        }
        let Some(all) = metadata["annotations"].as_object_mut() else { return false };
        for key in self.shown.keys().chain(&self.too_long) {
            all.remove(key);
        }
        all.extend(record.iter().map(|(key, value)| (key.clone(), json!(value))));
        match record.is_empty() {
            true => all.remove(SHOWN),
            false => all.insert(SHOWN.to_owned(), json!(json!(record).to_string())),
        };
        true
    }
}

/// What came of a look.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) change: Option<Change>,
    pub(super) notice: Option<Notice>,
}

/// What the record of a volume says; none of other records.
pub(super) fn of_record(cluster: &Cluster, key: Key) -> Option<Annotations> {
    let volume = Some(key).filter(|key| key.kind == Kind::Volume)?;
    Some(cluster.volume(VolumeId::from_bits(volume.id))?.record.annotations.clone())
}

/// Looks at the annotations of an object: what people changed is asked for, and what the record then says is shown.
/// `record` is what it said when the object had been seen.
pub(super) async fn look(
    registry: &Registry,
    key: Key,
    seen: &Seen,
    mut record: Annotations,
) -> Result<Looked, Stopped> {
    let mut looked = Looked::default();
    if let Some(disputed) = seen.annotated.disputed(&record) {
        let why = format!("its claim says {disputed}, and what that says counts");
        looked.notice = Some(words::not_annotated(key, &seen.entry.name, &why));
    }
    let changes = seen.annotated.asked(&record);
    if !changes.is_empty() {
        let asked = || {
            let volume = VolumeId::from_bits(key.id);
            let request = VolumeRequest::Annotate { volume, changes: changes.clone() };
            async { refused(registry.request(request, WHO.to_owned()).await) }
        };
        if let Ok(Some(why)) = decided(asked).await? {
            looked.notice = Some(words::not_annotated(key, &seen.entry.name, &why));
        }
        let read = || registry.read_around(move |cluster| of_record(cluster, key));
        let Some(now) = patiently(read).await? else { return Ok(looked) };
        record = now;
    }
    if let Some(long) = seen.annotated.too_long.first() {
        let why = format!("{long} has more than {VALUE_MAX_BYTES} bytes");
        looked.notice = Some(words::not_annotated(key, &seen.entry.name, &why));
    }
    if !seen.annotated.is(&record) {
        looked.change = Some(Change::Annotate(record));
    }
    Ok(looked)
}

/// A refusal is an answer, in words; what cannot be answered now is asked again.
fn refused<T>(answer: Result<T, CallError>) -> Result<Option<String>, CallError> {
    match answer {
        Ok(_) => Ok(None),
        Err(CallError::Refused(why)) => Ok(Some(why.to_string())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::volume::{IGNORE_IF_INACCESSIBLE, RELEASE};

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Annotations {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn object(annotations: Value) -> Value {
        json!({ "metadata": { "name": "v", "annotations": annotations } })
    }

    #[test]
    fn the_record_is_shown_once_and_goes_again() {
        let mut seen = object(json!({ "other": "stays" }));
        let record = map(&[(FAKE_ATTACH, "yes")]);
        assert!(Annotated::of(&seen).show(&record, &mut seen));
        assert_eq!(seen["metadata"]["annotations"][FAKE_ATTACH], "yes");
        assert!(!Annotated::of(&seen).show(&record, &mut seen), "it is so already");
        assert!(Annotated::of(&seen).show(&map(&[]), &mut seen));
        assert_eq!(seen["metadata"]["annotations"], json!({ "other": "stays" }));
    }

    #[test]
    fn what_people_change_is_asked_for_and_no_more() {
        let (record, mut seen) = (map(&[("note", "a"), (FAKE_ATTACH, "yes")]), object(json!({})));
        assert!(Annotated::of(&seen).show(&record, &mut seen));
        assert_eq!(Annotated::of(&seen).asked(&record), BTreeMap::new());
        let annotations = &mut seen["metadata"]["annotations"];
        annotations["note"] = json!("b");
        annotations[FAKE_ATTACH] = json!("no");
        annotations[IGNORE_IF_INACCESSIBLE] = json!("yes");
        annotations["unknown"] = json!("x");
        let asked = Annotated::of(&seen).asked(&record);
        let expected = [("note", "b"), (IGNORE_IF_INACCESSIBLE, "yes")];
        let expected = expected.map(|(key, value)| (key.to_owned(), Some(value.to_owned())));
        assert_eq!(asked, BTreeMap::from(expected));
        // What is Hotbay's own is written again.
        assert!(Annotated::of(&seen).show(&record, &mut seen));
        assert_eq!(seen["metadata"]["annotations"][FAKE_ATTACH], "yes");
        assert_eq!(seen["metadata"]["annotations"]["unknown"], "x");
    }

    #[test]
    fn the_claim_has_the_last_word_where_it_says_something() {
        let record = map(&[(RELEASE[1], "processing"), (FROM_CLAIM, RELEASE[1])]);
        let mut seen = object(json!({}));
        assert!(Annotated::of(&seen).show(&record, &mut seen));
        let annotations = &mut seen["metadata"]["annotations"];
        annotations[RELEASE[1]] = json!("completed");
        annotations[RELEASE[2]] = json!("50");
        let annotated = Annotated::of(&seen);
        let expected = BTreeMap::from([(RELEASE[2].to_owned(), Some("50".to_owned()))]);
        assert_eq!(annotated.asked(&record), expected);
        assert_eq!(annotated.disputed(&record).unwrap(), RELEASE[1]);
        // Also where it is taken off.
        seen["metadata"]["annotations"].as_object_mut().unwrap().remove(RELEASE[1]);
        assert_eq!(Annotated::of(&seen).disputed(&record).unwrap(), RELEASE[1]);
    }

    /// A saved manifest has what was shown when it was saved.
    #[test]
    fn an_old_manifest_turns_nothing_back() {
        let mut old = object(json!({}));
        assert!(Annotated::of(&old).show(&map(&[(IGNORE_IF_INACCESSIBLE, "yes")]), &mut old));
        let record = map(&[(IGNORE_IF_INACCESSIBLE, "no")]);
        assert_eq!(Annotated::of(&old).asked(&record), BTreeMap::new());
        assert!(Annotated::of(&old).show(&record, &mut old));
        assert_eq!(old["metadata"]["annotations"][IGNORE_IF_INACCESSIBLE], "no");
    }

    #[test]
    fn what_is_too_long_is_taken_off_and_nothing_of_it_is_kept() {
        let mut seen = object(json!({ IGNORE_IF_INACCESSIBLE: "x".repeat(200 << 10) }));
        let annotated = Annotated::of(&seen);
        assert_eq!(annotated.asked(&map(&[])), BTreeMap::new());
        assert!(annotated.show(&map(&[]), &mut seen));
        assert_eq!(seen["metadata"]["annotations"], json!({}));
    }

    #[test]
    fn an_object_that_was_changed_since_is_left_for_the_next_look() {
        let seen = Annotated::of(&object(json!({})));
        let mut now = object(json!({ IGNORE_IF_INACCESSIBLE: "yes" }));
        assert!(!seen.show(&map(&[("a", "b")]), &mut now));
    }
}
