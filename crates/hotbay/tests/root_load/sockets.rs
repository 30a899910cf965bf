//! A socket that a living process serves is not taken away from it.

use std::process::{Command, Output, Stdio};

use crate::rig::Rig;

/// Starts a second one that must end by itself.
fn second(arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--signal", "KILL", "20", env!("CARGO_BIN_EXE_hotbay")]).args(arguments);
    command.env("HOTBAY_LOG", "error").stdin(Stdio::null()).output().unwrap()
}

fn assert_refused(output: &Output, socket: &str, pid: u32) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    let words = format!("{socket} is in use by process {pid}: stop it, or choose another path");
    assert!(said.contains(&words), "no {words:?} in:\n{said}");
}

#[test]
fn a_socket_in_use_is_refused_and_goes_on() {
    let rig = Rig::new(1);
    let registry = rig.cluster.registry.as_ref().unwrap().pid();
    let free = |name: &str| rig.path(&format!("free-{name}.sock"));
    for taken in ["api.sock", "http.sock", "csi.sock"] {
        let at = |name: &str| if name == taken { rig.path(name) } else { free(name) };
        let (api, http, csi) = (at("api.sock"), at("http.sock"), at("csi.sock"));
        let store = rig.path(&format!("store-{taken}"));
        let output = second(&[
            "controller",
            "--no-config",
            "--data-dir",
            &store,
            "--listen",
            &api,
            "--http",
            &http,
            "--csi",
            &csi,
        ]);
        assert_refused(&output, &rig.path(taken), registry);
        for name in ["api.sock", "http.sock", "csi.sock"].iter().filter(|name| **name != taken) {
            assert!(!std::path::Path::new(&free(name)).exists(), "{name} is left behind");
        }
    }
    rig.cluster.expect(&["volume", "create", "db", "--size", "1MiB"], 0);
    rig.cluster.expect(&["volume", "delete", "db", "--yes"], 0);
    rig.assert_nothing_left();
}
