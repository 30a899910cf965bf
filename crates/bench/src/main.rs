//! Measures what Hotbay costs and prints a table for `docs/BENCHMARKS.md`. Run as `cargo xtask bench registry`.
//!
//! Every figure is a median of interleaved runs, or a ratio of two things measured in one run: wall times alone say
//! little on a machine that does other things too.

mod cluster;
mod durable;
mod registry;
mod storm;

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("registry"), None) => registry::run()?,
        // The memory of a registry is measured in a process of its own.
        (Some("registry-memory"), None) => registry::print_memory(),
        _ => {
            eprintln!("usage: hotbay-bench registry");
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}
