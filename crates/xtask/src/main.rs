//! The project's own chores, run as `cargo xtask COMMAND` by people, by `just`, and by CI: one entry, so that all of
//! them run the same lines. `cargo xtask help` lists the commands; CONTRIBUTING.md says when to use which.
//!
//! ```text
//! main -> tier      which steps make up deps, check, csi, root, guest, k8s, soak, soak-k8s
//!      -> run       runs them one by one under the tier's time cap, and tells how it went
//!           -> step     one child in its own process group, ended with everything in it when time is up
//!      -> tidy      the house rules, as a test
//!      -> layering  which crate may use which
//!      -> fuzz      the fuzzer's steps of soak
//!      -> csi       the steps of csi, and their harness around csi-sanity
//!      -> rig       the steps of k8s and soak-k8s, and the cluster that they run on
//! workspace: what cargo knows about our crates
//! leftovers: what tests left behind on the machine     scratch: their temporary folder, and the end of what is in it
//! ```

mod beside;
mod csi;
mod fuzz;
mod layering;
mod leftovers;
mod rig;
mod run;
mod scratch;
mod step;
mod tidy;
mod tier;
mod workspace;

use std::env;
use std::process::{self, ExitCode};

use clap::{Parser, Subcommand};

use run::Run;
use step::Interrupts;
use tier::Tier;
use workspace::Workspace;

/// The benchmark that runs in the guest, and the one that runs on the cluster of the tests.
const IN_GUEST: &str = "mapping";
const ON_KUBERNETES: &str = "kubernetes";

/// Hotbay's own chores: test tiers, house rules, layering
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that needs no root: format, house rules, layering, lints, tests, documentation (cap 12 min).
    /// Before it, as before the tiers of `test` and `ci`, the crates of others are compiled (cap 12 min)
    Check,
    /// Of root, only the Kubernetes project's own test of CSI drivers; needs Go, once (cap 8 min)
    Csi,
    /// Tests on loop devices; needs root (cap 10 min)
    Root,
    /// Tests in a virtual machine with its own kernel (cap 12 min)
    Guest,
    /// Tests on a real Kubernetes cluster; needs Go (cap 20 min)
    K8s,
    /// Check, then root: what `scripts/test` runs
    Test,
    /// Check, root, guest, k8s: what `.ci/run` runs. Stops at the first tier that fails
    Ci,
    /// The fuzzer, the model checker's full bounds and long simulations: hours, never in CI
    Soak,
    /// Hours on a real Kubernetes cluster: what takes too long for k8s; never in CI (cap 3 h)
    SoakK8s,
    /// Measures what something costs; prints what stands in docs/BENCHMARKS.md
    Bench {
        /// registry, discovery, volumes, mapping or kubernetes
        name: String,
        /// One part of it alone, or a smaller size, for whoever works on that; what there is, a wrong word tells
        part: Vec<String>,
    },
    /// Runs csi-sanity against a driver of your choice
    CsiSanity(csi::sanity::SanityArgs),
    /// The Kubernetes cluster that k8s tests on, by hand: build, up, down; `rig help` tells more
    #[command(disable_help_flag = true)]
    Rig {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Writes deploy/hotbay.yaml from the chart in deploy/chart; needs Go, once
    Manifests,
    /// Only the house rules
    Tidy,
    /// Only the check of which crate uses which
    Layering,
}

fn main() -> ExitCode {
    match chore(&Args::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn chore(command: &Command) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::load()?;
    let tiers = match command {
        Command::Check => vec![Tier::Deps, Tier::Check],
        Command::Csi => vec![Tier::Csi],
        Command::Root => vec![Tier::Root],
        Command::Guest => vec![Tier::Guest],
        Command::K8s => vec![Tier::K8s],
        Command::Test => vec![Tier::Deps, Tier::Check, Tier::Root],
        Command::Ci => vec![Tier::Deps, Tier::Check, Tier::Root, Tier::Guest, Tier::K8s],
        Command::Soak => vec![Tier::Soak],
        Command::SoakK8s => vec![Tier::SoakK8s],
        Command::Bench { name, part } => return bench(name, part),
        Command::CsiSanity(args) => {
            return csi::sanity::run(args).map(|()| ExitCode::SUCCESS);
        }
        Command::Rig { args } => return rig::run(args),
        Command::Manifests => return rig::run(&["manifests".to_owned()]),
        Command::Tidy => return tidy::check(&workspace).map(|()| ExitCode::SUCCESS),
        Command::Layering => return layering::check(&workspace).map(|()| ExitCode::SUCCESS),
    };
    let in_ci = env::var("CI").is_ok_and(|value| value == "true" || value == "1");
    anyhow::ensure!(
        !(in_ci && tiers.iter().any(|tier| matches!(tier, Tier::Soak | Tier::SoakK8s))),
        "soak takes hours and is never run in CI"
    );
    // Who names one tier wants that tier; a list of tiers makes do with what the machine has, except in CI.
    let must_run = in_ci || !matches!(command, Command::Test | Command::Ci);
    let mut run = Run::new(Interrupts::listen()?, must_run);
    run.tiers(&tiers, &workspace)?;
    Ok(run.close())
}

/// Runs a benchmark, optimized: figures of a debug build would say nothing. The product is built first, because the
/// bench starts it as it is.
fn bench(name: &str, part: &[String]) -> anyhow::Result<ExitCode> {
    if name == IN_GUEST {
        return bench_in_guest();
    }
    if name == ON_KUBERNETES {
        rig::build_for_bench()?;
    }
    let packages = ["--release", "--quiet", "--package", "hotbay", "--package", "hotbay-bench"];
    let built = workspace::cargo().arg("build").args(packages).status()?;
    if !built.success() {
        return Ok(ExitCode::FAILURE);
    }
    let run = ["run", "--release", "--quiet", "--package", "hotbay-bench", "--", name];
    let status = workspace::cargo().args(run).args(part).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a mapping costs is measured where there is device-mapper, by the test that knows how.
fn bench_in_guest() -> anyhow::Result<ExitCode> {
    let workspace = Workspace::load()?;
    let setup = process::Command::new(workspace.root.join("scripts/setup-guest")).status()?;
    anyhow::ensure!(setup.success(), "there is no guest to measure in");
    let test = ["test", "--release", "--quiet", "--package", "hotbay-host"];
    let guest = ["--features", "guest-tests", "--test", "guest_mapping", "--", "measure"];
    let status = workspace::cargo().args(test).args(guest).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
