//! The agent's half of the CSI provisioner: volumes are mapped, mounted and shown to pods on this machine.
//!
//! - [`lookup`]: what the agent's loop knows of a volume: its grant, its place, the open drive.
//! - [`child`]: everything that may wait for a drive is asked of a child.
//! - [`platform`]: CSI's calls, as steps of children. The kernel is the truth about what is staged and published.
//! - [`persisted`]: mounts that come back after a restart of the machine.
//! - [`failure`]: what a fault of the machine means to whoever called.

mod child;
mod failure;
mod lookup;
mod persisted;
mod platform;

pub(crate) use child::Children;
pub(crate) use lookup::{Found, Lookup, Placed};
pub(crate) use persisted::bring_back;
pub use persisted::{PersistError, PersistedMount};
pub(crate) use platform::Platform;
