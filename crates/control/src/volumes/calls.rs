//! Our own calls about volumes, for people and programs that do not speak CSI.

use std::collections::BTreeMap;

use hotbay_api::PROTOCOL;
use hotbay_api::convert::Malformed;
use hotbay_api::volumes as wire;
use hotbay_core::cluster::{Cluster, Judged, VolumeState};
use hotbay_core::ids::VolumeId;
use hotbay_core::volume::{Size, Wish, class};
use hotbay_csi::code;
use hotbay_csi::platform::Failure;
use tonic::{Code, Request, Response, Status};

use super::{VolumeError, Volumes, Wanted, sought};
use crate::caller::Caller;
use crate::clients::rights::Right;
use crate::objects;
use crate::peer::admit;

pub(crate) struct VolumeCalls {
    pub(crate) volumes: Volumes,
}

/// The answer to a call that was admitted.
type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl wire::volumes_server::Volumes for VolumeCalls {
    async fn create(&self, request: Request<wire::CreateRequest>) -> Answer<wire::VolumeResponse> {
        let caller = writer(&request)?;
        let wire::CreateRequest { protocol, name, wish } = request.into_inner();
        check(protocol)?;
        answer(self.volumes.make(name, wish.unwrap_or_default(), &caller).await?)
    }

    async fn delete(&self, request: Request<wire::DeleteRequest>) -> Answer<wire::DeleteResponse> {
        let caller = writer(&request)?;
        let wire::DeleteRequest { protocol, volume } = request.into_inner();
        check(protocol)?;
        let remark = self.volumes.remove(volume, &caller).await?;
        Ok(Response::new(wire::DeleteResponse { protocol: PROTOCOL, remark: remark.into() }))
    }

    async fn expand(&self, request: Request<wire::ExpandRequest>) -> Answer<wire::VolumeResponse> {
        let caller = writer(&request)?;
        let wire::ExpandRequest { protocol, volume, size_bytes } = request.into_inner();
        check(protocol)?;
        answer(self.volumes.grow(volume, size_bytes, &caller).await?)
    }

    async fn explain(
        &self,
        request: Request<wire::ExplainRequest>,
    ) -> Answer<wire::ExplainResponse> {
        admit(&request)?;
        let wire::ExplainRequest { protocol, wish } = request.into_inner();
        check(protocol)?;
        let wanted = self.volumes.wanted("explained".into(), wish.unwrap_or_default()).await?;
        let wish = wanted.wish().map_err(refusal)?;
        let look = move |cluster: &Cluster| explained(cluster, &wish);
        Ok(Response::new(self.volumes.read(look).await.map_err(refusal)?))
    }

    async fn annotate(
        &self,
        request: Request<wire::AnnotateRequest>,
    ) -> Answer<wire::VolumeResponse> {
        let caller = writer(&request)?;
        let wire::AnnotateRequest { protocol, volume, set, remove } = request.into_inner();
        check(protocol)?;
        let id = self.volumes.find(volume).await.map_err(refusal)?;
        let set = set.into_iter().map(|(key, value)| (key, Some(value)));
        let changes: BTreeMap<_, _> =
            set.chain(remove.into_iter().map(|key| (key, None))).collect();
        self.volumes.annotate(id, changes, &caller.who).await.map_err(refusal)?;
        answer(self.volumes.shown(id).await?)
    }

    async fn attach(&self, request: Request<wire::AttachRequest>) -> Answer<wire::VolumeResponse> {
        let caller = writer(&request)?;
        let wire::AttachRequest { protocol, volume, node, read_only } = request.into_inner();
        check(protocol)?;
        let id = self.volumes.find(volume).await.map_err(refusal)?;
        let node = self.volumes.find_node(node).await.map_err(refusal)?;
        self.volumes.attach(id, node, read_only, &caller.who).await.map_err(refusal)?;
        answer(self.volumes.shown(id).await?)
    }

    async fn detach(&self, request: Request<wire::DetachRequest>) -> Answer<wire::VolumeResponse> {
        let caller = writer(&request)?;
        let wire::DetachRequest { protocol, volume, node } = request.into_inner();
        check(protocol)?;
        let id = self.volumes.find(volume).await.map_err(refusal)?;
        let node = match node.as_str() {
            "" => None,
            _ => Some(self.volumes.find_user(node).await.map_err(refusal)?),
        };
        self.volumes.detach(id, node, &caller.who).await.map_err(refusal)?;
        answer(self.volumes.shown(id).await?)
    }
}

/// The calls without their wire, for gRPC and HTTP alike. What is refused is refused in the same words.
impl Volumes {
    /// Makes a volume; gives it as JSON.
    pub(crate) async fn make(
        &self,
        name: String,
        wish: wire::Wish,
        caller: &Caller,
    ) -> Result<String, Status> {
        let wanted = self.wanted(name, wish).await?;
        let id = self.create(wanted, &caller.who).await.map_err(refusal)?;
        self.shown(id).await
    }

    /// Deletes a volume; gives what was not done, in words.
    pub(crate) async fn remove(
        &self,
        volume: String,
        caller: &Caller,
    ) -> Result<&'static str, Status> {
        let id = self.find(volume).await.map_err(refusal)?;
        self.delete(id, &caller.who).await.map_err(refusal)?;
        let look = move |cluster: &Cluster| {
            let known = cluster.volume(id).map(|volume| volume.record.state);
            known == Some(VolumeState::Deleted)
        };
        let left = self.read_of(id, look).await.map_err(refusal)?;
        Ok(if left {
            "its drive does not answer: its label was not updated, and nothing was erased"
        } else {
            ""
        })
    }

    /// Makes a volume larger; gives it as JSON.
    pub(crate) async fn grow(
        &self,
        volume: String,
        size_bytes: u64,
        caller: &Caller,
    ) -> Result<String, Status> {
        let size = Size::of(size_bytes).map_err(|error| refusal(error.into()))?;
        let id = self.find(volume).await.map_err(refusal)?;
        self.expand(id, size, &caller.who).await.map_err(refusal)?;
        self.shown(id).await
    }

    async fn wanted(&self, name: String, wish: wire::Wish) -> Result<Wanted, Status> {
        let (mut wanted, nodes) = Wanted::of(name, wish);
        for node in nodes {
            wanted.nodes.insert(self.find_node(node).await.map_err(refusal)?);
        }
        Ok(wanted)
    }

    /// A volume as JSON; also one that only a label knows, which is given back without getting a record.
    async fn shown(&self, id: VolumeId) -> Result<String, Status> {
        let look = move |cluster: &Cluster| {
            let orphan = || {
                let (drive, extent) = cluster.orphan(id)?;
                Some(objects::orphan(cluster, drive, extent))
            };
            let known = cluster.volume(id).map(|known| objects::volume(cluster, known));
            serde_json::to_string(&known.or_else(orphan)?).ok()
        };
        let shown = self.read_of(id, look).await.map_err(refusal)?;
        shown.ok_or_else(|| refusal(VolumeError::Gone))
    }
}

fn answer(volume_json: String) -> Answer<wire::VolumeResponse> {
    Ok(Response::new(wire::VolumeResponse { protocol: PROTOCOL, volume_json }))
}

fn explained(cluster: &Cluster, wish: &Wish) -> wire::ExplainResponse {
    let group = class::group(&wish.class, wish.claim.as_ref());
    let (place, judged) = cluster.explain_placement(&sought(wish, group.as_deref()));
    let drives = judged.into_iter().filter_map(|judged| shown(cluster, judged)).collect();
    wire::ExplainResponse { protocol: PROTOCOL, drives, fits: place.is_some() }
}

fn shown(cluster: &Cluster, judged: Judged) -> Option<wire::Judged> {
    let record = &cluster.drive(judged.drive)?.record;
    let node = cluster.node(record.node).map(|node| node.record.name.to_string());
    Some(wire::Judged {
        name: record.name.clone(),
        node: node.unwrap_or_default(),
        bay: record.observed.bay.clone().unwrap_or_default(),
        path: record.observed.path.clone(),
        media: record.observed.media.to_string(),
        free_bytes: judged.free_bytes,
        unfit: judged.unfit.iter().map(ToString::to_string).collect(),
    })
}

fn writer<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = admit(request)?;
    caller.must_have(Right::Write)?;
    Ok(caller)
}

fn check(protocol: u32) -> Result<(), Status> {
    if protocol == PROTOCOL {
        return Ok(());
    }
    Err(Status::failed_precondition(Malformed::Protocol { theirs: protocol }.to_string()))
}

/// The same words and codes as over CSI; but a size that is none is a mistake here, and not a drive's shortage.
fn refusal(error: VolumeError) -> Status {
    let is_mistake = matches!(error, VolumeError::Size(_));
    let Failure { kind, message } = error.into();
    let code = if is_mistake { Code::InvalidArgument } else { code(kind) };
    Status::new(code, message)
}
