//! A machine with NVMe, SCSI and virtio drives that can be plugged, pulled, resized and cut off from power: QEMU with
//! Debian's kernel. For tests only; nothing of the product uses it.
//!
//! ```text
//! Machine     what outlives a boot: images of drives, the state disk, the initramfs
//!   parts       what scripts/setup-guest left in the cache: kernel, modules, busybox
//!   initramfs   made here: /init, our binary, the programs it calls, with their libraries
//! Guest       one boot: commands run inside, drives come and go, until it is dropped
//!   commands    a virtio serial port: a shell command in, exit code and output back
//!   qmp         QEMU's own control socket
//! cases       runs the cases of a test on one guest, and shows the console of one that fails
//! ```
//!
//! CONTRIBUTING.md says how to write a case.

pub mod cases;
mod commands;
mod drive;
mod error;
mod guest;
mod initramfs;
mod lines;
mod machine;
mod parts;
mod qmp;

pub use commands::Output;
pub use drive::{Bus, Drive};
pub use error::GuestError;
pub use guest::Guest;
pub use machine::Machine;
