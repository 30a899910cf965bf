//! What `kubectl get` shows of each kind; with `-o wide` also what has priority 1.

use serde_json::{Value, json};

use crate::resource::Resource;

pub(super) fn of(resource: Resource) -> Vec<Value> {
    let mut columns = match resource {
        Resource::Registry => {
            vec![text("Cluster", ".status.cluster"), number("Term", ".status.term.number")]
        }
        Resource::StorageNode => vec![
            text("Ready", r#".status.conditions[?(@.type=="Ready")].status"#),
            text("Reason", r#".status.conditions[?(@.type=="Ready")].reason"#),
            number("Drives", ".status.drives"),
            number("In Operation", ".status.drivesInOperation"),
            column("Heartbeat", "date", ".status.lastHeartbeat"),
            wide(flag("Cordoned", ".status.cordoned")),
            wide(flag("Purged", ".status.purged")),
        ],
        Resource::Drive => vec![
            text("Node", ".status.node"),
            text("Path", ".status.path"),
            text("Media", ".status.media"),
            number("Bytes", ".status.sizeBytes"),
            text("State", ".status.state"),
            text("Waiting", r#".status.conditions[?(@.type=="Waiting")].reason"#),
            wide(text("Waiting For", ".status.waitingFor")),
            wide(text("Wish", ".status.goal.wish")),
            wide(text("Bay", ".status.bay")),
            wide(text("Model", ".status.model")),
            wide(text("Serial", ".status.serial")),
        ],
        Resource::Volume => vec![
            text("State", ".status.state"),
            number("Bytes", ".status.sizeBytes"),
            text("Node", ".status.node"),
            text("Drive", ".status.drive"),
            text("Works", ".status.operationalStatus"),
            wide(text("Claim", ".spec.claim")),
            wide(number("Epoch", ".status.epoch")),
        ],
        Resource::Attachment => vec![
            text("Volume", ".status.volume"),
            text("Node", ".status.node"),
            text("State", ".status.state"),
            wide(number("Epoch", ".status.epoch")),
            wide(flag("Read Only", ".status.readOnly")),
        ],
    };
    columns.push(column("Age", "date", ".metadata.creationTimestamp"));
    columns
}

fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path })
}

fn text(name: &str, path: &str) -> Value {
    column(name, "string", path)
}

fn number(name: &str, path: &str) -> Value {
    column(name, "integer", path)
}

fn flag(name: &str, path: &str) -> Value {
    column(name, "boolean", path)
}

fn wide(mut column: Value) -> Value {
    column["priority"] = json!(1);
    column
}
