//! The messages of the Controller service.

use hotbay_api::csi;
use hotbay_core::ids::{NodeId, VolumeId};

use super::{
    Refusal, capability, name, node_id, required, shown, sizes, texts, topology, volume_id,
};
use crate::platform::{AttachVolume, CapacityQuery, CreateVolume, ExpandVolume};

/// Most volumes in one answer. A caller's own limit of 4 MiB for an answer holds several times as many.
pub const PAGE_MAX: usize = 1000;

/// A volume to make.
pub fn create(request: csi::CreateVolumeRequest) -> Result<CreateVolume, Refusal> {
    required("name", &request.name)?;
    let (access, modes) = capability::all(request.volume_capabilities)?;
    let sizes = sizes(request.capacity_range)?;
    let name = name(request.name)?;
    let parameters = texts("parameters", request.parameters)?;
    if request.volume_content_source.is_some() {
        return Err(Refusal::ContentSource);
    }
    if !request.mutable_parameters.is_empty() {
        return Err(Refusal::MutableParameters);
    }
    let (requisite, preferred) = topology::nodes(request.accessibility_requirements)?;
    Ok(CreateVolume { name, sizes, access, modes, parameters, requisite, preferred })
}

/// A volume to delete; `None` if there never was one with such an id.
pub fn delete(request: &csi::DeleteVolumeRequest) -> Result<Option<VolumeId>, Refusal> {
    required("volume_id", &request.volume_id)?;
    Ok(volume_id(&request.volume_id).ok())
}

/// A volume for a node.
pub fn publish(request: csi::ControllerPublishVolumeRequest) -> Result<AttachVolume, Refusal> {
    required("volume_id", &request.volume_id)?;
    required("node_id", &request.node_id)?;
    let capability =
        request.volume_capability.ok_or(Refusal::Missing { field: "volume_capability" })?;
    let volume = volume_id(&request.volume_id)?;
    let node = node_id(&request.node_id)?;
    let (access, mode) = capability::one(capability)?;
    let volume_context = texts("volume_context", request.volume_context)?;
    Ok(AttachVolume { volume, node, access, mode, readonly: request.readonly, volume_context })
}

/// A volume to detach, from one node or from all; `None` if there never was such a volume or node, so that it is
/// detached.
pub fn unpublish(
    request: &csi::ControllerUnpublishVolumeRequest,
) -> Result<Option<(VolumeId, Option<NodeId>)>, Refusal> {
    required("volume_id", &request.volume_id)?;
    let Ok(volume) = volume_id(&request.volume_id) else { return Ok(None) };
    if request.node_id.is_empty() {
        return Ok(Some((volume, None)));
    }
    Ok(node_id(&request.node_id).ok().map(|node| (volume, Some(node))))
}

/// A larger size for a volume.
pub fn expand(request: csi::ControllerExpandVolumeRequest) -> Result<ExpandVolume, Refusal> {
    required("volume_id", &request.volume_id)?;
    let range = request.capacity_range.ok_or(Refusal::Missing { field: "capacity_range" })?;
    let volume = volume_id(&request.volume_id)?;
    let sizes = sizes(Some(range))?;
    if sizes.required_bytes == 0 {
        return Err(Refusal::NoSize);
    }
    let access = capability::optional(request.volume_capability)?.map(|(access, _)| access);
    Ok(ExpandVolume { volume, sizes, access })
}

/// A volume to look at.
pub fn get(request: &csi::ControllerGetVolumeRequest) -> Result<VolumeId, Refusal> {
    required("volume_id", &request.volume_id)?;
    volume_id(&request.volume_id)
}

/// The volume of a question, and why it can not be used as asked, if it cannot.
pub fn validate(
    request: csi::ValidateVolumeCapabilitiesRequest,
) -> Result<(VolumeId, Option<Refusal>), Refusal> {
    required("volume_id", &request.volume_id)?;
    if request.volume_capabilities.is_empty() {
        return Err(Refusal::Missing { field: "volume_capabilities" });
    }
    let volume = volume_id(&request.volume_id)?;
    match capability::all(request.volume_capabilities) {
        Err(refusal) if !refusal.is_about_support() => Err(refusal),
        Err(refusal) => Ok((volume, Some(refusal))),
        Ok(_) if !request.mutable_parameters.is_empty() => {
            Ok((volume, Some(Refusal::MutableParameters)))
        }
        Ok(_) => Ok((volume, None)),
    }
}

/// After which volume a list goes on, and how many.
pub fn list(request: &csi::ListVolumesRequest) -> Result<(Option<VolumeId>, usize), Refusal> {
    let number = request.max_entries;
    let entries = usize::try_from(number).map_err(|_| Refusal::NegativeEntries { number })?;
    let limit = if entries == 0 { PAGE_MAX } else { entries.min(PAGE_MAX) };
    let token = &request.starting_token;
    if token.is_empty() {
        return Ok((None, limit));
    }
    let after = volume_id(token).map_err(|_| Refusal::Token { token: shown(token) })?;
    Ok((Some(after), limit))
}

/// What a volume would be made of.
pub fn capacity(request: csi::GetCapacityRequest) -> Result<CapacityQuery, Refusal> {
    let access = match request.volume_capabilities {
        some if some.is_empty() => None,
        some => Some(capability::all(some)?.0),
    };
    let parameters = texts("parameters", request.parameters)?;
    let node = request.accessible_topology.as_ref().map(topology::node).transpose()?;
    Ok(CapacityQuery { parameters, node, access })
}
