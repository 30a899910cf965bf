//! Reads every object of a kind, as it is in etcd at one moment.

use std::time::Duration;

use hotbay_core::order::Term;
use hotbay_registry::{Key, StoreError};
use serde_json::Value;

use super::beside::Beside;
use super::entry::Entry;
use super::write::{LONGEST_ASKED, unknown_kind};
use crate::client::{Answer, CallError, Client};
use crate::object::{self, Content};
use crate::resource::Resource;

/// Objects in one answer.
const PAGE: usize = 500;

/// How often the call for one page is made again. A server that has too much to do lets a page through now and then:
/// each one counts anew, or a long list would never end.
const FAILURES: u32 = 8;

/// The pause after a failed call, if the server does not ask for another one.
const PAUSE: Duration = Duration::from_millis(250);

/// How often a list is begun anew because its moment is no longer kept.
const RESTARTS: u32 = 3;

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

/// All objects of a kind. Without a resource version the server asks etcd, not its cache; the pages of one list are
/// all of the same moment.
pub(super) async fn list(
    api: &Client,
    resource: Resource,
    ours: Option<Term>,
) -> Result<Vec<Found>, StoreError> {
    let (mut objects, mut token) = (Vec::new(), String::new());
    let (mut failures, mut restarts) = (0, 0);
    loop {
        let answered = api.get(&page(resource, &token)).await;
        let mut answer = match answered {
            Ok(answer) if answer.code == 429 || answer.code >= 500 => {
                let error = CallError::Failed { code: answer.code, words: answer.words() };
                pause(resource, &mut failures, error, answer.retry_after).await?;
                continue;
            }
            Ok(answer) => answer,
            Err(error) => {
                pause(resource, &mut failures, error, None).await?;
                continue;
            }
        };
        match answer.code {
            200..=299 => failures = 0,
            410 if restarts < RESTARTS => {
                restarts += 1;
                objects.clear();
                token.clear();
                continue;
            }
            _ => return Err(refused(resource, &answer)),
        }
        if let Value::Array(items) = answer.body["items"].take() {
            objects.extend(items.iter().filter_map(|item| Found::of(resource, item, ours)));
        }
        match answer.body["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => token = next.to_owned(),
            Some(_) | None => return Ok(objects),
        }
    }
}

pub(crate) fn page(resource: Resource, token: &str) -> String {
    let all = resource.path();
    match token {
        "" => format!("{all}?limit={PAGE}"),
        // It is base64 for URLs: nothing in it needs to be escaped.
        token => format!("{all}?limit={PAGE}&continue={token}"),
    }
}

async fn pause(
    resource: Resource,
    failures: &mut u32,
    error: CallError,
    asked: Option<Duration>,
) -> Result<(), StoreError> {
    *failures += 1;
    if *failures > FAILURES {
        let object = resource.plural().to_owned();
        return Err(StoreError::Unreachable { action: "list", object, source: error.into() });
    }
    tokio::time::sleep(asked.unwrap_or(PAUSE).min(LONGEST_ASKED)).await;
    Ok(())
}

fn refused(resource: Resource, answer: &Answer) -> StoreError {
    let what = if answer.code == 404 { unknown_kind(resource) } else { answer.words() };
    StoreError::Refused { action: "list", object: resource.plural().to_owned(), what }
}
