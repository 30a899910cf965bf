//! A volume that is mapped, and short ways to have a child do something with its filesystem.

use std::path::PathBuf;

use hotbay_host::filesystem::{
    FilesystemDone as Done, FilesystemError as Error, FilesystemKind, FilesystemTask as Task,
    MountSeen, VolumeDevice,
};
use hotbay_host::mapping::Mapping;
use hotbay_host::worker::{Request, Response, Workers};

use crate::rig::{LIMIT, Rig, skipped, skipped_without};
use crate::volumes::{Drive, ask};

const DRIVE_BYTES: u64 = 1 << 30;
pub(crate) const VOLUME_MIB: u64 = 320;

pub(crate) struct Lab {
    pub(crate) drive: Drive,
    pub(crate) workers: Workers,
    pub(crate) rig: Rig,
}

impl Lab {
    pub(crate) async fn new() -> Self {
        let rig = Rig::new();
        let workers = rig.workers();
        let drive = Drive::attached(&rig, &workers, DRIVE_BYTES).await;
        Self { drive, workers, rig }
    }

    pub(crate) async fn volume(&self, bits: u128, start_mib: u64) -> (Mapping, VolumeDevice) {
        let wanted = self.drive.place(bits, start_mib, VOLUME_MIB);
        let mapping = self.drive.map(&self.workers, &wanted).await.unwrap();
        let device = VolumeDevice::from(&mapping);
        (mapping, device)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.place(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.rig.dir.path().join(name)
    }

    pub(crate) async fn ask(&self, task: Task) -> Result<Done, Error> {
        match ask(&self.workers, Request::Filesystem(task), vec![]).await {
            Response::Filesystem(result) => result,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn make(
        &self,
        device: &VolumeDevice,
        kind: FilesystemKind,
    ) -> Result<Done, Error> {
        let (device, options) = (device.clone(), vec![]);
        self.ask(Task::Make { device, kind, options, limit: LIMIT }).await
    }

    pub(crate) async fn mount(
        &self,
        device: &VolumeDevice,
        target: &str,
    ) -> Result<MountSeen, Error> {
        mounted(self.ask(mount(device, target, FilesystemKind::Ext4, &[])).await)
    }

    pub(crate) async fn unmount(&self, target: &str) -> Result<u32, Error> {
        match self.ask(Task::Unmount { target: target.into() }).await? {
            Done::Unmounted { mounts } => Ok(mounts),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn bind(
        &self,
        source: &str,
        target: &str,
        read_only: bool,
    ) -> Result<MountSeen, Error> {
        let (source, target) = (source.into(), target.into());
        mounted(self.ask(Task::Bind { source, target, read_only }).await)
    }

    pub(crate) async fn at(&self, target: &str) -> Option<MountSeen> {
        match self.ask(Task::MountedAt { target: target.into() }).await.unwrap() {
            Done::MountedAt(seen) => seen,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn remove(&self, target: &str) -> Result<bool, Error> {
        match self.ask(Task::RemoveTarget { target: target.into() }).await? {
            Done::Removed(removed) => Ok(removed),
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Lab {
    /// Binds of directories show no loop device: they are found by where they are.
    fn drop(&mut self) {
        let below = self.rig.dir.path().to_str().unwrap();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| point.starts_with(below)) {
            let point = point.replace("\\040", " ").replace("\\012", "\n");
            let _ = std::process::Command::new("umount").arg("-q").arg(point).status();
        }
    }
}

pub(crate) fn mounted(done: Result<Done, Error>) -> Result<MountSeen, Error> {
    match done? {
        Done::Mounted(seen) => Ok(seen),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn mount(
    device: &VolumeDevice,
    target: &str,
    kind: FilesystemKind,
    flags: &[&str],
) -> Task {
    let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let (device, target) = (device.clone(), target.to_owned());
    Task::Mount { device, target, kind, flags, read_only: false }
}

pub(crate) fn is_missing(kind: FilesystemKind) -> bool {
    let program = format!("mkfs.{kind}");
    skipped(kind.name()) || skipped_without(&program, kind.name())
}
