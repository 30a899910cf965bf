//! Where news of devices comes from: the kernel's events and udev's, the mount table, and a poll for what neither
//! tells. The agent's loop listens to all of them; `hotbay-core::discovery` decides what each is worth.
//!
//! | change | told by |
//! |---|---|
//! | a device comes, goes, grows, gets another medium | [`Source`] |
//! | udev has its database ready | [`Source`], where udev runs |
//! | something is mounted or unmounted | [`MountWatch`] |
//! | somebody has written to a device | [`CloseWatch`], and [`Source`] where udev runs |
//! | a partition is resized, a device is set read-only, an event was lost | [`Poll`] |
//!
//! Nothing here opens a device, and nothing here waits for one.

mod batch;
mod closes;
mod mounts;
mod poll;
mod resolve;
mod socket;
mod source;

pub use closes::{CloseWatch, CloseWatchError};
pub use mounts::{MountTable, MountWatch, MountWatchError};
pub use poll::{KernelCounter, Poll, PollError};
pub use resolve::resolve;
pub use socket::{RECEIVE_BUFFER_BYTES, RefusedSender, SocketError};
pub use source::{Counters, Item, Loss, Source, SourceError, Sources};
