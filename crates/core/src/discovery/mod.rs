//! What the machine says about its block devices, and what that calls for. Pure: bytes and times in, values out.
//!
//! ```text
//! datagram --event--> Event --triage--> Look --resolved by the shell--> queue --take--> Work
//!                       |
//!                       +--sequence--> has one been missed?
//! ```
//!
//! The shell (`hotbay-host::uevent`) owns the sockets and files; the agent carries out the work and says when it is
//! done. Times are milliseconds of a monotonic clock, as in [`crate::pace`].

pub mod event;
pub mod probes;
mod properties;
pub mod queue;
pub mod sequence;
pub mod triage;

pub use event::{Event, Refused, kernel_event, udev_event};
pub use probes::{Needs, Probes};
pub use queue::{DeviceKey, Queue, Work};
pub use triage::{Verdict, triage};
