//! What is below the CSI services: the provisioner, in two halves because they run in two processes. The controller
//! implements [`ControllerPlatform`] over its registry, the agent [`NodePlatform`] over its machine, and
//! [`crate::simulated`] both in memory.
//!
//! What the services see to, and a platform need not:
//!
//! - Requests are valid as far as their own text tells: ids parse, paths are absolute, sizes fit, modes can be had.
//! - No two calls on one volume (`create`: on one name) run at the same time in one process. Reads (`volume`,
//!   `volumes`, `capacity`, `node_exists`, `stats`, `info`) run at any time.
//! - A call that changes something is carried to its end even when its caller has gone or its deadline has passed.
//! - Secrets of a request end at the services. None is handed down, kept or logged.
//!
//! What a platform sees to: every call can be repeated, and then says what the first one said. No call blocks its
//! thread. It answers within its own limits of time, with a [`FailureKind`] that is not final if it gave up waiting.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use hotbay_core::ids::{NodeId, VolumeId};
use thiserror::Error;

/// Texts by name: class parameters, volume context, publish context.
pub type Texts = BTreeMap<String, String>;

/// The half that runs with the registry.
pub trait ControllerPlatform: Send + Sync + 'static {
    /// Makes a volume, or finds the one that has this name, and answers when it can be used.
    ///
    /// A volume of this name that was made with other parameters, or for the other access, is refused with
    /// [`FailureKind::AlreadyExists`]. Size and nodes of the answer are compared with the request by the caller.
    /// [`FailureKind::ResourceExhausted`]: no allowed node has room, and nothing was made.
    fn create(&self, request: CreateVolume)
    -> impl Future<Output = Result<Volume, Failure>> + Send;

    /// Deletes a volume and answers when it is gone. One that is not there is deleted already. One that is attached is
    /// refused with [`FailureKind::FailedPrecondition`], naming the node.
    fn delete(&self, volume: VolumeId) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Makes a volume at least so large. One that is large enough already stays as it is.
    /// [`FailureKind::OutOfRange`]: it can never be so large, or not without passing the limit.
    fn expand(
        &self,
        request: ExpandVolume,
    ) -> impl Future<Output = Result<Expanded, Failure>> + Send;

    /// Attaches a volume to a node, and answers with what the node is told at stage (the publish context).
    ///
    /// Attached there already, in the same way: the same answer. Attached there with another `readonly`:
    /// [`FailureKind::AlreadyExists`]. In use on another node, or the node has no room for one more:
    /// [`FailureKind::FailedPrecondition`] or [`FailureKind::ResourceExhausted`]. No such volume or node:
    /// [`FailureKind::NotFound`].
    fn attach(&self, request: AttachVolume) -> impl Future<Output = Result<Texts, Failure>> + Send;

    /// Detaches a volume from a node, or from all without one, and answers when it is detached. Not attached, no such
    /// volume and no such node are detached already.
    fn detach(
        &self,
        volume: VolumeId,
        node: Option<NodeId>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// One volume; [`FailureKind::NotFound`] if there is none.
    fn volume(&self, volume: VolumeId) -> impl Future<Output = Result<Volume, Failure>> + Send;

    /// At most `limit` volumes in the order of their ids, after this one, which need not exist any more.
    fn volumes(
        &self,
        after: Option<VolumeId>,
        limit: usize,
    ) -> impl Future<Output = Result<VolumePage, Failure>> + Send;

    /// How much could be made with these parameters, by the same rules as `create`. A node that is unknown has none.
    fn capacity(
        &self,
        query: CapacityQuery,
    ) -> impl Future<Output = Result<Capacity, Failure>> + Send;

    /// Whether a volume could be attached to such a node, as far as its id tells.
    fn node_exists(&self, node: NodeId) -> impl Future<Output = Result<bool, Failure>> + Send;
}

/// The half that runs on the machine where the pods are.
///
/// The mount table and the kernel are the truth about what is staged and published. An id that is well formed but
/// unknown is `NotFound` in `stage`, `publish`, `stats` and `expand`; in `unstage` and `unpublish` nothing at the path
/// is a good end, volume or not.
pub trait NodePlatform: Send + Sync + 'static {
    /// Makes a volume ready at the staging path, a directory that exists: mounted there, or for block a device node in
    /// it. Staged already in the same way: fine. Staged there in another way: [`FailureKind::AlreadyExists`].
    fn stage(&self, request: StageVolume) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Undoes `stage`. The directory itself stays.
    fn unstage(
        &self,
        volume: VolumeId,
        staging_path: PathBuf,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Makes a staged volume visible at the target path, which is made: a directory, or for block a file. Its parent
    /// exists.
    ///
    /// Published there already in the same way: fine; in another way: [`FailureKind::AlreadyExists`]. Not staged, or
    /// published at another target and either of them asks for [`AccessMode::SingleNodeSingleWriter`]:
    /// [`FailureKind::FailedPrecondition`].
    fn publish(&self, request: PublishVolume) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Undoes `publish`, and removes the target path.
    fn unpublish(
        &self,
        volume: VolumeId,
        target_path: PathBuf,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// How full a volume is, asked at a path where it is staged or published; any other path is
    /// [`FailureKind::NotFound`].
    fn stats(&self, request: StatsQuery) -> impl Future<Output = Result<Stats, Failure>> + Send;

    /// Lets what is on a volume grow into its size, and answers with that size.
    fn expand(&self, request: ExpandOnNode) -> impl Future<Output = Result<u64, Failure>> + Send;

    /// Who this node is. [`FailureKind::Unavailable`] while it does not know yet.
    fn info(&self) -> impl Future<Output = Result<NodeInfo, Failure>> + Send;
}

/// How large a volume shall be. `required_bytes` is not above `limit_bytes`, and both fit into 63 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// At least so large; 0 leaves it to the platform.
    pub required_bytes: u64,
    /// At most so large. Never 0.
    pub limit_bytes: Option<u64>,
}

impl Sizes {
    /// Whether a volume of this size is what was asked for.
    pub fn fits(self, bytes: u64) -> bool {
        bytes >= self.required_bytes && self.limit_bytes.is_none_or(|limit| bytes <= limit)
    }
}

/// What a pod sees of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// A block device.
    Block,
    /// A mounted filesystem.
    Mount {
        /// Empty: the platform's default.
        fs_type: String,
        /// Options for mount, as given.
        flags: Vec<String>,
    },
}

impl Access {
    /// Block is not mount; the filesystem and its options do not count.
    pub fn is_block(&self) -> bool {
        matches!(self, Self::Block)
    }
}

/// Who may use a volume at the same time. The modes with several nodes are refused by the services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessMode {
    /// One node, any number of targets on it; what `ReadWriteOnce` becomes without the next two.
    SingleNodeWriter,
    /// One node, nobody writes.
    SingleNodeReaderOnly,
    /// One node and one target on it: `ReadWriteOncePod`.
    SingleNodeSingleWriter,
    /// One node, any number of targets that write: `ReadWriteOnce`.
    SingleNodeMultiWriter,
}

/// A volume to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateVolume {
    /// Up to 128 bytes; the key by which a repeated call is known.
    pub name: String,
    pub sizes: Sizes,
    pub access: Access,
    /// In order, each once, at least one.
    pub modes: Vec<AccessMode>,
    /// As in the storage class.
    pub parameters: Texts,
    /// One of these nodes must reach it; none: any may.
    pub requisite: Vec<NodeId>,
    /// Those that come first, the best first.
    pub preferred: Vec<NodeId>,
}

/// A volume as the platform tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub id: VolumeId,
    pub name: String,
    pub capacity_bytes: u64,
    /// Handed back at attach, stage and publish. Never a secret.
    pub volume_context: Texts,
    /// The nodes that can reach it.
    pub accessible_nodes: Vec<NodeId>,
    /// The nodes that it is attached to.
    pub published_nodes: Vec<NodeId>,
    pub condition: Condition,
}

/// Whether a volume works.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Condition {
    pub abnormal: bool,
    /// For people, also when all is well.
    pub message: String,
}

/// Some volumes, and whether there are more.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumePage {
    pub volumes: Vec<Volume>,
    /// Whether at least one comes after the last of these.
    pub more: bool,
}

/// A larger size for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpandVolume {
    pub volume: VolumeId,
    pub sizes: Sizes,
    /// How it is used, if the caller said so.
    pub access: Option<Access>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expanded {
    pub capacity_bytes: u64,
    /// Whether the node has to follow, now if it is staged or else at the next stage.
    pub on_node: bool,
}

/// A volume for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachVolume {
    pub volume: VolumeId,
    pub node: NodeId,
    pub access: Access,
    pub mode: AccessMode,
    /// The node shall not be able to write.
    pub readonly: bool,
    pub volume_context: Texts,
}

/// What a volume would be made of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapacityQuery {
    pub parameters: Texts,
    /// On this node; none: on all together.
    pub node: Option<NodeId>,
    /// If the caller said so.
    pub access: Option<Access>,
}

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    pub available_bytes: u64,
    /// The largest single volume that could be made now.
    pub largest_volume_bytes: Option<u64>,
    pub smallest_volume_bytes: Option<u64>,
}

/// A volume to make ready on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageVolume {
    pub volume: VolumeId,
    pub staging_path: PathBuf,
    pub access: Access,
    pub mode: AccessMode,
    /// What `attach` answered.
    pub publish_context: Texts,
    pub volume_context: Texts,
}

/// A staged volume to show to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishVolume {
    pub volume: VolumeId,
    pub staging_path: PathBuf,
    pub target_path: PathBuf,
    pub access: Access,
    pub mode: AccessMode,
    pub readonly: bool,
    pub publish_context: Texts,
    pub volume_context: Texts,
}

/// Where a volume is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsQuery {
    pub volume: VolumeId,
    pub volume_path: PathBuf,
    pub staging_path: Option<PathBuf>,
}

/// How full a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Of a block volume only the total is known.
    pub bytes: Usage,
    /// Of a filesystem that counts them.
    pub inodes: Option<Usage>,
    pub condition: Condition,
}

/// Some of a total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub total: u64,
    pub used: u64,
    pub available: u64,
}

/// What is on a volume, to follow its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpandOnNode {
    pub volume: VolumeId,
    pub volume_path: PathBuf,
    pub staging_path: Option<PathBuf>,
    /// What was asked of the controller, if the caller said so.
    pub sizes: Sizes,
    /// How it is used, if the caller said so; else the platform looks.
    pub access: Option<Access>,
}

/// Who a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeInfo {
    pub node: NodeId,
    /// How many volumes it takes at most; none: no limit is known.
    pub max_volumes: Option<u32>,
}

/// Why a platform did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: FailureKind,
    /// What is wrong and what to do, for the person who reads the events of a pod. No secret, no line breaks needed.
    pub message: String,
}

impl Failure {
    pub fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string() }
    }
}

/// What a failure means to those who called: the provisioner, attacher and resizer of Kubernetes, and its kubelet.
///
/// After a **final** failure they take it that nothing was done and nothing is under way: the claim may be placed on
/// another node or deleted, the pod may go elsewhere, and nobody calls again to clean up. So **a call that may have
/// left something behind answers only with a failure that is not final**; then they call again, or undo what they
/// asked for first. [`FailureKind::is_final`] is that line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureKind {
    /// Final. No such volume or node.
    NotFound,
    /// Final. It is there already, in another way than asked for.
    AlreadyExists,
    /// Final. It can never be done as asked: a parameter, a filesystem, an option is wrong.
    InvalidArgument,
    /// Final. No volume can have this size, or there cannot be one between these sizes.
    OutOfRange,
    /// Final, as the provisioner takes it: there is no room, so the pod is placed elsewhere. The attacher and the
    /// kubelet take it as not final, so it is right for a node with too many volumes too.
    ResourceExhausted,
    /// Final. Something else must be done first: detach it from another node, release it, add the drive.
    FailedPrecondition,
    /// Not final. Something is under way for this volume; call again.
    Aborted,
    /// Not final. The registry, an agent or a drive does not answer now; what was asked may or may not have been done.
    Unavailable,
    /// Not final. It took too long and may go on.
    DeadlineExceeded,
    /// **Final**, and thus only for what is known to have changed nothing: a fault in the platform itself. An error of
    /// the kernel half-way is [`FailureKind::Unavailable`].
    Internal,
}

impl FailureKind {
    /// All of them, for tests and tables.
    pub const ALL: [Self; 10] = [
        Self::NotFound,
        Self::AlreadyExists,
        Self::InvalidArgument,
        Self::OutOfRange,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::Unavailable,
        Self::DeadlineExceeded,
        Self::Internal,
    ];

    /// Whether a caller takes it that nothing was left behind.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Aborted | Self::Unavailable | Self::DeadlineExceeded => false,
            Self::NotFound
            | Self::AlreadyExists
            | Self::InvalidArgument
            | Self::OutOfRange
            | Self::ResourceExhausted
            | Self::FailedPrecondition
            | Self::Internal => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fit_between_their_bounds_and_at_them() {
        let any = Sizes::default();
        assert!(any.fits(0) && any.fits(u64::MAX));
        let some = Sizes { required_bytes: 10, limit_bytes: Some(20) };
        assert!(some.fits(10) && some.fits(20));
        assert!(!some.fits(9) && !some.fits(21));
    }

    #[test]
    fn what_may_have_left_something_behind_is_not_final() {
        let open: Vec<_> = FailureKind::ALL.into_iter().filter(|kind| !kind.is_final()).collect();
        let expected =
            [FailureKind::Aborted, FailureKind::Unavailable, FailureKind::DeadlineExceeded];
        assert_eq!(open, expected);
    }
}
