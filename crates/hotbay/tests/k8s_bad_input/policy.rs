//! A rule of the cluster that forbids one object of ours, as an administrator may set it by mistake.

use serde_json::{Value, json};

use crate::controllers::{Rig, until};
use crate::{empty_drive, said, until_said};

const WORDS: &str = "not on my watch";

/// Nobody may write the status of one drive.
fn policy(drive: &str) -> [Value; 2] {
    let (api, name) = ("admissionregistration.k8s.io/v1", json!({ "name": "forbids-a-drive" }));
    let rule = json!({ "apiGroups": ["hotbay.dev"], "apiVersions": ["*"], "operations": ["UPDATE"],
                       "resources": ["drives/status"], "resourceNames": [drive] });
    let spec = json!({ "failurePolicy": "Fail", "matchConstraints": { "resourceRules": [rule] },
                       "validations": [{ "expression": "false", "message": WORDS }] });
    let bound = json!({ "policyName": "forbids-a-drive", "validationActions": ["Deny"] });
    let object = |kind: &str, spec: &Value| json!({ "apiVersion": api, "kind": kind, "metadata": name, "spec": spec });
    [object("ValidatingAdmissionPolicy", &spec), object("ValidatingAdmissionPolicyBinding", &bound)]
}

/// Whoever asks for that drive hears the words of the rule. Volumes on the other one are made and deleted meanwhile,
/// the controller stays ready, and when the rule is gone the drive is as it was asked for.
pub(crate) fn forbids_one_object(rig: &mut Rig) {
    let (before, drive) = (said(rig), empty_drive(rig));
    for object in policy(&drive) {
        rig.plane.kubectl().with_input(&["create", "-f", "-"], &object.to_string()).unwrap();
    }
    let mut in_operation = true;
    until("the rule is in force", || {
        in_operation = !in_operation;
        let action = if in_operation { "add" } else { "remove" };
        let answer = rig.try_client(&["drive", action, &drive]).unwrap_or_else(|error| error);
        answer.contains(WORDS).then_some(()).ok_or(answer)
    });
    until_said(rig, WORDS, &before);

    rig.client(&["volume", "create", "beside", "--size", "16MiB"]);
    rig.client(&["volume", "delete", "beside", "--yes"]);
    let leader = &rig.controllers[rig.leader(None)];
    leader.probe("/readyz").unwrap();
    // A list would show what is not durable: it is refused, with the same words.
    let listed = rig.try_client(&["get", "drives"]).unwrap_err();
    assert!(listed.contains(WORDS), "{listed}");

    let kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy";
    rig.plane.kubectl().run(&["delete", kinds, "forbids-a-drive"]).unwrap();
    until_said(rig, "can be written again", &before);
    rig.client(&["drive", "add", &drive, "--wait"]);
}
