//! CSI's calls on this machine, each as steps that may be repeated after a crash anywhere.
//!
//! ```text
//! stage    map ─▶ (make, where there is nothing) ─▶ check ─▶ mount at the staging path ─▶ grow
//! publish  bind the staging path, or the device, to the target
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use hotbay_core::ids::VolumeId;
use hotbay_csi::platform::{
    Access, AccessMode, Condition, ExpandOnNode, Failure, FailureKind, NodeInfo, NodePlatform,
    PublishVolume, StageVolume, Stats, StatsQuery, Usage,
};
use hotbay_host::filesystem::{
    FilesystemDone, FilesystemKind, FilesystemTask as Task, MountSeen, VolumeDevice,
};
use hotbay_host::mapping::{Mapping, Segment, Wanted};
use hotbay_host::scan::Signatures;
use tokio::sync::mpsc;

use super::child::Children;
use super::lookup::{self, Found, Lookup, Placed};

/// What the controller tells a node of a volume.
const FILESYSTEM: &str = "fsType";
const MKFS_OPTIONS: &str = "mkfsOptions";
const EPOCH: &str = "epoch";

/// How long `blkid` may look at a volume.
const LOOK_LIMIT: Duration = Duration::from_secs(20);
/// How long a program may make, check or grow a filesystem.
const TOOL_LIMIT: Duration = Duration::from_secs(240);

/// CSI's calls, carried out on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Platform {
    pub(crate) questions: mpsc::Sender<Lookup>,
    pub(crate) children: Children,
}

impl NodePlatform for Platform {
    async fn stage(&self, request: StageVolume) -> Result<(), Failure> {
        let StageVolume { volume, staging_path, access, mode, publish_context, volume_context } =
            request;
        let target = text(staging_path)?;
        let (epoch, placed) = self.granted(volume, &publish_context).await?;
        let read_only = epoch.read_only || mode == AccessMode::SingleNodeReaderOnly;
        let wanted = Wanted {
            volume,
            epoch: epoch.epoch.get(),
            parts: parts(&placed),
            read_only: epoch.read_only,
        };
        let mapping = self.children.map(wanted, placed.descriptor).await?;
        let Access::Mount { fs_type, flags } = access else { return Ok(()) };
        let kind = kind_of(&fs_type, &volume_context)?;
        let seen = self.mounted_at(&target).await?;
        if seen.as_ref().is_some_and(|seen| seen.is_filesystem_of(&mapping)) {
            return self.mount(&mapping, kind, target, flags, read_only).await;
        }
        self.prepare(&mapping, kind, &volume_context, read_only).await?;
        self.mount(&mapping, kind, target.clone(), flags, read_only).await?;
        // It may have grown while it was not mounted. One that cannot follow now is of use all the same.
        if !read_only && let Err(failure) = self.grow(&mapping, kind, Some(target)).await {
            tracing::warn!(%volume, "its filesystem does not fill it: {failure}");
        }
        Ok(())
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
        match mapping {
            Some(_) => self.children.unmap(volume).await,
            None => Ok(()),
        }
    }

    async fn publish(&self, request: PublishVolume) -> Result<(), Failure> {
        let PublishVolume { volume, staging_path, target_path, access, mode, readonly, .. } =
            request;
        let (staging, target) = (text(staging_path)?, text(target_path)?);
        let Some(mapping) = self.children.mapping(volume).await? else {
            return Err(match self.known(volume).await? {
                true => not_staged(&staging),
                false => no_such_volume(),
            });
        };
        let read_only = readonly || mode == AccessMode::SingleNodeReaderOnly;
        let source = if access.is_block() {
            mapping.path.clone()
        } else {
            let seen = self.mounted_at(&staging).await?;
            seen.filter(|seen| seen.is_filesystem_of(&mapping))
                .ok_or_else(|| not_staged(&staging))?;
            staging.clone()
        };
        if mode == AccessMode::SingleNodeSingleWriter {
            self.only_at(&mapping, &target, &staging).await?;
        }
        let task = Task::Bind { source, target, read_only };
        self.children.filesystem(task).await.map(drop)
    }

    async fn unpublish(&self, volume: VolumeId, target_path: PathBuf) -> Result<(), Failure> {
        let target = text(target_path)?;
        let seen = self.mounted_at(&target).await?;
        if let Some(seen) = seen {
            let mapping = self.children.mapping(volume).await?;
            let ours = mapping.is_some_and(|mapping| seen.shows(&mapping));
            if !ours {
                return Err(not_ours(&target, &seen));
            }
            self.children.filesystem(Task::Unmount { target: target.clone() }).await?;
        }
        self.children.filesystem(Task::RemoveTarget { target }).await.map(drop)
    }

    async fn stats(&self, request: StatsQuery) -> Result<Stats, Failure> {
        let StatsQuery { volume, volume_path, .. } = request;
        let target = text(volume_path)?;
        let not_here =
            || Failure::new(FailureKind::NotFound, format!("the volume is not at {target}"));
        let mapping = self.children.mapping(volume).await?.ok_or_else(not_here)?;
        let seen = self.mounted_at(&target).await?.ok_or_else(not_here)?;
        let condition = condition(&mapping);
        if seen.is_node_of(&mapping) {
            let total = mapping.parts.iter().map(|part| part.length_bytes).sum();
            let bytes = Usage { total, ..Usage::default() };
            return Ok(Stats { bytes, inodes: None, condition });
        }
        if !seen.is_filesystem_of(&mapping) {
            return Err(not_here());
        }
        let FilesystemDone::Usage(usage) = self.children.filesystem(Task::Usage { target }).await?
        else {
            return Err(Failure::new(FailureKind::Unavailable, "a child answered something else"));
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

    async fn expand(&self, request: ExpandOnNode) -> Result<u64, Failure> {
        let ExpandOnNode { volume, volume_path, .. } = request;
        let target = text(volume_path)?;
        let (grant, placed) = self.granted(volume, &BTreeMap::new()).await?;
        let (parts, size_bytes) = (parts(&placed), placed.size_bytes());
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
            self.grow(&mapping, kind, Some(target)).await?;
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
    /// The use that this node is granted, and the place of the volume on its open drive.
    async fn granted(
        &self,
        volume: VolumeId,
        context: &BTreeMap<String, String>,
    ) -> Result<(hotbay_core::volume::orders::Grant, Placed), Failure> {
        let Found { grant, placed, .. } = lookup::ask(&self.questions, Some(volume)).await?;
        if grant.is_none() && placed.is_none() {
            return Err(no_such_volume());
        }
        let grant = grant.filter(|grant| grant.granted).ok_or_else(|| {
            let words = "it is not attached to this node: ControllerPublishVolume comes first";
            Failure::new(FailureKind::FailedPrecondition, words)
        })?;
        let told = context.get(EPOCH).and_then(|epoch| epoch.parse::<u64>().ok());
        if told.is_some_and(|told| told != grant.epoch.get()) {
            let words = "it was attached anew since; call again with the new publish context";
            return Err(Failure::new(FailureKind::Aborted, words));
        }
        let placed = placed.ok_or_else(|| {
            let words = "its drive is not open on this node; hotbay get drives says why";
            Failure::new(FailureKind::Unavailable, words)
        })?;
        Ok((grant, placed))
    }

    async fn known(&self, volume: VolumeId) -> Result<bool, Failure> {
        let found = lookup::ask(&self.questions, Some(volume)).await?;
        Ok(found.grant.is_some() || found.placed.is_some())
    }

    /// Makes a filesystem where there is nothing, and checks one that is there.
    async fn prepare(
        &self,
        mapping: &Mapping,
        kind: FilesystemKind,
        context: &BTreeMap<String, String>,
        read_only: bool,
    ) -> Result<(), Failure> {
        let device = VolumeDevice::from(mapping);
        let task = Task::Signature { device: device.clone(), limit: LOOK_LIMIT };
        let FilesystemDone::Signature(signatures) = self.children.filesystem(task).await? else {
            return Err(Failure::new(FailureKind::Unavailable, "a child answered something else"));
        };
        if signatures == Signatures::Nothing {
            if read_only {
                let words = "it is empty, and cannot be written to make a filesystem on it";
                return Err(Failure::new(FailureKind::FailedPrecondition, words));
            }
            let options = context.get(MKFS_OPTIONS).map(String::as_str).unwrap_or_default();
            let options = options.split_ascii_whitespace().map(str::to_owned).collect();
            let task = Task::Make { device, kind, options, limit: TOOL_LIMIT };
            return self.children.filesystem(task).await.map(drop);
        }
        if read_only {
            return Ok(());
        }
        let task = Task::Check { device, kind, limit: TOOL_LIMIT };
        self.children.filesystem(task).await.map(drop)
    }

    async fn mount(
        &self,
        mapping: &Mapping,
        kind: FilesystemKind,
        target: String,
        flags: Vec<String>,
        read_only: bool,
    ) -> Result<(), Failure> {
        let device = VolumeDevice::from(mapping);
        let task = Task::Mount { device, target, kind, flags, read_only };
        self.children.filesystem(task).await.map(drop)
    }

    async fn grow(
        &self,
        mapping: &Mapping,
        kind: FilesystemKind,
        mounted_at: Option<String>,
    ) -> Result<(), Failure> {
        let device = VolumeDevice::from(mapping);
        let task = Task::Grow { device, kind, mounted_at, limit: TOOL_LIMIT };
        self.children.filesystem(task).await.map(drop)
    }

    async fn mounted_at(&self, target: &str) -> Result<Option<MountSeen>, Failure> {
        let task = Task::MountedAt { target: target.to_owned() };
        match self.children.filesystem(task).await? {
            FilesystemDone::MountedAt(seen) => Ok(seen),
            _ => Err(Failure::new(FailureKind::Unavailable, "a child answered something else")),
        }
    }

    /// Refuses a second target of a volume that one pod alone may use.
    async fn only_at(&self, mapping: &Mapping, target: &str, staging: &str) -> Result<(), Failure> {
        let shown = hotbay_host::filesystem::shown_at(mapping).map_err(|error| {
            Failure::new(FailureKind::Unavailable, format!("the mount table: {error}"))
        })?;
        match shown.iter().find(|path| *path != target && *path != staging) {
            None => Ok(()),
            Some(other) => {
                let words = format!("one pod alone may use it, and it is published at {other}");
                Err(Failure::new(FailureKind::FailedPrecondition, words))
            }
        }
    }
}

fn parts(placed: &Placed) -> Vec<Segment> {
    let part = |part: &hotbay_core::volume::Segment| Segment {
        start_bytes: part.start_bytes,
        length_bytes: part.length_bytes,
    };
    placed.parts.iter().map(part).collect()
}

/// Paths go to children as text.
fn text(path: PathBuf) -> Result<String, Failure> {
    path.into_os_string().into_string().map_err(|_| {
        Failure::new(FailureKind::InvalidArgument, "a path is not UTF-8; choose another one")
    })
}

fn kind_of(asked: &str, context: &BTreeMap<String, String>) -> Result<FilesystemKind, Failure> {
    let of_class = context.get(FILESYSTEM).map(String::as_str);
    let name = if asked.is_empty() { of_class.unwrap_or("ext4") } else { asked };
    name.parse().map_err(|error| Failure::new(FailureKind::InvalidArgument, error))
}

fn condition(mapping: &Mapping) -> Condition {
    match mapping.fenced {
        true => Condition { abnormal: true, message: "its use was taken back".into() },
        false => Condition { abnormal: false, message: format!("mapped at {}", mapping.path) },
    }
}

fn no_such_volume() -> Failure {
    Failure::new(FailureKind::NotFound, "there is no such volume on this node")
}

fn not_staged(path: &str) -> Failure {
    let words = format!("it is not staged at {path}: NodeStageVolume comes first");
    Failure::new(FailureKind::FailedPrecondition, words)
}

fn not_ours(path: &str, seen: &MountSeen) -> Failure {
    let words = format!("{seen} is mounted at {path}, not this volume: it is left alone");
    Failure::new(FailureKind::FailedPrecondition, words)
}
