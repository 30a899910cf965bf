//! The steps of the `k8s` tier, and `cargo xtask rig`: both run the rig's own program, of the crate `hotbay-rig`, so
//! that this one stays quick to build.
//!
//! From nothing the cluster takes most of the tier's time to build. Then only the rig's own test runs, and that is
//! said; with the next run come the cases.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::leftovers::Leftovers;
use crate::tier::{Plan, Step, Work, features, names, test};
use crate::workspace::{TestTarget, Workspace, cargo};

/// The component of the rig that the others come after.
const CLUSTER: &str = "kubernetes";

pub(crate) fn run(args: &[String]) -> anyhow::Result<ExitCode> {
    let mut program = cargo();
    program.args(["run", "--quiet", "--package", "hotbay-rig", "--"]).args(args);
    let status = program.status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn plan(workspace: &Workspace) -> anyhow::Result<Plan> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Plan::Missing(vec!["user id 0 (run as root)".to_owned()]));
    }
    let before = Leftovers::now()?;
    let mut steps = steps(workspace, is_built(&cache()));
    let leftovers = Work::Check(Box::new(move || before.nothing_new()));
    steps.push(Step { name: "leftovers".to_owned(), work: leftovers });
    Ok(Plan::Steps(steps))
}

fn steps(workspace: &Workspace, is_built: bool) -> Vec<Step> {
    let apt = Command::new(workspace.root.join("scripts/setup-rig"));
    // With the features of all tests, so that nothing is compiled twice.
    let mut compile = cargo();
    compile.args(["build", "--workspace", "--bin", "hotbay-rig"]);
    compile.args(["--features", &features(workspace)]);
    let rig = |args: &[&str]| {
        let mut command = Command::new(workspace.target.join("debug/hotbay-rig"));
        command.args(args);
        command
    };
    let setup = |name: &str, command| Step { name: name.to_owned(), work: Work::Setup(command) };
    let mut steps = vec![
        setup("setup", apt),
        setup("compile the rig", compile),
        setup("build the cluster", rig(&["build", CLUSTER])),
        Step { name: "smoke".to_owned(), work: Work::Child(rig(&["smoke"])) },
    ];
    let cases = names(workspace, TestTarget::needs_k8s);
    if is_built {
        steps.push(setup("build the rest", rig(&["build"])));
        steps.extend(cases.iter().map(|name| {
            let work = Work::Child(test(workspace, &["--test", name]));
            Step { name: (*name).to_owned(), work }
        }));
    } else {
        steps.extend(cases.iter().map(|name| {
            let why = "the cluster was not built before, and building it takes the time";
            Step { name: (*name).to_owned(), work: Work::LeftOut(why.to_owned()) }
        }));
    }
    steps
}

/// Whether some version of the cluster is there. A new version is built beside it, which takes as long as the first;
/// the tier's cap sees to the rest.
fn is_built(cache: &Path) -> bool {
    let is_cluster = |name: &str| name.starts_with(&format!("{CLUSTER}-"));
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| is_cluster(&name.to_string_lossy()))
}

fn cache() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.unwrap_or_default().join("hotbay/rig")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(is_built: bool) -> Vec<(String, &'static str)> {
        let json = r#"{"workspace_root": "/src", "packages": [{"name": "hotbay-host",
            "manifest_path": "/src/crates/host/Cargo.toml", "dependencies": [], "targets": [{
            "name": "k8s_pods", "kind": ["test"], "src_path": "/src/crates/host/tests/k8s_pods.rs",
            "required-features": ["k8s-tests"]}]}]}"#;
        let workspace: Workspace = serde_json::from_str(json).unwrap();
        let kind = |work: &Work| match work {
            Work::Setup(_) => "setup",
            Work::Child(_) => "child",
            Work::LeftOut(_) => "left out",
            Work::Beside(_) | Work::Check(_) => "other",
        };
        let steps = steps(&workspace, is_built);
        steps.iter().map(|step| (step.name.clone(), kind(&step.work))).collect()
    }

    #[test]
    fn cases_run_on_a_cluster_that_is_built() {
        assert_eq!(kinds(true).last(), Some(&("k8s_pods".to_owned(), "child")));
    }

    #[test]
    fn from_nothing_only_smoke_runs_and_the_rest_is_said() {
        let kinds = kinds(false);
        assert!(kinds.contains(&("smoke".to_owned(), "child")), "{kinds:?}");
        assert_eq!(kinds.last(), Some(&("k8s_pods".to_owned(), "left out")));
    }

    #[test]
    fn half_a_build_is_none() {
        let cache = env::temp_dir().join(format!("hotbay-xtask-rig-{}", std::process::id()));
        fs::create_dir_all(cache.join("kubernetes.123/programs")).unwrap();
        let half = is_built(&cache);
        fs::create_dir_all(cache.join("kubernetes-v1-abc")).unwrap();
        let whole = is_built(&cache);
        fs::remove_dir_all(&cache).unwrap();
        assert_eq!((half, whole), (false, true));
    }
}
