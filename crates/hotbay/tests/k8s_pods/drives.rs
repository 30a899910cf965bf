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

pub(crate) fn by_patch(installed: &Installed) {
    let kubectl = installed.kubectl();
    let drive = until_state(installed, "node2", "AttachedDevice");
    let name = drive["metadata"]["name"].as_str().unwrap();
    let patch = |wanted: bool| {
        let patch = format!(r#"{{"spec": {{"inOperation": {wanted}}}}}"#);
        kubectl.run(&["patch", "drive", name, "--type=merge", "-p", &patch]).unwrap();
    };
    patch(false);
    let drive = until_state(installed, "node2", "DetachedDevice");
    let applied = drive["status"]["conditions"].as_array().into_iter().flatten();
    assert!(applied.clone().count() > 0, "{drive}");
    patch(true);
    until_state(installed, "node2", "AttachedDevice");
}
