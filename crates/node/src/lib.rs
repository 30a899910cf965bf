//! The agent on one machine: makes the drives what the registry wants them to be, and proves it.
//!
//! All decisions are [`hotbay_core::agent`]'s; this crate gives it events and carries out its effects.
//!
//! - [`agent_loop`]: one event at a time, in, and what follows from it, out.
//! - [`link`]: the session with the registry.
//! - [`drives`]: the open descriptors, and the children that do what may hang.
//! - [`inventory`]: which devices there are.
//! - [`state_dir`]: what survives a restart.

mod agent_loop;
mod drives;
mod inventory;
mod link;
mod state_dir;

pub use agent_loop::{Config, NodeError, run};
pub use inventory::Place;
pub use state_dir::StateDirError;
