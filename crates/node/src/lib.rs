//! The agent on one machine: makes the drives what the registry wants them to be, and proves it.
//!
//! All decisions are [`hotbay_core::agent`]'s; this crate gives it events and carries out its effects.
//!
//! - [`agent_loop`]: one event at a time, in, and what follows from it, out.
//! - [`link`]: the session with the registry.
//! - [`dial`]: where that registry is; [`tls`]: how it is dialled on another machine.
//! - [`joining`], [`membership`], [`renewal`]: how an agent becomes and stays a member of a registry elsewhere.
//! - [`drives`]: the open descriptors, and the children that do what may hang.
//! - [`inventory`]: which devices there are; [`filters`]: which of them may be used.
//! - [`state_dir`]: what survives a restart.

mod agent_loop;
mod dial;
mod drives;
mod filters;
#[doc(hidden)]
pub mod fuzzing;
mod inventory;
mod joining;
mod labels;
mod link;
mod membership;
mod renewal;
mod state_dir;
mod tls;

pub use agent_loop::{Config, NodeError, run};
pub use dial::RegistryAt;
pub use filters::{Changed, FilterError, FilterFile, read as read_filters};
pub use inventory::Place;
pub use joining::{JoinError, JoinOptions, join};
pub use membership::{Member, MembershipError};
pub use state_dir::StateDirError;
pub use tls::{PinnedDial, PinnedDialError, TlsError};
