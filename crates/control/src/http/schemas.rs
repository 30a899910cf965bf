//! The shapes of what the HTTP API takes and answers, for [`super::openapi`].

use hotbay_api::kinds::API_VERSION;
use serde_json::{Value, json};

use super::openapi::{object, reference};
use super::refusal::CODES;
use super::volume_schemas;

const ORDER: &str = "The order that says what is wanted of it; the same in the logs of the registry and of the agent.";

pub(super) fn list_of(schema: &str, kind: &str) -> Value {
    object(
        &["apiVersion", "kind", "items"],
        json!({
            "apiVersion": { "const": API_VERSION },
            "kind": { "const": kind },
            "metadata": object(&["continue"], json!({ "continue": words("There is more: ask for it with this.") })),
            "items": { "type": "array", "items": reference(schema) },
        }),
    )
}

pub(super) fn schemas() -> Value {
    let mut all = of_drives_and_nodes();
    if let Some(all) = all.as_object_mut() {
        all.extend(volume_schemas::schemas());
    }
    all
}

fn of_drives_and_nodes() -> Value {
    json!({
        "ActRequest": act_request(),
        "Action": action(),
        "ActResponse": object(
            &["results"],
            json!({ "results": { "type": "array", "items": reference("ActionResult") } }),
        ),
        "ActionResult": action_result(),
        "DriveBrief": drive_brief(),
        "DriveList": list_of("Drive", "DriveList"),
        "Drive": drive(),
        "DriveStatus": drive_status(),
        "DeniedReason": denied_reason(),
        "StorageNodeList": list_of("StorageNode", "StorageNodeList"),
        "StorageNode": node(),
        "Metadata": object(&["name", "uid"], json!({ "name": text(), "uid": text() })),
        "EventList": list_of("Event", "EventList"),
        "Event": event(),
        "Adoption": adoption(),
        "Error": error(),
    })
}

pub(super) fn text() -> Value {
    json!({ "type": "string" })
}

fn texts() -> Value {
    json!({ "type": "array", "items": text() })
}

/// A list of names.
pub(super) fn named(description: &str) -> Value {
    json!({ "type": "array", "items": text(), "description": description })
}

pub(super) fn number(description: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "description": description })
}

pub(super) fn flag(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

pub(super) fn words(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn act_request() -> Value {
    json!({
        "type": "object",
        "required": ["actions"],
        "additionalProperties": false,
        "properties": {
            "actions": {
                "type": "array",
                "maxItems": crate::actions::ACTIONS_IN_A_CALL,
                "items": reference("Action"),
            },
            "dryRun": flag("Answers the same, and changes nothing."),
        },
    })
}

fn action() -> Value {
    json!({
        "type": "object",
        "required": ["type"],
        "additionalProperties": false,
        "properties": {
            "type": {
                "enum": [
                    "ADD_DEVICE", "ADD_HOST", "CORDON_HOST", "FORGET_HOST", "GET_DEPENDENT_VOLUMES", "LABEL_HOST",
                    "PURGE_HOST", "REMOVE_DEVICE", "REMOVE_HOST", "TAKE_OVER_DEVICE", "UNCORDON_HOST",
                ],
            },
            "host": words("The host that is meant, or that has the device."),
            "device": words("A path or bay of the host; or, without a host, a drive's name, id or serial number, or \
                             host:path."),
            "withRemoved": flag("ADD_HOST: also the drives that were removed on their own."),
            "returned": flag("ADD_HOST: a host that was purged is back."),
            "expectedState": words("ADD_DEVICE, TAKE_OVER_DEVICE: only while the drive's status.stateHash is \
                                    this."),
            "wipe": flag("ADD_DEVICE: what is on the drive may be wiped. Needs expectedState and serial."),
            "serial": words("TAKE_OVER_DEVICE, and with wipe: the drive's serial number, as a person typed it; its \
                             name if it has none."),
            "labels": labels("LABEL_HOST: the labels to set."),
            "removeLabels": {
                "type": "array",
                "items": text(),
                "description": "LABEL_HOST: the keys of the labels to remove.",
            },
            "overwrite": flag("LABEL_HOST: also a label that has another value."),
        },
    })
}

pub(super) fn labels(description: &str) -> Value {
    json!({ "type": "object", "additionalProperties": text(), "description": description })
}

fn action_result() -> Value {
    object(
        &["result", "reasons", "dependentVolumes", "volumes", "drives"],
        json!({
            "result": {
                "enum": ["S_OK", "S_ALREADY", "E_TRY_AGAIN", "E_INVALID_STATE", "E_NOT_FOUND", "E_ARGUMENT"],
            },
            "reasons": texts(),
            "dependentVolumes": named("The names of the volumes that stand in the way, or are lost."),
            "volumes": { "type": "array", "items": reference("VolumeBrief") },
            "retryAfterMs": number("When to ask again."),
            "drive": reference("DriveBrief"),
            "drives": {
                "type": "array",
                "items": reference("ActionResult"),
                "description": "A host action: the result per drive. LABEL_HOST: the drives that rules then add.",
            },
        }),
    )
}

fn drive_brief() -> Value {
    let properties = json!({
        "name": text(), "node": text(), "path": text(), "bay": text(), "serial": text(),
        "order": words(ORDER),
    });
    object(&["name", "node", "path"], properties)
}

fn drive() -> Value {
    object(
        &["apiVersion", "kind", "metadata", "spec", "status"],
        json!({
            "apiVersion": { "const": API_VERSION },
            "kind": { "const": "Drive" },
            "metadata": reference("Metadata"),
            "spec": object(&["inOperation"], json!({ "inOperation": flag("It is wanted in operation.") })),
            "status": reference("DriveStatus"),
        }),
    )
}

fn drive_status() -> Value {
    let required = [
        "node",
        "state",
        "goal",
        "sinceMs",
        "present",
        "path",
        "deviceKind",
        "media",
        "sizeBytes",
        "blockBytes",
        "transport",
        "physicalBlockBytes",
        "readOnly",
        "removable",
        "zoned",
        "denied",
        "volumes",
        "removalWanted",
    ];
    let mut properties = json!({
        "node": text(),
        "state": {
            "enum": ["UnknownDevice", "AttachingDevice", "AttachedDevice", "ClosingDevice", "DetachedDevice"],
        },
        "goal": object(&["wish", "generation"], json!({
            "wish": { "enum": ["attach", "detach"] },
            "generation": number("How often what is wanted has changed."),
            "order": words(ORDER),
        })),
        "sinceMs": number("Since when it is in this state, in Unix milliseconds."),
        "present": flag("The device is on its machine."),
        "path": text(),
        "bay": words("The bay that was named by hand, else the slot, where the machine can tell."),
        "model": text(),
        "serial": text(),
        "wwn": text(),
        "deviceKind": { "enum": ["Block", "Loop", "File"] },
        "media": { "enum": ["NVMe", "SSD", "HDD", "File", "Unknown"] },
        "sizeBytes": number("Its size."),
        "blockBytes": number("The smallest unit that it writes."),
        "denied": {
            "type": "array",
            "items": reference("DeniedReason"),
            "description": "Why it cannot be added; empty when it can.",
        },
        "waitingFor": words("Why it is not as wished."),
        "conditions": { "type": "array", "items": condition() },
        "volumes": named("The names of the volumes on it."),
        "freeBytes": number("What could be given to volumes; only while its label is known."),
        "dirtyBytes": number("What deleted volumes had and is not erased yet; only while its label is known."),
        "removalWanted": flag("A removal was asked for and waits for the volumes."),
        "askedBy": text(),
        "stateHash": words("Stands for all that adding or taking it over rests on. Another one: look at it again."),
        "autoAdd": {
            "type": "array",
            "items": object(&["rule", "took", "message"], json!({
                "rule": text(), "took": flag("It has added the drive."), "message": text(),
            })),
            "description": "What each rule that adds drives makes of it, in the order of the rules.",
        },
    });
    if let (Some(properties), Value::Object(details)) = (properties.as_object_mut(), details()) {
        properties.extend(details);
    }
    object(&required, properties)
}

/// What is known of a device beside its size and identity.
fn details() -> Value {
    let partition = object(
        &["name", "sizeBytes"],
        json!({ "name": words("Such as sda1."), "sizeBytes": number("Its size.") }),
    );
    json!({
        "vendor": text(),
        "firmware": text(),
        "transport": {
            "enum": [
                "nvme", "sata", "sas", "usb", "virtio", "iscsi", "fc", "mmc", "file", "unknown",
            ],
            "description": "How the machine reaches it.",
        },
        "enclosure": words("The enclosure that the bay is in."),
        "physicalBlockBytes": number("The unit that the medium writes; 0 if it is not told."),
        "readOnly": flag("It cannot be written to."),
        "removable": flag("Its medium can be taken out of it."),
        "zoned": flag("Parts of it can only be written in sequence."),
        "links": {
            "type": "array",
            "items": text(),
            "description": "Its names below /dev/disk/by-id, where udev runs.",
        },
        "contents": words("What is on it as a whole and not ours, as blkid calls it: ext4, gpt, LVM2_member."),
        "partitions": { "type": "array", "items": partition },
        "mounts": {
            "type": "array",
            "items": text(),
            "description": "Where it, or anything that stands on it, is mounted; [swap] where the machine swaps to it.",
        },
        "holders": {
            "type": "array",
            "items": text(),
            "description": "The block devices that stand on it or on a part of it.",
        },
        "filter": filter(),
    })
}

/// What the filters of the machine say.
fn filter() -> Value {
    let rule = object(
        &["number", "text"],
        json!({
            "number": number("Its place in the file, from 1."),
            "name": text(),
            "text": words("The rule as it is written."),
        }),
    );
    object(
        &["included"],
        json!({
            "included": flag("It is not left out."),
            "rule": rule,
            "notIncludedBy": {
                "type": "array",
                "items": rule,
                "description": "No rule fits, and these include: it is nothing that they ask for.",
            },
        }),
    )
}

fn denied_reason() -> Value {
    json!({
        "type": "object",
        "required": ["reason", "message"],
        "description": "A reason with its own fields, and the same in words.",
        "properties": { "reason": text(), "message": text() },
        "additionalProperties": true,
    })
}

pub(super) fn condition() -> Value {
    object(&["type", "message"], json!({ "type": text(), "message": text() }))
}

fn node() -> Value {
    let status = object(
        &["ready", "purged", "machine", "drives", "drivesInOperation", "conditions"],
        json!({
            "ready": flag("The agent is registered."),
            "purged": flag("The host was given up."),
            "cordoned": flag("Its drives get no new volumes."),
            "silentSinceMs": number("Since when the agent is not connected; not there if the registry started later."),
            "machine": text(),
            "incarnation": text(),
            "session": number("The number of the agent's session."),
            "version": words("The release of the agent that registered last, if it says so."),
            "address": words("Where it came from; not there if it came by the registry's own socket."),
            "drives": number("How many drives it has."),
            "drivesInOperation": number("How many of them are wanted in operation."),
            "conditions": { "type": "array", "items": condition() },
        }),
    );
    object(
        &["apiVersion", "kind", "metadata", "spec", "status"],
        json!({
            "apiVersion": { "const": API_VERSION },
            "kind": { "const": "StorageNode" },
            "metadata": reference("Metadata"),
            "spec": object(&["labels"], json!({ "labels": labels("What people say of it, such as its rack.") })),
            "status": status,
        }),
    )
}

fn event() -> Value {
    object(
        &["number", "timeMs", "warning", "text"],
        json!({
            "number": number("Since the registry started, from 1."),
            "timeMs": number("Unix milliseconds."),
            "warning": flag("Somebody should look at it."),
            "about": words("The id of a drive, node or volume."),
            "text": text(),
            "order": words("The order that it is about."),
        }),
    )
}

fn adoption() -> Value {
    let node = object(&["node", "differences"], json!({ "node": text(), "differences": texts() }));
    object(
        &["nodes", "adopted"],
        json!({
            "nodes": { "type": "array", "items": node },
            "adopted": flag("It was taken over; false where there was nothing to take."),
        }),
    )
}

fn error() -> Value {
    let codes: Vec<_> = CODES.iter().map(|(code, _)| code).collect();
    let inner = object(
        &["code", "message", "nextStep"],
        json!({ "code": { "enum": codes }, "message": text(), "nextStep": text() }),
    );
    object(&["error"], json!({ "error": inner }))
}
