//! What one claim says of its volume, and what the volume's annotations become by it. Nothing here asks anybody.

use std::collections::{BTreeMap, HashSet};

use hotbay_core::label::extents::Claim;
use hotbay_core::volume::{IGNORE_IF_INACCESSIBLE, RELEASE};
use serde_json::Value;

use super::FROM_CLAIM;
use crate::names::is_object_name;

/// The annotations that count, on a claim and on the object of its volume.
pub(crate) const COUNTED: [&str; 5] =
    [IGNORE_IF_INACCESSIBLE, RELEASE[0], RELEASE[1], RELEASE[2], RELEASE[3]];
/// The longest value that is taken over: what counts are words and sentences.
const VALUE_MAX_BYTES: usize = 256;
/// How many PersistentVolumes are remembered. With more, no claim is skipped unread.
const NOTED_MAX: usize = 10_000;

/// What a claim says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) claim: Claim,
    /// The PersistentVolume, by a name that can stand in a path.
    pub(super) bound_to: String,
    pub(super) said: BTreeMap<String, String>,
}

impl Word {
    /// None of a claim that is not bound: anybody may write the name of any volume into a claim of his own, and only
    /// Kubernetes says that it has the volume.
    pub(super) fn of(claim: &Value) -> Option<Self> {
        if claim["status"]["phase"] != "Bound" {
            return None;
        }
        // Kubernetes takes any text there.
        let bound_to = claim["spec"]["volumeName"].as_str().filter(|name| is_object_name(name))?;
        let name = |field: &str| claim["metadata"][field].as_str().unwrap_or_default();
        let of = Claim::new(name("namespace"), name("name")).ok()?;
        let said = said(claim, &of);
        Some(Self { claim: of, bound_to: bound_to.to_owned(), said })
    }
}

/// What came since it was settled last: the newest word of each claim, one for each volume that it was bound to.
#[derive(Debug, Default)]
pub(super) struct News(BTreeMap<(String, String), Word>);

impl News {
    pub(super) fn add(&mut self, word: Word) {
        self.0.insert((word.bound_to.clone(), word.claim.to_string()), word);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn take(self) -> Vec<Word> {
        self.0.into_values().collect()
    }
}

/// The PersistentVolumes whose volumes have something from a claim, as far as this leader has seen. It has seen all
/// that are called as their volumes once it has listed the claims.
#[derive(Debug, Default)]
pub(super) struct Noted {
    names: HashSet<String>,
    overflown: bool,
}

impl Noted {
    /// Whether a word may change anything: one that says nothing, of a volume that has nothing, does not.
    pub(super) fn concerns(&self, word: &Word) -> bool {
        !word.said.is_empty() || self.overflown || self.has(&word.bound_to)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Takes note of what a volume has after, or before, its claim was heard.
    pub(super) fn note(&mut self, name: &str, has_some: bool) {
        if !has_some {
            self.names.remove(name);
        } else if self.names.len() < NOTED_MAX {
            self.names.insert(name.to_owned());
        } else {
            self.overflown |= !self.has(name);
        }
    }
}

/// What a claim says, as far as it counts.
fn said(claim: &Value, name: &Claim) -> BTreeMap<String, String> {
    let value = |key: &&str| {
        let value = claim["metadata"]["annotations"][*key].as_str()?;
        if value.len() > VALUE_MAX_BYTES {
            tracing::warn!(
                "the annotation {key} of the claim {name} has {} bytes and does not count: what is read has \
                 at most {VALUE_MAX_BYTES} bytes",
                value.len()
            );
            return None;
        }
        Some(((*key).to_owned(), value.to_owned()))
    };
    COUNTED.iter().filter_map(value).collect()
}

/// Whether the claim of a volume that has these annotations says this one. Then it is nobody else's to say.
pub(crate) fn is_of_claim(known: &BTreeMap<String, String>, key: &str) -> bool {
    known.get(FROM_CLAIM).is_some_and(|noted| noted.split(',').any(|of_claim| of_claim == key))
}

/// How the annotations of a volume become what its claim says.
pub(super) fn changes(
    said: &BTreeMap<String, String>,
    known: &BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let noted = known.get(FROM_CLAIM).map(String::as_str).unwrap_or_default();
    let came: Vec<_> = noted.split(',').filter(|key| COUNTED.contains(key)).collect();
    let mut changes = BTreeMap::new();
    for (key, value) in said.iter().filter(|(key, value)| known.get(*key) != Some(*value)) {
        changes.insert(key.clone(), Some(value.clone()));
    }
    for key in came.into_iter().filter(|key| !said.contains_key(*key) && known.contains_key(*key)) {
        changes.insert(key.to_owned(), None);
    }
    let note = said.keys().cloned().collect::<Vec<_>>().join(",");
    if note != noted {
        changes.insert(FROM_CLAIM.to_owned(), Some(note).filter(|note| !note.is_empty()));
    }
    changes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn apply(known: &mut BTreeMap<String, String>, claim: &BTreeMap<String, String>) -> usize {
        let changes = changes(claim, known);
        for (key, value) in &changes {
            match value {
                Some(value) => known.insert(key.clone(), value.clone()),
                None => known.remove(key),
            };
        }
        changes.len()
    }

    fn claim(bound_to: &str, annotations: Value) -> Value {
        json!({
            "metadata": { "namespace": "shop", "name": "data-0", "annotations": annotations },
            "spec": { "volumeName": bound_to },
            "status": { "phase": "Bound" },
        })
    }

    #[test]
    fn what_the_claim_says_counts_and_goes_with_it() {
        let mut known = map(&[("kept", "as it is")]);
        let yes = map(&[(IGNORE_IF_INACCESSIBLE, "yes")]);
        assert_eq!(apply(&mut known, &yes), 2);
        assert_eq!(known[IGNORE_IF_INACCESSIBLE], "yes");
        assert_eq!(apply(&mut known, &yes), 0, "the same again is no change");
        apply(&mut known, &map(&[(IGNORE_IF_INACCESSIBLE, "no")]));
        assert_eq!(known[IGNORE_IF_INACCESSIBLE], "no");
        apply(&mut known, &BTreeMap::new());
        assert_eq!(known, map(&[("kept", "as it is")]));
    }

    #[test]
    fn all_that_counts_is_taken_each_by_itself() {
        let annotations: serde_json::Map<_, _> =
            COUNTED.iter().map(|key| ((*key).to_owned(), json!(format!("of {key}")))).collect();
        let said = Word::of(&claim("pvc-1", annotations.into())).unwrap().said;
        let mut known = BTreeMap::new();
        apply(&mut known, &said);
        assert!(COUNTED.iter().all(|key| known[*key] == format!("of {key}")), "{known:?}");
        let fewer = map(&[(RELEASE[0], "yes")]);
        apply(&mut known, &fewer);
        assert_eq!(known, map(&[(RELEASE[0], "yes"), (FROM_CLAIM, RELEASE[0])]));
    }

    #[test]
    fn what_was_written_onto_the_volume_itself_stays() {
        let mut known = map(&[(IGNORE_IF_INACCESSIBLE, "yes")]);
        assert_eq!(apply(&mut known, &BTreeMap::new()), 0);
    }

    #[test]
    fn only_what_counts_is_taken_and_nothing_that_is_too_long() {
        let long = "x".repeat(200 << 10);
        let annotations = json!({ IGNORE_IF_INACCESSIBLE: long, "other": "thing" });
        assert_eq!(Word::of(&claim("pvc-1", annotations)).unwrap().said, BTreeMap::new());
    }

    #[test]
    fn only_a_bound_claim_says_something_and_only_of_a_name() {
        let good = claim("pvc-1", json!({ IGNORE_IF_INACCESSIBLE: "yes" }));
        assert_eq!(Word::of(&good).unwrap().said.len(), 1);
        for phase in [json!("Pending"), json!("Lost"), Value::Null] {
            let mut unbound = good.clone();
            unbound["status"]["phase"] = phase;
            assert_eq!(Word::of(&unbound), None);
        }
        for name in ["", "a b", "x/status", "x?watch=true", "../nodes", "%2e", "PVC"] {
            assert_eq!(Word::of(&claim(name, json!({}))), None, "{name:?}");
        }
    }

    #[test]
    fn the_newest_word_of_a_claim_is_all_that_is_kept() {
        let mut news = News::default();
        for value in ["yes", "no", "yes", "last"] {
            let said = json!({ IGNORE_IF_INACCESSIBLE: value });
            news.add(Word::of(&claim("pvc-1", said)).unwrap());
        }
        news.add(Word::of(&claim("pvc-2", json!({}))).unwrap());
        let words = news.take();
        assert_eq!(words.len(), 2, "{words:?}");
        assert_eq!(words[0].said[IGNORE_IF_INACCESSIBLE], "last");
    }

    #[test]
    fn a_claim_that_says_nothing_of_a_volume_that_has_nothing_is_skipped() {
        let silent = Word::of(&claim("pvc-1", json!({}))).unwrap();
        let said = Word::of(&claim("pvc-1", json!({ IGNORE_IF_INACCESSIBLE: "yes" }))).unwrap();
        let mut noted = Noted::default();
        assert!(noted.concerns(&said) && !noted.concerns(&silent));
        noted.note("pvc-1", true);
        assert!(noted.concerns(&silent), "the annotation was taken off");
        noted.note("pvc-1", false);
        assert!(!noted.concerns(&silent));
        (0..=NOTED_MAX).for_each(|number| noted.note(&format!("pv-{number}"), true));
        assert!(noted.concerns(&silent), "it may be one that was not remembered");
    }
}
