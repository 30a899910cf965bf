//! The volume itself, shown to pods.
//!
//! ```text
//! stage    map ─▶ read ─▶ make where nothing ever was, else check ─▶ note on the label ─▶ mount ─▶ grow
//! publish  bind the staging path, or the device, to the target
//! ```

use std::time::Duration;

use hotbay_core::ids::VolumeId;
use hotbay_core::volume::orders::Grant;
use hotbay_core::words::plain;
use hotbay_csi::platform::{
    Access, AccessMode, Failure, FailureKind, PublishVolume, StageVolume, Texts,
};
use hotbay_host::KernelId;
use hotbay_host::filesystem::{
    FilesystemDone, FilesystemKind, FilesystemTask as Task, VolumeDevice, shown_at,
};
use hotbay_host::mapping::{Mapping, Wanted};
use hotbay_host::scan::{self, Signatures};

use super::fault::{Fault, Suspect};
use super::lookup::{self, Placed};
use super::platform::{
    Platform, mount_table, no_such_volume, not_open, not_staged, only_at, something_else, text,
};

/// What the controller tells a node of a volume.
const FILESYSTEM: &str = "fsType";
const MKFS_OPTIONS: &str = "mkfsOptions";

/// How long `blkid` may look at a volume.
const LOOK_LIMIT: Duration = Duration::from_secs(20);
/// How long a program may make, check or grow a filesystem.
pub(super) const TOOL_LIMIT: Duration = Duration::from_secs(240);

impl Platform {
    pub(super) async fn stage_real(
        &self,
        request: &StageVolume,
        grant: Grant,
        placed: Option<Placed>,
    ) -> Result<(), Fault> {
        let StageVolume { volume, access, mode, volume_context, .. } = request;
        let target = text(request.staging_path.clone())?;
        let read_only = grant.read_only || *mode == AccessMode::SingleNodeReaderOnly;
        let placed = placed.ok_or_else(|| Fault::of_device(not_open()))?;
        let formatted = placed.formatted;
        let wanted = Wanted {
            volume: *volume,
            epoch: grant.epoch.get(),
            parts: placed.parts.clone(),
            read_only: grant.read_only,
        };
        let mapping = self.map_anew(wanted, placed).await?;
        self.read(&mapping).await?;
        let Access::Mount { flags, .. } = access else { return Ok(()) };
        let kind = kind_of(access, volume_context)?;
        let seen = self.mounted_at(&target).await?;
        if !seen.as_ref().is_some_and(|seen| seen.is_filesystem_of(&mapping)) {
            // No tool checks a filesystem that is mounted, and two stagings of one volume would be two truths.
            if let Some(at) = shown_at(&mapping).map_err(mount_table)?.first() {
                let at = plain(at);
                let words = format!("it is mounted at {at} already: NodeUnstageVolume comes first");
                return Err(Failure::new(FailureKind::AlreadyExists, words).into());
            }
            let made = self.prepare(&mapping, kind, volume_context, (read_only, formatted)).await?;
            if !formatted {
                self.note_formatted(*volume, made).await?;
            }
        }
        self.mount(&mapping, kind, target.clone(), flags, read_only).await?;
        // It may have grown since it was last mounted. One that cannot follow now is of use all the same.
        if !read_only && let Err(fault) = self.grow(&mapping, kind, target).await {
            let fault = Failure::from(fault);
            tracing::warn!(volume = %mapping.volume, "its filesystem does not fill it: {fault}");
        }
        Ok(())
    }

    pub(super) async fn publish_real(
        &self,
        request: &PublishVolume,
        staging: &str,
        target: &str,
    ) -> Result<(), Fault> {
        let PublishVolume { volume, access, mode, readonly, .. } = request;
        let Some(mapping) = self.children.mapping(*volume).await? else {
            let failure = match self.known(*volume).await? {
                true => not_staged(staging),
                false => no_such_volume(),
            };
            return Err(failure.into());
        };
        // A drive that has died since the stage is seen here, by those who asked for a dummy then.
        if self.ignores_if_inaccessible(*volume).await? {
            self.read(&mapping).await?;
        }
        let read_only = *readonly || *mode == AccessMode::SingleNodeReaderOnly;
        let source = if access.is_block() {
            mapping.path.clone()
        } else {
            let seen = self.mounted_at(staging).await?;
            seen.filter(|seen| seen.is_filesystem_of(&mapping))
                .ok_or_else(|| not_staged(staging))?;
            staging.to_owned()
        };
        if *mode == AccessMode::SingleNodeSingleWriter {
            only_at(&shown_at(&mapping).map_err(mount_table)?, target, staging)?;
        }
        self.uncover(*volume, target).await?;
        let task = Task::Bind { source, target: target.to_owned(), read_only };
        self.children.filesystem(task).await.map(drop)
    }

    /// Reads the ends of a volume's device.
    pub(super) async fn read(&self, mapping: &Mapping) -> Result<(), Fault> {
        let device = VolumeDevice::from(mapping);
        self.children.filesystem(Task::Read { device }).await.map(drop)
    }

    pub(super) async fn ignores_if_inaccessible(&self, volume: VolumeId) -> Result<bool, Failure> {
        let found = lookup::ask(&self.questions, Some(volume)).await?;
        Ok(found.grant.is_some_and(|grant| grant.granted && grant.ignore_if_inaccessible))
    }

    /// Maps a volume. A mapping that is there grows to what the volume has become. What is left of an earlier one,
    /// fenced or over a drive that has gone, is taken away first where nobody uses it.
    async fn map_anew(&self, wanted: Wanted, placed: Placed) -> Result<Mapping, Fault> {
        let copy = || {
            placed.descriptor.try_clone().map_err(|error| {
                Failure::new(FailureKind::Unavailable, format!("a copy of a descriptor: {error}"))
            })
        };
        let fault = match self.children.map(wanted.clone(), copy()?).await {
            Err(fault) if fault.failure.kind == FailureKind::Aborted => fault,
            mapped => return mapped,
        };
        if let Ok(grown) = self.children.grow_mapping(wanted.clone(), copy()?).await {
            return Ok(grown);
        }
        self.children.unmap(wanted.volume).await.map_err(|_| fault)?;
        self.children.map(wanted, placed.descriptor).await
    }

    /// Has the label say that there is a filesystem, before anybody writes into it: whatever becomes of it, none is
    /// made over what was written. Without that, one that was just made is not used; one that was there before is.
    async fn note_formatted(&self, volume: VolumeId, made: bool) -> Result<(), Fault> {
        match lookup::formatted(&self.questions, volume).await {
            Err(failure) if !made => {
                tracing::warn!(%volume, "{failure}");
                Ok(())
            }
            noted => Ok(noted?),
        }
    }

    /// Makes a filesystem where there is nothing and never was one, and checks one that is there. True: it was made.
    async fn prepare(
        &self,
        mapping: &Mapping,
        kind: FilesystemKind,
        context: &Texts,
        (read_only, formatted): (bool, bool),
    ) -> Result<bool, Fault> {
        let device = VolumeDevice::from(mapping);
        let task = Task::Signature { device: device.clone(), limit: LOOK_LIMIT };
        let FilesystemDone::Signature(signatures) = self.children.filesystem(task).await? else {
            return Err(something_else().into());
        };
        if signatures == Signatures::Nothing {
            if formatted {
                return Err(lost_filesystem(mapping, kind));
            }
            if read_only {
                let words = "it is empty, and cannot be written to make a filesystem on it";
                return Err(Failure::new(FailureKind::FailedPrecondition, words).into());
            }
            let options = context.get(MKFS_OPTIONS).map(String::as_str).unwrap_or_default();
            let options = options.split_ascii_whitespace().map(str::to_owned).collect();
            let task = Task::Make { device, kind, options, limit: TOOL_LIMIT };
            let made = self.children.filesystem(task).await;
            return made.map(|_| true).map_err(|fault| not_made(fault, mapping, kind));
        }
        if read_only {
            return Ok(false);
        }
        let task = Task::Check { device, kind, limit: TOOL_LIMIT };
        self.children.filesystem(task).await.map(|_| false)
    }

    pub(super) async fn mount(
        &self,
        mapping: &Mapping,
        kind: FilesystemKind,
        target: String,
        flags: &[String],
        read_only: bool,
    ) -> Result<(), Fault> {
        let (device, flags) = (VolumeDevice::from(mapping), flags.to_vec());
        let task = Task::Mount { device, target, kind, flags, read_only };
        self.children.filesystem(task).await.map(drop)
    }

    pub(super) async fn grow(
        &self,
        mapping: &Mapping,
        kind: FilesystemKind,
        mounted_at: String,
    ) -> Result<(), Fault> {
        let device = VolumeDevice::from(mapping);
        let mounted_at = Some(mounted_at);
        let task = Task::Grow { device, kind, mounted_at, limit: TOOL_LIMIT };
        self.children.filesystem(task).await.map(drop)
    }
}

/// A volume had a filesystem, and nothing is found on it now: what was written may still be there.
fn lost_filesystem(mapping: &Mapping, kind: FilesystemKind) -> Fault {
    let path = &mapping.path;
    let words = format!(
        "it had a filesystem, and none is found on it any more; none is made, because data may still be there: repair \
         it on this node at {path}, or, if nothing of it is needed, make one there (mkfs.{kind} {path}) or delete the \
         volume"
    );
    let failure = Failure::new(FailureKind::Unavailable, words);
    Fault { failure, suspect: Suspect::Filesystem, clear: true }
}

/// No filesystem came about: the program that makes it knows of the mapping alone, and whoever reads this looks for a
/// drive.
fn not_made(mut fault: Fault, mapping: &Mapping, kind: FilesystemKind) -> Fault {
    let drive = match mapping.drive {
        Some(KernelId::Block(number)) => {
            scan::name_of(number).map(|name| format!("/dev/{}", name.replace('!', "/")))
        }
        Some(KernelId::File { .. }) | None => None,
    };
    let drive = drive.map(|drive| format!(", on the drive {drive}")).unwrap_or_default();
    let why = fault.failure.message;
    fault.failure.message =
        format!("no {kind} filesystem was made at {}{drive}: {why}", mapping.path);
    fault
}

/// The filesystem that a volume is to have.
pub(super) fn kind_of(access: &Access, context: &Texts) -> Result<FilesystemKind, Failure> {
    let asked = match access {
        Access::Mount { fs_type, .. } => fs_type.as_str(),
        Access::Block => return Err(Failure::new(FailureKind::InvalidArgument, "it is raw block")),
    };
    let of_class = context.get(FILESYSTEM).map(String::as_str);
    let name = if asked.is_empty() { of_class.unwrap_or("ext4") } else { asked };
    name.parse().map_err(|error| Failure::new(FailureKind::InvalidArgument, error))
}
