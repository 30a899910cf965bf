//! The Container Storage Interface, apart from what is below it: what a request may ask for, with which code it is
//! answered, which calls wait for which. Served by the controller and by the agent.
//!
//! - [`platform`]: what is below, as two traits: one for the controller's process, one for the agent's.
//! - [`identity`], [`controller`], [`node`]: the three services.
//! - [`request`]: messages to requests of a platform, refusing with words what cannot be meant.
//! - [`call`] and [`busy`]: one call from its start to its answer: deadlines, one at a time for a volume, the log.
//! - [`serve`]: the socket.
//! - [`simulated`]: a platform in memory, with settable latency and faults.

mod busy;
mod call;
pub mod controller;
pub mod identity;
pub mod node;
pub mod platform;
pub mod request;
pub mod serve;
pub mod simulated;

pub use call::code;

/// The name of the driver: in storage classes, in PersistentVolumes, in the kubelet's folders.
pub const DRIVER: &str = "csi.hotbay.dev";

/// The topology key; its value is a node's id.
pub const TOPOLOGY_KEY: &str = "hotbay.dev/node";
