//! The agent's half of the CSI provisioner: volumes are mapped, mounted and shown to pods on this machine.
//!
//! - [`lookup`]: what the agent's loop knows of a volume: its grant, its place, the open drive.
//! - [`child`]: everything that may wait for a drive is asked of a child; [`looks`]: looks at the machine, shared.
//! - [`platform`]: CSI's calls. The kernel is the truth about what is staged and published.
//! - [`real`]: the volume itself, as steps of children.
//! - [`fake`]: the dummy for a volume that cannot be reached, for those who asked for one; `docs/fake-attach.md`.
//! - [`staging`]: which of the two a staging is, on disk.
//! - [`persisted`]: mounts that come back after a restart of the machine.
//! - [`fault`]: what a fault of the machine means to whoever called.

mod child;
mod fake;
mod fault;
mod looks;
mod lookup;
mod persisted;
mod platform;
mod real;
mod staging;

pub(crate) use child::Children;
pub(crate) use lookup::{Found, Lookup, Placed, Question};
pub(crate) use persisted::bring_back;
pub use persisted::{PersistError, PersistedMount};
pub(crate) use platform::Platform;
pub(crate) use staging::Stagings;
