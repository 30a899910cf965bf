//! Actions: what a client asks for.

use hotbay_core::cms::{Action, Target};

use super::Malformed;
use crate::cms as wire;

/// Decodes one action. Whether the names in it mean anything is the registry's to say.
pub fn action_from_wire(action: wire::Action) -> Result<Action, Malformed> {
    let kind = action.r#type();
    let wire::Action { r#type: number, host, device, with_removed } = action;
    let target = |host: String, device: String| Target {
        host: Some(host).filter(|host| !host.is_empty()),
        device,
    };
    match kind {
        wire::ActionType::Unknown => {
            let problem = format!("{number} is no action that this release knows");
            Err(Malformed::Field { field: "type", problem })
        }
        wire::ActionType::AddHost => Ok(Action::AddHost { host, with_removed }),
        wire::ActionType::RemoveHost => Ok(Action::RemoveHost { host }),
        wire::ActionType::AddDevice => Ok(Action::AddDevice(target(host, device))),
        wire::ActionType::RemoveDevice => Ok(Action::RemoveDevice(target(host, device))),
        wire::ActionType::GetDependentVolumes => {
            Ok(Action::GetDependentVolumes(target(host, device)))
        }
    }
}

/// Encodes one action.
pub fn action_to_wire(action: &Action) -> wire::Action {
    let (kind, host, device, with_removed) = match action {
        Action::AddHost { host, with_removed } => {
            (wire::ActionType::AddHost, host.clone(), String::new(), *with_removed)
        }
        Action::RemoveHost { host } => {
            (wire::ActionType::RemoveHost, host.clone(), String::new(), false)
        }
        Action::AddDevice(target) => on_target(wire::ActionType::AddDevice, target),
        Action::RemoveDevice(target) => on_target(wire::ActionType::RemoveDevice, target),
        Action::GetDependentVolumes(target) => {
            on_target(wire::ActionType::GetDependentVolumes, target)
        }
    };
    wire::Action { r#type: kind.into(), host, device, with_removed }
}

fn on_target(kind: wire::ActionType, target: &Target) -> (wire::ActionType, String, String, bool) {
    (kind, target.host.clone().unwrap_or_default(), target.device.clone(), false)
}
