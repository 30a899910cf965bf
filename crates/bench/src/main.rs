//! Measures what Hotbay costs and prints a table for `docs/BENCHMARKS.md`. Run as `cargo xtask bench registry`,
//! `discovery`, `volumes` or `kubernetes`.
//!
//! Every figure is a median of interleaved runs, or a ratio of two things measured in one run: wall times alone say
//! little on a machine that does other things too.

mod cluster;
mod connections;
mod discovery;
mod disk;
mod durable;
mod instructions;
mod kubernetes;
mod registry;
mod storm;
mod volumes;

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["registry"] => registry::run()?,
        // One part of it alone, for whoever works on that.
        ["registry", "place"] => registry::in_memory(false)?,
        ["registry", "durable"] => durable::run(false)?,
        ["registry", "connections"] => connections::run()?,
        ["discovery"] => discovery::run()?,
        ["discovery", "listing"] => discovery::listing()?,
        ["discovery", "rest"] => discovery::rest()?,
        ["volumes"] => volumes::run(&volumes::PRESENT)?,
        ["volumes", "few"] => volumes::run(&volumes::PRESENT[..1])?,
        ["kubernetes"] => kubernetes::run()?,
        ["kubernetes", "small"] => kubernetes::small()?,
        ["kubernetes", "claims"] => kubernetes::claims(kubernetes::ROUNDS)?,
        ["kubernetes", "scale"] => kubernetes::scale(kubernetes::LARGE)?,
        ["kubernetes", "scale", "small"] => kubernetes::scale(kubernetes::SMALL)?,
        ["kubernetes", "failover"] => kubernetes::failover(kubernetes::RUNS)?,
        // The memory of a registry is measured in a process of its own.
        ["registry-memory"] => registry::print_memory()?,
        [instructions::COUNTED, ..] => instructions::run_counted(&arguments[1..])?,
        _ => {
            eprintln!(
                "usage: hotbay-bench registry [place|durable|connections] | discovery [listing|rest] | \
                 volumes [few] | kubernetes [small|claims|scale|scale small|failover]"
            );
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}
