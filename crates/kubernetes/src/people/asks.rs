//! What a spec asks for, as the API would be asked. Decides nothing: the registry does.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use hotbay_core::cluster::{Cluster, VolumeRecord};
use hotbay_core::cms::{Action, Code, Target};
use hotbay_core::ids::{DriveId, NodeId, VolumeId};
use hotbay_core::label::extents::Claim;
use hotbay_core::node_labels::{LabelChange, LabelKey, NodeLabels, NotALabel};
use hotbay_core::volume::class::Asked;
use hotbay_core::volume::{Size, Wish};
use hotbay_registry::{Key, Kind};
use serde_json::Value;

/// What the object of a record asks for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ask {
    Nothing,
    Act(Vec<Action>),
    Expand(VolumeId, Size),
    /// It cannot be asked for, and why.
    Refused(Code, String),
}

/// What must be known of a record to understand the spec of its object.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Subject {
    Registry,
    Drive(DriveId),
    Node { name: String },
    Volume(Box<VolumeRecord>),
    Attachment { read_only: bool },
}

impl Subject {
    /// Those of all these records; without those that there are not any more.
    pub(super) fn of_all(cluster: &Cluster, keys: &[Key]) -> HashMap<Key, Self> {
        let subject = |key: &Key| Some((*key, Self::of(cluster, *key)?));
        let mut all: HashMap<_, _> = keys.iter().filter_map(subject).collect();
        // Attachments are found through their volumes, all at once.
        let meant: HashSet<_> =
            keys.iter().filter(|key| key.kind == Kind::Attachment).copied().collect();
        if !meant.is_empty() {
            let known = cluster.volumes_after(None).flat_map(|known| known.attachments.values());
            for record in known.map(|known| &known.record) {
                let key = Key { kind: Kind::Attachment, id: record.id.to_bits() };
                if meant.contains(&key) {
                    all.insert(key, Self::Attachment { read_only: record.read_only });
                }
            }
        }
        all
    }

    fn of(cluster: &Cluster, key: Key) -> Option<Self> {
        Some(match key.kind {
            Kind::Registry => Self::Registry,
            Kind::Drive => Self::Drive(cluster.drive(DriveId::from_bits(key.id))?.record.id),
            Kind::Node => {
                let name = cluster.node(NodeId::from_bits(key.id))?.record.name.to_string();
                Self::Node { name }
            }
            Kind::Volume => {
                let known = cluster.volume(VolumeId::from_bits(key.id))?;
                Self::Volume(Box::new(known.record.clone()))
            }
            Kind::Attachment => return None,
        })
    }
}

/// What a changed spec asks for. `before` is the spec that was acted on last, where that is known: what is the same in
/// both is no wish.
pub(super) fn ask(spec: &Value, before: Option<&Value>, subject: &Subject) -> Ask {
    match subject {
        Subject::Registry => Ask::Nothing,
        Subject::Drive(id) => {
            let target = Target { host: None, device: id.to_string() };
            match in_operation(spec) {
                Ok(None) => Ask::Nothing,
                Ok(Some(true)) => Ask::Act(vec![Action::AddDevice(target)]),
                Ok(Some(false)) => Ask::Act(vec![Action::RemoveDevice(target)]),
                Err(refused) => refused,
            }
        }
        Subject::Node { name } => of_node(spec, before, name),
        Subject::Volume(record) => of_volume(spec, record),
        Subject::Attachment { read_only } => {
            if spec["readOnly"].as_bool().unwrap_or(false) == *read_only {
                return Ask::Nothing;
            }
            let words = "readOnly cannot be changed: detach the volume, and attach it anew";
            Ask::Refused(Code::InvalidState, words.to_owned())
        }
    }
}

/// What is left to ask for after another controller, which asked first, has ended: removals.
pub(super) fn ask_again(spec: &Value, subject: &Subject) -> Ask {
    match (subject, in_operation(spec)) {
        (Subject::Drive(_), Ok(Some(false))) => ask(spec, None, subject),
        (Subject::Node { name }, Ok(Some(false))) => {
            Ask::Act(vec![Action::RemoveHost { host: name.clone() }])
        }
        (_, Ok(_) | Err(_)) => Ask::Nothing,
    }
}

fn in_operation(spec: &Value) -> Result<Option<bool>, Ask> {
    flag(spec, "inOperation")
}

fn flag(spec: &Value, field: &str) -> Result<Option<bool>, Ask> {
    match &spec[field] {
        Value::Null => Ok(None),
        Value::Bool(wanted) => Ok(Some(*wanted)),
        _ => Err(argument(format!("spec.{field} is neither true nor false"))),
    }
}

fn argument(words: impl ToString) -> Ask {
    Ask::Refused(Code::Argument, words.to_string())
}

fn of_node(spec: &Value, before: Option<&Value>, name: &str) -> Ask {
    let nothing = Value::Null;
    let before = before.unwrap_or(&nothing);
    let mut actions = Vec::new();
    match label_change(&spec["labels"], &before["labels"]) {
        Ok(None) => {}
        Ok(Some(change)) => actions.push(Action::LabelHost { host: name.to_owned(), change }),
        Err(why) => return argument(why),
    }
    match flag(spec, "cordon") {
        Ok(wanted) if wanted == before["cordon"].as_bool() => {}
        // What is taken out of the spec is taken back.
        Ok(wanted) => actions
            .push(Action::CordonHost { host: name.to_owned(), cordoned: wanted.unwrap_or(false) }),
        Err(refused) => return refused,
    }
    match in_operation(spec) {
        Ok(wanted) if wanted == before["inOperation"].as_bool() => {}
        Ok(None) => {}
        Ok(Some(true)) => actions.push(Action::AddHost {
            host: name.to_owned(),
            with_removed: false,
            returned: false,
        }),
        Ok(Some(false)) => actions.push(Action::RemoveHost { host: name.to_owned() }),
        Err(refused) => return refused,
    }
    if actions.is_empty() { Ask::Nothing } else { Ask::Act(actions) }
}

/// Labels that are in the spec are set; those that were in it before, and are not any more, are removed.
fn label_change(now: &Value, before: &Value) -> Result<Option<LabelChange>, NotALabel> {
    if now == before {
        return Ok(None);
    }
    let texts = |labels: &Value| -> BTreeMap<String, String> {
        let pairs = labels.as_object().into_iter().flatten();
        pairs
            .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect()
    };
    let (set, before) = (texts(now), texts(before));
    let gone = before.keys().filter(|key| !set.contains_key(*key));
    // What cannot be a label never was one: there is nothing to remove.
    let remove: BTreeSet<LabelKey> = gone.filter_map(|key| key.parse().ok()).collect();
    match LabelChange::new(NodeLabels::of_pairs(set)?, remove, true) {
        Err(NotALabel::Nothing) => Ok(None),
        change => change.map(Some),
    }
}

fn of_volume(spec: &Value, record: &VolumeRecord) -> Ask {
    if parameters(spec) != record.parameters {
        let words = "the parameters of a volume cannot be changed: make another volume";
        return Ask::Refused(Code::InvalidState, words.to_owned());
    }
    match size(spec) {
        Err(words) => argument(words),
        Ok(size) if size.bytes <= record.size_bytes => Ask::Nothing,
        Ok(size) => Ask::Expand(record.id, size),
    }
}

fn parameters(spec: &Value) -> BTreeMap<String, String> {
    let pairs = spec["parameters"].as_object().into_iter().flatten();
    pairs.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

fn size(spec: &Value) -> Result<Size, String> {
    let bytes = spec["sizeBytes"].as_u64().ok_or("spec.sizeBytes is no size")?;
    Size::of(bytes).map_err(|why| why.to_string())
}

/// The volume that an object without a record asks for; else the reason, as a word and in words.
pub(super) fn volume(name: &str, spec: &Value) -> Result<Wish, (&'static str, String)> {
    let parameters = parameters(spec);
    let Asked { class, claim } =
        Asked::parse(&parameters).map_err(|why| ("InvalidParameters", why.to_string()))?;
    let given = spec["claim"].as_str().map(|text| text.split_once('/').ok_or(text));
    let given = match given {
        None => None,
        Some(Ok((namespace, name))) => {
            Some(Claim::new(namespace, name).map_err(|why| ("InvalidClaim", why.to_string()))?)
        }
        Some(Err(text)) => {
            return Err(("InvalidClaim", format!("spec.claim is {text:?}; write NAMESPACE/NAME")));
        }
    };
    Ok(Wish {
        name: name.parse().map_err(|why: hotbay_core::label::extents::NotAName| {
            ("InvalidName", why.to_string())
        })?,
        size: size(spec).map_err(|why| ("InvalidSize", why))?,
        class,
        parameters,
        nodes: BTreeSet::new(),
        preferred: Vec::new(),
        claim: claim.or(given),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(spec: Value, before: Option<Value>) -> Ask {
        ask(&spec, before.as_ref(), &Subject::Node { name: "node-a".into() })
    }

    #[test]
    fn only_what_has_changed_is_a_wish() {
        let added = json!({ "inOperation": true, "labels": { "rack": "a" } });
        let relabelled = json!({ "inOperation": true, "labels": { "zone": "z" } });
        assert_eq!(node(added.clone(), Some(added.clone())), Ask::Nothing);
        let Ask::Act(actions) = node(relabelled, Some(added.clone())) else { panic!() };
        let [Action::LabelHost { change, .. }] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(change.set().to_string(), "zone=z");
        assert_eq!(change.remove().map(ToString::to_string).collect::<Vec<_>>(), ["rack"]);
        let Ask::Act(actions) = node(added.clone(), None) else { panic!() };
        assert_eq!(actions.len(), 2);
        let Ask::Act(actions) =
            node(json!({ "inOperation": false, "labels": { "rack": "a" } }), Some(added))
        else {
            panic!()
        };
        assert_eq!(actions, [Action::RemoveHost { host: "node-a".into() }]);
    }

    /// A spec that was never taken for one of labels may be what stood there before.
    #[test]
    fn what_never_was_a_label_is_not_removed() {
        let before = json!({ "labels": { "a b": "c", "rack": "a" } });
        let Ask::Act(actions) = node(json!({}), Some(before)) else { panic!() };
        let [Action::LabelHost { change, .. }] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(change.remove().map(ToString::to_string).collect::<Vec<_>>(), ["rack"]);
        assert_eq!(node(json!({}), Some(json!({ "labels": { "a b": "c" } }))), Ask::Nothing);
    }

    #[test]
    fn a_cordon_is_wished_and_taken_back_with_its_line() {
        let cordon =
            |cordoned| Ask::Act(vec![Action::CordonHost { host: "node-a".into(), cordoned }]);
        let (nothing, yes) = (json!({}), json!({ "cordon": true }));
        assert_eq!(node(yes.clone(), Some(nothing.clone())), cordon(true));
        assert_eq!(node(yes.clone(), Some(yes.clone())), Ask::Nothing);
        assert_eq!(node(nothing.clone(), Some(yes)), cordon(false));
        // After a change of the leader it is not known what stood there before: what is not said is no wish.
        assert_eq!(node(nothing, None), Ask::Nothing);
    }

    #[test]
    fn nonsense_is_refused_with_words() {
        let refused = |ask: Ask| matches!(ask, Ask::Refused(Code::Argument, _));
        assert!(refused(node(json!({ "inOperation": "perhaps" }), None)));
        assert!(refused(node(json!({ "labels": { "a b": "c" } }), None)));
        assert!(refused(ask(
            &json!({ "inOperation": 1 }),
            None,
            &Subject::Drive(DriveId::from_bits(1))
        )));
        for (spec, reason) in [
            (json!({}), "InvalidSize"),
            (json!({ "sizeBytes": 1, "parameters": { "colour": "red" } }), "InvalidParameters"),
            (json!({ "sizeBytes": 1, "parameters": { "media": "tape" } }), "InvalidParameters"),
            (json!({ "sizeBytes": 1, "claim": "x" }), "InvalidClaim"),
            (json!({ "sizeBytes": u64::MAX }), "InvalidSize"),
        ] {
            assert_eq!(
                volume("v", &spec).map_err(|(reason, _)| reason).unwrap_err(),
                reason,
                "{spec}"
            );
        }
    }
}
