//! Changes to objects that are not the store's: finalizers, annotations, objects of unknown records, conditions of
//! wishes that have no record. Each reads the object again and replaces that very version, so that it undoes nobody's
//! write.

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::annotations::Annotations;
use super::seen::Seen;
use crate::client::{Answer, CallError, Client};
use crate::object;
use crate::resource::FINALIZER;
use crate::store::entry::finalizers;

/// Objects that are changed at the same time.
const IN_FLIGHT: usize = 16;

/// How often a change is made again after others changed the object meanwhile.
const TRIES: u32 = 4;

/// A change to one object.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// Lets an object go that somebody has deleted.
    Release,
    /// Sets the finalizer again.
    Bind,
    /// Deletes the object of a record that nobody knows.
    Remove,
    /// Has the object show these annotations of its record.
    Annotate(Annotations),
    /// Writes the status of an object that has no record.
    Status(Value),
}

/// Makes the changes; gives back those that could not be made now, with the reason.
pub(super) async fn make_all(
    client: &Client,
    changes: Vec<(Seen, Change)>,
) -> Vec<(Seen, CallError)> {
    let mut changes = changes.into_iter();
    let (mut in_flight, mut failed) = (JoinSet::new(), Vec::new());
    loop {
        while in_flight.len() < IN_FLIGHT
            && let Some((seen, change)) = changes.next()
        {
            let client = client.clone();
            in_flight.spawn(async move {
                let made = make(&client, &seen, &change).await;
                (seen, made)
            });
        }
        match in_flight.join_next().await {
            None => return failed,
            Some(ended) => {
                let (seen, made) = ended.expect("a change neither panics nor is cancelled");
                failed.extend(made.err().map(|error| (seen, error)));
            }
        }
    }
}

async fn make(client: &Client, seen: &Seen, change: &Change) -> Result<(), CallError> {
    if let Change::Status(status) = change {
        return write_status(client, seen, status).await;
    }
    for _ in 0..TRIES {
        let answer = client.get(&seen.path()).await?;
        if answer.code == 404 {
            return Ok(());
        }
        let mut found = answer.done()?;
        if found["metadata"]["uid"] != json!(seen.entry.uid) {
            return Ok(());
        }
        let answer = match change {
            Change::Remove if is_same_record(seen, &found) => remove(client, seen, found).await?,
            Change::Release | Change::Bind if turn(&mut found, *change == Change::Bind) => {
                client.put(&seen.path(), &found).await?
            }
            Change::Annotate(record) if seen.annotated.show(record, &mut found) => {
                client.put(&seen.path(), &found).await?
            }
            Change::Remove
            | Change::Release
            | Change::Bind
            | Change::Annotate(_)
            | Change::Status(_) => return Ok(()),
        };
        match answer.code {
            404 => return Ok(()),
            409 => {}
            _ => return answer.done().map(drop),
        }
    }
    Err(CallError::Contended { object: seen.object() })
}

/// The finalizer goes first. Were it taken off after the delete, a leader that starts in between would find a record
/// that is only about to go, and take it for one that people have deleted.
async fn remove(client: &Client, seen: &Seen, mut found: Value) -> Result<Answer, CallError> {
    if seen.resource.has_finalizer() && finalizers(&found).any(|name| name == FINALIZER) {
        found["metadata"]["finalizers"] = json!(others(&found));
        let answer = client.put(&seen.path(), &found).await?;
        if !(200..300).contains(&answer.code) {
            return Ok(answer);
        }
        found = answer.body;
    }
    client.delete(&seen.path(), &precisely(&found)).await
}

/// The finalizers that are not ours.
fn others(object: &Value) -> Vec<String> {
    finalizers(object).filter(|name| *name != FINALIZER).map(str::to_owned).collect()
}

/// A newer version of the object is told by the watch, and then judged anew: a conflict needs no second try.
async fn write_status(client: &Client, seen: &Seen, status: &Value) -> Result<(), CallError> {
    let entry = &seen.entry;
    let body = object::with_status(seen.resource, &entry.name, &entry.uid, &entry.version, status);
    let answer = client.put(&format!("{}/status", seen.path()), &body).await?;
    match answer.code {
        404 | 409 => Ok(()),
        _ => answer.done().map(drop),
    }
}

fn is_same_record(seen: &Seen, found: &Value) -> bool {
    let now = Seen::of(seen.resource, found.clone());
    now.is_some_and(|now| now.held == seen.held && now.made_under == seen.made_under)
}

/// This object, in this version, and no other.
fn precisely(found: &Value) -> Value {
    let metadata = &found["metadata"];
    json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": { "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"] },
    })
}

/// Sets our finalizer, or takes it from an object that is to go; says whether there is anything to do.
fn turn(found: &mut Value, bind: bool) -> bool {
    let is_deleted = !found["metadata"]["deletionTimestamp"].is_null();
    let is_bound = finalizers(found).any(|name| name == FINALIZER);
    if is_bound == bind || is_deleted == bind {
        return false;
    }
    let mut all = others(found);
    all.extend(bind.then(|| FINALIZER.to_owned()));
    found["metadata"]["finalizers"] = json!(all);
    true
}
