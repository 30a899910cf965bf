//! Children that do everything that may wait for a drive.
//!
//! The agent never opens, reads, writes or closes a drive in a thread of its own: a drive that hangs would take the
//! thread with it, and the agent's end too. It asks a child, a process started by exec with one socket and no other
//! descriptor. A child that hangs is the quarantine of its drive, and delays nobody else.
//!
//! ```text
//! agent:  Workers (pool) -- start --> Running (future) --> Done { response, descriptors }
//!             | socket: one packet per message, descriptors beside it
//! child:  worker_main (serve) --> look | attach | change | detach | close | map
//! ```

mod attach;
mod change;
mod channel;
mod detach;
mod follow;
mod guard;
mod look;
mod map;
mod open;
mod pool;
mod protocol;
mod serve;
mod wipe;

pub(crate) use look::{open_sectors, sectors};
pub(crate) use open::is_current;
pub use pool::{Done, Limits, NotStarted, Running, StartError, WorkerError, Workers};
pub(crate) use protocol::chain;
pub use protocol::{
    Attach, AttachError, Attached, ChangeLabel, Detach, Detached, LabelChangeError, LabelLook,
    LabelWant, LookError, Looked, ReadLabel, Request, Response,
};
pub use serve::worker_main;
