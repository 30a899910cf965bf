//! `registry`: decisions in memory, durable actions, a storm of registrations, memory.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use hotbay_core::cluster::{Cluster, Event, VolumeRequest};
use hotbay_core::ids::VolumeId;
use hotbay_core::volume::class::Class;
use hotbay_core::volume::{Size, Wish};

use crate::cluster::{DRIVES_PER_NODE, apply, in_operation, label_done};
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

/// Allocates a volume and frees it, at every size, interleaved.
pub(crate) fn in_memory(count_instructions: bool) -> anyhow::Result<()> {
    println!(
        "Allocate and free a volume, in memory: create, label order done, delete, free done, erased \
         ({DRIVES_PER_NODE} drives a node, median of {ROUNDS}):\n"
    );
    let first = SIZES[0];
    println!(
        "| nodes | drives | µs | against {first} nodes | instructions | against {first} nodes |"
    );
    println!("|---|---|---|---|---|---|");
    let mut clusters: Vec<_> = SIZES.iter().map(|nodes| in_operation(*nodes)).collect();
    let mut times = vec![Vec::new(); SIZES.len()];
    for _ in 0..ROUNDS {
        for (times, (cluster, _)) in times.iter_mut().zip(&mut clusters) {
            times.push(place_and_free(cluster, OPERATIONS));
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

/// One volume after the other, each a whole life: asked for, placed, on the label, deleted, freed and erased there, and
/// forgotten. Placement chooses the drive, so the lives are spread over the cluster by themselves.
pub(crate) fn place_and_free(cluster: &mut Cluster, operations: usize) -> Duration {
    let wish = |number: usize| Wish {
        name: format!("pvc-{number}").parse().expect("a plain name"),
        size: Size::of(1 << 30).expect("whole MiB"),
        class: Class { max_shares: 1, ..Class::default() },
        parameters: BTreeMap::new(),
        nodes: BTreeSet::new(),
        preferred: Vec::new(),
        claim: None,
    };
    let wishes: Vec<_> = (0..operations).map(wish).collect();
    let began = Instant::now();
    for (number, wish) in wishes.into_iter().enumerate() {
        let id = VolumeId::from_bits(number as u128);
        let create = VolumeRequest::Create { id, wish: Box::new(wish) };
        for request in [create, VolumeRequest::Delete { volume: id }] {
            let asked = Event::Volume { request, asked_by: String::new() };
            let mut effects = Some(apply(cluster, asked));
            while let Some(before) = effects {
                effects = label_done(cluster, &before);
                black_box(before);
            }
        }
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
