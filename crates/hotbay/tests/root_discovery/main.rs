//! The real program over loop devices that change while it watches them: every change reaches the registry, once, and
//! nothing that is none does.
//!
//! That nothing was published is not waited for: a change that must be published follows, and the reports are counted.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod away;
#[path = "../cluster/mod.rs"]
mod cluster;
mod contents;
mod many;
mod names;
mod rig;
mod sizes;
mod storm;
mod untouched;
