//! Asks children for what may wait for a drive, each with a limit of time. One that goes on after its limit is left to
//! itself: it is the quarantine of its drive.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use hotbay_core::ids::VolumeId;
use hotbay_csi::platform::{Failure, FailureKind};
use hotbay_host::filesystem::{FilesystemDone, FilesystemTask};
use hotbay_host::mapping::dummy::{DummyDone, DummyTask};
use hotbay_host::mapping::{Mapping, MappingError, Segment, Wanted};
use hotbay_host::worker::{NotStarted, Request, Response, Workers};

use super::fault::{Fault, of_filesystem, of_mapping};
use super::looks::Looks;

/// How long a mapping may take, and a look at a mount.
const SHORT: Duration = Duration::from_secs(20);
/// How long a filesystem may take to be made, checked, mounted or grown; the programs are given less.
const LONG: Duration = Duration::from_secs(300);

/// The children.
#[derive(Debug, Clone)]
pub(crate) struct Children {
    workers: Workers,
    looks: Arc<Looks>,
}

impl Children {
    pub(crate) fn new(workers: Workers) -> Self {
        Self { workers, looks: Arc::default() }
    }

    pub(super) async fn map(&self, wanted: Wanted, drive: OwnedFd) -> Result<Mapping, Fault> {
        match self.ask(Request::Map(wanted), vec![drive], SHORT).await? {
            Response::Mapped(mapped) => mapped.map_err(|error| of_mapping(&error)),
            other => Err(unexpected(&other).into()),
        }
    }

    pub(super) async fn grow_mapping(
        &self,
        wanted: Wanted,
        drive: OwnedFd,
    ) -> Result<Mapping, Fault> {
        match self.ask(Request::GrowMapping(wanted), vec![drive], SHORT).await? {
            Response::Mapped(mapped) => mapped.map_err(|error| of_mapping(&error)),
            other => Err(unexpected(&other).into()),
        }
    }

    pub(super) async fn unmap(&self, volume: VolumeId) -> Result<(), Fault> {
        match self.ask(Request::Unmap { volume }, Vec::new(), SHORT).await? {
            Response::Unmapped(unmapped) => unmapped.map(drop).map_err(|error| of_mapping(&error)),
            other => Err(unexpected(&other).into()),
        }
    }

    /// The mapping of a volume, if it has one.
    pub(super) async fn mapping(&self, volume: VolumeId) -> Result<Option<Mapping>, Fault> {
        let all = self.looks.together(|| self.mappings()).await?;
        Ok(all.iter().find(|mapping| mapping.volume == volume).cloned())
    }

    /// All mappings of this machine.
    async fn mappings(&self) -> Result<Vec<Mapping>, Fault> {
        let mut all: Vec<Mapping> = Vec::new();
        loop {
            let after = all.last().map(|mapping| mapping.volume);
            let page = match self.ask(Request::ListMappings { after }, Vec::new(), SHORT).await? {
                Response::Mappings(page) => page.map_err(|error| of_mapping(&error))?,
                other => return Err(unexpected(&other).into()),
            };
            let is_last = !page.more || page.mappings.is_empty();
            all.extend(page.mappings);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Takes a volume away from whatever uses it on this machine.
    pub(crate) async fn end_use(&self, volume: VolumeId) -> Result<(), String> {
        let unmapped = self.ask(Request::Unmap { volume }, Vec::new(), SHORT).await;
        match unmapped.map_err(|failure| failure.message)? {
            Response::Unmapped(Ok(_)) => return Ok(()),
            // Somebody has it open or mounted: from here on nothing that they do reaches the drive.
            Response::Unmapped(Err(MappingError::InUse { .. })) => {}
            Response::Unmapped(Err(error)) => return Err(error.to_string()),
            other => return Err(unexpected(&other).message),
        }
        let fenced = self.ask(Request::Fence { volume }, Vec::new(), SHORT).await;
        match fenced.map_err(|failure| failure.message)? {
            Response::Fenced(Ok(_)) => Ok(()),
            Response::Fenced(Err(error)) => Err(error.to_string()),
            other => Err(unexpected(&other).message),
        }
    }

    pub(super) async fn filesystem(&self, task: FilesystemTask) -> Result<FilesystemDone, Fault> {
        match self.ask(Request::Filesystem(task), Vec::new(), LONG).await? {
            Response::Filesystem(done) => done.map_err(|error| of_filesystem(&error)),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Reads the ends of each piece of a drive.
    pub(super) async fn read(&self, parts: Vec<Segment>, drive: OwnedFd) -> Result<(), Fault> {
        let request = Request::ReadParts { parts, of: None };
        match self.ask(request, vec![drive], SHORT).await? {
            Response::ReadParts(read) => read.map_err(|error| of_mapping(&error)),
            other => Err(unexpected(&other).into()),
        }
    }

    /// The same for a volume that the drive's label must have, for as long as the drive takes: whoever looks again does
    /// so when this look is over.
    pub(crate) async fn read_in_the_end(
        &self,
        volume: VolumeId,
        parts: Vec<Segment>,
        drive: OwnedFd,
    ) -> Result<(), String> {
        let request = Request::ReadParts { parts, of: Some(volume) };
        let started = self.workers.start(request, vec![drive]);
        let running = started.map_err(|NotStarted { why, descriptors }| {
            self.workers.close(descriptors);
            format!("no child process: {why}")
        })?;
        match running.await.map(|done| done.response) {
            Ok(Response::ReadParts(read)) => read.map_err(|error| error.to_string()),
            Ok(other) => Err(unexpected(&other).message),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Does something with the dummies of block volumes.
    pub(super) async fn dummy(&self, task: DummyTask) -> Result<DummyDone, Failure> {
        match self.ask(Request::Dummy(task), Vec::new(), SHORT).await? {
            // A dummy says nothing about the volume that it stands for.
            Response::Dummy(done) => done.map_err(|error| of_mapping(&error).failure),
            other => Err(unexpected(&other)),
        }
    }

    async fn ask(
        &self,
        request: Request,
        descriptors: Vec<OwnedFd>,
        limit: Duration,
    ) -> Result<Response, Failure> {
        let mut running = self.workers.start(request, descriptors).map_err(
            |NotStarted { why, descriptors }| {
                self.workers.close(descriptors);
                Failure::new(FailureKind::Unavailable, format!("no child process: {why}"))
            },
        )?;
        match tokio::time::timeout(limit, &mut running).await {
            Ok(Ok(done)) => Ok(done.response),
            Ok(Err(error)) => Err(Failure::new(FailureKind::Unavailable, error)),
            Err(_) => {
                let words = format!(
                    "process {} has waited for the drive for {} s; call again",
                    running.pid(),
                    limit.as_secs()
                );
                tokio::spawn(running);
                Err(Failure::new(FailureKind::DeadlineExceeded, words))
            }
        }
    }
}

fn unexpected(response: &Response) -> Failure {
    Failure::new(FailureKind::Unavailable, format!("a child answered {response:?}"))
}
