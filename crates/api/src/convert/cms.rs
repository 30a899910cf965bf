//! Actions: what a client asks for.

use std::collections::BTreeMap;

use hotbay_core::cms::{Action, TakeOver, Target};
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
        wipe,
        serial,
        labels,
        remove_labels,
        overwrite,
    } = action;
    let target = |host: String, device: String| Target {
        host: Some(host).filter(|host| !host.is_empty()),
        device,
    };
    // Whoever says in which state a drive must be does not want it taken in any other.
    let in_a_state = [wire::ActionType::AddDevice, wire::ActionType::TakeOverDevice];
    if !expected_state.is_empty() && !in_a_state.contains(&kind) {
        let problem = "only an ADD_DEVICE and a TAKE_OVER_DEVICE have it".to_owned();
        return Err(Malformed::Field { field: "expected_state", problem });
    }
    let consent = consent(kind, wipe, &serial, &expected_state)?;
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
        wire::ActionType::ForgetHost => Ok(Action::ForgetHost { host }),
        wire::ActionType::LabelHost => {
            let change = label_change(labels, &remove_labels, overwrite);
            let change = change.map_err(|error| Malformed::field("labels", error))?;
            Ok(Action::LabelHost { host, change })
        }
        wire::ActionType::CordonHost => Ok(Action::CordonHost { host, cordoned: true }),
        wire::ActionType::UncordonHost => Ok(Action::CordonHost { host, cordoned: false }),
        wire::ActionType::RemoveHost => Ok(Action::RemoveHost { host }),
        wire::ActionType::AddDevice if expected_state.is_empty() => {
            Ok(Action::AddDevice(target(host, device)))
        }
        wire::ActionType::AddDevice => {
            let state = expected_state.parse();
            let state = state.map_err(|error| Malformed::field("expected_state", error))?;
            let target = target(host, device);
            Ok(match consent {
                Some(serial) => Action::AddWiped { target, state, serial },
                None => Action::AddPlanned { target, state },
            })
        }
        wire::ActionType::RemoveDevice => Ok(Action::RemoveDevice(target(host, device))),
        wire::ActionType::TakeOverDevice => {
            let state = Some(expected_state).filter(|state| !state.is_empty());
            let state = state.map(|state| state.parse()).transpose();
            let state = state.map_err(|error| Malformed::field("expected_state", error))?;
            Ok(Action::TakeOver(TakeOver { target: target(host, device), serial, state }))
        }
        wire::ActionType::GetDependentVolumes => {
            Ok(Action::GetDependentVolumes(target(host, device)))
        }
    }
}

/// The serial number that goes with a wipe. Whoever wants a drive wiped says which one, and in which state he saw it;
/// whoever wants one taken over says which one, too.
fn consent(
    kind: wire::ActionType,
    wipe: bool,
    serial: &str,
    expected_state: &str,
) -> Result<Option<String>, Malformed> {
    let wrong = |field, problem: &str| Err(Malformed::Field { field, problem: problem.to_owned() });
    let takes_over = kind == wire::ActionType::TakeOverDevice;
    match (wipe, serial.is_empty()) {
        (true, _) if kind != wire::ActionType::AddDevice => {
            wrong("wipe", "only an ADD_DEVICE has it")
        }
        (true, true) => wrong("serial", "a wipe needs it: the drive's, or its name if it has none"),
        (true, false) if expected_state.is_empty() => {
            wrong("expected_state", "a wipe needs it: the drive's status.stateHash")
        }
        (true, false) => Ok(Some(serial.to_owned())),
        (false, true) if takes_over => {
            wrong("serial", "a TAKE_OVER_DEVICE needs it: the drive's, or its name if it has none")
        }
        (false, false) if !takes_over => {
            wrong("serial", "only a wipe and a TAKE_OVER_DEVICE have it")
        }
        (false, _) => Ok(None),
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
        Action::ForgetHost { host } => on_host(wire::ActionType::ForgetHost, host),
        Action::LabelHost { host, change } => wire::Action {
            labels: change.set().to_texts(),
            remove_labels: change.remove().map(ToString::to_string).collect(),
            overwrite: change.overwrites(),
            ..on_host(wire::ActionType::LabelHost, host)
        },
        Action::CordonHost { host, cordoned: true } => on_host(wire::ActionType::CordonHost, host),
        Action::CordonHost { host, cordoned: false } => {
            on_host(wire::ActionType::UncordonHost, host)
        }
        Action::AddDevice(target) => on_target(wire::ActionType::AddDevice, target),
        Action::AddPlanned { target, state } => wire::Action {
            expected_state: state.to_string(),
            ..on_target(wire::ActionType::AddDevice, target)
        },
        Action::AddWiped { target, state, serial } => wire::Action {
            expected_state: state.to_string(),
            wipe: true,
            serial: serial.clone(),
            ..on_target(wire::ActionType::AddDevice, target)
        },
        Action::RemoveDevice(target) => on_target(wire::ActionType::RemoveDevice, target),
        Action::TakeOver(TakeOver { target, serial, state }) => wire::Action {
            expected_state: state.map(|state| state.to_string()).unwrap_or_default(),
            serial: serial.clone(),
            ..on_target(wire::ActionType::TakeOverDevice, target)
        },
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
    fn only_a_take_over_has_a_serial_number_and_never_without() {
        let action = |kind: wire::ActionType, serial: &str, state: &str| wire::Action {
            r#type: kind.into(),
            device: "node-b:/dev/sdb".to_owned(),
            serial: serial.to_owned(),
            expected_state: state.to_owned(),
            ..wire::Action::default()
        };
        for state in ["", "s-0152ee94c346268c"] {
            let good = action(wire::ActionType::TakeOverDevice, "S1", state);
            let read = action_from_wire(good.clone()).unwrap();
            assert_eq!(action_to_wire(&read), good);
        }
        for bad in [
            action(wire::ActionType::TakeOverDevice, "", ""),
            action(wire::ActionType::AddDevice, "S1", ""),
            action(wire::ActionType::TakeOverDevice, "S1", "S1"),
        ] {
            assert!(action_from_wire(bad.clone()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_wipe_says_which_drive_and_in_which_state() {
        let good = wire::Action {
            r#type: wire::ActionType::AddDevice.into(),
            device: "d-1".to_owned(),
            expected_state: "s-0152ee94c346268c".to_owned(),
            wipe: true,
            serial: "S1".to_owned(),
            ..wire::Action::default()
        };
        let wiped = action_from_wire(good.clone()).unwrap();
        assert!(matches!(wiped, Action::AddWiped { .. }));
        assert_eq!(action_to_wire(&wiped), good);
        let remove = wire::ActionType::RemoveDevice.into();
        for (field, bad) in [
            ("serial", wire::Action { serial: String::new(), ..good.clone() }),
            ("serial", wire::Action { wipe: false, ..good.clone() }),
            ("expected_state", wire::Action { expected_state: String::new(), ..good.clone() }),
            ("expected_state", wire::Action { r#type: remove, ..good.clone() }),
            ("wipe", wire::Action { r#type: remove, expected_state: String::new(), ..good }),
        ] {
            let error = action_from_wire(bad).unwrap_err().to_string();
            assert!(error.contains(field), "{field}: {error}");
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
