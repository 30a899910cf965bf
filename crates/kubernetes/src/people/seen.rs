//! An object as the server shows it, without what is of no use here: annotations that do not count take up no memory.

use hotbay_core::order::Term;
use hotbay_registry::Key;
use serde_json::Value;

use super::annotations::Annotated;
use crate::object::{self, Content};
use crate::resource::Resource;
use crate::store::entry::Entry;

/// An object at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    pub(super) resource: Resource,
    pub(super) entry: Entry,
    pub(super) generation: i64,
    pub(super) held: Held,
    /// It has a record, and no status yet.
    pub(super) is_bare: bool,
    /// The number of the term of the controller that made it; none if people did.
    pub(super) made_under: Option<u64>,
    /// The wish in it.
    pub(super) spec: Value,
    /// What people say of it, beside the wish. Only of volumes.
    pub(super) annotated: Annotated,
    /// Its conditions, if it has no record.
    pub(super) conditions: Value,
}

/// What the status of an object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    Record { key: Key, term: Option<Term> },
    Edited,
    Nothing,
}

impl Seen {
    /// `None` if it is nothing that the server could have under this kind.
    pub(super) fn of(resource: Resource, mut object: Value) -> Option<Self> {
        let entry = Entry::of(resource, &object, None)?;
        let (held, is_bare) = match object::content(resource, &object) {
            Content::Record { key, term, is_first, .. } => (Held::Record { key, term }, is_first),
            Content::Edited => (Held::Edited, false),
            Content::Nothing => (Held::Nothing, false),
        };
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
        let conditions = match held {
            Held::Nothing => object["status"]["conditions"].take(),
            Held::Record { .. } | Held::Edited => Value::Null,
        };
        let made_under = object::made_under_term(&object);
        let annotated = match resource {
            Resource::Volume => Annotated::of(&object),
            Resource::Registry | Resource::StorageNode | Resource::Drive | Resource::Attachment => {
                Annotated::default()
            }
        };
        let spec = object["spec"].take();
        Some(Self {
            resource,
            entry,
            generation,
            held,
            is_bare,
            made_under,
            spec,
            annotated,
            conditions,
        })
    }

    /// As people call it: `drives/d-1`.
    pub(super) fn object(&self) -> String {
        format!("{}/{}", self.resource.plural(), self.entry.name)
    }

    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.resource.path(), self.entry.name)
    }
}
