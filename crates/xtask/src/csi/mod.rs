//! The `csi` tier: csi-sanity, the Kubernetes project's own test of CSI drivers, against our services. It is a program
//! in Go, built once into the cache; where Go is not at hand the tier does not run, and says so.
//!
//! ```text
//! steps     build csi-sanity and the simulated driver, run the harness for both access types
//! sanity    the harness: starts any driver, runs csi-sanity against it, stops it
//! report    what csi-sanity says of each case, against the list of those that it may skip
//! ```

mod report;
pub(crate) mod sanity;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tier::{Plan, Step, Work, on_path};
use crate::workspace::{Workspace, cargo};

/// A newer one may have more cases: look at what it skips.
const VERSION: &str = "v5.5.0";
const PACKAGE: &str = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity";
/// Where Go's own installer puts it, and no path leads.
const USUAL_GO: &str = "/usr/local/go/bin/go";

/// What the simulated driver's run of csi-sanity may skip.
const SKIPS: &str = "crates/csi/tests/sanity-skips.txt";

/// Where csi-sanity is, or will be: outside of the clone, by version.
fn program() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.unwrap_or_default().join("hotbay/csi-sanity").join(VERSION).join("csi-sanity")
}

/// The steps, or what is missing for them.
pub(crate) fn plan(workspace: &Workspace) -> anyhow::Result<Plan> {
    let mut steps = Vec::new();
    let program = program();
    if !program.is_file() {
        let Some(go) = go() else {
            let missing = format!("Go (go.dev/dl), to build csi-sanity {VERSION}");
            return Ok(Plan::Missing(vec![missing]));
        };
        steps.push(Step {
            name: "build csi-sanity".to_owned(),
            work: Work::Setup(build(go, &program)),
        });
    }
    let mut driver = cargo();
    driver.args(["build", "--workspace", "--example", "hotbay-csi-sim"]);
    steps.push(Step { name: "build the driver".to_owned(), work: Work::Child(driver) });
    let driver = workspace.target.join("debug/examples/hotbay-csi-sim");
    for access in ["mount", "block"] {
        let mut harness = Command::new(env::current_exe()?);
        harness.current_dir(&workspace.root).args(["csi-sanity", "--access", access]);
        harness.args(["--node-socket", "{dir}/node.sock"]);
        harness.args(["--controller-socket", "{dir}/controller.sock", "--skips", SKIPS, "--"]);
        harness.arg(&driver);
        harness.args(["--node", "{dir}/node.sock", "--controller", "{dir}/controller.sock"]);
        let name = format!("csi-sanity {access}");
        steps.push(Step { name, work: Work::Child(harness) });
    }
    Ok(Plan::Steps(steps))
}

fn go() -> Option<&'static str> {
    if on_path("go") {
        return Some("go");
    }
    Path::new(USUAL_GO).is_file().then_some(USUAL_GO)
}

fn build(go: &str, program: &Path) -> Command {
    let mut command = Command::new(go);
    command.args(["install", "-trimpath", &format!("{PACKAGE}@{VERSION}")]);
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
                assert!(names.ends_with(&["csi-sanity mount", "csi-sanity block"]), "{names:?}");
            }
            Plan::NoCases(why) => panic!("{why}"),
        }
    }

    #[test]
    fn list_of_skips_can_be_read() {
        let path = Workspace::load().unwrap().root.join(SKIPS);
        assert!(!report::expected_skips(&path).unwrap().is_empty());
    }
}
