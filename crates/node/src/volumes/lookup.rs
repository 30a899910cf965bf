//! What the agent's loop knows of a volume. The loop owns grants, labels and descriptors, so it is asked.

use std::os::fd::OwnedFd;
use std::time::Duration;

use hotbay_core::ids::{NodeId, VolumeId};
use hotbay_core::volume::Segment;
use hotbay_core::volume::orders::Grant;
use hotbay_csi::platform::{Failure, FailureKind};
use tokio::sync::{mpsc, oneshot};

/// How long the label of a drive may take to be written.
const MARK_LIMIT: Duration = Duration::from_secs(20);

/// What the loop is asked.
#[derive(Debug)]
pub(crate) enum Question {
    Look(Lookup),
    /// A volume has a filesystem: its drive's label is to say so. Answered when that lasts.
    Formatted {
        volume: VolumeId,
        reply: oneshot::Sender<Result<(), String>>,
    },
}

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
    /// It has had a filesystem.
    pub(crate) formatted: bool,
}

impl Placed {
    pub(crate) fn size_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.length_bytes).sum()
    }
}

/// Asks the loop.
pub(super) async fn ask(
    questions: &mpsc::Sender<Question>,
    volume: Option<VolumeId>,
) -> Result<Found, Failure> {
    let (reply, answer) = oneshot::channel();
    let question = Question::Look(Lookup { volume, reply });
    questions.send(question).await.map_err(|_| stopped())?;
    answer.await.map_err(|_| stopped())
}

/// Has the label of its drive say that a volume has a filesystem.
pub(super) async fn formatted(
    questions: &mpsc::Sender<Question>,
    volume: VolumeId,
) -> Result<(), Failure> {
    let unavailable = |words: String| Failure::new(FailureKind::Unavailable, words);
    let (reply, answer) = oneshot::channel();
    questions.send(Question::Formatted { volume, reply }).await.map_err(|_| stopped())?;
    match tokio::time::timeout(MARK_LIMIT, answer).await {
        Ok(Ok(marked)) => marked.map_err(|why| {
            unavailable(format!("its drive's label cannot say that it has a filesystem: {why}"))
        }),
        Ok(Err(_)) => Err(stopped()),
        Err(_) => Err(unavailable(format!(
            "its drive's label was not written within {} s; call again",
            MARK_LIMIT.as_secs()
        ))),
    }
}

fn stopped() -> Failure {
    Failure::new(FailureKind::Unavailable, "the agent stops; call again")
}
