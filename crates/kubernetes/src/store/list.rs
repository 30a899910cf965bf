//! Reads every object of a kind, as it is in etcd at one moment.

use hotbay_core::order::Term;
use hotbay_registry::{Key, StoreError};
use serde_json::Value;

use super::beside::Beside;
use super::entry::Entry;
use super::write::unknown_kind;
use crate::client::pages::Pages;
use crate::client::{CallError, Client};
use crate::object::{self, Content};
use crate::resource::Resource;

/// An object, without what a store has no use for: all of them together are to fit into memory.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) entry: Entry,
    pub(super) held: Held,
    pub(super) beside: Beside,
    /// The format of all records, where the object says it.
    pub(super) format: Option<u64>,
}

/// What an object holds.
#[derive(Debug)]
pub(super) enum Held {
    Record { key: Key, term: Option<Term>, value: Vec<u8> },
    Edited,
    Nothing,
}

impl Found {
    fn of(resource: Resource, object: &Value, ours: Option<Term>) -> Option<Self> {
        let held = match object::content(resource, object) {
            Content::Record { key, record, term, .. } => {
                Held::Record { key, term, value: record.to_string().into_bytes() }
            }
            Content::Edited => Held::Edited,
            Content::Nothing => Held::Nothing,
        };
        let (entry, beside) = (Entry::of(resource, object, ours)?, Beside::of(resource, object));
        let format = object["status"]["formatVersion"].as_u64();
        Some(Self { entry, held, beside, format })
    }
}

/// All objects of a kind.
pub(super) async fn list(
    api: &Client,
    resource: Resource,
    ours: Option<Term>,
) -> Result<Vec<Found>, StoreError> {
    let (mut objects, mut pages) = (Vec::new(), Pages::of(api, resource.path()));
    while let Some(page) = pages.next().await.map_err(|error| failed(resource, error))? {
        if page.is_first {
            objects.clear();
        }
        objects.extend(page.items.iter().filter_map(|item| Found::of(resource, item, ours)));
    }
    Ok(objects)
}

fn failed(resource: Resource, error: CallError) -> StoreError {
    let (action, object) = ("list", resource.plural().to_owned());
    match error {
        CallError::Failed { code: 404, .. } => {
            StoreError::Refused { action, object, what: unknown_kind(resource) }
        }
        CallError::Failed { code, words } if code != 429 && code < 500 => {
            StoreError::Refused { action, object, what: words }
        }
        error => StoreError::Unreachable { action, object, source: error.into() },
    }
}
