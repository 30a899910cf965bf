//! What the registry's actor promises: one order, one sync for many, nothing said before it is durable, and nobody
//! kept waiting by a caller or an agent that misbehaves.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod callers;
mod rewrite;
mod rig;
mod store_faults;
mod time;
