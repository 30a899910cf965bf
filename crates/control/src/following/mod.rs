//! A controller among several that does not lead.
//!
//! - [`agents`]: an agent that comes is told who leads.
//! - [`clients`]: connections of people and programs are passed on to the leader as they are.
//! - [`csi`]: the sidecars of this pod stay connected; each of their calls goes to whoever leads.
//! - [`local`]: whoever calls at its Unix sockets is told where to call.
//! - [`dial`]: how another controller is reached.
//!
//! Whoever decides on the lead says where the leader is; the doors are open all the time.

mod agents;
mod clients;
pub(crate) mod csi;
mod dial;
mod local;

use std::io;

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::doors::Doors;

pub use csi::{CsiBy, csi_of_whoever_leads};

/// Where a leader is reached: HOST:PORT each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderAt {
    /// By agents and other controllers.
    pub agents: String,
    /// By people and programs; empty if it has no such door.
    pub clients: String,
}

/// Serves the doors and Unix sockets as one who does not lead, until one of them cannot be served any more. To stop it,
/// drop it; the doors stay open.
pub async fn follow(
    doors: &Doors,
    listeners: Vec<UnixListener>,
    leader: watch::Receiver<Option<LeaderAt>>,
) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    if !listeners.is_empty() {
        tasks.spawn(local::tell(listeners, leader.clone()));
    }
    if let Some(door) = &doors.agents {
        tasks.spawn(agents::serve(door.copy()?, leader.clone()));
    }
    if let Some(door) = &doors.clients {
        for listener in door.copies()? {
            tasks.spawn(clients::pass_on(listener, leader.clone()));
        }
    }
    match tasks.join_next().await {
        // None ends by itself: who came to that door would wait for ever.
        Some(ended) => {
            Err(ended.err().map_or_else(|| io::ErrorKind::UnexpectedEof.into(), io::Error::other))
        }
        // Without doors nobody comes.
        None => std::future::pending().await,
    }
}
