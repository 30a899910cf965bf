//! What stands in the status of an object beside what follows from its record: what was made of the wish in its spec
//! ([`crate::people`]), and what only the memory of the leading controller knows ([`crate::living`]).
//!
//! Both are noted with the store and go out with its next write of the object; they are read back when a controller
//! loads the objects, so that nothing is written only because the leader changed. The checksum does not cover them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::resource::Resource;
use crate::view::{
    ATTACHED, CREATED, IN_OPERATION, INACCESSIBLE, MISSING, REMOVAL_WANTED, SPEC_APPLIED,
};

/// What was made of the wish in a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Noticed {
    /// The generation of the spec.
    pub(crate) observed: i64,
    /// None if the spec wishes nothing.
    pub(crate) condition: Option<Value>,
}

/// What only memory knows of a thing, as its status shows it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Said {
    /// In the order of their types.
    pub(crate) conditions: Vec<Saying>,
    pub(crate) fields: BTreeMap<&'static str, Value>,
}

/// One condition of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Saying {
    pub(crate) kind: String,
    pub(crate) holds: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// When it last began or ceased to hold, as the server writes times.
    pub(crate) since: String,
}

/// All that stands beside a record.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Beside {
    pub(crate) noticed: Option<Noticed>,
    pub(crate) said: Said,
}

/// The fields of a status that are said, and not made from the record.
fn fields_of(resource: Resource) -> &'static [&'static str] {
    match resource {
        Resource::StorageNode => &[
            "ready",
            "lastHeartbeat",
            "incarnation",
            "drives",
            "drivesInOperation",
            "kubernetesNode",
            "version",
            "address",
        ],
        Resource::Drive => &["waitingFor", "present"],
        Resource::Attachment => &["staged"],
        Resource::Registry | Resource::Volume => &[],
    }
}

/// Whether a condition is made from the record, or from a spec.
fn is_made(condition: &Value) -> bool {
    let made = [IN_OPERATION, REMOVAL_WANTED, CREATED, ATTACHED, SPEC_APPLIED];
    made.iter().any(|kind| condition["type"] == *kind)
        || (condition["type"] == INACCESSIBLE && condition["reason"] == MISSING)
}

impl Saying {
    fn of(condition: &Value) -> Option<Self> {
        let text = |field: &str| condition[field].as_str().map(str::to_owned);
        Some(Self {
            kind: text("type")?,
            holds: condition["status"] == "True",
            reason: text("reason")?,
            message: text("message")?,
            since: text("lastTransitionTime")?,
        })
    }

    fn condition(&self) -> Value {
        json!({
            "type": self.kind,
            "status": if self.holds { "True" } else { "False" },
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": self.since,
        })
    }
}

impl Said {
    pub(crate) fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn get(&self, kind: &str) -> Option<&Saying> {
        self.conditions.iter().find(|saying| saying.kind == kind)
    }
}

impl Beside {
    /// As an object that was loaded has it.
    pub(crate) fn of(resource: Resource, object: &Value) -> Self {
        let status = &object["status"];
        let conditions = || status["conditions"].as_array().into_iter().flatten();
        let applied = conditions().find(|condition| condition["type"] == SPEC_APPLIED);
        let observed = status["observedGeneration"].as_i64();
        let noticed = applied
            .zip(observed)
            .map(|(condition, observed)| Noticed { observed, condition: Some(condition.clone()) });
        let said = conditions().filter(|condition| !is_made(condition));
        let mut conditions: Vec<_> = said.filter_map(Saying::of).collect();
        conditions.sort_by(|one, other| one.kind.cmp(&other.kind));
        let there = |field: &&'static str| Some((*field, status.get(*field)?.clone()));
        let fields = fields_of(resource).iter().filter_map(there).collect();
        Self { noticed, said: Said { conditions, fields } }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.noticed.is_none() && self.said.is_empty()
    }

    /// Puts it into what people see. Of two conditions of one type the one that is said knows more.
    pub(crate) fn show(&self, view: &mut Map<String, Value>) {
        for (field, value) in &self.said.fields {
            view.insert((*field).to_owned(), value.clone());
        }
        let Some(Value::Array(conditions)) = view.get_mut("conditions") else { return };
        conditions
            .retain(|made| made["type"].as_str().is_none_or(|kind| self.said.get(kind).is_none()));
        conditions.extend(self.said.conditions.iter().map(Saying::condition));
        conditions.extend(self.noticed.as_ref().and_then(|noticed| noticed.condition.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saying(kind: &str, holds: bool) -> Saying {
        let text = |text: &str| text.to_owned();
        let since = text("2026-01-01T00:00:00Z");
        Saying { kind: text(kind), holds, reason: text("Why"), message: text("so"), since }
    }

    /// What a leader shows is what the next one loads; what follows from the record is not taken for it.
    #[test]
    fn what_is_shown_is_read_back() {
        let said = Said {
            conditions: vec![saying("Inaccessible", true), saying("Waiting", false)],
            fields: [("waitingFor", json!("an agent")), ("present", json!(false))].into(),
        };
        let condition = Some(json!({ "type": SPEC_APPLIED, "reason": "S_OK" }));
        let beside = Beside { noticed: Some(Noticed { observed: 3, condition }), said };
        let made = json!([
            { "type": "InOperation", "status": "True", "reason": "Attached" },
            { "type": "Inaccessible", "status": "True", "reason": "Missing" },
        ]);
        let mut view = Map::from_iter([("conditions".to_owned(), made.clone())]);
        beside.show(&mut view);
        view.insert("observedGeneration".to_owned(), json!(3));
        let object = json!({ "status": view });
        let kinds = object["status"]["conditions"].as_array().unwrap().iter();
        let kinds: Vec<_> = kinds.map(|condition| condition["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["InOperation", "Inaccessible", "Waiting", "SpecApplied"]);
        assert_eq!(Beside::of(Resource::Drive, &object), beside);
        let alone = json!({ "status": { "conditions": made } });
        assert!(Beside::of(Resource::Drive, &alone).is_empty());
    }
}
