//! `hotbay demo`: a registry and some nodes on this machine, over drives that are files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use hotbay_host::RuntimeDir;
use hotbay_host::locks::{AgentLock, LockError};
use tokio::sync::mpsc;

use super::demo_folder::{DemoNode, Folder, Shape};
use super::size;
use super::supervise::{Happened, Part, Supervisor};
use super::{loops, ready, stop};

/// Nodes have one letter each.
const MOST_NODES: usize = 26;
const MOST_DRIVES: usize = 64;
/// How long the demo may take until it is ready.
const READY_LIMIT: Duration = Duration::from_secs(30);

pub(crate) const EXAMPLES: &str = "\
Examples:
  hotbay demo                          three nodes with two drives each, in ./hotbay-demo
  hotbay demo --nodes 1 --drives 4 --drive-size 256MiB";

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The folder that holds everything
    #[arg(long, value_name = "DIR", default_value = "hotbay-demo")]
    dir: PathBuf,
    /// How many nodes to run [default: 3]
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,
    /// How many drives each node has [default: 2]
    #[arg(long, value_name = "N")]
    drives: Option<usize>,
    /// The size of each drive; its file takes only what is written [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    drive_size: Option<u64>,
    /// Removes the demo with everything in its folder
    #[arg(long)]
    delete: bool,
}

pub(crate) fn demo(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let DemoArgs { dir, nodes, drives, drive_size, delete } = args;
    if delete {
        let folder = Folder::existing(&dir)?;
        let _locks = locked(&folder)?;
        folder.delete()?;
        println!("The demo in {} is removed.", dir.display());
        return Ok(ExitCode::SUCCESS);
    }
    let folder = Folder::open(&dir, |known| {
        let default = Shape { nodes: 3, drives: 2, drive_bytes: 1 << 30 };
        let base = known.unwrap_or(default);
        let shape = Shape {
            nodes: nodes.unwrap_or(base.nodes),
            drives: drives.unwrap_or(base.drives),
            drive_bytes: drive_size.unwrap_or(base.drive_bytes),
        };
        if !(1..=MOST_NODES).contains(&shape.nodes) || !(1..=MOST_DRIVES).contains(&shape.drives) {
            bail!("a demo has 1 to {MOST_NODES} nodes with 1 to {MOST_DRIVES} drives each");
        }
        Ok(shape)
    })?;
    drop(locked(&folder)?);
    // One thread, so that the parts end with this process and not with one of its threads.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ran = runtime.block_on(run(&folder, &dir));
    folder.remove_loops()?;
    ran
}

/// Makes sure that no part of this demo runs.
fn locked(folder: &Folder) -> anyhow::Result<Vec<AgentLock>> {
    let runtime_dir = RuntimeDir::of_this_user()?;
    let mut locks = Vec::new();
    for node in folder.nodes() {
        match AgentLock::take(&runtime_dir, &node.name.parse()?) {
            Ok(lock) => locks.push(lock),
            Err(LockError::LockedBy { by, .. }) => bail!(
                "an agent runs as {} on this machine already: {by}\n  nothing was changed; stop that demo first \
                 (Ctrl-C where it runs)",
                node.name
            ),
            Err(error @ LockError::Io { .. }) => return Err(error.into()),
        }
    }
    Ok(locks)
}

async fn run(folder: &Folder, shown: &Path) -> anyhow::Result<ExitCode> {
    introduce(folder, shown);
    let (mut supervisor, mut happened) = Supervisor::new();
    supervisor.start(Part {
        name: "registry".to_owned(),
        arguments: vec![
            "controller".into(),
            "--no-config".into(),
            "--data-dir".into(),
            folder.registry().into(),
            "--listen".into(),
            folder.api().into(),
            "--http".into(),
            folder.http().into(),
        ],
        log: Some(folder.log("registry")),
    });
    wait_for_registry(folder, &mut happened).await?;
    println!("  {:<11} ready   unix:{}", "registry", shown.join("api.sock").display());
    let mut names = Vec::new();
    for node in folder.nodes() {
        supervisor.start(agent(folder, &node)?);
        names.push(node.name);
    }
    let api = folder.api();
    let ready = ready::nodes(&api, &names, |node| {
        let found = count(node.status.drives, "drive");
        let in_operation = match node.status.drives_in_operation {
            0 => "none".to_owned(),
            number => number.to_string(),
        };
        println!("  {:<11} ready   {found} found, {in_operation} in operation", node.metadata.name);
    });
    let in_time = async {
        let late = || format!("not all nodes are ready after {} s", READY_LIMIT.as_secs());
        tokio::time::timeout(READY_LIMIT, ready).await.with_context(late)?
    };
    let outcome = match until_ready(in_time, &mut happened).await {
        Ok(Phase::Ready) => {
            print_what_to_try(folder, shown);
            tokio::select! {
                () = stop::told_to_stop() => {}
                () = report(&mut happened) => {}
            }
            Ok(ExitCode::SUCCESS)
        }
        Ok(Phase::Stop) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
    };
    println!("\nStopping. Everything is as it was at the next start.");
    supervisor.stop(&names).await;
    supervisor.stop(&["registry".to_owned()]).await;
    outcome
}

fn introduce(folder: &Folder, shown: &Path) {
    let Shape { nodes, drives, drive_bytes } = folder.shape;
    println!(
        "Hotbay demo: {} on this machine, {} each ({} {})",
        count(nodes, "node"),
        count(drives, "drive"),
        size::exact(drive_bytes),
        if is_root() { "loop devices" } else { "plain files" },
    );
    println!("everything under {}", shown.display());
    if !is_root() {
        println!(
            "Without root there are no loop devices: drives are plain files, known by\n\
             filesystem, inode and time of birth."
        );
    }
}

/// The agent of a node, over loop devices or, without root, over the files themselves.
fn agent(folder: &Folder, node: &DemoNode) -> anyhow::Result<Part> {
    let mut arguments: Vec<OsString> = vec![
        "node".into(),
        "--no-config".into(),
        "--join".into(),
        folder.api().into(),
        "--name".into(),
        node.name.clone().into(),
        "--data-dir".into(),
        node.state.clone().into(),
    ];
    for (bay, file) in node.drives.iter().enumerate() {
        let path = if is_root() { loops::over(file)?.into() } else { file.clone() };
        arguments.push("--drives".into());
        arguments.push(format!("{bay}={}", path.display()).into());
    }
    Ok(Part { name: node.name.clone(), arguments, log: Some(folder.log(&node.name)) })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// How a start went on.
pub(super) enum Phase {
    Ready,
    /// Somebody asked to stop before all was ready.
    Stop,
}

/// Waits for `ready`, or for the signal to stop.
pub(super) async fn until_ready(
    ready: impl Future<Output = anyhow::Result<()>>,
    happened: &mut mpsc::Receiver<Happened>,
) -> anyhow::Result<Phase> {
    tokio::select! {
        ready = ready => ready.map(|()| Phase::Ready),
        () = stop::told_to_stop() => Ok(Phase::Stop),
        () = report(happened) => Ok(Phase::Stop),
    }
}

/// The registry listens, or says why it does not.
async fn wait_for_registry(
    folder: &Folder,
    happened: &mut mpsc::Receiver<Happened>,
) -> anyhow::Result<()> {
    match tokio::time::timeout(READY_LIMIT, happened.recv()).await {
        Ok(Some(Happened::Ready)) => Ok(()),
        Ok(Some(Happened::Ended { how, .. })) => {
            let log = folder.log("registry");
            let words = std::fs::read_to_string(&log).unwrap_or_default();
            let last: Vec<_> = words.lines().rev().take(3).collect();
            let last: Vec<_> = last.into_iter().rev().collect();
            bail!("the registry does not start ({how}):\n  {}", last.join("\n  "))
        }
        Ok(None) | Err(_) => bail!("the registry is not ready after {} s", READY_LIMIT.as_secs()),
    }
}

/// Says when a part ended by itself; it is started again.
pub(super) async fn report(happened: &mut mpsc::Receiver<Happened>) {
    while let Some(event) = happened.recv().await {
        if let Happened::Ended { name, how } = event {
            println!("  {name:<11} ended   {how}; starting it again");
        }
    }
}

fn print_what_to_try(folder: &Folder, shown: &Path) {
    let api = if shown == Path::new("hotbay-demo") {
        "in this folder".to_owned()
    } else {
        format!("after export HOTBAY_API={}", folder.api().display())
    };
    println!(
        "
Try, in another terminal, {api}:
  hotbay get drives                      what there is, and why it is not in use
  hotbay host add node-a --wait          put node-a's drives into operation
  hotbay volume create db --size 100MiB  make a volume on one of them
  hotbay drive remove node-a:bay-0       take one out; done when proved

Ctrl-C stops it; everything is as it was at the next start.
hotbay demo --delete removes it all."
    );
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
