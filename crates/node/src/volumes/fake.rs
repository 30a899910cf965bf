//! The dummy for a volume that cannot be reached, for pods that are to start all the same: a small filesystem in
//! memory, or a loop device over a file in the agent's own folder.
//!
//! Nobody gets one by mistake. A fault alone is not enough: that the volume is dead is confirmed by another look, which
//! has nothing to do with the call that failed. And nobody keeps one by mistake: what is mounted is known by what it
//! is, never by that something is there.

use hotbay_core::ids::VolumeId;
use hotbay_csi::platform::{
    AccessMode, Condition, Failure, FailureKind, PublishVolume, Stats, Texts, Usage,
};
use hotbay_host::filesystem::{
    FilesystemKind, FilesystemTask as Task, MountSeen, VolumeDevice, dummies_of, shown_at,
};
use hotbay_host::mapping::dummy::{Dummy, DummyDone, DummyTask};
use hotbay_host::mapping::{Segment, Wanted};

use super::fault::{Fault, Suspect};
use super::lookup::{self, Found};
use super::platform::{Platform, mount_table, not_staged, only_at, something_else};
use super::real::TOOL_LIMIT;
use super::staging::{Shows, Staging};

/// What the controller tells a node of a volume.
const SIZE: &str = "sizeBytes";
/// The size of a dummy where nobody has told how large the volume is.
const UNKNOWN_SIZE_BYTES: u64 = 1 << 20;

/// Where the label of a drive begins, and a part of it that every label has.
const LABEL_BYTES: u64 = 64 << 10;

/// Why a volume cannot be reached, confirmed.
#[derive(Debug)]
pub(super) struct Dead {
    reason: String,
    /// The device answers; what is on it cannot be used.
    filesystem: bool,
}

impl Platform {
    /// Whether a call failed because its volume cannot be reached, and its owner wants a dummy then. `plain_mount`: the
    /// filesystem and the place of the mount that failed, if it was one.
    pub(super) async fn inaccessible(
        &self,
        volume: VolumeId,
        fault: &Fault,
        plain_mount: Option<(FilesystemKind, &str)>,
    ) -> Option<Dead> {
        if fault.suspect == Suspect::Nothing {
            return None;
        }
        let found = lookup::ask(&self.questions, Some(volume)).await.ok()?;
        let wanted = |grant: hotbay_core::volume::orders::Grant| {
            grant.granted && grant.ignore_if_inaccessible
        };
        if !found.grant.is_some_and(wanted) || found.settling {
            return None;
        }
        let dead = self.second_look(volume, fault, found, plain_mount).await;
        match &dead {
            Some(Dead { reason, .. }) => {
                tracing::warn!(%volume, "it cannot be reached, and gets a dummy: {reason}");
            }
            None => tracing::info!(%volume, "it failed, and is not proved dead: {}", fault.failure),
        }
        dead
    }

    async fn second_look(
        &self,
        volume: VolumeId,
        fault: &Fault,
        found: Found,
        plain_mount: Option<(FilesystemKind, &str)>,
    ) -> Option<Dead> {
        let device = |reason: String| Some(Dead { reason, filesystem: false });
        let Some(placed) = found.placed else {
            return device(
                "its drive is not open on this node, or its label does not have it".into(),
            );
        };
        let parts = placed.parts.clone();
        let copy = placed.descriptor.try_clone().ok()?;
        let label = Segment { start_bytes: 0, length_bytes: LABEL_BYTES };
        let with_label = [&[label], parts.as_slice()].concat();
        if let Err(again) = self.children.read(with_label, copy).await {
            return if again.clear { device(again.failure.message) } else { None };
        }
        let mapping = self.children.mapping(volume).await.ok()?;
        if let Some(mapping) = mapping.filter(|mapping| !mapping.fenced) {
            return match self.read(&mapping).await {
                Err(again) if again.clear => device(again.failure.message),
                Err(_) => None,
                Ok(()) if fault.suspect == Suspect::Filesystem => {
                    let (kind, target) = plain_mount?;
                    self.damaged(VolumeDevice::from(&mapping), kind, target).await
                }
                Ok(()) => None,
            };
        }
        // It could not be mapped: its label says otherwise, or an earlier use of it still holds it.
        let grant = found.grant?;
        let wanted = Wanted { volume, epoch: grant.epoch.get(), parts, read_only: grant.read_only };
        match self.children.map(wanted, placed.descriptor).await {
            Err(again) if again.clear => device(again.failure.message),
            Ok(_) | Err(_) => None,
        }
    }

    /// Whether the filesystem on a device that answers is damaged: by another check, or because it cannot be mounted
    /// even without any option.
    async fn damaged(
        &self,
        device: VolumeDevice,
        kind: FilesystemKind,
        target: &str,
    ) -> Option<Dead> {
        let dead = |fault: Fault| Dead { reason: fault.failure.message, filesystem: true };
        let check = Task::Check { device: device.clone(), kind, limit: TOOL_LIMIT };
        if let Err(again) = self.children.filesystem(check).await {
            return again.clear.then(|| dead(again));
        }
        let target = target.to_owned();
        let (flags, read_only) = (Vec::new(), true);
        let task = Task::Mount { device, target: target.clone(), kind, flags, read_only };
        match self.children.filesystem(task).await {
            Err(again) => again.clear.then(|| dead(again)),
            Ok(_) => {
                // It was an option then.
                self.children.filesystem(Task::Unmount { target }).await.ok();
                None
            }
        }
    }

    /// Whether a pod has the dummy of this volume now: the staging stays what it is until it is given back.
    pub(super) async fn keeps_its_dummy(&self, volume: VolumeId) -> Result<bool, Failure> {
        // A record that cannot be read is replaced by the stage that asks.
        let Ok(Some(Staging { shows: Shows::Fake { device, .. }, done: true, .. })) =
            self.stagings.get(volume)
        else {
            return Ok(false);
        };
        let device = match device {
            Some(_) => self.dummy(volume).await?.map(|dummy| dummy.path),
            None => None,
        };
        Ok(!dummies_of(volume, device.as_deref()).map_err(mount_table)?.is_empty())
    }

    /// Stages a dummy: first on disk, then on the machine.
    pub(super) async fn stage_fake(
        &self,
        volume: VolumeId,
        staging: Staging,
        staging_path: &str,
        dead: Dead,
        context: &Texts,
    ) -> Result<(), Failure> {
        let Dead { reason, filesystem } = dead;
        let shows = |device| Shows::Fake { reason: reason.clone(), filesystem, device };
        let fake = Staging { shows: shows(None), done: false, ..staging };
        self.stagings.put(volume, fake.clone()).await?;
        self.let_go_of_the_dead(volume, staging_path).await;
        let mut device = None;
        if fake.block {
            let told = context.get(SIZE).and_then(|size| size.parse().ok());
            let size_bytes = told.unwrap_or(UNKNOWN_SIZE_BYTES);
            let folder = self.dummies.clone();
            let task = DummyTask::Make { folder, volume, size_bytes };
            let DummyDone::Made(dummy) = self.children.dummy(task).await? else {
                return Err(something_else());
            };
            device = Some(dummy.path);
        }
        self.stagings.put(volume, Staging { shows: shows(device), done: true, ..fake }).await
    }

    /// Takes away what is left of the volume itself, where no pod has it. What cannot be taken away now is at unstage.
    async fn let_go_of_the_dead(&self, volume: VolumeId, staging_path: &str) {
        let Ok(Some(mapping)) = self.children.mapping(volume).await else { return };
        let Ok(shown) = shown_at(&mapping) else { return };
        if shown.iter().any(|path| path != staging_path) {
            return;
        }
        if !shown.is_empty() {
            let task = Task::Unmount { target: staging_path.to_owned() };
            if let Err(fault) = self.children.filesystem(task).await {
                tracing::warn!(%volume, "what is dead is still mounted: {}", fault.failure);
                return;
            }
        }
        if let Err(fault) = self.children.unmap(volume).await {
            tracing::warn!(%volume, "what is dead is still mapped: {}", fault.failure);
        }
    }

    pub(super) async fn publish_fake(
        &self,
        request: &PublishVolume,
        target: &str,
    ) -> Result<(), Failure> {
        let volume = request.volume;
        let staging = self.stagings.get(volume)?.ok_or_else(|| not_staged(target))?;
        // The volume itself, from before it died, must not be taken for its dummy.
        if let (Some(seen), Some(mapping)) =
            (self.mounted_at(target).await?, self.children.mapping(volume).await?)
            && seen.shows(&mapping)
        {
            self.children.filesystem(Task::Unmount { target: target.to_owned() }).await?;
        }
        let dummy = if staging.block { self.dummy(volume).await? } else { None };
        if request.mode == AccessMode::SingleNodeSingleWriter {
            let device = dummy.as_ref().map(|dummy| dummy.path.as_str());
            only_at(&dummies_of(volume, device).map_err(mount_table)?, target, target)?;
        }
        let target = target.to_owned();
        let task = match (staging.block, dummy) {
            (false, _) => Task::MountTmpfs { volume, target },
            (true, Some(dummy)) => {
                Task::Bind { source: dummy.path, target, read_only: request.readonly }
            }
            (true, None) => return Err(not_staged(&target)),
        };
        Ok(self.children.filesystem(task).await.map(drop)?)
    }

    /// Takes a dummy of this volume from a target that is to show the volume itself.
    pub(super) async fn uncover(&self, volume: VolumeId, target: &str) -> Result<(), Fault> {
        let Some(seen) = self.mounted_at(target).await? else { return Ok(()) };
        if self.is_dummy(volume, &seen).await? {
            self.children.filesystem(Task::Unmount { target: target.to_owned() }).await?;
        }
        Ok(())
    }

    /// Whether a mount is the dummy of this volume.
    pub(super) async fn is_dummy(
        &self,
        volume: VolumeId,
        seen: &MountSeen,
    ) -> Result<bool, Failure> {
        if seen.is_dummy_of(volume) {
            return Ok(true);
        }
        // Only a device node, shown alone, can be the other kind.
        Ok(seen.root != "/"
            && self.dummy(volume).await?.is_some_and(|dummy| seen.is_node(&dummy.path)))
    }

    pub(super) async fn stats_of_dummy(
        &self,
        volume: VolumeId,
        target: &str,
        seen: &MountSeen,
    ) -> Result<Option<Stats>, Failure> {
        if !self.is_dummy(volume, seen).await? {
            return Ok(None);
        }
        let reason = match self.stagings.get(volume) {
            Ok(Some(Staging { shows: Shows::Fake { reason, .. }, .. })) => format!(": {reason}"),
            Ok(_) | Err(_) => String::new(),
        };
        let message = format!("a dummy takes its place, and what is written to it is lost{reason}");
        let condition = Condition { abnormal: true, message };
        if seen.is_dummy_of(volume) {
            return self.usage(target.to_owned(), condition).await.map(Some);
        }
        let total = self.dummy(volume).await?.map(|dummy| dummy.size_bytes).unwrap_or_default();
        let bytes = Usage { total, ..Usage::default() };
        Ok(Some(Stats { bytes, inodes: None, condition }))
    }

    /// Takes the dummy of a block volume apart, if there is one.
    pub(super) async fn remove_dummy(&self, volume: VolumeId) -> Result<(), Failure> {
        let task = DummyTask::Remove { folder: self.dummies.clone(), volume };
        self.children.dummy(task).await.map(drop)
    }

    /// Nothing on this machine may use a volume any more: its staging ends, and its dummy goes, unless a pod still has
    /// that; then both go at unstage.
    pub(crate) async fn end_staging(&self, volume: VolumeId) {
        let staged = !matches!(self.stagings.get(volume), Ok(None));
        if !staged || self.keeps_its_dummy(volume).await.unwrap_or(true) {
            return;
        }
        let ended = match self.remove_dummy(volume).await {
            Ok(()) => self.stagings.forget(volume).await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = ended {
            tracing::warn!(%volume, "its staging does not end: {failure}");
        }
    }

    /// Takes dummies apart that belong to no staging. Called before any call is served.
    pub(crate) async fn clean_up(&self) {
        let task = DummyTask::List { folder: self.dummies.clone() };
        let volumes = match self.children.dummy(task).await {
            Ok(DummyDone::Listed(volumes)) => volumes,
            Ok(_) => return,
            Err(failure) => return tracing::warn!("dummies cannot be listed: {failure}"),
        };
        let fakes = self.stagings.fakes();
        for volume in volumes.into_iter().filter(|volume| !fakes.contains(volume)) {
            match self.remove_dummy(volume).await {
                Ok(()) => tracing::info!(%volume, "its dummy belonged to no staging, and is gone"),
                Err(failure) => tracing::warn!(%volume, "its dummy is still there: {failure}"),
            }
        }
    }

    async fn dummy(&self, volume: VolumeId) -> Result<Option<Dummy>, Failure> {
        let task = DummyTask::Find { folder: self.dummies.clone(), volume };
        match self.children.dummy(task).await? {
            DummyDone::Found(found) => Ok(found),
            _ => Err(Failure::new(FailureKind::Unavailable, "a child answered something else")),
        }
    }
}
