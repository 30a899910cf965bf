//! A drive with volumes on its label, and short ways to have a child map them.

use std::os::fd::OwnedFd;
use std::process::Command;

use hotbay_core::device::Observed;
use hotbay_core::ids::VolumeId;
use hotbay_core::label::Found;
use hotbay_core::label::change::{Basis, Change};
use hotbay_core::label::extents::{Extent, Use};
use hotbay_host::label::{FileSectors, change_extents, read};
use hotbay_host::mapping::{Mapping, MappingError, MappingPage, Segment, Wanted};
use hotbay_host::worker::{Request, Response, Workers};

use crate::rig::{LIMIT, LoopDevice, Rig, WANT, attach, attach_of, seen};

pub(crate) const MIB: u64 = 1 << 20;

/// An attached drive. With it go all loop devices over it, and what is mounted from them.
pub(crate) struct Drive {
    pub(crate) descriptor: Option<OwnedFd>,
    pub(crate) seen: Observed,
    pub(crate) bytes: u64,
    _left_behind: LeftBehind,
    _device: Option<LoopDevice>,
}

impl Drive {
    pub(crate) async fn attached(rig: &Rig, workers: &Workers, bytes: u64) -> Self {
        let file = rig.file_of("drive.img", bytes);
        let device = LoopDevice::over(&file);
        Self::at(workers, device.path.clone(), bytes, Some(device)).await
    }

    pub(crate) async fn existing(workers: &Workers, path: String, bytes: u64) -> Self {
        Self::at(workers, path, bytes, None).await
    }

    async fn at(workers: &Workers, path: String, bytes: u64, device: Option<LoopDevice>) -> Self {
        let seen = seen(workers, &path).await;
        let left_behind = LeftBehind { backing: path };
        let (_, descriptor) = attach(workers, attach_of(&seen)).await.unwrap();
        let descriptor = Some(descriptor);
        Self { descriptor, seen, bytes, _left_behind: left_behind, _device: device }
    }

    pub(crate) fn descriptor(&self) -> OwnedFd {
        self.descriptor.as_ref().unwrap().try_clone().unwrap()
    }

    pub(crate) fn change(&self, change: &Change) {
        let sectors = FileSectors::new(self.descriptor(), self.bytes, 512);
        let Found::Valid { header, .. } = read(&sectors).unwrap() else { panic!("no label") };
        let zero = |_| Ok(());
        change_extents(
            &sectors,
            &WANT,
            Basis::of(&header),
            std::slice::from_ref(change),
            &zero,
            &|_| (),
        )
        .unwrap();
    }

    /// Gives a volume a part of the drive, and says how it is to be mapped.
    pub(crate) fn place(&self, volume: u128, start_mib: u64, length_mib: u64) -> Wanted {
        self.change(&Change::Place(Extent {
            volume: VolumeId::from_bits(volume),
            part: 0,
            start_bytes: start_mib * MIB,
            length_bytes: length_mib * MIB,
            usage: Use::Used,
            formatted: false,
            name: format!("pvc-{volume}").parse().unwrap(),
            claim: None,
        }));
        wanted(volume, start_mib, length_mib)
    }

    pub(crate) async fn map(
        &self,
        workers: &Workers,
        wanted: &Wanted,
    ) -> Result<Mapping, MappingError> {
        match ask(workers, Request::Map(wanted.clone()), vec![self.descriptor()]).await {
            Response::Mapped(result) => result,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn grow(
        &self,
        workers: &Workers,
        wanted: &Wanted,
    ) -> Result<Mapping, MappingError> {
        match ask(workers, Request::GrowMapping(wanted.clone()), vec![self.descriptor()]).await {
            Response::Mapped(result) => result,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn wanted(volume: u128, start_mib: u64, length_mib: u64) -> Wanted {
    let part = Segment { start_bytes: start_mib * MIB, length_bytes: length_mib * MIB };
    let volume = VolumeId::from_bits(volume);
    Wanted { volume, epoch: 7, parts: vec![part], read_only: false }
}

pub(crate) async fn ask(workers: &Workers, request: Request, given: Vec<OwnedFd>) -> Response {
    let running = workers.start(request, given).unwrap();
    tokio::time::timeout(LIMIT, running).await.expect("in time").unwrap().response
}

pub(crate) async fn unmap(workers: &Workers, volume: VolumeId) -> Result<bool, MappingError> {
    match ask(workers, Request::Unmap { volume }, vec![]).await {
        Response::Unmapped(result) => result,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn fence(workers: &Workers, volume: VolumeId) -> Option<Mapping> {
    match ask(workers, Request::Fence { volume }, vec![]).await {
        Response::Fenced(result) => result.unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The mappings of the machine that are over a drive.
pub(crate) async fn mappings(workers: &Workers) -> Vec<Mapping> {
    match ask(workers, Request::ListMappings { after: None }, vec![]).await {
        Response::Mappings(Ok(MappingPage { mappings, more: false })) => mappings,
        other => panic!("{other:?}"),
    }
}

/// Whatever a failed test left over a drive.
struct LeftBehind {
    backing: String,
}

impl Drop for LeftBehind {
    fn drop(&mut self) {
        for entry in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let backing = entry.path().join("loop/backing_file");
            if std::fs::read_to_string(backing).is_ok_and(|path| path.trim() == self.backing) {
                let device = format!("/dev/{}", entry.file_name().to_string_lossy());
                while Command::new("umount").args(["-q", &device]).status().unwrap().success() {}
                let _ = Command::new("losetup").args(["-d", &device]).status();
            }
        }
    }
}
