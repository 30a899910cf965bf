//! Definitions of an older release: the server leaves out what they do not know.

use crate::controllers::{DEFINITIONS, Rig, until};
use crate::others::Others;
use crate::{empty_drive, object, said, until_said};

const DRIVES: [&str; 2] = ["crd", "drives.hotbay.dev"];
/// What the log says to do.
const AS_TOLD: [&str; 5] = ["apply", "--server-side", "--force-conflicts", "-f", "-"];

/// No drive can be written then. What is decided of volumes needs none of it, as long as they stay where they are.
pub(crate) fn of_an_older_release(rig: &mut Rig) {
    let others = Others::start(rig);
    let (before, drive) = (said(rig), empty_drive(rig));
    let mut definition = object(rig, &DRIVES);
    let status = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let fields = status["status"]["properties"].as_object_mut().unwrap();
    fields.remove("checksum").unwrap();
    // Else kubectl would note it as a wish, and the apply below would take it away.
    definition["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    // By somebody else than who mends it, as definitions of an older chart are.
    let replace = ["replace", "--field-manager=helm", "-f", "-"];
    rig.plane.kubectl().with_input(&replace, &definition.to_string()).unwrap();
    // The server takes a moment until it keeps to it: until then writes are as before.
    let mut in_operation = true;
    until("a drive cannot be written", || {
        in_operation = !in_operation;
        let action = if in_operation { "add" } else { "remove" };
        let answer = rig.try_client(&["drive", action, &drive]).unwrap_or_else(|error| error);
        answer.contains("apply the definitions of this release").then_some(()).ok_or(answer)
    });
    until_said(rig, "its definition of Drive does not keep all of the status", &before);
    until_said(rig, &format!("kubectl {}", AS_TOLD.join(" ")), &before);
    others.go_on(rig);
    rig.plane.kubectl().with_input(&AS_TOLD, DEFINITIONS).unwrap();
    until_said(rig, "can be written again", &before);
    rig.client(&["drive", "add", &drive, "--wait"]);
    others.end(rig);
}
