//! CSI's calls on this machine, each as steps that may be repeated after a crash anywhere.
//!
//! ```text
//! stage    the volume itself ([`super::real`]); if it cannot be reached, and its owner wants that, a dummy
//! publish  what the staging says: the volume, or the dummy ([`super::fake`])
//! ```

use std::path::PathBuf;

use hotbay_core::ids::VolumeId;
use hotbay_core::volume::orders::Grant;
use hotbay_csi::platform::{
    Access, Condition, ExpandOnNode, Failure, FailureKind, NodeInfo, NodePlatform, PublishVolume,
    StageVolume, Stats, StatsQuery, Texts, Usage,
};
use hotbay_host::filesystem::{FilesystemDone, FilesystemTask as Task, MountSeen};
use hotbay_host::mapping::{Mapping, Wanted};
use tokio::sync::mpsc;

use super::child::Children;
use super::lookup::{self, Found, Question};
use super::staging::{Shows, Staging, Stagings};

/// What the controller tells a node of a volume.
const EPOCH: &str = "epoch";

/// CSI's calls, carried out on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Platform {
    pub(crate) questions: mpsc::Sender<Question>,
    pub(crate) children: Children,
    pub(crate) stagings: Stagings,
    /// Where the files behind dummies are.
    pub(crate) dummies: PathBuf,
}

impl NodePlatform for Platform {
    async fn stage(&self, request: StageVolume) -> Result<(), Failure> {
        let volume = request.volume;
        let staging_path = text(request.staging_path.clone())?;
        let found = lookup::ask(&self.questions, Some(volume)).await?;
        let grant = granted(&found, &request.publish_context)?;
        // A record that cannot be read is replaced by this stage.
        if let Ok(Some(before)) = self.stagings.get(volume) {
            same_access(&before, &request.access, FailureKind::AlreadyExists)?;
        }
        if self.keeps_its_dummy(volume).await? {
            return Ok(());
        }
        let staging = Staging {
            epoch: grant.epoch,
            block: request.access.is_block(),
            shows: Shows::Real,
            done: false,
        };
        self.stagings.put(volume, staging.clone()).await?;
        match self.stage_real(&request, grant, found.placed).await {
            Ok(()) => {
                if let Err(failure) = self.remove_dummy(volume).await {
                    // It is taken apart when the volume is unstaged; nothing shows it any more.
                    tracing::warn!(%volume, "its dummy is still there: {failure}");
                }
                self.stagings.put(volume, Staging { done: true, ..staging }).await
            }
            Err(fault) => {
                let kind = super::real::kind_of(&request.access, &request.volume_context).ok();
                let plain_mount = kind.map(|kind| (kind, staging_path.as_str()));
                match self.inaccessible(volume, &fault, plain_mount).await {
                    Some(dead) => {
                        let context = &request.publish_context;
                        self.stage_fake(volume, staging, &staging_path, dead, context).await
                    }
                    None => Err(fault.into()),
                }
            }
        }
    }

    async fn unstage(&self, volume: VolumeId, staging_path: PathBuf) -> Result<(), Failure> {
        let target = text(staging_path)?;
        let mapping = self.children.mapping(volume).await?;
        if let (Some(seen), Some(mapping)) = (self.mounted_at(&target).await?, &mapping) {
            if !seen.is_filesystem_of(mapping) {
                return Err(not_ours(&target, &seen));
            }
            self.children.filesystem(Task::Unmount { target }).await?;
        }
        if mapping.is_some() {
            self.children.unmap(volume).await?;
        }
        // A node that is shown does not keep its device: the number would be given to somebody else below the pod.
        let block = self.stagings.get(volume).ok().flatten().is_some_and(|staging| staging.block);
        if block && self.keeps_its_dummy(volume).await? {
            let words = "a pod still has its dummy: NodeUnpublishVolume comes first";
            return Err(Failure::new(FailureKind::FailedPrecondition, words));
        }
        self.remove_dummy(volume).await?;
        self.stagings.forget(volume).await
    }

    async fn publish(&self, request: PublishVolume) -> Result<(), Failure> {
        let volume = request.volume;
        let (staging_path, target) =
            (text(request.staging_path.clone())?, text(request.target_path.clone())?);
        let staging = self.stagings.get(volume)?;
        if let Some(staging) = &staging {
            same_access(staging, &request.access, FailureKind::FailedPrecondition)?;
        }
        if let Some(Staging { shows: Shows::Fake { .. }, done, .. }) = &staging {
            return match done {
                true => self.publish_fake(&request, &target).await,
                false => Err(not_staged(&staging_path)),
            };
        }
        let fault = match self.publish_real(&request, &staging_path, &target).await {
            Ok(()) => return Ok(()),
            Err(fault) => fault,
        };
        let (Some(staging), Some(dead)) = (staging, self.inaccessible(volume, &fault, None).await)
        else {
            return Err(fault.into());
        };
        self.stage_fake(volume, staging, &staging_path, dead, &request.publish_context).await?;
        self.publish_fake(&request, &target).await
    }

    async fn unpublish(&self, volume: VolumeId, target_path: PathBuf) -> Result<(), Failure> {
        let target = text(target_path)?;
        if let Some(seen) = self.mounted_at(&target).await? {
            let mapping = self.children.mapping(volume).await?;
            let real = mapping.is_some_and(|mapping| seen.shows(&mapping));
            if !real && !self.is_dummy(volume, &seen).await? {
                return Err(not_ours(&target, &seen));
            }
            self.children.filesystem(Task::Unmount { target: target.clone() }).await?;
        }
        Ok(self.children.filesystem(Task::RemoveTarget { target }).await.map(drop)?)
    }

    async fn stats(&self, request: StatsQuery) -> Result<Stats, Failure> {
        let StatsQuery { volume, volume_path, .. } = request;
        let target = text(volume_path)?;
        let not_here =
            || Failure::new(FailureKind::NotFound, format!("the volume is not at {target}"));
        let seen = self.mounted_at(&target).await?.ok_or_else(not_here)?;
        if let Some(stats) = self.stats_of_dummy(volume, &target, &seen).await? {
            return Ok(stats);
        }
        let mapping = self.children.mapping(volume).await?.ok_or_else(not_here)?;
        let condition = condition(&mapping);
        if seen.is_node_of(&mapping) {
            let total = mapping.parts.iter().map(|part| part.length_bytes).sum();
            let bytes = Usage { total, ..Usage::default() };
            return Ok(Stats { bytes, inodes: None, condition });
        }
        if !seen.is_filesystem_of(&mapping) {
            return Err(not_here());
        }
        self.usage(target, condition).await
    }

    async fn expand(&self, request: ExpandOnNode) -> Result<u64, Failure> {
        let ExpandOnNode { volume, volume_path, .. } = request;
        let target = text(volume_path)?;
        if let Some(Staging { shows: Shows::Fake { reason, .. }, .. }) =
            self.stagings.get(volume)?
        {
            let words = format!("a dummy is staged in its place, which does not grow: {reason}");
            return Err(Failure::new(FailureKind::FailedPrecondition, words));
        }
        let found = lookup::ask(&self.questions, Some(volume)).await?;
        let grant = granted(&found, &Texts::new())?;
        let placed = found.placed.ok_or_else(not_open)?;
        let (parts, size_bytes) = (placed.parts.clone(), placed.size_bytes());
        let Some(mapping) = self.children.mapping(volume).await? else {
            return Err(not_staged(&target));
        };
        let wanted = Wanted { volume, epoch: mapping.epoch, parts, read_only: grant.read_only };
        let mapping = self.children.grow_mapping(wanted, placed.descriptor).await?;
        let seen = self.mounted_at(&target).await?;
        if let Some(seen) = seen.filter(|seen| seen.is_filesystem_of(&mapping)) {
            let kind = seen
                .kind
                .parse()
                .map_err(|error| Failure::new(FailureKind::FailedPrecondition, error))?;
            self.grow(&mapping, kind, target).await?;
        }
        Ok(size_bytes)
    }

    async fn info(&self) -> Result<NodeInfo, Failure> {
        let found = lookup::ask(&self.questions, None).await?;
        let unknown = || {
            let words = "this node has not registered yet; call again";
            Failure::new(FailureKind::Unavailable, words)
        };
        Ok(NodeInfo { node: found.node.ok_or_else(unknown)?, max_volumes: None })
    }
}

impl Platform {
    pub(super) async fn known(&self, volume: VolumeId) -> Result<bool, Failure> {
        let found = lookup::ask(&self.questions, Some(volume)).await?;
        Ok(found.grant.is_some() || found.placed.is_some())
    }

    pub(super) async fn mounted_at(&self, target: &str) -> Result<Option<MountSeen>, Failure> {
        let task = Task::MountedAt { target: target.to_owned() };
        match self.children.filesystem(task).await? {
            FilesystemDone::MountedAt(seen) => Ok(seen),
            _ => Err(something_else()),
        }
    }

    /// How full the filesystem at a target is.
    pub(super) async fn usage(
        &self,
        target: String,
        condition: Condition,
    ) -> Result<Stats, Failure> {
        let FilesystemDone::Usage(usage) = self.children.filesystem(Task::Usage { target }).await?
        else {
            return Err(something_else());
        };
        let inodes = (usage.total_inodes > 0).then(|| Usage {
            total: usage.total_inodes,
            used: usage.total_inodes.saturating_sub(usage.free_inodes),
            available: usage.free_inodes,
        });
        let bytes = Usage {
            total: usage.total_bytes,
            used: usage.used_bytes,
            available: usage.available_bytes,
        };
        Ok(Stats { bytes, inodes, condition })
    }
}

/// The use that this node is granted.
fn granted(found: &Found, context: &Texts) -> Result<Grant, Failure> {
    if found.grant.is_none() && found.placed.is_none() {
        return Err(no_such_volume());
    }
    let grant = found.grant.filter(|grant| grant.granted).ok_or_else(|| {
        let words = "it is not attached to this node: ControllerPublishVolume comes first";
        Failure::new(FailureKind::FailedPrecondition, words)
    })?;
    let told = context.get(EPOCH).and_then(|epoch| epoch.parse::<u64>().ok());
    if told.is_some_and(|told| told != grant.epoch.get()) {
        let words = "it was attached anew since; call again with the new publish context";
        return Err(Failure::new(FailureKind::Aborted, words));
    }
    Ok(grant)
}

/// Paths go to children as text.
pub(super) fn text(path: PathBuf) -> Result<String, Failure> {
    path.into_os_string().into_string().map_err(|_| {
        Failure::new(FailureKind::InvalidArgument, "a path is not UTF-8; choose another one")
    })
}

fn condition(mapping: &Mapping) -> Condition {
    match mapping.fenced {
        true => Condition { abnormal: true, message: "its use was taken back".into() },
        false => Condition { abnormal: false, message: format!("mapped at {}", mapping.path) },
    }
}

pub(super) fn not_open() -> Failure {
    let words = "its drive is not open on this node; hotbay get drives says why";
    Failure::new(FailureKind::Unavailable, words)
}

pub(super) fn something_else() -> Failure {
    Failure::new(FailureKind::Unavailable, "a child answered something else")
}

pub(super) fn no_such_volume() -> Failure {
    Failure::new(FailureKind::NotFound, "there is no such volume on this node")
}

pub(super) fn not_staged(path: &str) -> Failure {
    let words = format!("it is not staged at {path}: NodeStageVolume comes first");
    Failure::new(FailureKind::FailedPrecondition, words)
}

/// A pod that writes to the device of a filesystem that another has mounted destroys it.
fn same_access(staging: &Staging, asked: &Access, kind: FailureKind) -> Result<(), Failure> {
    if staging.block == asked.is_block() {
        return Ok(());
    }
    let words = match staging.block {
        true => "it is staged as raw block, not as a filesystem: NodeUnstageVolume comes first",
        false => "it is staged as a filesystem, not as raw block: NodeUnstageVolume comes first",
    };
    Err(Failure::new(kind, words))
}

pub(super) fn not_ours(path: &str, seen: &MountSeen) -> Failure {
    let words = format!("{seen} is mounted at {path}, not this volume: it is left alone");
    Failure::new(FailureKind::FailedPrecondition, words)
}

/// Refuses a second target of a volume that one pod alone may use.
pub(super) fn only_at(shown: &[String], target: &str, staging: &str) -> Result<(), Failure> {
    match shown.iter().find(|path| *path != target && *path != staging) {
        None => Ok(()),
        Some(other) => {
            let words = format!("one pod alone may use it, and it is published at {other}");
            Err(Failure::new(FailureKind::FailedPrecondition, words))
        }
    }
}

pub(super) fn mount_table(error: std::io::Error) -> Failure {
    Failure::new(FailureKind::Unavailable, format!("the mount table: {error}"))
}
