//! What the registry's actor promises: one order, one sync for many, nothing said before it is durable, and nobody
//! kept waiting by a caller or an agent that misbehaves. `actor_records` asks the same where each record is kept by
//! itself.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod batches;
mod callers;
mod rewrite;
#[expect(dead_code, reason = "other stores use more of it")]
mod rig;
mod store_faults;
mod time;

/// What is below the registry.
mod under {
    pub(crate) use hotbay_registry::MemoryStore as Under;

    pub(crate) const SHARED: bool = false;

    pub(crate) fn new() -> Under {
        Under::new()
    }
}
