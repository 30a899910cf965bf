//! The Container Storage Interface, apart from what is below it.
//!
//! - [`platform`]: what is below, as two traits: one for the controller's process, one for the agent's.

pub mod platform;
