//! The rig by hand, and its own test: `cargo xtask rig` builds and runs this, with everything that is written after it.

mod smoke;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::{Parser, Subcommand};
use hotbay_rig::chart;
use hotbay_rig::cluster::{self, Cluster};
use hotbay_rig::components::{self, ALL, Component, ON_DEMAND};
use hotbay_rig::{ControlPlane, Settings};

/// Where Go's own installer puts it, and no path leads.
const USUAL_GO: &str = "/usr/local/go/bin/go";

/// A real Kubernetes cluster on this machine, for tests
#[derive(Parser)]
#[command(name = "cargo xtask rig", bin_name = "cargo xtask rig")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Builds what the cluster is made of from Go's module proxy, once; what is built stays in the cache
    Build {
        /// Only these of the components; without it all but those that only the soak or the bench needs
        component: Vec<String>,
    },
    /// Starts a cluster, says how to use it and how to end it
    Up {
        /// etcd, API server, controllers and scheduler, and no nodes; needs no root
        #[arg(long)]
        control_plane_only: bool,
        /// How many nodes, each a kubelet with its containerd
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=20))]
        nodes: u8,
        /// Everything of it is in here
        #[arg(long, default_value_os_t = usual_folder())]
        dir: PathBuf,
        /// Ends it again, and leaves its folder, when nothing more can be read from the input
        #[arg(long)]
        until_eof: bool,
    },
    /// Ends a cluster and removes its folder
    Down {
        #[arg(long, default_value_os_t = usual_folder())]
        dir: PathBuf,
    },
    /// Writes deploy/hotbay.yaml from the chart; builds Helm if it is not there
    Manifests,
    /// Starts a cluster with two nodes, runs a pod on each, ends it, and sees that nothing is left
    Smoke,
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Build { component } => build(&component),
        Command::Up { control_plane_only, nodes, dir, until_eof } => {
            up(&dir, if control_plane_only { None } else { Some(nodes) }, until_eof)
        }
        Command::Down { dir } => down(&dir),
        Command::Manifests => manifests(),
        Command::Smoke => smoke::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rig: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usual_folder() -> PathBuf {
    env::temp_dir().join("hotbay-rig")
}

fn build(names: &[String]) -> anyhow::Result<()> {
    let there = || ALL.iter().chain(ON_DEMAND);
    if let Some(unknown) = names.iter().find(|name| there().all(|one| one.name != **name)) {
        let known: Vec<_> = there().map(|component| component.name).collect();
        bail!("no component is called {unknown}; there are: {}", known.join(", "));
    }
    let is_named = |component: &Component| names.iter().any(|name| name == component.name);
    let usual = ALL.iter().filter(|component| names.is_empty() || is_named(component));
    for component in usual.chain(ON_DEMAND.iter().filter(|component| is_named(component))) {
        let Component { name, version, takes, .. } = component;
        if component.is_built() {
            println!("{name} {version}: built already, in {}", component.folder().display());
            continue;
        }
        println!("{name} {version}: {takes} on two cores, from Go's module proxy");
        let started = Instant::now();
        component.build(&go()?)?;
        let took = started.elapsed().as_secs();
        println!("{name} {version}: built in {took} s, in {}", component.folder().display());
    }
    if ALL.iter().all(|component| component.is_built()) && components::compiled().exists() {
        let compiled = components::compiled();
        fs::remove_dir_all(&compiled)
            .with_context(|| format!("cannot remove {}", compiled.display()))?;
        println!("all is built; removed what Go had compiled for it");
    }
    Ok(())
}

fn manifests() -> anyhow::Result<()> {
    build(&[components::HELM.name.to_owned()])?;
    println!("wrote {}", chart::write_manifests()?.display());
    Ok(())
}

fn go() -> anyhow::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|folder| folder.join("go")).find(|go| go.is_file());
    let usual = || Some(PathBuf::from(USUAL_GO)).filter(|go| go.is_file());
    on_path.or_else(usual).context("Go is missing: install it from go.dev/dl, then try again")
}

fn up(dir: &Path, nodes: Option<u8>, until_eof: bool) -> anyhow::Result<()> {
    let started = Instant::now();
    // Both end when they are dropped.
    let mut held: (Option<Cluster>, Option<ControlPlane>) = (None, None);
    let settings = Settings { controllers: true, scheduler: true };
    let left = match nodes {
        Some(nodes) if until_eof => Cluster::start(dir, nodes).map(|rig| held.0 = Some(rig)),
        Some(nodes) => Cluster::leave(dir, nodes),
        None if until_eof => ControlPlane::start(dir, &settings).map(|rig| held.1 = Some(rig)),
        None => cluster::leave_control_plane(dir),
    };
    left.with_context(|| format!("no rig was started in {}", dir.display()))?;
    let took = started.elapsed().as_secs();
    let what = match nodes {
        None => "a control plane".to_owned(),
        Some(1) => "a cluster with one node".to_owned(),
        Some(nodes) => format!("a cluster with {nodes} nodes"),
    };
    let kubectl = components::KUBERNETES.folder().join("kubectl");
    println!("{what} runs, ready after {took} s");
    println!("to use it:   export KUBECONFIG={}", dir.join("admin.kubeconfig").display());
    println!("kubectl:     {}", kubectl.display());
    println!("requests:    {}", dir.join("audit.log").display());
    println!("logs:        {}", dir.join("logs").display());
    if until_eof {
        println!("to end it:   close its input");
        io::copy(&mut io::stdin(), &mut io::sink()).context("cannot read the input")?;
    } else {
        println!("to end it:   cargo xtask rig down --dir {}", dir.display());
    }
    Ok(())
}

fn down(dir: &Path) -> anyhow::Result<()> {
    ensure!(dir.exists(), "no rig is in {}", dir.display());
    cluster::end(dir)?;
    println!("the rig in {} has ended; the folder is removed", dir.display());
    Ok(())
}
