//! A whole cluster under one seed: registries, hundreds of machines, drives, networks and clients, all simulated, all
//! deterministic, around the very functions of `core` that the product runs.
//!
//! `docs/design/0003-simulation.md` says what is simulated and what is not. `cargo run -p hotbay-sim -- run --seeds N`
//! runs many seeds; `replay SEED` tells the story of one.

mod batches;
mod chaos;
mod check;
mod client;
mod drive;
mod fault;
mod label;
mod log;
mod machine;
mod network;
mod records;
mod registry;
mod release;
mod repeat;
mod rng;
mod run;
mod scenario;
mod session;
mod steps;
mod store;
mod users;
mod volumes;
mod world;

pub use check::{Invariant, Violation};
pub use fault::{Coverage, Fault};
pub use run::{Outcome, replay, report, run};
