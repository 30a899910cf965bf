//! `discovery`: what an event costs until it is decided upon, whether a flood is absorbed, what a look at the machine
//! costs by the number of its devices, and what an agent costs that has nothing to do.

mod events;
mod listing;
mod rest;

pub(crate) fn run() -> anyhow::Result<()> {
    println!("## Discovery\n");
    events::run()?;
    listing::run()?;
    rest::run()
}

pub(crate) use listing::run as listing;
pub(crate) use rest::{TICKS_PER_SECOND, run as rest, ticks};

/// Whether loop devices can be had.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
