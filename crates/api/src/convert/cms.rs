//! Actions: what a client asks for.

use hotbay_core::cms::{Action, TakeOver, Target};

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
        serial,
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
    let problem = match (serial.is_empty(), kind == wire::ActionType::TakeOverDevice) {
        (true, true) => Some("a TAKE_OVER_DEVICE needs the drive's serial number"),
        (false, false) => Some("only a TAKE_OVER_DEVICE has it"),
        (true, false) | (false, true) => None,
    };
    if let Some(problem) = problem {
        return Err(Malformed::Field { field: "serial", problem: problem.to_owned() });
    }
    match kind {
        wire::ActionType::Unknown => {
            let problem = format!("{number} is no action that this release knows");
            Err(Malformed::Field { field: "type", problem })
        }
        wire::ActionType::AddHost => Ok(Action::AddHost { host, with_removed, returned }),
        wire::ActionType::PurgeHost => Ok(Action::PurgeHost { host }),
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
        Action::AddDevice(target) => on_target(wire::ActionType::AddDevice, target),
        Action::AddPlanned { target, state } => wire::Action {
            expected_state: state.to_string(),
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
}
