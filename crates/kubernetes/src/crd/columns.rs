//! What `kubectl get` shows of each kind; with `-o wide` also what has priority 1.

use serde_json::{Value, json};

use crate::resource::Resource;

pub(super) fn of(resource: Resource) -> Vec<Value> {
    let mut columns = match resource {
        Resource::Registry => vec![
            text("Cluster", ".status.cluster"),
            number("Term", ".status.term.number"),
            of_condition("Rewound", "RegistryRewound", "status"),
            wide(of_condition("Why", "RegistryRewound", "message")),
        ],
        Resource::StorageNode => vec![
            of_condition("Ready", "Ready", "status"),
            of_condition("Reason", "Ready", "reason"),
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
            of_condition("Waiting", "Waiting", "reason"),
            wide(text("Waiting For", ".status.waitingFor")),
            wide(text("Wish", ".status.goal.wish")),
            wide(text("Bay", ".status.bay")),
            wide(text("Model", ".status.model")),
            wide(text("Serial", ".status.serial")),
        ],
        // A claim's volume has a long name: what is left of a line is for what tells them apart.
        Resource::Volume => vec![
            text("State", ".status.state"),
            number("Bytes", ".status.sizeBytes"),
            text("Node", ".status.node"),
            wide(text("Drive", ".status.drive")),
            text("Claim", ".spec.claim"),
            of_condition("Inaccessible", "Inaccessible", "reason"),
            wide(text("Works", ".status.operationalStatus")),
            wide(number("Epoch", ".status.epoch")),
            wide(of_condition("Waiting For", "Waiting", "message")),
            wide(of_condition("Why", "Inaccessible", "message")),
        ],
        // What is used and where is in the wish: there from the beginning, also while nobody leads.
        Resource::Attachment => vec![
            text("Volume", ".spec.volume"),
            text("Node", ".spec.node"),
            text("State", ".status.state"),
            of_condition("Inaccessible", "Inaccessible", "reason"),
            wide(number("Epoch", ".status.epoch")),
            wide(flag("Read Only", ".status.readOnly")),
            wide(of_condition("Waiting For", "Waiting", "message")),
            wide(of_condition("Why", "Inaccessible", "message")),
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

/// A field of the condition of this type; empty while there is none.
fn of_condition(name: &str, kind: &str, field: &str) -> Value {
    text(name, &format!(r#".status.conditions[?(@.type=="{kind}")].{field}"#))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::definitions;

    /// The column of this name, and whether it is shown without `-o wide`.
    fn shown(resource: Resource, name: &str) -> (String, bool) {
        let all = of(resource);
        let column = all.iter().find(|column| column["name"] == name).unwrap();
        (column["jsonPath"].as_str().unwrap().to_owned(), column["priority"].is_null())
    }

    /// The story: a misspelt path is no mistake to the server, the column is just empty for ever.
    #[test]
    fn every_column_reads_a_field_of_its_kind() {
        for definition in definitions() {
            let version = &definition["spec"]["versions"][0];
            let schema = &version["schema"]["openAPIV3Schema"];
            for column in version["additionalPrinterColumns"].as_array().unwrap() {
                let path = column["jsonPath"].as_str().unwrap();
                let mut place = schema;
                for step in path.split('.').skip(1).filter(|step| !step.starts_with("type==")) {
                    match step.split_once('[') {
                        None => place = &place["properties"][step],
                        Some((list, _)) => place = &place["properties"][list]["items"],
                    }
                    if step == "metadata" {
                        break;
                    }
                    assert!(place.is_object(), "{path}: no {step}");
                }
            }
        }
    }

    /// The story: of a volume that did not come or could not be reached nothing was shown but its state, and whose it
    /// is only with `-o wide`; an Attachment that no controller had seen was a line without a volume and a node.
    #[test]
    fn what_somebody_looks_for_first_is_shown() {
        let (path, always) = shown(Resource::Volume, "Claim");
        assert!(always && path == ".spec.claim");
        assert_eq!(shown(Resource::Attachment, "Volume"), (".spec.volume".to_owned(), true));
        assert_eq!(shown(Resource::Attachment, "Node"), (".spec.node".to_owned(), true));
        for resource in [Resource::Volume, Resource::Attachment] {
            let (path, always) = shown(resource, "Inaccessible");
            assert!(always && path.contains("Inaccessible") && path.ends_with(".reason"));
            assert!(shown(resource, "Waiting For").0.ends_with(".message"));
        }
        let (path, always) = shown(Resource::Registry, "Rewound");
        assert!(always && path.contains("RegistryRewound"));
    }
}
