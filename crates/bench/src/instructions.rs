//! Instructions per operation, counted by callgrind: unlike times they are the same on a busy machine, and they tell
//! more work from slower memory. This program runs itself under valgrind, and there [`run_counted`] is what runs.

use std::process::Command;

use anyhow::Context;
use hotbay_core::cluster::Cluster;

use crate::cluster::in_operation;
use crate::durable;
use crate::registry::place_and_free;

/// The argument under which this program is what is counted.
pub(crate) const COUNTED: &str = "registry-counted";

/// Few, because callgrind is some fifty times slower than the machine; enough that the first ones do not show.
const OPERATIONS: usize = 2_000;
const ACTIONS: usize = 256;

/// Whether instructions can be counted; says loudly when they cannot.
pub(crate) fn available() -> bool {
    let found = Command::new("valgrind").arg("--version").output();
    let there = found.is_ok_and(|output| output.status.success());
    if !there {
        println!(
            "!! Instructions are NOT COUNTED: valgrind is not installed (package valgrind).\n"
        );
    }
    there
}

/// Instructions of one placement and its end, in a cluster of so many nodes.
pub(crate) fn of_place_and_free(nodes: usize) -> anyhow::Result<f64> {
    // Only what happens within the function counts, not the making of the cluster.
    let within = ["--collect-atstart=no", "--toggle-collect=*counted_place_and_free*"];
    let collected = collected(&within, &["place", &nodes.to_string()])?;
    Ok(collected / OPERATIONS as f64)
}

/// Instructions of one durable action, in all threads: the difference between two runs, so that the start of the
/// registry is not in it.
pub(crate) fn of_durable_action(callers: usize) -> anyhow::Result<f64> {
    let run =
        |actions: usize| collected(&[], &["durable", &callers.to_string(), &actions.to_string()]);
    Ok((run(2 * ACTIONS)? - run(ACTIONS)?) / ACTIONS as f64)
}

/// Runs this program under callgrind, and reads how many instructions it collected.
fn collected(options: &[&str], what: &[&str]) -> anyhow::Result<f64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).args(options);
    valgrind.arg(std::env::current_exe()?).arg(COUNTED).args(what);
    let output = valgrind.output().context("cannot run valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "valgrind: {}: {said}", output.status);
    let count = said.lines().find_map(|line| line.split_once("Collected : "));
    let (_, count) = count.with_context(|| format!("no count in what valgrind said: {said}"))?;
    count.trim().parse().with_context(|| format!("{count:?} is no count"))
}

/// What runs under valgrind.
pub(crate) fn run_counted(arguments: &[String]) -> anyhow::Result<()> {
    let number =
        |text: &String| text.parse::<usize>().with_context(|| format!("{text:?} is no number"));
    match arguments {
        [kind, nodes] if kind == "place" => {
            let (mut cluster, _) = in_operation(number(nodes)?);
            counted_place_and_free(&mut cluster);
            Ok(())
        }
        [kind, callers, actions] if kind == "durable" => {
            durable::run_once(number(callers)?, number(actions)?)
        }
        _ => anyhow::bail!("{arguments:?} names nothing that is counted"),
    }
}

/// Callgrind knows it by its name, so it must not become part of another function.
#[inline(never)]
fn counted_place_and_free(cluster: &mut Cluster) {
    place_and_free(cluster, OPERATIONS);
}
