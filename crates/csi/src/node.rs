//! The Node service over a [`NodePlatform`]; served by the agent of a machine, and called by its kubelet.

use std::sync::Arc;

use hotbay_api::csi;
use hotbay_api::csi::node_server::{Node as NodeService, NodeServer};
use hotbay_api::csi::node_service_capability::rpc::Type as Capability;
use hotbay_api::csi::node_service_capability::{Rpc, Type};
use hotbay_api::csi::volume_usage::Unit;
use tonic::{Request, Response, Status};

use crate::busy::{Busy, Key};
use crate::call::Call;
use crate::controller::{signed, topology};
use crate::platform::{Condition, Failure, NodeInfo, NodePlatform, Usage};
use crate::request::node as requests;

/// What is served beyond the calls that every driver has. No VOLUME_MOUNT_GROUP: a local filesystem has no owner that
/// mount could set, so the kubelet does it.
const CAPABILITIES: [Capability; 5] = [
    Capability::StageUnstageVolume,
    Capability::GetVolumeStats,
    Capability::ExpandVolume,
    Capability::VolumeCondition,
    Capability::SingleNodeMultiWriter,
];

/// The Node service.
#[derive(Debug)]
pub struct Node<P> {
    platform: Arc<P>,
    busy: Busy,
}

impl<P: NodePlatform> Node<P> {
    pub fn new(platform: Arc<P>) -> Self {
        Self { platform, busy: Busy::default() }
    }

    pub(crate) fn into_server(self) -> NodeServer<Self> {
        NodeServer::new(self)
    }

    async fn stage(
        &self,
        call: &Call,
        request: csi::NodeStageVolumeRequest,
    ) -> Result<csi::NodeStageVolumeResponse, Failure> {
        let request = requests::stage(request)?;
        let (platform, key) = (Arc::clone(&self.platform), Key::Volume(request.volume));
        call.change(&self.busy, key, async move { platform.stage(request).await }).await?;
        Ok(csi::NodeStageVolumeResponse {})
    }

    async fn unstage(
        &self,
        call: &Call,
        request: csi::NodeUnstageVolumeRequest,
    ) -> Result<csi::NodeUnstageVolumeResponse, Failure> {
        let (volume, path) = requests::unstage(request)?;
        let platform = Arc::clone(&self.platform);
        let work = async move { platform.unstage(volume, path).await };
        call.change(&self.busy, Key::Volume(volume), work).await?;
        Ok(csi::NodeUnstageVolumeResponse {})
    }

    async fn publish(
        &self,
        call: &Call,
        request: csi::NodePublishVolumeRequest,
    ) -> Result<csi::NodePublishVolumeResponse, Failure> {
        let request = requests::publish(request)?;
        let (platform, key) = (Arc::clone(&self.platform), Key::Volume(request.volume));
        call.change(&self.busy, key, async move { platform.publish(request).await }).await?;
        Ok(csi::NodePublishVolumeResponse {})
    }

    async fn unpublish(
        &self,
        call: &Call,
        request: csi::NodeUnpublishVolumeRequest,
    ) -> Result<csi::NodeUnpublishVolumeResponse, Failure> {
        let (volume, path) = requests::unpublish(request)?;
        let platform = Arc::clone(&self.platform);
        let work = async move { platform.unpublish(volume, path).await };
        call.change(&self.busy, Key::Volume(volume), work).await?;
        Ok(csi::NodeUnpublishVolumeResponse {})
    }

    async fn stats(
        &self,
        call: &Call,
        request: csi::NodeGetVolumeStatsRequest,
    ) -> Result<csi::NodeGetVolumeStatsResponse, Failure> {
        let request = requests::stats(request)?;
        let stats = call.read(self.platform.stats(request)).await?;
        let usage = |unit: Unit, Usage { total, used, available }: Usage| csi::VolumeUsage {
            total: signed(total),
            used: signed(used),
            available: signed(available),
            unit: unit.into(),
        };
        let inodes = stats.inodes.map(|inodes| usage(Unit::Inodes, inodes));
        let Condition { abnormal, message } = stats.condition;
        Ok(csi::NodeGetVolumeStatsResponse {
            usage: [usage(Unit::Bytes, stats.bytes)].into_iter().chain(inodes).collect(),
            volume_condition: Some(csi::VolumeCondition { abnormal, message }),
        })
    }

    async fn expand(
        &self,
        call: &Call,
        request: csi::NodeExpandVolumeRequest,
    ) -> Result<csi::NodeExpandVolumeResponse, Failure> {
        let request = requests::expand(request)?;
        let (platform, key) = (Arc::clone(&self.platform), Key::Volume(request.volume));
        let work = async move { platform.expand(request).await };
        let bytes = call.change(&self.busy, key, work).await?;
        Ok(csi::NodeExpandVolumeResponse { capacity_bytes: signed(bytes) })
    }

    async fn info(&self, call: &Call) -> Result<csi::NodeGetInfoResponse, Failure> {
        let NodeInfo { node, max_volumes } = call.read(self.platform.info()).await?;
        Ok(csi::NodeGetInfoResponse {
            node_id: node.to_string(),
            max_volumes_per_node: max_volumes.map_or(0, i64::from),
            accessible_topology: Some(topology(node)),
        })
    }
}

#[tonic::async_trait]
impl<P: NodePlatform> NodeService for Node<P> {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let call = Call::begin("NodeStageVolume", &request);
        let ended = self.stage(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let call = Call::begin("NodeUnstageVolume", &request);
        let ended = self.unstage(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let call = Call::begin("NodePublishVolume", &request);
        let ended = self.publish(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let call = Call::begin("NodeUnpublishVolume", &request);
        let ended = self.unpublish(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let call = Call::begin("NodeGetVolumeStats", &request);
        let ended = self.stats(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let call = Call::begin("NodeExpandVolume", &request);
        let ended = self.expand(&call, request.into_inner()).await;
        call.end(ended)
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let told = |kind: Capability| csi::NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = CAPABILITIES.map(told).to_vec();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        request: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let call = Call::begin("NodeGetInfo", &request);
        let ended = self.info(&call).await;
        call.end(ended)
    }
}
