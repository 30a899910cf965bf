//! The real program, asked with curl as docs/http.md shows it: a drive goes into operation and out again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod cluster;

use std::path::Path;
use std::process::{Command, Stdio};

use cluster::{Cluster, eventually};
use serde_json::{Value, json};

/// Runs curl on the cluster's socket; gives the HTTP status and the body.
fn curl(socket: &Path, path: &str, body: Option<&Value>) -> (u16, String) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "30", "--write-out", "\n%{http_code}"]);
    command.arg("--unix-socket").arg(socket).stdin(Stdio::null());
    if let Some(body) = body {
        command.args(["--data", &body.to_string()]);
    }
    let output = command.arg(format!("http://hotbay{path}")).output();
    let output = output.expect("curl is installed (package curl)");
    assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

fn get(cluster: &Cluster, path: &str) -> Value {
    let (status, body) = curl(&cluster.http(), path, None);
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

fn act(cluster: &Cluster, kind: &str) -> Value {
    let body = json!({ "actions": [{ "type": kind, "device": cluster.target(0) }] });
    let (status, body) = curl(&cluster.http(), "/v1/actions", Some(&body));
    assert_eq!(status, 200, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["results"][0].take()
}

#[test]
fn a_drive_goes_in_and_out_by_curl() {
    let cluster = Cluster::started(2, false);
    assert_eq!(get(&cluster, "/healthz")["status"], "alive");
    assert_eq!(get(&cluster, "/readyz")["status"], "ready");
    assert_eq!(act(&cluster, "ADD_DEVICE")["result"], "S_OK");
    let drive = format!("/v1/drives/{}", cluster.target(0));
    eventually("the drive is in operation", || {
        (get(&cluster, &drive)["status"]["state"] == "AttachedDevice").then_some(())
    });
    assert_eq!(act(&cluster, "ADD_DEVICE")["result"], "S_ALREADY");
    eventually("the removal is proved", || {
        let result = act(&cluster, "REMOVE_DEVICE");
        let done = result["result"] == "S_OK";
        assert!(done || result["result"] == "E_TRY_AGAIN", "{result}");
        done.then_some(())
    });
    assert!(!cluster::anyone_has_open(&cluster.drives[0].path));
    let drives = get(&cluster, "/v1/drives");
    assert_eq!(drives["kind"], "DriveList");
    assert_eq!(drives["items"].as_array().unwrap().len(), 2);
    assert_eq!(drives["items"][0]["status"]["state"], "DetachedDevice");
    assert_eq!(get(&cluster, "/v1/nodes")["items"][0]["metadata"]["name"], cluster.name.as_str());
    assert_eq!(get(&cluster, "/v1/openapi.json")["openapi"], "3.1.0");
    let (status, metrics) = curl(&cluster.http(), "/metrics", None);
    assert_eq!(status, 200);
    let removed = r#"hotbay_actions_total{type="REMOVE_DEVICE",result="S_OK"} 1"#;
    assert!(metrics.lines().any(|line| line == removed), "{metrics}");
    let (status, missing) = curl(&cluster.http(), "/v1/drives/no-such-drive", None);
    assert_eq!(status, 404);
    assert!(missing.contains("E_NOT_FOUND"), "{missing}");
}

#[test]
fn the_socket_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let cluster = Cluster::started(1, false);
    let mode = std::fs::metadata(cluster.http()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
