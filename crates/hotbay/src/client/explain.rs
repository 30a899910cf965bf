//! `hotbay drive explain`: why a drive can or cannot be added, reason by reason, in the order in which that is decided.

use hotbay_api::kinds::{AutoAddVerdict, Drive, DriveStatus, StorageNode};
use hotbay_core::device::Denied;
use hotbay_core::filter::{FilterVerdict, is_filtered};
use serde::Serialize;

use super::api::{Api, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::screen::{Screen, plain};
use super::{rows, suggest};
use crate::cli::ExplainFormat;
use crate::plugin::as_called;

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
    reasons.extend(of_rules(drive));
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

/// What the filters of the node say, by which rule, and whether they are the ones that people think they are.
fn of_filters(status: &DriveStatus, node: Option<&StorageNode>) -> Vec<Reason> {
    let left_out = status.denied.iter().find_map(|reason| match &reason.denied {
        Denied::Filtered { rule } => Some(rule),
        _ => None,
    });
    let filter = |against, message: String| Reason::new("filter", against, message);
    let name = &status.node;
    let mut said = match (status.details.filter.as_deref(), left_out) {
        (Some(FilterVerdict { included: false, rule: Some(rule), .. }), _) => {
            vec![filter(true, format!("left out by {name}: {rule}"))]
        }
        (Some(FilterVerdict { included: false, rule: None, not_included_by }), _) => {
            let none = format!("left out by {name}: it is nothing that a rule includes");
            let missed = not_included_by.iter().map(|rule| filter(false, format!("no {rule}")));
            std::iter::once(filter(true, none)).chain(missed).collect()
        }
        (None, Some(rule)) => vec![filter(true, format!("left out by {name}: {rule}"))],
        (Some(FilterVerdict { included: true, rule: Some(rule), .. }), _) => {
            vec![filter(false, format!("included by {name}: {rule}"))]
        }
        (Some(FilterVerdict { included: true, rule: None, .. }), _) => {
            let default = "no rule fits, and none includes, so that it is included";
            vec![filter(false, format!("{name}: {default}"))]
        }
        (None, None) => vec![filter(false, format!("{name} has no filters"))],
    };
    let conditions = node.into_iter().flat_map(|node| &node.status.conditions);
    let invalid = conditions.filter(|condition| condition.kind == "FiltersInvalid");
    said.extend(invalid.map(|condition| filter(false, condition.message.clone())));
    said
}

/// What the rules that add drives make of it.
fn of_rules(drive: &Drive) -> Vec<Reason> {
    let auto_add = |message: String| Reason::new("auto-add", false, message);
    let rules = &drive.status.auto_add;
    // A device that is no drive yet is looked at by no rule.
    if rules.is_empty() && !drive.metadata.uid.is_empty() {
        return vec![auto_add("there are no rules that add drives by themselves".to_owned())];
    }
    let told = rules.iter().map(|AutoAddVerdict { rule, took, message }| {
        let verb = if *took { "took it" } else { "did not take it" };
        auto_add(format!("rule {rule} {verb}: {message}"))
    });
    told.collect()
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
        screen.line(&as_called(&format!("Add it:  hotbay drive add {name} --wait")))?;
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

    fn messages<'a>(explained: &'a Explained, about: &str) -> Vec<&'a str> {
        let reasons = explained.reasons.iter().filter(|reason| reason.about == about);
        reasons.map(|reason| reason.message.as_str()).collect()
    }

    #[test]
    fn the_filter_rule_that_decided_is_told_in_every_case() {
        let no_usb = json!({ "number": 2, "name": "no-usb", "text": "exclude = {}" });
        let nvme = json!({ "number": 1, "text": "include = { media = \"NVMe\" }" });
        let denied =
            json!([{ "reason": "Filtered", "rule": "x", "message": "it is filtered out" }]);
        for (filter, left_out, expected) in [
            (
                json!({ "included": false, "rule": no_usb }),
                true,
                vec!["left out by node-a: rule 2 (no-usb): exclude = {}"],
            ),
            (
                json!({ "included": false, "notIncludedBy": [nvme] }),
                true,
                vec![
                    "left out by node-a: it is nothing that a rule includes",
                    "no rule 1: include = { media = \"NVMe\" }",
                ],
            ),
            (
                json!({ "included": true, "rule": nvme }),
                false,
                vec!["included by node-a: rule 1: include = { media = \"NVMe\" }"],
            ),
            (
                json!({ "included": true }),
                false,
                vec!["node-a: no rule fits, and none includes, so that it is included"],
            ),
            (json!(null), true, vec!["left out by node-a: x"]),
        ] {
            let denied = if left_out { denied.clone() } else { json!([]) };
            let change = json!({ "filter": filter, "denied": denied });
            let explained = explain(&drive(change, false), None);
            assert_eq!(messages(&explained, "filter"), expected);
            assert_eq!(explained.usable, !left_out, "{filter}");
        }
    }

    #[test]
    fn every_rule_that_adds_drives_says_what_it_makes_of_it() {
        let rules = json!([
            { "rule": "hdd", "took": false, "message": "media is SSD, and HDD is asked for" },
            { "rule": "ssd", "took": true, "message": "it has added it" },
        ]);
        let explained = explain(&drive(json!({ "autoAdd": rules }), false), None);
        assert!(explained.usable, "a rule is no reason against it");
        assert_eq!(
            messages(&explained, "auto-add"),
            [
                "rule hdd did not take it: media is SSD, and HDD is asked for",
                "rule ssd took it: it has added it",
            ]
        );
    }

    #[test]
    fn a_drive_that_can_be_added_has_nothing_against_it() {
        let explained = explain(&drive(json!({}), false), Some(&node(json!([]))));
        assert!(explained.usable && against(&explained).is_empty());
        let about: Vec<_> = explained.reasons.iter().map(|reason| reason.about).collect();
        assert_eq!(about, ["node", "present", "filter", "drive", "operation", "auto-add"]);
        assert_eq!(messages(&explained, "filter"), ["node-a has no filters"]);
        let no_rules = ["there are no rules that add drives by themselves"];
        assert_eq!(messages(&explained, "auto-add"), no_rules);
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
        let operation = messages(&explained, "operation");
        assert!(operation[0].ends_with("asked by auto-add rule x"), "{operation:?}");
    }
}
