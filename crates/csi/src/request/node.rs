//! The messages of the Node service.

use std::path::PathBuf;

use hotbay_api::csi;
use hotbay_core::ids::VolumeId;

use super::{Refusal, capability, path, required, sizes, texts, volume_id};
use crate::platform::{ExpandOnNode, PublishVolume, StageVolume, StatsQuery};

/// A volume to make ready.
pub fn stage(request: csi::NodeStageVolumeRequest) -> Result<StageVolume, Refusal> {
    required("volume_id", &request.volume_id)?;
    required("staging_target_path", &request.staging_target_path)?;
    let capability =
        request.volume_capability.ok_or(Refusal::Missing { field: "volume_capability" })?;
    let volume = volume_id(&request.volume_id)?;
    let (access, mode) = capability::one(capability)?;
    Ok(StageVolume {
        volume,
        staging_path: path::absolute("staging_target_path", request.staging_target_path)?,
        access,
        mode,
        publish_context: texts("publish_context", request.publish_context)?,
        volume_context: texts("volume_context", request.volume_context)?,
    })
}

/// A volume, and where it shall be staged no more.
pub fn unstage(request: csi::NodeUnstageVolumeRequest) -> Result<(VolumeId, PathBuf), Refusal> {
    required("volume_id", &request.volume_id)?;
    required("staging_target_path", &request.staging_target_path)?;
    let volume = volume_id(&request.volume_id)?;
    Ok((volume, path::absolute("staging_target_path", request.staging_target_path)?))
}

/// A staged volume to show to a pod.
pub fn publish(request: csi::NodePublishVolumeRequest) -> Result<PublishVolume, Refusal> {
    required("volume_id", &request.volume_id)?;
    required("target_path", &request.target_path)?;
    let capability =
        request.volume_capability.ok_or(Refusal::Missing { field: "volume_capability" })?;
    let volume = volume_id(&request.volume_id)?;
    let (access, mode) = capability::one(capability)?;
    if request.staging_target_path.is_empty() {
        return Err(Refusal::NotStaged);
    }
    Ok(PublishVolume {
        volume,
        staging_path: path::absolute("staging_target_path", request.staging_target_path)?,
        target_path: path::absolute("target_path", request.target_path)?,
        access,
        mode,
        readonly: request.readonly,
        publish_context: texts("publish_context", request.publish_context)?,
        volume_context: texts("volume_context", request.volume_context)?,
    })
}

/// A volume, and where it shall be published no more.
pub fn unpublish(request: csi::NodeUnpublishVolumeRequest) -> Result<(VolumeId, PathBuf), Refusal> {
    required("volume_id", &request.volume_id)?;
    required("target_path", &request.target_path)?;
    let volume = volume_id(&request.volume_id)?;
    Ok((volume, path::absolute("target_path", request.target_path)?))
}

/// Where a volume is looked at. It is nowhere at a path that cannot be one of ours.
pub fn stats(request: csi::NodeGetVolumeStatsRequest) -> Result<StatsQuery, Refusal> {
    required("volume_id", &request.volume_id)?;
    required("volume_path", &request.volume_path)?;
    let volume = volume_id(&request.volume_id)?;
    let volume_path = path::absolute("volume_path", request.volume_path)
        .map_err(|cause| Refusal::NotThere { cause: Box::new(cause) })?;
    let staging_path = path::optional("staging_target_path", request.staging_target_path)?;
    Ok(StatsQuery { volume, volume_path, staging_path })
}

/// What is on a volume, to follow its size.
pub fn expand(request: csi::NodeExpandVolumeRequest) -> Result<ExpandOnNode, Refusal> {
    required("volume_id", &request.volume_id)?;
    required("volume_path", &request.volume_path)?;
    Ok(ExpandOnNode {
        volume: volume_id(&request.volume_id)?,
        volume_path: path::absolute("volume_path", request.volume_path)?,
        staging_path: path::optional("staging_target_path", request.staging_target_path)?,
        sizes: sizes(request.capacity_range)?,
        access: capability::optional(request.volume_capability)?.map(|(access, _)| access),
    })
}
