//! Actions: what a client asks for.

use hotbay_core::cms::{Action, Target};

use super::Malformed;
use crate::cms as wire;

/// Decodes one action. Whether the names in it mean anything is the registry's to say.
pub fn action_from_wire(action: wire::Action) -> Result<Action, Malformed> {
    let kind = action.r#type();
    let wire::Action { r#type: number, host, device, with_removed, returned } = action;
    let target = |host: String, device: String| Target {
        host: Some(host).filter(|host| !host.is_empty()),
        device,
    };
    match kind {
        wire::ActionType::Unknown => {
            let problem = format!("{number} is no action that this release knows");
            Err(Malformed::Field { field: "type", problem })
        }
        wire::ActionType::AddHost => Ok(Action::AddHost { host, with_removed, returned }),
        wire::ActionType::PurgeHost => Ok(Action::PurgeHost { host }),
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
        Action::RemoveDevice(target) => on_target(wire::ActionType::RemoveDevice, target),
        Action::GetDependentVolumes(target) => {
            on_target(wire::ActionType::GetDependentVolumes, target)
        }
    }
}
