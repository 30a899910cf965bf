//! The steps of the tiers `k8s` and `soak-k8s`, and `cargo xtask rig`: all run the rig's own program, of the crate
//! `hotbay-rig`, so that this one stays quick to build.
//!
//! From nothing the cluster takes most of the tier's time to build, and what runs on it a good part. So the first run
//! has the rig's own test alone, the second the cases with a control plane, the third all; what is left out is said.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::csi;
use crate::leftovers::and_nothing_left;
use crate::tier::{Plan, Step, Work, compile, names, test};
use crate::workspace::{TestTarget, Workspace, cargo};

/// The components of the rig that are built first and last.
const CLUSTER: &str = "kubernetes";
const LAST: &str = "helm";
/// The test that has a whole cluster, and runs alone; the others have control planes of their own.
const ON_THE_CLUSTER: [&str; 1] = ["k8s_pods"];
/// The tests that take minutes, the longest first. They begin before the others, so that none of them is left to run
/// alone.
const LONG: [&str; 6] =
    ["k8s_leaders", "k8s_bad_input", "k8s_people", "k8s_rewound", "k8s_store", "k8s_quiet"];
/// The component that only the soak needs: Kubernetes' own tests of storage.
const SUITE: &str = "e2e";
/// The one that only the bench needs.
const PEER: &str = "hostpath";

pub(crate) fn run(args: &[String]) -> anyhow::Result<ExitCode> {
    let mut program = cargo();
    program.args(["run", "--quiet", "--package", "hotbay-rig", "--"]).args(args);
    let status = program.status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the cluster, and the driver that Hotbay is measured beside; what is there already stays as it is.
pub(crate) fn build_for_bench() -> anyhow::Result<()> {
    let workspace = Workspace::load()?;
    let setup = Command::new(workspace.root.join("scripts/setup-rig")).status()?;
    anyhow::ensure!(setup.success(), "there is no cluster to measure on");
    for more in [None, Some(PEER.to_owned())] {
        let args: Vec<_> = ["build".to_owned()].into_iter().chain(more).collect();
        anyhow::ensure!(run(&args)? == ExitCode::SUCCESS, "there is no cluster to measure on");
    }
    Ok(())
}

pub(crate) fn plan(workspace: &Workspace) -> anyhow::Result<Plan> {
    let built = built(&cache());
    let mut steps = steps(workspace, built);
    // Quick, and about one program: before the cases on a cluster.
    let sanity = csi::on_kubernetes(workspace)?;
    let on_the_cluster = |step: &Step| ON_THE_CLUSTER.contains(&&*step.name);
    if built != Built::Nothing {
        let at = steps.iter().position(on_the_cluster).unwrap_or(steps.len());
        steps.splice(at..at, sanity);
    }
    as_root(workspace, steps)
}

/// Hours on one cluster; with the suite of Kubernetes, which is built for this tier alone.
pub(crate) fn soak_plan(workspace: &Workspace) -> anyhow::Result<Plan> {
    let programs = names(workspace, TestTarget::needs_soak);
    if programs.is_empty() {
        return Ok(Plan::NoCases("no cases exist yet that take hours on a cluster"));
    }
    let mut steps = setup_steps(workspace);
    steps.push(setup("build the rest", rig(workspace, &["build"])));
    steps.push(setup("build the suite", rig(workspace, &["build", SUITE])));
    steps.extend(programs.iter().map(|name| {
        // They print what they measure.
        let work = Work::Child(test(workspace, &["--test", name, "--", "--nocapture"]));
        Step { name: (*name).to_owned(), work }
    }));
    as_root(workspace, steps)
}

/// The steps, if they can be run here.
fn as_root(workspace: &Workspace, steps: Vec<Step>) -> anyhow::Result<Plan> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Plan::Missing(vec!["user id 0 (run as root)".to_owned()]));
    }
    and_nothing_left(steps, program(workspace))
}

/// What a cluster needs, until one could be started.
fn setup_steps(workspace: &Workspace) -> Vec<Step> {
    let apt = Command::new(workspace.root.join("scripts/setup-rig"));
    // With the example, cargo takes the crates of others as the tests have them; else it would compile them once more.
    let programs =
        ["build", "--bin", "hotbay-rig", "--bin", "hotbay", "--example", "hotbay-csi-sim"];
    let programs = compile(workspace, &programs);
    vec![
        setup("setup", apt),
        setup("compile the rig", programs),
        setup("build the cluster", rig(workspace, &["build", CLUSTER])),
    ]
}

fn steps(workspace: &Workspace, built: Built) -> Vec<Step> {
    let mut steps = setup_steps(workspace);
    steps.push(Step { name: "smoke".to_owned(), work: Work::Child(rig(workspace, &["smoke"])) });
    let (on_the_cluster, mut others): (Vec<_>, Vec<_>) = names(workspace, TestTarget::needs_k8s)
        .into_iter()
        .partition(|name| ON_THE_CLUSTER.contains(name));
    others.sort_by_key(|name| LONG.iter().position(|long| long == name).unwrap_or(LONG.len()));
    let left_out = |name: &&str| {
        let why = "what it needs was not built before, and building it takes the time";
        Step { name: (*name).to_owned(), work: Work::LeftOut(why.to_owned()) }
    };
    if built == Built::Nothing {
        steps.extend(others.iter().chain(&on_the_cluster).map(left_out));
        return steps;
    }
    steps.push(setup("build the rest", rig(workspace, &["build"])));
    let mut all = test(workspace, &["--no-run"]);
    all.args(others.iter().chain(&on_the_cluster).flat_map(|name| ["--test", name]));
    steps.push(Step { name: "build the cases".to_owned(), work: Work::Child(all) });
    let one = |name: &str, how: fn(Command) -> Work| {
        // They tell how long each of their cases took.
        let command = test(workspace, &["--test", name, "--", "--nocapture"]);
        Step { name: name.to_owned(), work: how(command) }
    };
    steps.extend(others.iter().map(|name| one(name, Work::Beside)));
    steps.extend(on_the_cluster.iter().map(|name| match built {
        Built::All => one(name, Work::Child),
        Built::Cluster | Built::Nothing => left_out(name),
    }));
    steps
}

fn setup(name: &str, command: Command) -> Step {
    Step { name: name.to_owned(), work: Work::Setup(command) }
}

fn rig(workspace: &Workspace, args: &[&str]) -> Command {
    let mut command = Command::new(program(workspace));
    command.args(args);
    command
}

/// The rig's own program, which must be compiled before it is there.
pub(crate) fn program(workspace: &Workspace) -> PathBuf {
    workspace.target.join("debug/hotbay-rig")
}

/// What of the rig is there, in some version. A new version is built beside it, which takes as long as the first; the
/// tier's cap sees to the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Built {
    Nothing,
    Cluster,
    All,
}

fn built(cache: &Path) -> Built {
    let has = |component: &str| {
        let entries = fs::read_dir(cache).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().starts_with(&format!("{component}-")))
    };
    match (has(CLUSTER), has(LAST)) {
        (false, _) => Built::Nothing,
        (true, false) => Built::Cluster,
        (true, true) => Built::All,
    }
}

fn cache() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.unwrap_or_default().join("hotbay/rig")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(built: Built) -> Vec<(String, &'static str)> {
        let json = r#"{"workspace_root": "/src", "packages": [{"name": "hotbay-host",
            "manifest_path": "/src/crates/host/Cargo.toml", "dependencies": [], "targets": [{
            "name": "k8s_pods", "kind": ["test"], "src_path": "/src/crates/host/tests/k8s_pods.rs",
            "required-features": ["k8s-tests"]}, {
            "name": "k8s_store", "kind": ["test"], "src_path": "/src/crates/host/tests/k8s_store.rs",
            "required-features": ["k8s-tests"]}]}]}"#;
        let workspace: Workspace = serde_json::from_str(json).unwrap();
        let kind = |work: &Work| match work {
            Work::Setup(_) => "setup",
            Work::Child(_) => "child",
            Work::LeftOut(_) => "left out",
            Work::Beside(_) => "beside",
            Work::Check(_) => "other",
        };
        let steps = steps(&workspace, built);
        steps.iter().map(|step| (step.name.clone(), kind(&step.work))).collect()
    }

    fn ends_with(built: Built, cases: [(&str, &str); 2]) {
        let kinds = kinds(built);
        let last: Vec<_> = kinds.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
        assert!(last.ends_with(&cases), "{kinds:?}");
        assert!(last.contains(&("smoke", "child")), "{kinds:?}");
    }

    #[test]
    fn what_needs_nothing_that_was_not_built_before_is_run_and_the_rest_is_said() {
        ends_with(Built::All, [("k8s_store", "beside"), ("k8s_pods", "child")]);
        ends_with(Built::Cluster, [("k8s_store", "beside"), ("k8s_pods", "left out")]);
        ends_with(Built::Nothing, [("k8s_store", "left out"), ("k8s_pods", "left out")]);
    }

    #[test]
    fn half_a_build_is_none() {
        let cache = env::temp_dir().join(format!("hotbay-xtask-rig-{}", std::process::id()));
        let has = |folder: &str| {
            fs::create_dir_all(cache.join(folder)).unwrap();
            built(&cache)
        };
        let found = ["kubernetes.123/programs", "kubernetes-v1-abc", "helm.123", "helm-v1-abc"];
        let found = found.map(has);
        fs::remove_dir_all(&cache).unwrap();
        assert_eq!(found, [Built::Nothing, Built::Cluster, Built::Cluster, Built::All]);
    }
}
