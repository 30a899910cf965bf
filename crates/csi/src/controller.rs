//! The Controller service over a [`ControllerPlatform`]; served where the registry is, and called by Kubernetes'
//! provisioner, attacher, resizer and health monitor.

use std::sync::Arc;

use hotbay_api::csi;
use hotbay_api::csi::controller_server::{Controller as ControllerService, ControllerServer};
use hotbay_api::csi::controller_service_capability::rpc::Type as Capability;
use hotbay_api::csi::controller_service_capability::{Rpc, Type};
use hotbay_core::ids::NodeId;
use tonic::{Request, Response, Status};

use crate::TOPOLOGY_KEY;
use crate::busy::{Busy, Key};
use crate::call::{Call, not_served};
use crate::platform::{
    Condition, ControllerPlatform, CreateVolume, Failure, FailureKind, Volume, VolumePage,
};
use crate::request::controller as requests;
use crate::request::shown;

/// What is served beyond the calls that every driver has.
const CAPABILITIES: [Capability; 10] = [
    Capability::CreateDeleteVolume,
    Capability::PublishUnpublishVolume,
    Capability::ListVolumes,
    Capability::ListVolumesPublishedNodes,
    Capability::GetCapacity,
    Capability::ExpandVolume,
    Capability::PublishReadonly,
    Capability::GetVolume,
    Capability::VolumeCondition,
    Capability::SingleNodeMultiWriter,
];

/// The Controller service.
#[derive(Debug)]
pub struct Controller<P> {
    platform: Arc<P>,
    busy: Busy,
}

impl<P: ControllerPlatform> Controller<P> {
    pub fn new(platform: Arc<P>) -> Self {
        Self { platform, busy: Busy::default() }
    }

    pub(crate) fn into_server(self) -> ControllerServer<Self> {
        ControllerServer::new(self)
    }

    async fn create(
        &self,
        call: &Call,
        request: csi::CreateVolumeRequest,
    ) -> Result<csi::CreateVolumeResponse, Failure> {
        let request = requests::create(request)?;
        let (platform, asked) = (Arc::clone(&self.platform), request.clone());
        let key = Key::Name(request.name.clone());
        let volume = call.change(&self.busy, key, async move { platform.create(asked).await });
        let volume = volume.await?;
        is_as_asked(&volume, &request)?;
        Ok(csi::CreateVolumeResponse { volume: Some(told(volume).0) })
    }

    async fn delete(
        &self,
        call: &Call,
        request: csi::DeleteVolumeRequest,
    ) -> Result<csi::DeleteVolumeResponse, Failure> {
        if let Some(volume) = requests::delete(&request)? {
            let platform = Arc::clone(&self.platform);
            let work = async move { platform.delete(volume).await };
            call.change(&self.busy, Key::Volume(volume), work).await?;
        }
        Ok(csi::DeleteVolumeResponse {})
    }

    async fn publish(
        &self,
        call: &Call,
        request: csi::ControllerPublishVolumeRequest,
    ) -> Result<csi::ControllerPublishVolumeResponse, Failure> {
        let request = requests::publish(request)?;
        let node = request.node;
        if !call.read(self.platform.node_exists(node)).await? {
            let message = format!("no node has the id {node}: its agent has not registered");
            return Err(Failure::new(FailureKind::NotFound, message));
        }
        let (platform, key) = (Arc::clone(&self.platform), Key::Volume(request.volume));
        let work = async move { platform.attach(request).await };
        let publish_context = call.change(&self.busy, key, work).await?;
        Ok(csi::ControllerPublishVolumeResponse { publish_context })
    }

    async fn unpublish(
        &self,
        call: &Call,
        request: csi::ControllerUnpublishVolumeRequest,
    ) -> Result<csi::ControllerUnpublishVolumeResponse, Failure> {
        if let Some((volume, node)) = requests::unpublish(&request)? {
            let platform = Arc::clone(&self.platform);
            let work = async move { platform.detach(volume, node).await };
            call.change(&self.busy, Key::Volume(volume), work).await?;
        }
        Ok(csi::ControllerUnpublishVolumeResponse {})
    }

    async fn validate(
        &self,
        call: &Call,
        request: csi::ValidateVolumeCapabilitiesRequest,
    ) -> Result<csi::ValidateVolumeCapabilitiesResponse, Failure> {
        let volume_context = request.volume_context.clone();
        let volume_capabilities = request.volume_capabilities.clone();
        let (volume, unsupported) = requests::validate(request)?;
        let volume = call.read(self.platform.volume(volume)).await?;
        let no =
            |message: String| csi::ValidateVolumeCapabilitiesResponse { confirmed: None, message };
        if let Some(reason) = unsupported {
            return Ok(no(reason.to_string()));
        }
        if !volume_context.is_empty() && volume_context != volume.volume_context {
            let text = "volume_context is not that of the volume: use what CreateVolume answered";
            return Ok(no(text.to_owned()));
        }
        // The parameters are not confirmed: nothing that a caller can do with a volume depends on them any more.
        let confirmed = csi::validate_volume_capabilities_response::Confirmed {
            volume_context,
            volume_capabilities,
            ..Default::default()
        };
        Ok(csi::ValidateVolumeCapabilitiesResponse {
            confirmed: Some(confirmed),
            message: String::new(),
        })
    }

    async fn list(
        &self,
        call: &Call,
        request: csi::ListVolumesRequest,
    ) -> Result<csi::ListVolumesResponse, Failure> {
        let (after, limit) = requests::list(&request)?;
        let VolumePage { volumes, more } = call.read(self.platform.volumes(after, limit)).await?;
        let next_token = match volumes.last() {
            Some(last) if more => last.id.to_string(),
            Some(_) | None => String::new(),
        };
        let entry = |volume| {
            let (volume, published_node_ids, condition) = told(volume);
            let status = csi::list_volumes_response::VolumeStatus {
                published_node_ids,
                volume_condition: Some(condition),
            };
            csi::list_volumes_response::Entry { volume: Some(volume), status: Some(status) }
        };
        let entries = volumes.into_iter().map(entry).collect();
        Ok(csi::ListVolumesResponse { entries, next_token })
    }

    async fn get(
        &self,
        call: &Call,
        request: csi::ControllerGetVolumeRequest,
    ) -> Result<csi::ControllerGetVolumeResponse, Failure> {
        let volume = requests::get(&request)?;
        let (volume, published_node_ids, condition) =
            told(call.read(self.platform.volume(volume)).await?);
        let status = csi::controller_get_volume_response::VolumeStatus {
            published_node_ids,
            volume_condition: Some(condition),
        };
        Ok(csi::ControllerGetVolumeResponse { volume: Some(volume), status: Some(status) })
    }

    async fn capacity(
        &self,
        call: &Call,
        request: csi::GetCapacityRequest,
    ) -> Result<csi::GetCapacityResponse, Failure> {
        let query = requests::capacity(request)?;
        let capacity = call.read(self.platform.capacity(query)).await?;
        Ok(csi::GetCapacityResponse {
            available_capacity: signed(capacity.available_bytes),
            maximum_volume_size: capacity.largest_volume_bytes.map(signed),
            minimum_volume_size: capacity.smallest_volume_bytes.map(signed),
        })
    }

    async fn expand(
        &self,
        call: &Call,
        request: csi::ControllerExpandVolumeRequest,
    ) -> Result<csi::ControllerExpandVolumeResponse, Failure> {
        let request = requests::expand(request)?;
        let (platform, key) = (Arc::clone(&self.platform), Key::Volume(request.volume));
        let work = async move { platform.expand(request).await };
        let expanded = call.change(&self.busy, key, work).await?;
        Ok(csi::ControllerExpandVolumeResponse {
            capacity_bytes: signed(expanded.capacity_bytes),
            node_expansion_required: expanded.on_node,
        })
    }
}

/// A volume of this name that was there before must be one that this call could have made.
fn is_as_asked(volume: &Volume, asked: &CreateVolume) -> Result<(), Failure> {
    let differs = |what: String| {
        let name = shown(&asked.name);
        let message = format!("volume {name} exists, {what}: delete it, or choose another name");
        Err(Failure::new(FailureKind::AlreadyExists, message))
    };
    if !asked.sizes.fits(volume.capacity_bytes) {
        return differs(format!("with {} bytes", volume.capacity_bytes));
    }
    let reachable = |node| volume.accessible_nodes.contains(node);
    if !asked.requisite.is_empty() && !asked.requisite.iter().any(reachable) {
        return differs("and none of the nodes asked for can reach it".to_owned());
    }
    Ok(())
}

fn told(volume: Volume) -> (csi::Volume, Vec<String>, csi::VolumeCondition) {
    let Volume { id, name: _, capacity_bytes, volume_context, .. } = volume;
    let Condition { abnormal, message } = volume.condition;
    let told = csi::Volume {
        capacity_bytes: signed(capacity_bytes),
        volume_id: id.to_string(),
        volume_context,
        content_source: None,
        accessible_topology: volume.accessible_nodes.into_iter().map(topology).collect(),
    };
    let published = volume.published_nodes.iter().map(ToString::to_string).collect();
    (told, published, csi::VolumeCondition { abnormal, message })
}

pub(crate) fn topology(node: NodeId) -> csi::Topology {
    csi::Topology { segments: [(TOPOLOGY_KEY.to_owned(), node.to_string())].into() }
}

/// The wire has signed sizes; no drive is larger.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl<P: ControllerPlatform> ControllerService for Controller<P> {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let call = Call::begin("CreateVolume", &request);
        let ended = self.create(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let call = Call::begin("DeleteVolume", &request);
        let ended = self.delete(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        let call = Call::begin("ControllerPublishVolume", &request);
        let ended = self.publish(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        let call = Call::begin("ControllerUnpublishVolume", &request);
        let ended = self.unpublish(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        let call = Call::begin("ValidateVolumeCapabilities", &request);
        let ended = self.validate(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        let call = Call::begin("ListVolumes", &request);
        let ended = self.list(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        let call = Call::begin("GetCapacity", &request);
        let ended = self.capacity(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        let told = |kind: Capability| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = CAPABILITIES.map(told).to_vec();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        let call = Call::begin("ControllerExpandVolume", &request);
        let ended = self.expand(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeResponse>, Status> {
        let call = Call::begin("ControllerGetVolume", &request);
        let ended = self.get(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn create_snapshot(
        &self,
        _: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        not_served("CreateSnapshot")
    }

    async fn delete_snapshot(
        &self,
        _: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        not_served("DeleteSnapshot")
    }

    async fn list_snapshots(
        &self,
        _: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        not_served("ListSnapshots")
    }

    async fn get_snapshot(
        &self,
        _: Request<csi::GetSnapshotRequest>,
    ) -> Result<Response<csi::GetSnapshotResponse>, Status> {
        not_served("GetSnapshot")
    }

    async fn controller_modify_volume(
        &self,
        _: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Result<Response<csi::ControllerModifyVolumeResponse>, Status> {
        not_served("ControllerModifyVolume")
    }
}
