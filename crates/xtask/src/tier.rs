//! The tiers, cheapest first, and the steps each is made of. Everything a tier runs is in this file; `run` runs it.
//!
//! A test chooses its tier by its name alone: an integration test `tests/root_*.rs` needs root and is declared with
//! `required-features = ["root-tests"]`, so that a plain `cargo test` leaves it out; `tests/guest_*.rs` boots a virtual
//! machine and has `guest-tests`; `tests/k8s_*.rs` starts Kubernetes and has `k8s-tests`; `tests/soak_k8s_*.rs` does so
//! for too long for CI and has `soak-tests`; all others belong to `check`. Tidy sees to the declaration.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::leftovers::and_nothing_left;
use crate::workspace::{TestTarget, Workspace, cargo};
use crate::{csi, fuzz, layering, rig, tidy};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// No tests: what all of them are compiled with.
    Deps,
    Check,
    Csi,
    Root,
    Guest,
    K8s,
    Soak,
    SoakK8s,
}

/// The tests on loop devices that look at all of the machine and see what others do there, and those that make mount
/// namespaces: these keep a copy of every mount, and a volume that another test unmounts would stay in use.
const ALONE: [&str; 4] = ["root_discovery", "root_drives", "root_faults", "root_tls"];

/// The test in a virtual machine that has the most cases.
const HALVED: &str = "guest_drives";
/// The tests of `check` that call core a billion times. For them core is optimized, as the manifest says; for all else
/// it is not, because that is most of what there would be to compile.
const OPTIMIZED: [&str; 4] = ["histories", "labels", "model", "seeds"];
const PLAIN_CORE: &str = "profile.dev.package.hotbay-core.opt-level=0";

/// The tests of `check` that take longest. They begin before the others, so that none of them is left to run alone.
const LONG: [&str; 6] = ["model", "people", "store", "seeds", "answers", "hostile"];

#[derive(Debug)]
pub(crate) enum Plan {
    Steps(Vec<Step>),
    /// There is nothing to run yet.
    NoCases(&'static str),
    /// There is something to run, and this machine lacks what it needs: each named in words.
    Missing(Vec<String>),
}

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) work: Work,
}

pub(crate) enum Work {
    /// A program that sees to what the steps after it need. If it fails the tier could not run, which is not the same
    /// as a test that failed: the steps after it are left out.
    Setup(Command),
    /// A program, run in its own process group and killed when the tier's time is up.
    Child(Command),
    /// The same, at the same time as those of its kind that are next to it.
    Beside(Command),
    /// A quick check in this process.
    Check(Box<dyn FnOnce() -> anyhow::Result<()>>),
    /// An optional tool that is not here, and why.
    LeftOut(String),
}

impl Step {
    pub(crate) fn is_beside(&self) -> bool {
        matches!(self.work, Work::Beside(_))
    }
}

impl Tier {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Deps => "deps",
            Self::Check => "check",
            Self::Csi => "csi",
            Self::Root => "root",
            Self::Guest => "guest",
            Self::K8s => "k8s",
            Self::Soak => "soak",
            Self::SoakK8s => "soak-k8s",
        }
    }

    /// The time that all steps together may take, compiling our own crates included.
    pub(crate) fn cap(self) -> Duration {
        let minutes = match self {
            Self::Deps | Self::Check | Self::Guest => 12,
            Self::Root => 10,
            Self::Csi => 8,
            Self::K8s => 20,
            Self::Soak => 8 * 60,
            Self::SoakK8s => 3 * 60,
        };
        Duration::from_secs(minutes * 60)
    }

    pub(crate) fn plan(self, workspace: &Workspace) -> anyhow::Result<Plan> {
        match self {
            Self::Deps => Ok(Plan::Steps(deps_steps(workspace))),
            Self::Check => Ok(Plan::Steps(check_steps(workspace))),
            Self::Csi => match csi::plan(workspace)? {
                Plan::Steps(steps) => and_nothing_left(steps, rig::program(workspace)),
                cannot => Ok(cannot),
            },
            Self::Root => root_plan(workspace),
            Self::Guest => Ok(guest_plan(workspace)),
            Self::K8s => rig::plan(workspace),
            Self::Soak => soak_plan(workspace),
            Self::SoakK8s => rig::soak_plan(workspace),
        }
    }
}

/// The crates of others, compiled for tests and lints. From nothing that takes minutes, and says nothing of Hotbay: the
/// time of `check` is for what does.
fn deps_steps(workspace: &Workspace) -> Vec<Step> {
    let script = Command::new(workspace.root.join("scripts/compile-dependencies"));
    vec![Step { name: "compile".to_owned(), work: Work::Setup(script) }]
}

/// What needs no root, the quickest to fail first.
fn check_steps(workspace: &Workspace) -> Vec<Step> {
    let mut steps = vec![
        child("fmt", cargo_with(&["fmt", "--all", "--check"])),
        check("tidy", || tidy::check(&Workspace::load()?)),
        check("layering", || layering::check(&Workspace::load()?)),
        if_installed("typos", Command::new("typos"), &[]),
        if_installed("deny", cargo_with(&["deny"]), &["check"]),
        child("clippy", clippy(workspace)),
    ];
    if answers(&mut cargo_with(&["nextest"])) {
        let mut nextest = cargo_with(&["nextest", "run", "--workspace"]);
        nextest.args(["--features", &features(workspace)]);
        let of_others =
            ["root_", "guest_", "k8s_", "soak_k8s_"].map(|it| format!("binary(/^{it}/)"));
        nextest.args(["-E", &format!("not ({})", of_others.join(" | "))]);
        steps.push(child("test", nextest));
        // nextest does not run the examples in documentation.
        steps.push(child("test-doc", cargo_with(&["test", "--workspace", "--doc"])));
    } else {
        steps.extend(tests_beside_each_other(workspace));
    }
    // For those who work on Hotbay: its crates are nobody's library, and their private items tell most.
    let mut doc = cargo_with(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
    doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links");
    steps.push(child("doc", doc));
    steps
}

/// Everything is compiled first, so that cargo does not keep one test waiting while it compiles another. Cargo passes
/// over a test whose feature is not enabled, without a word: each is asked for by name.
fn tests_beside_each_other(workspace: &Workspace) -> Vec<Step> {
    let mut names = names(workspace, |test| !test.is_of_others());
    names.sort_by_key(|name| LONG.iter().position(|long| long == name).unwrap_or(LONG.len()));
    let (optimized, plain): (Vec<_>, Vec<_>) =
        names.iter().partition(|name| OPTIMIZED.contains(name));
    let by_name = |names: Vec<&&str>, mut build: Command| {
        build.arg("--no-run").args(names.into_iter().flat_map(|name| ["--test", name]));
        build
    };
    let mut steps = Vec::new();
    if !optimized.is_empty() {
        let build = by_name(optimized, optimized_test(workspace, &[]));
        steps.push(child("build, optimized", build));
    }
    steps.extend([
        child("build", by_name(plain, test(workspace, &["--lib", "--bins"]))),
        beside("unit tests", test(workspace, &["--lib", "--bins"])),
    ]);
    let one = |name: &&str| {
        let test = if OPTIMIZED.contains(name) { optimized_test } else { test };
        beside(&format!("test {name}"), test(workspace, &["--test", name]))
    };
    steps.extend(names.iter().map(one));
    steps.push(beside("examples in docs", test(workspace, &["--doc"])));
    steps
}

/// Lints the tests of other tiers as well, though `check` does not run them.
fn clippy(workspace: &Workspace) -> Command {
    let all = ["clippy", "--workspace", "--all-targets", "--features", &features(workspace)];
    cargo_with(&[&all[..], &["--", "-D", "warnings"]].concat())
}

/// The tests on loop devices, csi-sanity where it can be had, and at the end the check that they cleaned up.
fn root_plan(workspace: &Workspace) -> anyhow::Result<Plan> {
    let names = names(workspace, TestTarget::needs_root);
    if names.is_empty() {
        return Ok(Plan::NoCases("no cases exist yet that need root"));
    }
    let missing = missing_for_root();
    if !missing.is_empty() {
        return Ok(Plan::Missing(missing));
    }
    let mut all = test(workspace, &["--no-run"]);
    all.args(names.iter().flat_map(|name| ["--test", name]));
    let mut steps = vec![child("build", all)];
    let (alone, others): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| ALONE.contains(name));
    let one = |name: &str| {
        let mut command = test(workspace, &["--test", name]);
        command.env("HOTBAY_ROOT_TESTS", "1");
        command
    };
    steps.extend(alone.into_iter().map(|name| child(name, one(name))));
    steps.extend(others.into_iter().map(|name| beside(name, one(name))));
    match csi::plan(workspace)? {
        Plan::Steps(sanity) => steps.extend(sanity),
        Plan::Missing(missing) => {
            let work = Work::LeftOut(format!("needs {}", missing.join(", ")));
            steps.push(Step { name: "csi-sanity".to_owned(), work });
        }
        Plan::NoCases(_) => {}
    }
    and_nothing_left(steps, rig::program(workspace))
}

/// The tests in a virtual machine, after what it is made of is there. They have no other harness than their own, which
/// tells of every case.
fn guest_plan(workspace: &Workspace) -> Plan {
    let names = names(workspace, TestTarget::needs_guest);
    if names.is_empty() {
        return Plan::NoCases("no cases exist yet that need a kernel of their own");
    }
    let setup = Command::new(workspace.root.join("scripts/setup-guest"));
    let mut steps = vec![Step { name: "setup".to_owned(), work: Work::Setup(setup) }];
    let mut all = test(workspace, &["--no-run"]);
    all.args(names.iter().flat_map(|name| ["--test", name]));
    steps.push(child("build", all));
    // Each machine has one processor, and would leave the others of this one idle. The program with the most cases has
    // two machines, and begins first.
    let one = |name: &str| test(workspace, &["--test", name]);
    for half in ["first", "last"].into_iter().filter(|_| names.contains(&HALVED)) {
        let mut command = one(HALVED);
        command.env("HOTBAY_GUEST_HALF", half);
        steps.push(beside(&format!("{HALVED}, {half} half"), command));
    }
    let whole = names.iter().rev().filter(|name| **name != HALVED);
    steps.extend(whole.map(|name| beside(name, one(name))));
    Plan::Steps(steps)
}

/// Hours of what `check` does within bounds.
fn soak_plan(workspace: &Workspace) -> anyhow::Result<Plan> {
    let Some(model) = workspace.tests().find(|test| test.name == "model") else {
        return Ok(Plan::NoCases("no model test exists yet"));
    };
    let mut command = cargo_with(&["test", "--release", "--package", model.package]);
    if !model.features.is_empty() {
        command.args(["--features", &model.features.join(",")]);
    }
    command.args(["--test", "model", "--", "--nocapture"]).env("HOTBAY_MODEL_BOUNDS", "full");
    let seeds = ["run", "--release", "--package", "hotbay-sim", "--", "run", "--seeds", "100000"];
    let mut steps = fuzz::steps(&workspace.root)?;
    steps.extend([child("model", command), child("simulation", cargo_with(&seeds))]);
    Ok(Plan::Steps(steps))
}

fn missing_for_root() -> Vec<String> {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("user id 0 (run as root)".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        missing.push("/dev/loop-control (loop devices)".to_owned());
    }
    let needed = [
        ("blkid", "util-linux"),
        ("fio", "fio"),
        ("ip", "iproute2"),
        ("mkfs.btrfs", "btrfs-progs"),
        ("mkfs.ext4", "e2fsprogs"),
        ("mkfs.xfs", "xfsprogs"),
        ("sfdisk", "fdisk"),
    ];
    for (program, package) in needed {
        if !on_path(program) {
            missing.push(format!("the program {program} (package {package})"));
        }
    }
    missing
}

/// The names of the tests that a tier runs.
pub(crate) fn names<'a>(
    workspace: &'a Workspace,
    is_of_tier: impl Fn(&TestTarget<'a>) -> bool,
) -> Vec<&'a str> {
    let mut names: Vec<_> = workspace.tests().filter(is_of_tier).map(|test| test.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// All that tests require.
fn features(workspace: &Workspace) -> String {
    let required: BTreeSet<_> =
        workspace.tests().flat_map(|test| test.qualified_features().collect::<Vec<_>>()).collect();
    required.into_iter().collect::<Vec<_>>().join(",")
}

pub(crate) fn test(workspace: &Workspace, args: &[&str]) -> Command {
    compile(workspace, &[&["test"], args].concat())
}

/// What cargo shall compile, in the same way for every tier: so it is compiled once.
pub(crate) fn compile(workspace: &Workspace, args: &[&str]) -> Command {
    let (command, args) = args.split_first().expect("what cargo shall do");
    let alike = ["--config", PLAIN_CORE, "--workspace", "--features", &features(workspace)];
    cargo_with(&[&[*command], &alike[..], args].concat())
}

fn optimized_test(workspace: &Workspace, args: &[&str]) -> Command {
    let test = ["test", "--workspace", "--features", &features(workspace)];
    cargo_with(&[&test[..], args].concat())
}

fn beside(name: &str, command: Command) -> Step {
    Step { name: name.to_owned(), work: Work::Beside(command) }
}

fn child(name: &str, command: Command) -> Step {
    Step { name: name.to_owned(), work: Work::Child(command) }
}

fn check(name: &str, check: impl FnOnce() -> anyhow::Result<()> + 'static) -> Step {
    Step { name: name.to_owned(), work: Work::Check(Box::new(check)) }
}

fn if_installed(name: &str, mut tool: Command, args: &[&str]) -> Step {
    // Asked of a copy: the tool itself shall not get `--version` as an argument.
    let mut probe = Command::new(tool.get_program());
    probe.args(tool.get_args());
    if answers(&mut probe) {
        tool.args(args);
        child(name, tool)
    } else {
        Step { name: name.to_owned(), work: Work::LeftOut("not installed".to_owned()) }
    }
}

/// Whether a tool is there, by asking it for its version.
pub(crate) fn answers(tool: &mut Command) -> bool {
    tool.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    tool.status().is_ok_and(|status| status.success())
}

pub(crate) fn on_path(program: &str) -> bool {
    // The folders for administration are searched as well: not every login has them in its path.
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(program).is_file())
}

fn cargo_with(args: &[&str]) -> Command {
    let mut command = cargo();
    command.args(args);
    command
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Setup(command) => f.debug_tuple("Setup").field(command).finish(),
            Self::Child(command) => f.debug_tuple("Child").field(command).finish(),
            Self::Beside(command) => f.debug_tuple("Beside").field(command).finish(),
            Self::Check(_) => f.write_str("Check"),
            Self::LeftOut(why) => f.debug_tuple("LeftOut").field(why).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(targets: &str) -> Workspace {
        let json = format!(
            r#"{{"workspace_root": "/src", "packages": [{{"name": "hotbay-host",
                "manifest_path": "/src/crates/host/Cargo.toml", "dependencies": [],
                "targets": [{targets}]}}]}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    fn target(name: &str, features: &str) -> String {
        format!(
            r#"{{"name": "{name}", "kind": ["test"], "src_path": "/src/crates/host/tests/{name}.rs",
                "required-features": [{features}]}}"#
        )
    }

    fn command_of<'a>(steps: &'a [Step], name: &str) -> &'a Command {
        let step = steps.iter().find(|step| step.name == name);
        match step.map(|step| &step.work) {
            Some(Work::Child(command) | Work::Beside(command)) => command,
            other => panic!("{name} is no program: {other:?}"),
        }
    }

    fn has_args(command: &Command, args: &[&str]) -> bool {
        let given: Vec<_> = command.get_args().collect();
        given.windows(args.len()).any(|window| window == args)
    }

    #[test]
    fn check_lints_tests_of_other_tiers_and_does_not_run_them() {
        let tests = [
            target("root_hang", r#""root-tests""#),
            target("guest_drives", r#""guest-tests""#),
            target("k8s_pods", r#""k8s-tests""#),
            target("soak_k8s_cluster", r#""soak-tests""#),
        ];
        let workspace = workspace(&tests.join(","));
        let steps = check_steps(&workspace);
        let clippy = command_of(&steps, "clippy");
        let features = ["guest", "k8s", "root", "soak"].map(|it| format!("hotbay-host/{it}-tests"));
        assert!(has_args(clippy, &["--features", &features.join(",")]), "{clippy:?}");
        let of_others =
            |step: &Step| ["root_", "guest_", "k8s_"].iter().any(|name| step.name.contains(name));
        assert!(!steps.iter().any(of_others), "{steps:?}");
    }

    #[test]
    fn check_runs_tests_behind_other_features() {
        let workspace = workspace(&target("mutants", r#""mutations""#));
        let steps = check_steps(&workspace);
        let test = command_of(&steps, "test mutants");
        assert!(has_args(test, &["--features", "hotbay-host/mutations"]), "{test:?}");
        assert!(has_args(test, &["--test", "mutants"]), "{test:?}");
    }

    #[test]
    fn core_is_optimized_for_what_calls_it_most_and_for_nothing_else() {
        let tests = [target("model", r#""mutations""#), target("wire", "")];
        let steps = check_steps(&workspace(&tests.join(",")));
        let is_plain = |name| has_args(command_of(&steps, name), &["--config", PLAIN_CORE]);
        assert!(is_plain("test wire") && is_plain("unit tests") && is_plain("build"));
        assert!(!is_plain("test model") && !is_plain("build, optimized"));
        assert!(has_args(command_of(&steps, "build, optimized"), &["--test", "model"]));
        assert!(!has_args(command_of(&steps, "build"), &["--test", "model"]));
    }

    #[test]
    fn root_without_cases_says_so() {
        let plan = root_plan(&workspace(&target("ordinary", ""))).unwrap();
        assert!(matches!(plan, Plan::NoCases(_)), "{plan:?}");
    }

    #[test]
    fn root_names_what_is_missing_or_runs_each_case_and_looks_for_leftovers() {
        let plan = root_plan(&workspace(&target("root_hang", r#""root-tests""#))).unwrap();
        match plan {
            Plan::Missing(missing) => assert!(!missing.is_empty()),
            Plan::Steps(steps) => {
                let test = command_of(&steps, "root_hang");
                assert!(has_args(test, &["--test", "root_hang"]), "{test:?}");
                assert_eq!(steps.last().map(|step| step.name.as_str()), Some("leftovers"));
            }
            Plan::NoCases(why) => panic!("{why}"),
        }
    }

    #[test]
    fn guest_sets_up_first_and_runs_each_case() {
        let plan = guest_plan(&workspace(&target("guest_drives", r#""guest-tests""#)));
        let Plan::Steps(steps) = plan else { panic!("{plan:?}") };
        assert!(matches!(steps[0].work, Work::Setup(_)), "{steps:?}");
        for half in ["guest_drives, first half", "guest_drives, last half"] {
            let feature = ["--features", "hotbay-host/guest-tests"];
            assert!(has_args(command_of(&steps, half), &feature), "{half}");
        }
        let plan = guest_plan(&workspace(&target("root_hang", r#""root-tests""#)));
        assert!(matches!(plan, Plan::NoCases(_)), "{plan:?}");
    }

    #[test]
    fn tool_that_is_not_there_is_left_out() {
        let step = if_installed("spell", Command::new("no-such-program"), &[]);
        assert!(matches!(step.work, Work::LeftOut(_)), "{step:?}");
    }

    #[test]
    fn all_tiers_of_ci_fit_into_its_ninety_minutes() {
        let tiers = [Tier::Deps, Tier::Check, Tier::Root, Tier::Guest, Tier::K8s];
        let total: Duration = tiers.iter().map(|tier| tier.cap()).sum();
        assert!(total < Duration::from_secs(90 * 60), "{total:?}");
    }
}
