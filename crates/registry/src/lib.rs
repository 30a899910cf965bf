//! Order and durability of the registry's decisions.
//!
//! The decisions themselves are made in `core`; here they are put in one order and made durable before
//! anyone hears of them. The controller calls this crate, and nothing else does.

pub mod actor;
pub mod codec;
#[doc(hidden)]
pub mod fuzzing;
pub mod mandate;
pub mod stats;
pub mod store;

pub use actor::{
    CallError, Ended, EventLog, Recorded, Registry, StartError, StoreHealth, Surroundings, ToAgent,
};
pub use mandate::Mandate;
pub use store::check::{CheckError, Problem, Report, check, check_with};
pub use store::embedded::RedbStore;
pub use store::error::StoreError;
pub use store::fill::{FillError, fill};
pub use store::memory::{Fault, MemoryStore};
pub use store::{Key, Kind, Store, Write};
