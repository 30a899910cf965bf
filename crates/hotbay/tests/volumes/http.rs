//! Volumes over HTTP, asked with curl as docs/http.md shows it.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::{MIB, extents, in_operation, wait_empty};

/// Runs curl on the cluster's socket; gives the HTTP status and the body.
fn curl(cluster: &Cluster, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "30", "--write-out", "\n%{http_code}"]);
    command.args(["--request", method, "--unix-socket"]).arg(cluster.http()).stdin(Stdio::null());
    if let Some(body) = body {
        command.args(["--data", &body.to_string()]);
    }
    let output = command.arg(format!("http://hotbay{path}")).output();
    let output = output.expect("curl is installed (package curl)");
    assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn a_volume_is_made_and_deleted_by_curl() {
    let cluster = in_operation(1);
    let wish = json!({
        "name": "db", "sizeBytes": 3 * MIB, "parameters": { "erase": "required" },
        "nodes": [cluster.name],
    });
    let (status, made) = curl(&cluster, "POST", "/v1/volumes", Some(wish.clone()));
    assert_eq!((status, &made["status"]["state"]), (200, &json!("Created")), "{made}");
    assert_eq!(curl(&cluster, "POST", "/v1/volumes", Some(wish)), (200, made.clone()));
    assert_eq!(curl(&cluster, "GET", "/v1/volumes/db", None), (200, made.clone()));
    let (_, list) = curl(&cluster, "GET", "/v1/volumes", None);
    assert_eq!((&list["kind"], &list["items"]), (&json!("VolumeList"), &json!([made])));
    let size = |bytes: u64| Some(json!({ "sizeBytes": bytes }));
    let (status, grown) = curl(&cluster, "POST", "/v1/volumes/db/expand", size(5 * MIB));
    assert_eq!((status, &grown["status"]["sizeBytes"]), (200, &json!(5 * MIB)), "{grown}");
    assert_eq!(extents(&cluster, 0)[0]["lengthBytes"], 5 * MIB);
    let (status, error) = curl(&cluster, "POST", "/v1/volumes/db/expand", size(1 << 40));
    assert_eq!((status, &error["error"]["code"]), (409, &json!("E_INVALID_STATE")), "{error}");
    let other = json!({ "name": "db", "sizeBytes": 6 * MIB });
    let (status, error) = curl(&cluster, "POST", "/v1/volumes", Some(other));
    assert_eq!((status, &error["error"]["code"]), (409, &json!("E_INVALID_STATE")), "{error}");
    let target = cluster.target(0);
    let action = json!({ "type": "GET_DEPENDENT_VOLUMES", "device": target });
    let (_, answer) = curl(&cluster, "POST", "/v1/actions", Some(json!({ "actions": [action] })));
    let told = &answer["results"][0];
    assert_eq!(told["dependentVolumes"], json!(["db"]));
    let brief = json!([{ "name": "db", "sizeBytes": 5 * MIB, "usedOn": [] }]);
    assert_eq!(told["volumes"], brief);
    let (status, gone) = curl(&cluster, "DELETE", "/v1/volumes/db", None);
    assert_eq!((status, gone), (200, json!({ "deleted": true, "remark": "" })));
    assert!(extents(&cluster, 0).is_empty(), "erasing was required");
    assert_eq!(curl(&cluster, "DELETE", "/v1/volumes/db", None).0, 404);
    wait_empty(&cluster, 1);
}
