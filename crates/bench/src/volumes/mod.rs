//! `volumes`: whole lives of volumes by the real program, through CSI: registry and agent as processes of their own,
//! loop devices as drives. Each step is measured beside the bare thing that it cannot do without, in the same run, with
//! as many callers.
//!
//! ```text
//! mod ──▶ rig    the processes and the drives; takes everything apart, also when it is interrupted
//!     ──▶ life   the calls of a sidecar and a kubelet, timed
//!     ──▶ peer   the bare things beside them
//! ```

mod life;
mod peer;
mod rig;

use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

use life::{Client, Life, Step};
use peer::Peer;
use rig::Rig;

use crate::discovery::is_root;

/// How many volumes are there already.
pub(crate) const PRESENT: [usize; 2] = [100, 10_000];
/// How many ask at the same time, and how many rounds there are; each has one volume a round, but one that is alone has
/// more.
const CLIENTS: [usize; 2] = [1, 64];
const ROUNDS: usize = 4;
const ALONE: usize = 16;
/// How many make the volumes that are only there.
const FILLING: usize = 64;
/// The filling ends after this, with as many as are there.
const FILL_LIMIT: Duration = Duration::from_secs(20 * 60);
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Measures with so many volumes present, in turn.
pub(crate) fn run(present: &[usize]) -> anyhow::Result<()> {
    if !is_root() {
        println!("!! Volumes are NOT MEASURED: loop devices need root.\n");
        return Ok(());
    }
    println!("## Volumes\n");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Dropped last: it takes apart whatever the rest has left.
    let mut rig = Rig::new()?;
    let measured = runtime.block_on(async {
        tokio::select! {
            measured = measure(&mut rig, present) => measured,
            signal = interrupted() => Err(match signal {
                Ok(()) => anyhow::anyhow!("interrupted; everything is taken apart"),
                Err(error) => error.into(),
            }),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(20));
    measured
}

async fn interrupted() -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hung_up.recv() => {}
    }
    Ok(())
}

async fn measure(rig: &mut Rig, present: &[usize]) -> anyhow::Result<()> {
    rig.start().await?;
    let mut there = 0;
    for wanted in present {
        let began = Instant::now();
        let from = there;
        there = fill(rig, from, *wanted).await?;
        let took = began.elapsed().as_secs_f64();
        println!(
            "{there} volumes of 1 MiB on {} drives: the last {} made by {FILLING} clients in {took:.0} s, {:.0} a \
             second.\n",
            rig::DRIVES,
            there - from,
            (there - from) as f64 / took
        );
        for clients in CLIENTS {
            table(rig, there, clients).await?;
        }
    }
    Ok(())
}

/// Makes volumes until so many are there, or the time is over; gives how many there are.
async fn fill(rig: &Rig, from: usize, to: usize) -> anyhow::Result<usize> {
    let clients = rig.clients(FILLING).await?;
    let until = Instant::now() + FILL_LIMIT;
    let (mut told, mut there) = (Instant::now(), from);
    // One round makes one volume for each client: enough of them wait that no drive is idle.
    while there < to && Instant::now() < until {
        let many = FILLING.min(to - there);
        let volumes = (there..there + many).map(|number| Life::tiny(rig, &format!("bg-{number}")));
        let (_, made) = one_step(&clients, volumes.collect(), Step::Create).await?;
        there += made.len();
        if told.elapsed() > TELL_EVERY {
            told = Instant::now();
            eprintln!("{there} of {to} volumes are there");
        }
    }
    if there < to {
        println!("!! Only {there} of {to} volumes: {FILL_LIMIT:?} did not allow more.\n");
    }
    Ok(there)
}

/// One table: every step with so many clients, and what is beside it.
async fn table(rig: &Rig, present: usize, clients: usize) -> anyhow::Result<()> {
    let each = if clients == 1 { ALONE } else { clients };
    let connected = rig.clients(clients).await?;
    let (mut ours, mut bare) =
        (vec![Vec::new(); Step::ALL.len()], vec![Vec::new(); Step::ALL.len()]);
    let mut again = 0;
    for round in 0..ROUNDS {
        eprintln!("{present} volumes, {clients} at once: round {} of {ROUNDS}", round + 1);
        let name = |number| format!("life-{present}-{clients}-{round}-{number}");
        let mut lives: Vec<_> = (0..each).map(|number| Life::usual(rig, &name(number))).collect();
        for (step, times) in Step::ALL.into_iter().zip(&mut ours) {
            let (taken, after) = one_step(&connected, lives, step).await?;
            times.extend(taken);
            lives = after;
        }
        again += lives.iter().map(|life| life.again).sum::<usize>();
        let mut peers: Vec<_> = (0..each).map(|number| Peer::new(rig, number)).collect();
        for (step, times) in Step::ALL.into_iter().zip(&mut bare) {
            let (taken, after) = peer::one_step(&connected, peers, step).await?;
            times.extend(taken);
            peers = after;
        }
    }
    println!("{present} volumes present, {clients} at once, {} lives:\n", each * ROUNDS);
    println!("| step | p50 ms | p99 ms | beside it | p50 ms | p99 ms | p50 against it |");
    println!("|---|---|---|---|---|---|---|");
    for ((step, ours), bare) in Step::ALL.into_iter().zip(ours).zip(bare) {
        let [p50, p99] = [50, 99].map(|percent| percentile(&ours, percent));
        let [bare50, bare99] = [50, 99].map(|percent| percentile(&bare, percent));
        let (name, beside, ratio) = (step.name(), peer::name(step), p50 / bare50);
        println!(
            "| {name} | {p50:.2} | {p99:.2} | {beside} | {bare50:.2} | {bare99:.2} | {ratio:.1} |"
        );
    }
    println!();
    if again > 0 {
        println!("{again} calls were asked again, which counts in their times.\n");
    }
    Ok(())
}

/// One step of all volumes, each client with its share of them, one after the other.
async fn one_step(
    clients: &[Client],
    lives: Vec<Life>,
    step: Step,
) -> anyhow::Result<(Vec<Duration>, Vec<Life>)> {
    let work = shares(clients, lives).into_iter().map(|(client, mut lives)| async move {
        let mut times = Vec::with_capacity(lives.len());
        for life in &mut lives {
            let began = Instant::now();
            life.step(&client, step).await?;
            times.push(began.elapsed());
        }
        Ok((times, lives))
    });
    gathered(work).await
}

/// Which client has which of these.
fn shares<T>(clients: &[Client], of: Vec<T>) -> Vec<(Client, Vec<T>)> {
    let mut shares: Vec<_> = clients.iter().map(|client| (client.clone(), Vec::new())).collect();
    for (number, one) in of.into_iter().enumerate() {
        shares[number % clients.len()].1.push(one);
    }
    shares
}

/// Runs all of it at once, and puts together what comes of it.
async fn gathered<T: Send + 'static>(
    work: impl Iterator<
        Item = impl Future<Output = anyhow::Result<(Vec<Duration>, Vec<T>)>> + Send + 'static,
    >,
) -> anyhow::Result<(Vec<Duration>, Vec<T>)> {
    let mut tasks: tokio::task::JoinSet<_> = work.collect();
    let (mut times, mut all) = (Vec::new(), Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (more_times, more) = done??;
        times.extend(more_times);
        all.extend(more);
    }
    Ok((times, all))
}

/// The time that so many of a hundred do not exceed, in ms.
fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1].as_secs_f64() * 1e3
}
