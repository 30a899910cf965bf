//! A notice as an Event object.

use hotbay_api::kinds::API_VERSION;
use hotbay_core::cluster::Notice;
use hotbay_registry::Kind;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::resource::Resource;

const CONTROLLER: &str = "hotbay.dev/controller";
/// The server takes no longer notes.
const NOTE_MAX_BYTES: usize = 1_024;
/// Nor longer names.
const NAME_MAX_BYTES: usize = 253;

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Regarding {
    api_version: &'static str,
    kind: &'static str,
    namespace: Option<String>,
    name: String,
    uid: String,
}

impl Regarding {
    pub(super) fn record(kind: Kind, name: &str, uid: &str) -> Self {
        Self {
            api_version: API_VERSION,
            kind: Resource::of(kind).kind(),
            namespace: None,
            name: name.to_owned(),
            uid: uid.to_owned(),
        }
    }

    pub(super) fn claim(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            api_version: "v1",
            kind: "PersistentVolumeClaim",
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
            uid: uid.to_owned(),
        }
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}

/// One thing that happened to one object.
pub(super) struct Told<'a> {
    pub(super) regarding: Regarding,
    pub(super) notice: &'a Notice,
    pub(super) wall_ms: u64,
}

impl Told<'_> {
    /// The object to be made.
    pub(super) fn object(&self, instance: &str, namespace: &str, number: u64) -> Value {
        let Regarding { api_version, kind, namespace: of, name, uid } = &self.regarding;
        let mut regarding =
            json!({ "apiVersion": api_version, "kind": kind, "name": name, "uid": uid });
        if let Some(of) = of {
            regarding["namespace"] = json!(of);
        }
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": self.name(number),
                "namespace": namespace,
            },
            "eventTime": time(self.wall_ms),
            "reportingController": CONTROLLER,
            "reportingInstance": instance,
            "action": self.notice.reason,
            "reason": self.notice.reason,
            "regarding": regarding,
            "note": self.note(),
            "type": if self.notice.warning { "Warning" } else { "Normal" },
        })
    }

    /// The number tells events of one name apart; a controller counts from 1, so the time is in the name as well. The
    /// name of an object may be as long as that of an event, and is cut then.
    fn name(&self, number: u64) -> String {
        let apart = format!(".{:x}.{number:x}", self.wall_ms);
        let of: String = self.regarding.name.chars().take(NAME_MAX_BYTES - apart.len()).collect();
        format!("{}{apart}", of.trim_end_matches(['.', '-']))
    }

    /// The sentence, without the reason where it begins with it.
    pub(super) fn note(&self) -> String {
        let text = self.notice.text.strip_prefix(self.notice.reason).unwrap_or(&self.notice.text);
        let text = text.trim_start_matches([':', ' ']);
        let mut end = text.len().min(NOTE_MAX_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text[..end].to_owned()
    }
}

/// The format of Kubernetes for these: with microseconds.
pub(super) fn time(wall_ms: u64) -> String {
    let millis = i64::try_from(wall_ms).unwrap_or_default();
    let time = Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH);
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use hotbay_core::cluster::About;

    use super::*;

    #[test]
    fn a_note_is_short_enough_and_does_not_repeat_its_reason() {
        let text = format!("FakeAttachInvolved: volume v {}", "é".repeat(600));
        let about = About::Registry;
        let notice =
            Notice { warning: true, reason: "FakeAttachInvolved", about, text, order: None };
        let regarding = Regarding::claim("shop", "data-0", "u-1");
        let told = Told { regarding, notice: &notice, wall_ms: 1_800_000_000_123 };
        let object = told.object("pod-1", "shop", 7);
        let note = object["note"].as_str().unwrap();
        assert!(note.starts_with("volume v é") && note.len() <= NOTE_MAX_BYTES, "{note}");
        assert_eq!(object["type"], "Warning");
        assert_eq!(object["regarding"]["namespace"], "shop");
        assert_eq!(object["metadata"]["name"], "data-0.1a3185c507b.7");
    }

    /// The server refused every event about a claim with a long name.
    #[test]
    fn an_event_has_a_name_however_long_that_of_its_object_is() {
        let (about, text) = (About::Registry, "made".to_owned());
        let notice = Notice { warning: false, reason: "VolumeMade", about, text, order: None };
        let long = format!("{}-{}", "a".repeat(238), "b".repeat(14));
        let regarding = Regarding::claim("shop", &long, "u-1");
        let told = Told { regarding, notice: &notice, wall_ms: 1_800_000_000_123 };
        let expected = format!("{}.1a3185c507b.7", "a".repeat(238));
        assert_eq!(told.object("pod-1", "shop", 7)["metadata"]["name"], expected);
    }
}
