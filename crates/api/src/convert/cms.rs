//! Actions: what a client asks for.

use std::collections::BTreeMap;

use hotbay_core::cms::{Action, Target};
use hotbay_core::node_labels::{LabelChange, NodeLabels, NotALabel};

use super::Malformed;
use crate::cms as wire;

/// Decodes one action. Whether the names in it mean anything is the registry's to say.
pub fn action_from_wire(action: wire::Action) -> Result<Action, Malformed> {
    let kind = action.r#type();
    let wire::Action {
        r#type: number,
        host,
        device,
        with_removed,
        returned,
        expected_state,
        labels,
        remove_labels,
        overwrite,
    } = action;
    let target = |host: String, device: String| Target {
        host: Some(host).filter(|host| !host.is_empty()),
        device,
    };
    // Whoever says in which state a drive must be does not want it taken in any other.
    if !expected_state.is_empty() && kind != wire::ActionType::AddDevice {
        let problem = "only an ADD_DEVICE has it".to_owned();
        return Err(Malformed::Field { field: "expected_state", problem });
    }
    let says_labels = !labels.is_empty() || !remove_labels.is_empty() || overwrite;
    if says_labels && kind != wire::ActionType::LabelHost {
        let problem = "only a LABEL_HOST has any".to_owned();
        return Err(Malformed::Field { field: "labels", problem });
    }
    match kind {
        wire::ActionType::Unknown => {
            let problem = format!("{number} is no action that this release knows");
            Err(Malformed::Field { field: "type", problem })
        }
        wire::ActionType::AddHost => Ok(Action::AddHost { host, with_removed, returned }),
        wire::ActionType::PurgeHost => Ok(Action::PurgeHost { host }),
        wire::ActionType::LabelHost => {
            let change = label_change(labels, &remove_labels, overwrite);
            let change = change.map_err(|error| Malformed::field("labels", error))?;
            Ok(Action::LabelHost { host, change })
        }
        wire::ActionType::RemoveHost => Ok(Action::RemoveHost { host }),
        wire::ActionType::AddDevice if expected_state.is_empty() => {
            Ok(Action::AddDevice(target(host, device)))
        }
        wire::ActionType::AddDevice => {
            let state = expected_state.parse();
            let state = state.map_err(|error| Malformed::field("expected_state", error))?;
            Ok(Action::AddPlanned { target: target(host, device), state })
        }
        wire::ActionType::RemoveDevice => Ok(Action::RemoveDevice(target(host, device))),
        wire::ActionType::GetDependentVolumes => {
            Ok(Action::GetDependentVolumes(target(host, device)))
        }
    }
}

fn label_change(
    labels: BTreeMap<String, String>,
    remove: &[String],
    overwrite: bool,
) -> Result<LabelChange, NotALabel> {
    let remove = remove.iter().map(|key| key.parse()).collect::<Result<_, _>>()?;
    LabelChange::new(NodeLabels::of_pairs(labels)?, remove, overwrite)
}

/// Encodes one action.
pub fn action_to_wire(action: &Action) -> wire::Action {
    let on_host = |kind: wire::ActionType, host: &String| wire::Action {
        r#type: kind.into(),
        host: host.clone(),
        ..wire::Action::default()
    };
    let on_target = |kind: wire::ActionType, target: &Target| wire::Action {
        r#type: kind.into(),
        host: target.host.clone().unwrap_or_default(),
        device: target.device.clone(),
        ..wire::Action::default()
    };
    match action {
        Action::AddHost { host, with_removed, returned } => wire::Action {
            with_removed: *with_removed,
            returned: *returned,
            ..on_host(wire::ActionType::AddHost, host)
        },
        Action::RemoveHost { host } => on_host(wire::ActionType::RemoveHost, host),
        Action::PurgeHost { host } => on_host(wire::ActionType::PurgeHost, host),
        Action::LabelHost { host, change } => wire::Action {
            labels: change.set().to_texts(),
            remove_labels: change.remove().map(ToString::to_string).collect(),
            overwrite: change.overwrites(),
            ..on_host(wire::ActionType::LabelHost, host)
        },
        Action::AddDevice(target) => on_target(wire::ActionType::AddDevice, target),
        Action::AddPlanned { target, state } => wire::Action {
            expected_state: state.to_string(),
            ..on_target(wire::ActionType::AddDevice, target)
        },
        Action::RemoveDevice(target) => on_target(wire::ActionType::RemoveDevice, target),
        Action::GetDependentVolumes(target) => {
            on_target(wire::ActionType::GetDependentVolumes, target)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_must_be_is_never_left_out_of_account() {
        let action = |kind: wire::ActionType, state: &str| wire::Action {
            r#type: kind.into(),
            device: "d-1".to_owned(),
            expected_state: state.to_owned(),
            ..wire::Action::default()
        };
        let good = action(wire::ActionType::AddDevice, "s-0152ee94c346268c");
        let planned = action_from_wire(good.clone()).unwrap();
        assert!(matches!(planned, Action::AddPlanned { .. }));
        assert_eq!(action_to_wire(&planned), good);
        for bad in [
            action(wire::ActionType::AddDevice, "0152ee94c346268c"),
            action(wire::ActionType::RemoveDevice, "s-0152ee94c346268c"),
            action(wire::ActionType::AddHost, "s-0152ee94c346268c"),
        ] {
            let error = action_from_wire(bad).unwrap_err().to_string();
            assert!(error.contains("expected_state"), "{error}");
        }
    }

    #[test]
    fn labels_belong_to_a_labelling_and_are_checked() {
        let labelling = |kind: wire::ActionType, key: &str, remove: &[&str]| wire::Action {
            r#type: kind.into(),
            host: "node-a".to_owned(),
            labels: BTreeMap::from([(key.to_owned(), "a".to_owned())]),
            remove_labels: remove.iter().map(|key| (*key).to_owned()).collect(),
            overwrite: true,
            ..wire::Action::default()
        };
        let label = wire::ActionType::LabelHost;
        let good = labelling(label, "example.com/rack", &["zone"]);
        let action = action_from_wire(good.clone()).unwrap();
        assert_eq!(action_to_wire(&action), good);
        let nothing = wire::Action { r#type: label.into(), ..wire::Action::default() };
        for (bad, words) in [
            (labelling(label, "ra ck", &[]), "\"ra ck\" is no key"),
            (labelling(label, "rack", &["Zo ne"]), "\"Zo ne\" is no key"),
            (labelling(label, "rack", &["rack"]), "rack is given twice"),
            (nothing, "no label is given"),
            (labelling(wire::ActionType::RemoveHost, "rack", &[]), "only a LABEL_HOST"),
        ] {
            let error = action_from_wire(bad).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
