//! Durable actions on the embedded store: callers that come together share a commit. Measured against one commit per
//! action, in the same run on the same disk, and again with a disk whose commit takes longer.

use std::time::{Duration, Instant};

use hotbay_core::cms::{Action, Target};
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_registry::{Key, RedbStore, Registry, Store, StoreError, Surroundings, ToAgent, Write};
use tokio::sync::mpsc;

use crate::cluster::{DRIVES_PER_NODE, fresh, registration};
use crate::registry::median;

const CALLERS: [usize; 4] = [1, 8, 64, 512];
const ROUNDS: usize = 5;
/// Actions in one round; each is a removal or an addition of some drive.
const ACTIONS: usize = 1_024;
/// Drives enough that no two callers ask for the same one.
const NODES: usize = 64;
/// A slower disk: what is added to every commit.
const SLOW: Duration = Duration::from_millis(4);

/// A store that counts its commits, and may take longer for each.
struct Measured {
    store: RedbStore,
    commits: std::sync::Arc<std::sync::atomic::AtomicU64>,
    longer: Duration,
}

impl Store for Measured {
    fn load(&mut self) -> Result<Vec<(Key, Vec<u8>)>, StoreError> {
        self.store.load()
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        self.commits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if !self.longer.is_zero() {
            std::thread::sleep(self.longer);
        }
        self.store.commit(writes)
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.read(key)
    }
}

pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for longer in [Duration::ZERO, SLOW] {
        let disk = if longer.is_zero() {
            "this disk".to_owned()
        } else {
            format!("a disk whose commit takes {} ms longer (2 ms a sync)", longer.as_millis())
        };
        println!("Durable actions on {disk}, {ACTIONS} a round, median of {ROUNDS}:\n");
        println!("| callers | actions/s | commits per action | against one commit per action |");
        println!("|---|---|---|---|");
        // One caller that waits for each answer makes one commit per action: the base of the ratios.
        let mut base = 0.0;
        for callers in CALLERS {
            let (rate, commits) = runtime.block_on(measure(callers, longer))?;
            if callers == 1 {
                base = rate;
            }
            println!("| {callers} | {rate:.0} | {commits:.3} | {:.1} |", rate / base);
        }
        println!();
    }
    Ok(())
}

async fn measure(callers: usize, longer: Duration) -> anyhow::Result<(f64, f64)> {
    let folder = tempfile::tempdir()?;
    let commits = std::sync::Arc::default();
    let store = RedbStore::open(folder.path())?;
    let store = Measured { store, commits: std::sync::Arc::clone(&commits), longer };
    let surroundings = Surroundings {
        cluster: ClusterId::from_bits(1),
        term: TermId::from_bits(2),
        wall_ms: || 0,
        checkpoint: |_| {},
    };
    let (registry, _ended) = Registry::start(store, surroundings)?;
    // Agents that never answer: what is measured is the action, not the attach.
    let mut outboxes = Vec::new();
    for node in 0..NODES {
        let (outbox, told) = mpsc::channel::<ToAgent>(100_000);
        let session = registry.accept(outbox).await?;
        registry.register(session, None, registration(node), fresh(node)).await?;
        outboxes.push(told);
    }
    let before = commits.load(std::sync::atomic::Ordering::Relaxed);
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        times.push(one_round(&registry, callers, round).await?);
    }
    let made = commits.load(std::sync::atomic::Ordering::Relaxed) - before;
    let rate = ACTIONS as f64 / median(times).as_secs_f64();
    Ok((rate, made as f64 / (ACTIONS * ROUNDS) as f64))
}

async fn one_round(registry: &Registry, callers: usize, round: usize) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let registry = registry.clone();
        tasks.spawn(async move {
            for step in 0..ACTIONS / callers {
                let number = caller * (ACTIONS / callers) + step;
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
