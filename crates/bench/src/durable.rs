//! Durable actions on the embedded store: callers that come together share a commit. Measured against one commit per
//! action, in the same run on the same disk, and again with a disk whose syncs take longer.

use std::time::{Duration, Instant};

use hotbay_core::cms::{Action, Target};
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_registry::{Registry, Surroundings, ToAgent};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::cluster::{DRIVES_PER_NODE, fresh, registration};
use crate::disk::{self, Syncs};
use crate::instructions;
use crate::registry::median;

const CALLERS: [usize; 4] = [1, 8, 64, 512];
const ROUNDS: usize = 5;
/// Actions in one round; each is a removal or an addition of some drive.
const ACTIONS: usize = 1_024;
/// Drives enough that no two callers ask for the same one.
const NODES: usize = 64;
/// A slower disk: what is added to every sync.
const SLOW: Duration = Duration::from_millis(2);

/// A registry on a store of its own.
struct Measured {
    registry: Registry,
    syncs: Syncs,
    /// What agents are told; they never answer, because what is measured is the action, not the attach.
    _outboxes: Vec<mpsc::Receiver<ToAgent>>,
    _folder: tempfile::TempDir,
}

/// Measures and prints, with instructions where they can be counted.
pub(crate) fn run(count_instructions: bool) -> anyhow::Result<()> {
    let runtime = runtime()?;
    for longer in [Duration::ZERO, SLOW] {
        let disk = if longer.is_zero() {
            "this disk".to_owned()
        } else {
            format!("a disk whose syncs take {} ms longer", longer.as_millis())
        };
        println!("Durable actions on {disk}, {ACTIONS} a round, median of {ROUNDS}:\n");
        println!(
            "| callers | actions/s | µs per action of a caller | actions per sync | against 1 caller |"
        );
        println!("|---|---|---|---|---|");
        // One caller that waits for each answer makes one commit per action: the base of the ratios.
        let mut base = 0.0;
        for (callers, (rate, per_sync)) in CALLERS.iter().zip(measure(&runtime, longer)?) {
            if *callers == 1 {
                base = rate;
            }
            let latency = *callers as f64 / rate * 1e6;
            println!(
                "| {callers} | {rate:.0} | {latency:.0} | {per_sync:.1} | {:.1} |",
                rate / base
            );
        }
        println!();
    }
    if count_instructions {
        for callers in [1, 64] {
            let each = instructions::of_durable_action(callers)?;
            println!(
                "Instructions of a durable action, {callers} callers, all threads: {each:.0}."
            );
        }
        println!();
    }
    Ok(())
}

/// Rounds of all numbers of callers in turn; gives actions per second and actions per sync of each.
fn measure(runtime: &Runtime, longer: Duration) -> anyhow::Result<Vec<(f64, f64)>> {
    let mut registries = Vec::new();
    for _ in CALLERS {
        registries.push(runtime.block_on(Measured::start(longer))?);
    }
    let before: Vec<_> = registries.iter().map(|measured| measured.syncs.count()).collect();
    let mut times = vec![Vec::new(); CALLERS.len()];
    for round in 0..ROUNDS {
        for ((measured, callers), times) in registries.iter().zip(CALLERS).zip(&mut times) {
            let Measured { registry, .. } = measured;
            times.push(runtime.block_on(one_round(registry, callers, ACTIONS, round))?);
        }
    }
    let figures = registries.iter().zip(before).zip(times).map(|((measured, before), times)| {
        let syncs = measured.syncs.count() - before;
        let rate = ACTIONS as f64 / median(times).as_secs_f64();
        (rate, (ACTIONS * ROUNDS) as f64 / syncs as f64)
    });
    Ok(figures.collect())
}

/// One round and nothing else, to be counted.
pub(crate) fn run_once(callers: usize, actions: usize) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let measured = runtime.block_on(Measured::start(Duration::ZERO))?;
    runtime.block_on(one_round(&measured.registry, callers, actions, 0))?;
    Ok(())
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

impl Measured {
    async fn start(longer: Duration) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (store, syncs) = disk::store(folder.path(), longer)?;
        let surroundings = Surroundings {
            cluster: ClusterId::from_bits(1),
            term: TermId::from_bits(2),
            wall_ms: || 0,
            checkpoint: |_| {},
            auto_add: Default::default(),
        };
        let (registry, _ended) = Registry::start(store, surroundings)?;
        let mut outboxes = Vec::new();
        for node in 0..NODES {
            let (outbox, told) = mpsc::channel::<ToAgent>(100_000);
            let session = registry.accept(outbox).await?;
            registry.register(session, None, registration(node), fresh(node)).await?;
            outboxes.push(told);
        }
        Ok(Self { registry, syncs, _outboxes: outboxes, _folder: folder })
    }
}

async fn one_round(
    registry: &Registry,
    callers: usize,
    actions: usize,
    round: usize,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let registry = registry.clone();
        tasks.spawn(async move {
            for step in 0..actions / callers {
                let number = caller * (actions / callers) + step;
                let (node, bay) = (number % NODES, number / NODES % DRIVES_PER_NODE);
                let device = format!("S{node:05}X{bay:03}");
                let target = Target { host: None, device };
                // Every drive is added in even rounds and removed in odd ones, so that each action writes.
                let action = if round.is_multiple_of(2) {
                    Action::AddDevice(target)
                } else {
                    Action::RemoveDevice(target)
                };
                registry.act(vec![action], String::new(), false).await?;
            }
            Ok::<_, hotbay_registry::CallError>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}
