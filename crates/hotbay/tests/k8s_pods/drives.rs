//! Drives by their objects.

use serde_json::Value;

use crate::cluster::{Installed, until};

/// The one drive of a node, once its state is as wanted.
pub(crate) fn until_state(installed: &Installed, node: &str, state: &str) -> Value {
    until(&format!("the drive of {node} is {state}"), || {
        let drives = installed.json(&["drives"]);
        let drives = drives["items"].as_array().unwrap();
        let drive = drives.iter().find(|drive| drive["status"]["node"] == node);
        let drive = drive.ok_or("there is none")?;
        if drive["status"]["state"] == state { Ok(drive.clone()) } else { Err(drive.to_string()) }
    })
}

/// Waits until the drive says that what its spec wishes now is done.
fn until_applied(installed: &Installed, name: &str) {
    until("the drive says that its spec is applied", || {
        let drive = installed.json(&["drive", name]);
        let mut conditions = drive["status"]["conditions"].as_array().into_iter().flatten();
        let applied = conditions.find(|condition| condition["type"] == "SpecApplied");
        let generation = &drive["metadata"]["generation"];
        let is_applied = |condition: &Value| {
            condition["status"] == "True" && condition["observedGeneration"] == *generation
        };
        if applied.is_some_and(is_applied) { Ok(()) } else { Err(drive.to_string()) }
    });
}

pub(crate) fn by_patch(installed: &Installed) {
    let kubectl = installed.kubectl();
    let drive = until_state(installed, "node2", "AttachedDevice");
    let name = drive["metadata"]["name"].as_str().unwrap();
    let patch = |wanted: bool| {
        let patch = format!(r#"{{"spec": {{"inOperation": {wanted}}}}}"#);
        kubectl.run(&["patch", "drive", name, "--type=merge", "-p", &patch]).unwrap();
    };
    patch(false);
    until_state(installed, "node2", "DetachedDevice");
    until_applied(installed, name);
    patch(true);
    until_state(installed, "node2", "AttachedDevice");
    until_applied(installed, name);
}
