//! What the agent's loop knows of a volume. The loop owns grants, labels and descriptors, so it is asked.

use std::os::fd::OwnedFd;

use hotbay_core::ids::{NodeId, VolumeId};
use hotbay_core::volume::Segment;
use hotbay_core::volume::orders::Grant;
use hotbay_csi::platform::{Failure, FailureKind};
use tokio::sync::{mpsc, oneshot};

/// A question to the loop.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// None: only who this node is.
    pub(crate) volume: Option<VolumeId>,
    pub(crate) reply: oneshot::Sender<Found>,
}

/// What the loop knows.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) node: Option<NodeId>,
    /// The newest use that was seen.
    pub(crate) grant: Option<Grant>,
    /// Where it is, if its drive is open.
    pub(crate) placed: Option<Placed>,
    /// Its drive may be opened or closed in a moment, so that what is not there says nothing yet.
    pub(crate) settling: bool,
}

/// The place of a volume on a drive that is open.
#[derive(Debug)]
pub(crate) struct Placed {
    /// A copy of the descriptor that the drive was attached with.
    pub(crate) descriptor: OwnedFd,
    pub(crate) parts: Vec<Segment>,
}

impl Placed {
    pub(crate) fn size_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.length_bytes).sum()
    }
}

/// Asks the loop.
pub(super) async fn ask(
    questions: &mpsc::Sender<Lookup>,
    volume: Option<VolumeId>,
) -> Result<Found, Failure> {
    let stopped = || Failure::new(FailureKind::Unavailable, "the agent stops; call again");
    let (reply, answer) = oneshot::channel();
    questions.send(Lookup { volume, reply }).await.map_err(|_| stopped())?;
    answer.await.map_err(|_| stopped())
}
