//! `registry`: decisions in memory, durable actions, a storm of registrations, memory.

use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use hotbay_core::cluster::{Cluster, Event};
use hotbay_core::ids::{DriveId, VolumeId};

use crate::cluster::{DRIVES_PER_NODE, apply, in_operation};
use crate::{connections, durable, instructions, storm};

/// The sizes at which the same operation is measured, in nodes.
const SIZES: [usize; 4] = [10, 100, 1_000, 5_000];
const ROUNDS: usize = 15;
const OPERATIONS: usize = 20_000;

pub(crate) fn run() -> anyhow::Result<()> {
    println!("## Registry\n");
    let count_instructions = instructions::available();
    in_memory(count_instructions)?;
    durable::run(count_instructions)?;
    storm::run()?;
    memory()?;
    connections::run()
}

/// Places a volume on a drive and frees it, at every size, interleaved.
pub(crate) fn in_memory(count_instructions: bool) -> anyhow::Result<()> {
    println!(
        "Place a volume on a drive and free it, in memory ({DRIVES_PER_NODE} drives a node, median of {ROUNDS}):\n"
    );
    let first = SIZES[0];
    println!(
        "| nodes | drives | µs | against {first} nodes | instructions | against {first} nodes |"
    );
    println!("|---|---|---|---|---|---|");
    let mut clusters: Vec<_> = SIZES.iter().map(|nodes| in_operation(*nodes)).collect();
    let mut times = vec![Vec::new(); SIZES.len()];
    for _ in 0..ROUNDS {
        for (times, (cluster, drives)) in times.iter_mut().zip(&mut clusters) {
            times.push(place_and_free(cluster, drives, OPERATIONS));
        }
    }
    drop(clusters);
    let medians: Vec<_> = times.into_iter().map(median).collect();
    let mut first_count = None;
    for (nodes, time) in SIZES.iter().zip(&medians) {
        let each = time.as_secs_f64() * 1e6 / OPERATIONS as f64;
        let ratio = time.as_secs_f64() / medians[0].as_secs_f64();
        let counted = if count_instructions {
            let count = instructions::of_place_and_free(*nodes)?;
            format!("{count:.0} | {:.2}", count / *first_count.get_or_insert(count))
        } else {
            "not counted | not counted".to_owned()
        };
        let drives = nodes * DRIVES_PER_NODE;
        println!("| {nodes} | {drives} | {each:.2} | {ratio:.2} | {counted} |");
    }
    println!();
    Ok(())
}

pub(crate) fn place_and_free(
    cluster: &mut Cluster,
    drives: &[DriveId],
    operations: usize,
) -> Duration {
    let began = Instant::now();
    for number in 0..operations {
        // A stride that visits drives all over the cluster.
        let drive = drives[number * 7_919 % drives.len()];
        let volume = VolumeId::from_bits(number as u128);
        black_box(apply(cluster, Event::Place { volume, drive }));
        black_box(apply(cluster, Event::Free { volume, drive }));
    }
    began.elapsed()
}

/// The middle of some times.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The memory of a registry of the largest size, by a process that has nothing else.
fn memory() -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let output = Command::new(program).arg("registry-memory").output()?;
    let kib: f64 = String::from_utf8(output.stdout)?.trim().parse().context("no figure")?;
    println!(
        "Memory of a cluster of {} nodes with {} drives, all in operation: {:.0} MiB resident.\n",
        SIZES[3],
        SIZES[3] * DRIVES_PER_NODE,
        kib / 1024.0
    );
    Ok(())
}

/// Builds the largest cluster and prints how much memory this process has, in KiB.
pub(crate) fn print_memory() -> anyhow::Result<()> {
    let kept = in_operation(SIZES[3]);
    println!("{}", resident_kib("self", "VmRSS:")?);
    drop(kept);
    Ok(())
}

/// A size from the status of a process: `VmRSS:` what it has now, `VmHWM:` the most that it ever had.
pub(crate) fn resident_kib(process: &str, what: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    let number = line.and_then(|text| text.split_whitespace().next());
    number.and_then(|text| text.parse().ok()).with_context(|| format!("no {what} of {process}"))
}
