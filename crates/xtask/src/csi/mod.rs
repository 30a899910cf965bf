//! csi-sanity, the Kubernetes project's own test of CSI drivers, against our services: a part of the `root` tier. It
//! is a program in Go, built once into the cache; where Go is not at hand it does not run, and that is said.
//!
//! ```text
//! steps     build csi-sanity, the simulated driver and hotbay; run the harness for each and both access types;
//!           on_kubernetes are those of the `k8s` tier
//! sanity    the harness: starts any driver, runs csi-sanity against it, stops it
//! report    what csi-sanity says of each case, against the list of those that it may skip
//! ```

mod report;
pub(crate) mod sanity;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tier::{Plan, Step, Work, compile, on_path};
use crate::workspace::Workspace;

/// A newer one may have more cases: look at what it skips.
const VERSION: &str = "v5.5.0";
const PACKAGE: &str = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity";
/// For so long it may be fetched and built.
const BUILD_LIMIT: &str = "300";
/// Where Go's own installer puts it, and no path leads.
const USUAL_GO: &str = "/usr/local/go/bin/go";

/// What the simulated driver's run of csi-sanity may skip.
const SKIPS: &str = "crates/csi/tests/sanity-skips.txt";
/// And that of the real program: a machine has no limit of volumes.
const SKIPS_OF_HOTBAY: &str = "crates/hotbay/tests/sanity-skips.txt";

/// Where csi-sanity is, or will be: outside of the clone, by version.
fn program() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.unwrap_or_default().join("hotbay/csi-sanity").join(VERSION).join("csi-sanity")
}

/// The steps, or what is missing for them.
pub(crate) fn plan(workspace: &Workspace) -> anyhow::Result<Plan> {
    let Some(mut steps) = get() else {
        let missing = format!("Go (go.dev/dl), to build csi-sanity {VERSION}");
        return Ok(Plan::Missing(vec![missing]));
    };
    let driver = compile(workspace, &["build", "--example", "hotbay-csi-sim", "--bin", "hotbay"]);
    steps.push(Step { name: "build the drivers".to_owned(), work: Work::Child(driver) });
    let simulated = workspace.target.join("debug/examples/hotbay-csi-sim").into_os_string();
    let sockets = ["--node", "{dir}/node.sock", "--controller", "{dir}/controller.sock"];
    let simulated = [simulated].into_iter().chain(sockets.map(OsString::from)).collect();
    let program = workspace.target.join("debug/hotbay").into_os_string();
    let script = workspace.root.join("scripts/csi-driver").into_os_string();
    let real: Vec<OsString> = vec![script, "{dir}".into(), program];
    let drivers: [(&str, Vec<OsString>, &str); 2] =
        [("simulated", simulated, SKIPS), ("hotbay up", real, SKIPS_OF_HOTBAY)];
    for (name, driver, skips) in drivers {
        steps.extend(both(workspace, name, &driver, skips)?);
    }
    Ok(Plan::Steps(steps))
}

/// The steps of the `k8s` tier: the same program with its records in a real API server, which the rig's program
/// starts. Both programs are built.
pub(crate) fn on_kubernetes(workspace: &Workspace) -> anyhow::Result<Vec<Step>> {
    let program = |name: &str| workspace.target.join("debug").join(name).into_os_string();
    let script = workspace.root.join("scripts/csi-driver").into_os_string();
    let driver = [script, "{dir}".into(), program("hotbay"), program("hotbay-rig")];
    // The tier needs Go for much else.
    let mut steps = get().unwrap_or_default();
    steps.extend(both(workspace, "on Kubernetes", &driver, SKIPS_OF_HOTBAY)?);
    Ok(steps)
}

/// What gets csi-sanity: nothing if it is there, none if it cannot be had.
fn get() -> Option<Vec<Step>> {
    let program = program();
    if program.is_file() {
        return Some(Vec::new());
    }
    let work = Work::Setup(build(go()?, &program));
    Some(vec![Step { name: "build csi-sanity".to_owned(), work }])
}

/// The harness around a driver, for each kind of access.
fn both(
    workspace: &Workspace,
    name: &str,
    driver: &[OsString],
    skips: &str,
) -> anyhow::Result<Vec<Step>> {
    let step = |access: &str| {
        let mut harness = Command::new(env::current_exe()?);
        harness.current_dir(&workspace.root).args(["csi-sanity", "--access", access]);
        harness.args(["--node-socket", "{dir}/node.sock"]);
        harness.args(["--controller-socket", "{dir}/controller.sock", "--skips", skips, "--"]);
        harness.args(driver);
        let name = format!("csi-sanity {access}, {name}");
        Ok(Step { name, work: Work::Beside(harness) })
    };
    ["mount", "block"].into_iter().map(step).collect()
}

fn go() -> Option<&'static str> {
    if on_path("go") {
        return Some("go");
    }
    Path::new(USUAL_GO).is_file().then_some(USUAL_GO)
}

fn build(go: &str, program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args([BUILD_LIMIT, go, "install", "-trimpath", &format!("{PACKAGE}@{VERSION}")]);
    command.env("GOBIN", program.parent().unwrap_or(program)).env("CGO_ENABLED", "0");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_access_types_run_or_what_is_missing_is_named() {
        let plan = plan(&Workspace::load().unwrap()).unwrap();
        match plan {
            Plan::Missing(missing) => assert!(missing[0].contains("Go"), "{missing:?}"),
            Plan::Steps(steps) => {
                let names: Vec<_> = steps.iter().map(|step| step.name.as_str()).collect();
                let last = ["csi-sanity mount, hotbay up", "csi-sanity block, hotbay up"];
                assert!(names.ends_with(&last), "{names:?}");
            }
            Plan::NoCases(why) => panic!("{why}"),
        }
    }

    #[test]
    fn list_of_skips_can_be_read() {
        for skips in [SKIPS, SKIPS_OF_HOTBAY] {
            let path = Workspace::load().unwrap().root.join(skips);
            assert!(!report::expected_skips(&path).unwrap().is_empty());
        }
    }
}
