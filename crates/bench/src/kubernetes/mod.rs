//! `kubernetes`: Hotbay on a real Kubernetes, made by `hotbay-rig`. What a claim costs beside another driver on the
//! same cluster, what a large cluster costs a controller, and how long nobody leads when a leader is gone.
//!
//! ```text
//! claims ──▶ peer      csi-driver-host-path with its sidecars, beside the chart's pods
//!        ──▶ timeline  when claims and pods became what they are, as the API server tells it
//! scale ───▶ agents    a thousand of them, simulated, over their own protocol
//! failover ▶ service   one address for all controllers
//! controllers: `hotbay controller --kubernetes` as processes      audit: who wrote what, from the API server's log
//! ```

mod agents;
mod audit;
mod claims;
mod controllers;
mod failover;
mod peer;
mod scale;
mod service;
mod timeline;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

pub(crate) use claims::{ROUNDS, run as claims};
pub(crate) use failover::{RUNS, run as failover};
pub(crate) use scale::{LARGE, SMALL, run as scale};

pub(crate) fn run() -> anyhow::Result<()> {
    println!("## Kubernetes\n");
    claims(ROUNDS)?;
    scale(LARGE)?;
    failover(RUNS)
}

/// The same, small and quick: to see that it works, not to learn from.
pub(crate) fn small() -> anyhow::Result<()> {
    println!("## Kubernetes, small\n");
    claims(2)?;
    scale(SMALL)?;
    failover(failover::FEW)
}

/// The product, which is built beside this program.
fn product() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("hotbay");
    let missing =
        || format!("{} is not there; run cargo xtask bench kubernetes", program.display());
    anyhow::ensure!(program.is_file(), missing());
    Ok(program)
}

/// A folder for a rig: its path is short, as sockets need it.
fn place() -> anyhow::Result<tempfile::TempDir> {
    Ok(tempfile::Builder::new().prefix("hotbay-bench-").tempdir()?)
}

/// The process of this name that a rig runs.
fn pid_of(rig: &Path, name: &str) -> anyhow::Result<String> {
    let note = rig.join("running").join(name);
    let text = std::fs::read_to_string(&note).with_context(|| format!("{}", note.display()))?;
    Ok(text.split(' ').next().context("a pid")?.to_owned())
}

/// Of some times, in milliseconds: that many per cent are not longer.
fn percentile_ms(times: &[Duration], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * percent).div_ceil(100).clamp(1, sorted.len());
    sorted[at - 1].as_secs_f64() * 1e3
}
