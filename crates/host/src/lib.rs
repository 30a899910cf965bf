//! The Linux machine as a drive agent needs it: devices, labels on them, children that may hang, kernel locks, and the
//! proof that a drive is closed.
//!
//! [`scan`] finds devices, [`uevent`] tells when to look again, [`worker`] does in children whatever may wait for a
//! device, [`locks`] keeps writers and agents apart. Nothing here decides what should be attached; `hotbay-core` does,
//! and the agent carries it out with this.

mod block_ioctl;
mod direct_read;
mod erase;
pub mod filesystem;
mod identity;
mod kernel_id;
pub mod label;
pub mod locks;
mod loop_ioctl;
pub mod mapping;
mod process;
pub mod proof;
mod runtime_dir;
pub mod scan;
pub mod uevent;
pub mod worker;

pub use kernel_id::{DeviceNumber, KernelId};
pub use runtime_dir::{RuntimeDir, RuntimeDirError};
