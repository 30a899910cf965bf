//! Which controller leads: the one that holds the Lease.
//!
//! - [`rule`]: who may take it and until when it is good, without a clock or a server.
//! - [`object`]: the Lease as the API server has it.
//! - [`hold`]: takes it, and renews it for as long as this process leads.
//!
//! The leader counts its time from before it sent the renewal, another one from when it saw the last change, each on
//! its own monotonic clock: so the first always stops before the second begins, whatever their wall clocks say. That a
//! late word of a former leader harms nobody does not depend on it: terms and versions see to that.

mod hold;
mod object;
pub mod rule;

use std::time::Duration;

use hotbay_control::LeaderAt;

pub use hold::{Lead, contend};

/// Who contends for the lead, and how.
#[derive(Debug, Clone)]
pub struct Contender {
    pub namespace: String,
    /// The name of the Lease.
    pub lease: String,
    /// Unlike any other process's: what holds the Lease is a process, not a pod.
    pub identity: String,
    /// Where others reach it when it leads.
    pub reached_at: LeaderAt,
    /// How long a lead is good without a renewal.
    pub duration: Duration,
    /// Wall time in Unix milliseconds, noted for people.
    pub wall_ms: fn() -> u64,
}
