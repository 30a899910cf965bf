//! The machine as one listing sees it: what is read once, and each device made from it. [`super::list`] and
//! [`super::one`] ask.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hotbay_core::device::{DeviceKind, Media};
use hotbay_core::evidence::Evidence;

use super::mountinfo::Mounts;
use super::sysfs::{Loop, Sysfs};
use super::{Candidate, FILE_BLOCK_BYTES, ScanError};
use crate::kernel_id::{DeviceNumber, KernelId};

/// What is read once for all devices of one listing.
#[derive(Debug)]
pub(super) struct Machine {
    sysfs: Sysfs,
    mounts: Mounts,
    loops: Vec<Loop>,
}

impl Machine {
    pub(super) fn read(sysfs: Sysfs) -> Result<Self, ScanError> {
        let loops = sysfs.loops().map_err(ScanError::Sysfs)?;
        Ok(Self { sysfs, mounts: Mounts::read().map_err(ScanError::Mounts)?, loops })
    }

    pub(super) fn physical(&self) -> Result<Vec<Candidate>, ScanError> {
        let names = self.sysfs.disks().map_err(ScanError::Sysfs)?;
        let physical = names.iter().filter(|name| self.sysfs.disk(name).is_physical());
        Ok(physical.filter_map(|name| self.block_device(name)).collect())
    }

    pub(super) fn at_path(&self, path: &Path) -> Option<Candidate> {
        match KernelId::of_path(path).ok()?? {
            KernelId::Block(number) => match self.sysfs.device(number)? {
                (name, false) => self.block_device(&name),
                (_, true) => None,
            },
            id @ KernelId::File { .. } => self.plain_file(path, id),
        }
    }

    pub(super) fn block_device(&self, name: &str) -> Option<Candidate> {
        let disk = self.sysfs.disk(name);
        let number = disk.number()?;
        let is_loop = name.starts_with("loop");
        if is_loop && disk.backing().is_none() {
            return None;
        }
        let partitions = disk.partitions();
        let stack = self.sysfs.stack(name);
        let mounts = stack.values().flat_map(|number| self.mounts.of(*number));
        let numbers: BTreeSet<DeviceNumber> =
            partitions.values().copied().chain([number]).collect();
        Some(Candidate {
            id: KernelId::Block(number),
            sequence: disk.sequence(),
            kind: if is_loop { DeviceKind::Loop } else { DeviceKind::Block },
            path: disk.path(),
            size_bytes: disk.size_bytes(),
            block_bytes: disk.block_bytes(),
            media: if is_loop { Media::File } else { disk.media() },
            evidence: disk.evidence(),
            read_only: disk.read_only(),
            removable: disk.removable(),
            holders: disk.holders().into_iter().collect(),
            partitions: partitions.into_keys().collect(),
            mounts: mounts.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect(),
            loops: self.loops_over(|backing| match backing_in_dev(backing) {
                Some(KernelId::Block(number)) => numbers.contains(&number),
                Some(KernelId::File { .. }) | None => false,
            }),
        })
    }

    fn plain_file(&self, path: &Path, id: KernelId) -> Option<Candidate> {
        let path = path.canonicalize().ok()?;
        let metadata = path.metadata().ok()?;
        let text = path.to_str()?.to_owned();
        Some(Candidate {
            id,
            sequence: None,
            kind: DeviceKind::File,
            size_bytes: metadata.len(),
            block_bytes: FILE_BLOCK_BYTES,
            media: Media::File,
            evidence: Evidence::default(),
            read_only: metadata.permissions().readonly(),
            removable: false,
            holders: Vec::new(),
            partitions: Vec::new(),
            mounts: Vec::new(),
            loops: self.loops_over(|backing| backing == text),
            path: text,
        })
    }

    fn loops_over(&self, is_this: impl Fn(&str) -> bool) -> Vec<String> {
        let over = self.loops.iter().filter(|device| is_this(&device.backing));
        over.map(|device| format!("/dev/{}", device.name)).collect()
    }
}

/// Only under `/dev`, which is in memory: a backing file elsewhere may be on a filesystem that hangs.
fn backing_in_dev(backing: &str) -> Option<KernelId> {
    let path = PathBuf::from(backing);
    path.starts_with("/dev").then(|| KernelId::of_path(&path).ok().flatten()).flatten()
}
