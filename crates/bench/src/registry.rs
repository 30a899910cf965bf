//! `registry`: decisions in memory, durable actions, a storm of registrations, memory.

use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use hotbay_core::cluster::{Cluster, Event};
use hotbay_core::ids::{DriveId, VolumeId};

use crate::cluster::{DRIVES_PER_NODE, apply, in_operation};
use crate::{durable, storm};

/// The sizes at which the same operation is measured, in nodes.
const SIZES: [usize; 4] = [10, 100, 1_000, 5_000];
const ROUNDS: usize = 15;
const OPERATIONS: usize = 20_000;

pub(crate) fn run() -> anyhow::Result<()> {
    println!("## Registry\n");
    in_memory();
    durable::run()?;
    storm::run()?;
    memory()
}

/// Places a volume on a drive and frees it, at every size, interleaved.
fn in_memory() {
    println!(
        "Place a volume on a drive and free it, in memory ({DRIVES_PER_NODE} drives a node, median of {ROUNDS}):\n"
    );
    println!("| nodes | drives | µs per place and free | against {} nodes |", SIZES[0]);
    println!("|---|---|---|---|");
    let mut clusters: Vec<_> = SIZES.iter().map(|nodes| in_operation(*nodes)).collect();
    let mut times = vec![Vec::new(); SIZES.len()];
    for _ in 0..ROUNDS {
        for (times, (cluster, drives)) in times.iter_mut().zip(&mut clusters) {
            times.push(place_and_free(cluster, drives));
        }
    }
    let medians: Vec<_> = times.into_iter().map(median).collect();
    for (nodes, time) in SIZES.iter().zip(&medians) {
        let each = time.as_secs_f64() * 1e6 / OPERATIONS as f64;
        let ratio = time.as_secs_f64() / medians[0].as_secs_f64();
        println!("| {nodes} | {} | {each:.2} | {ratio:.2} |", nodes * DRIVES_PER_NODE);
    }
    println!();
}

fn place_and_free(cluster: &mut Cluster, drives: &[DriveId]) -> Duration {
    let began = Instant::now();
    for number in 0..OPERATIONS {
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
pub(crate) fn print_memory() {
    let kept = in_operation(SIZES[3]);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|text| text.split_whitespace().next()).unwrap_or("0");
    println!("{kib}");
    drop(kept);
}
