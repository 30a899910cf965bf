//! What the registry's actor promises on a store that keeps each record by itself: all that `actor` asks of it where
//! that takes batches, and that one record which cannot be written delays its own alone.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../actor/callers.rs"]
mod callers;
#[path = "../actor/records.rs"]
mod records;
#[path = "../actor/rewrite.rs"]
mod rewrite;
#[path = "../actor/rig.rs"]
mod rig;
#[path = "../actor/store_faults.rs"]
mod store_faults;
#[path = "../actor/time.rs"]
mod time;

/// What is below the registry.
mod under {
    pub(crate) use hotbay_registry::MemoryStore as Under;

    pub(crate) const SHARED: bool = true;

    pub(crate) fn new() -> Under {
        Under::new()
    }
}
