//! The shapes of what `/v1/volumes` takes and answers, for [`super::openapi`].

use hotbay_api::kinds::API_VERSION;
use serde_json::{Map, Value, json};

use super::openapi::{object, reference};
use super::schemas::{condition, flag, labels, list_of, named, number, text, words};

const PARAMETERS: &str = "As of a storage class: media, drive, spread, spreadKey, fsType, mkfsOptions, erase, \
                          maxShares, \
                          maxMountReplicaCount, ignoreIfInaccessible. One that is not known is refused.";

pub(super) fn schemas() -> Map<String, Value> {
    let size = number("Rounded up to whole MiB.");
    Map::from_iter([
        ("VolumeList".to_owned(), list_of("Volume", "VolumeList")),
        ("Volume".to_owned(), volume()),
        (
            "VolumeBrief".to_owned(),
            object(
                &["name", "sizeBytes", "usedOn"],
                json!({
                    "name": text(),
                    "sizeBytes": number("Its size."),
                    "claim": words("namespace/name of the claim that it was made for."),
                    "usedOn": named("The nodes that may use it."),
                }),
            ),
        ),
        (
            "CreateVolume".to_owned(),
            closed(
                &["name", "sizeBytes"],
                json!({
                    "name": words("1 to 128 bytes, without control characters."),
                    "sizeBytes": size,
                    "parameters": labels(PARAMETERS),
                    "nodes": named("The names of the nodes where it must be reached; none: anywhere."),
                }),
            ),
        ),
        ("ExpandVolume".to_owned(), closed(&["sizeBytes"], json!({ "sizeBytes": size }))),
        (
            "VolumeDeleted".to_owned(),
            object(
                &["deleted", "remark"],
                json!({
                    "deleted": { "const": true },
                    "remark": words("What was not done, in words; empty: nothing."),
                }),
            ),
        ),
    ])
}

/// An object that has no other properties.
fn closed(required: &[&str], properties: Value) -> Value {
    let mut closed = object(required, properties);
    closed["additionalProperties"] = json!(false);
    closed
}

fn volume() -> Value {
    let spec = object(
        &["parameters"],
        json!({
            "parameters": labels("As they were given."),
            "claim": words("namespace/name of the claim that it was made for."),
        }),
    );
    object(
        &["apiVersion", "kind", "metadata", "spec", "status"],
        json!({
            "apiVersion": { "const": API_VERSION },
            "kind": { "const": "Volume" },
            "metadata": reference("Metadata"),
            "annotations": labels("What people and programs have noted on it."),
            "spec": spec,
            "status": status(),
        }),
    )
}

fn status() -> Value {
    let attachment = object(
        &["node", "state", "epoch", "readOnly"],
        json!({
            "node": text(),
            "state": { "enum": ["Attaching", "Attached", "Detaching"] },
            "epoch": number("Under which use the node may have it."),
            "readOnly": flag("It may not be written to."),
            "waitingFor": words("What the node's agent waits for."),
        }),
    );
    object(
        &["state", "sinceMs", "sizeBytes", "epoch", "attachments", "conditions", "askedBy"],
        json!({
            "state": { "enum": ["Pending", "Created", "Deleting", "Deleted", "Lost", "Orphan"] },
            "sinceMs": number("Since when it is in this state, in Unix milliseconds."),
            "sizeBytes": number("Its size."),
            "drive": words("The name of the drive that it is on."),
            "node": words("The node that has the drive: only there it is reached."),
            "epoch": number("Of the last use that was granted."),
            "attachments": { "type": "array", "items": attachment },
            "conditions": { "type": "array", "items": condition() },
            "askedBy": text(),
        }),
    )
}
