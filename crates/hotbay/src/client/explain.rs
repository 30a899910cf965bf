//! `hotbay drive explain`: why a drive can or cannot be added, reason by reason, in the order in which that is decided.

use hotbay_api::kinds::{Drive, DriveStatus, StorageNode};
use hotbay_core::device::Denied;
use hotbay_core::filter::is_filtered;
use serde::Serialize;

use super::api::{Api, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::screen::{Screen, plain};
use super::{rows, suggest};
use crate::cli::ExplainFormat;

/// What was found. Its JSON is an interface: fields are added, never renamed.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explained {
    name: String,
    node: String,
    path: String,
    /// It can be added now.
    usable: bool,
    verdict: String,
    reasons: Vec<Reason>,
}

/// One thing that decides.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Reason {
    about: &'static str,
    /// It stands in the way of adding the drive.
    against: bool,
    message: String,
}

impl Reason {
    fn new(about: &'static str, against: bool, message: impl Into<String>) -> Self {
        Self { about, against, message: message.into() }
    }
}

pub(crate) async fn run(
    api: &Api,
    screen: &mut Screen,
    name: &str,
    output: Option<ExplainFormat>,
) -> Result<Exit, ClientError> {
    let found = match api.objects::<Drive>(Kind::Drive, name).await {
        Ok(found) => found.into_iter().next(),
        Err(error) if error.exit() == Exit::NotFound => {
            let next_steps = suggest::next_steps(api, Kind::Drive, name).await;
            screen.error(&error.to_string(), &next_steps)?;
            None
        }
        Err(error) => return Err(error),
    };
    let Some(drive) = found else { return Ok(Exit::NotFound) };
    let node: Vec<StorageNode> = api.objects(Kind::StorageNode, &drive.status.node).await?;
    let explained = explain(&drive, node.first());
    match output {
        None => print(screen, &explained, &drive)?,
        Some(ExplainFormat::Json) => {
            let text = serde_json::to_string_pretty(&explained).map_err(ClientError::Answer)?;
            screen.line(&text)?;
        }
        Some(ExplainFormat::Yaml) => {
            screen.print(&serde_saphyr::to_string(&explained).map_err(ClientError::Yaml)?)?;
        }
    }
    Ok(Exit::Done)
}

fn explain(drive: &Drive, node: Option<&StorageNode>) -> Explained {
    let status = &drive.status;
    let mut reasons = vec![of_node(status, node)];
    reasons.push(if status.present {
        Reason::new("present", false, "it is on the machine")
    } else {
        Reason::new("present", true, "it is not on the machine, or its agent has not said so yet")
    });
    reasons.extend(of_filters(status, node));
    reasons.extend(of_contents(status));
    reasons.push(of_operation(drive));
    let usable = rows::usable(drive) && !reasons.iter().any(|reason| reason.against);
    let verdict = if drive.spec.in_operation {
        format!("is in operation ({})", rows::state(status))
    } else if usable {
        "can be added".to_owned()
    } else {
        "cannot be added".to_owned()
    };
    let reasons = reasons.into_iter();
    Explained {
        name: plain(&drive.metadata.name),
        node: plain(&status.node),
        path: plain(&status.path),
        usable,
        verdict,
        reasons: reasons.map(|it| Reason { message: plain(&it.message), ..it }).collect(),
    }
}

/// Whether the node takes orders.
fn of_node(status: &DriveStatus, node: Option<&StorageNode>) -> Reason {
    let rewound = |node: &&StorageNode| {
        node.status.conditions.iter().any(|condition| condition.kind == "RegistryRewound")
    };
    let name = &status.node;
    match node {
        Some(node) if node.status.purged => {
            Reason::new("node", true, format!("{name} was purged; nothing is added there"))
        }
        Some(node) if rewound(&node) => {
            let why = format!("{name} knows newer orders than the registry: hotbay registry adopt");
            Reason::new("node", true, why)
        }
        Some(node) if node.status.ready => {
            Reason::new("node", false, format!("the agent of {name} is connected"))
        }
        Some(_) | None => {
            let what = "is not connected; what follows is what it said last";
            Reason::new("node", false, format!("the agent of {name} {what}"))
        }
    }
}

/// What the filters of the node say, and whether they are the ones that people think they are.
fn of_filters(status: &DriveStatus, node: Option<&StorageNode>) -> Vec<Reason> {
    let rule = status.denied.iter().find_map(|reason| match &reason.denied {
        Denied::Filtered { rule } => Some(rule),
        _ => None,
    });
    let said = match rule {
        Some(rule) => Reason::new("filter", true, format!("left out by {}: {rule}", status.node)),
        None => Reason::new("filter", false, format!("no filter of {} leaves it out", status.node)),
    };
    let conditions = node.into_iter().flat_map(|node| &node.status.conditions);
    let invalid = conditions.filter(|condition| condition.kind == "FiltersInvalid");
    let invalid = invalid.map(|condition| Reason::new("filter", false, condition.message.clone()));
    std::iter::once(said).chain(invalid).collect()
}

fn of_contents(status: &DriveStatus) -> Vec<Reason> {
    let denied = status.denied.iter().filter(|reason| !is_filtered(&reason.denied));
    let against: Vec<_> =
        denied.map(|reason| Reason::new("drive", true, reason.message.clone())).collect();
    if against.is_empty() {
        return vec![Reason::new(
            "drive",
            false,
            "nothing on it or about it keeps it from being used",
        )];
    }
    against
}

/// What was asked of it.
fn of_operation(drive: &Drive) -> Reason {
    let status = &drive.status;
    let by = match status.asked_by.as_str() {
        "" => String::new(),
        who => format!(", asked by {who}"),
    };
    let waits = match &status.waiting_for {
        Some(why) => format!("; {why}"),
        None => String::new(),
    };
    let (against, message) = match (drive.spec.in_operation, status.goal.generation) {
        (true, _) if status.removal_wanted => {
            (true, format!("in operation; its removal waits for the volumes on it{by}"))
        }
        (true, _) => (true, format!("in operation already, or on its way there{by}{waits}")),
        (false, 0) if by.is_empty() => (false, "nobody has asked anything of it".to_owned()),
        (false, 0) => (false, format!("out of operation{by}")),
        (false, _) => (false, format!("out of operation, or on its way there{by}{waits}")),
    };
    Reason::new("operation", against, message)
}

fn print(screen: &mut Screen, explained: &Explained, drive: &Drive) -> Result<(), ClientError> {
    let Explained { name, node, path, usable, verdict, reasons } = explained;
    // A device that is no drive yet is named by its place.
    let place =
        if drive.metadata.uid.is_empty() { String::new() } else { format!(" ({node} {path})") };
    screen.line(&format!("{name}{place} {verdict}"))?;
    for Reason { about, against, message } in reasons {
        let mark = if *against { "no" } else { "-" };
        screen.line(&format!("  {about:<10} {mark:<3} {message}"))?;
    }
    if *usable {
        screen.line(&format!("Add it:  hotbay drive add {name} --wait"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn drive(change: serde_json::Value, in_operation: bool) -> Drive {
        let mut status = json!({
            "node": "node-a", "state": "UnknownDevice", "sinceMs": 1_000,
            "goal": { "wish": "detach", "generation": 0 },
            "present": true, "path": "/dev/sda", "deviceKind": "Block", "media": "SSD",
            "sizeBytes": 1, "blockBytes": 512, "removalWanted": false,
        });
        status.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let object = json!({
            "apiVersion": "hotbay.dev/v1alpha1", "kind": "Drive",
            "metadata": { "name": "d-1", "uid": "7f3a" },
            "spec": { "inOperation": in_operation }, "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    fn node(conditions: serde_json::Value) -> StorageNode {
        let object = json!({
            "apiVersion": "hotbay.dev/v1alpha1", "kind": "StorageNode",
            "metadata": { "name": "node-a", "uid": "1" },
            "status": {
                "ready": true, "machine": "m", "drives": 1, "drivesInOperation": 0,
                "conditions": conditions,
            },
        });
        serde_json::from_value(object).unwrap()
    }

    fn against(explained: &Explained) -> Vec<(&'static str, &str)> {
        let against = explained.reasons.iter().filter(|reason| reason.against);
        against.map(|reason| (reason.about, reason.message.as_str())).collect()
    }

    #[test]
    fn a_drive_that_can_be_added_has_nothing_against_it() {
        let explained = explain(&drive(json!({}), false), Some(&node(json!([]))));
        assert!(explained.usable && against(&explained).is_empty());
        let about: Vec<_> = explained.reasons.iter().map(|reason| reason.about).collect();
        assert_eq!(about, ["node", "present", "filter", "drive", "operation"]);
    }

    #[test]
    fn every_reason_is_told_with_the_rule_first() {
        let denied = json!([
            { "reason": "ReadOnly", "message": "it is read-only" },
            { "reason": "Filtered", "rule": "no-usb", "message": "it is filtered out" },
        ]);
        let explained = explain(&drive(json!({ "denied": denied }), false), None);
        assert_eq!(
            against(&explained),
            [("filter", "left out by node-a: no-usb"), ("drive", "it is read-only")]
        );
        assert_eq!(explained.verdict, "cannot be added");
    }

    #[test]
    fn filters_that_cannot_be_used_are_told() {
        let invalid = json!([{ "type": "FiltersInvalid", "message": "f.toml, line 2" }]);
        let explained = explain(&drive(json!({}), false), Some(&node(invalid)));
        assert!(explained.usable, "the filters of before count");
        assert!(explained.reasons.iter().any(|reason| reason.message == "f.toml, line 2"));
    }

    #[test]
    fn what_is_in_operation_says_who_wanted_it() {
        let change = json!({ "state": "AttachedDevice", "askedBy": "auto-add rule x" });
        let explained = explain(&drive(change, true), None);
        assert_eq!(explained.verdict, "is in operation (Attached)");
        assert!(explained.reasons.last().unwrap().message.ends_with("asked by auto-add rule x"));
    }
}
