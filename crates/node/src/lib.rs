//! The agent on one machine: makes the drives what the registry wants them to be, and proves it.
//!
//! All decisions are [`hotbay_core::agent`]'s; this crate gives it events and carries out its effects.
//!
//! - [`agent_loop`]: one event at a time, in, and what follows from it, out.
//! - [`link`]: the session with the registry.
//! - [`dial`]: where that registry is; [`tls`]: how it is dialled on another machine.
//! - [`joining`], [`account`], [`membership`], [`renewal`]: how an agent becomes and stays a member of a registry
//!   elsewhere.
//! - [`drives`]: the open descriptors, and the children that do what may hang.
//! - [`discovery`]: which devices there are, kept true by events; [`filters`]: which of them may be used.
//! - [`mod@survey`]: one look at them, without a registry.
//! - [`volumes`]: what CSI asks of this machine.
//! - [`metrics_socket`]: the agent's numbers, for whoever asks.
//! - [`state_dir`]: what survives a restart.

mod account;
mod agent_loop;
mod dial;
mod discovery;
mod drives;
mod filters;
#[doc(hidden)]
pub mod fuzzing;
mod joining;
mod link;
mod membership;
mod metrics_socket;
mod renewal;
mod state_dir;
mod survey;
mod tls;
mod volumes;

pub use account::{AccountOptions, join_with_account};
pub use agent_loop::{Config, NodeError, run};
pub use dial::RegistryAt;
pub use discovery::Place;
pub use filters::{Changed, FilterError, FilterFile, read as read_filters};
pub use joining::{JoinError, JoinOptions, authority_hash, join};
pub use membership::{Member, MembershipError};
pub use state_dir::StateDirError;
pub use survey::{SurveyError, cluster_of, survey};
pub use tls::{PinnedDial, PinnedDialError, TlsError};
pub use volumes::{PersistError, PersistedMount};
