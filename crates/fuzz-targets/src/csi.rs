//! What a sidecar or a kubelet asks for. What is taken keeps the promises that the platforms below rely on.

use std::path::{Component, Path};

use hotbay_api::csi;
use hotbay_api::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use hotbay_csi::platform::{Access, Sizes};
use hotbay_csi::request::controller as controller_requests;
use hotbay_csi::request::{NAME_BYTES_MAX, PATH_BYTES_MAX, Refusal, node as node_requests};
use prost::Message;

use crate::assert_plain;

/// One message as each of the requests.
pub(crate) fn requests(data: &[u8]) {
    controller(data);
    node(data);
}

fn controller(data: &[u8]) {
    if let Some(volume) = taken(data, controller_requests::create) {
        assert!((1..=NAME_BYTES_MAX).contains(&volume.name.len()), "{:?}", volume.name);
        assert!(!volume.modes.is_empty());
        assert_sizes(volume.sizes);
        assert_access(&volume.access);
    }
    if let Some(attach) = taken(data, controller_requests::publish) {
        assert_access(&attach.access);
    }
    if let Some(expand) = taken(data, controller_requests::expand) {
        assert!(expand.sizes.required_bytes > 0);
        assert_sizes(expand.sizes);
    }
    if let Some((_, limit)) =
        taken(data, |r: csi::ListVolumesRequest| controller_requests::list(&r))
    {
        assert!((1..=controller_requests::PAGE_MAX).contains(&limit));
    }
    taken(data, |r: csi::DeleteVolumeRequest| controller_requests::delete(&r));
    taken(data, |r: csi::ControllerUnpublishVolumeRequest| controller_requests::unpublish(&r));
    taken(data, |r: csi::ControllerGetVolumeRequest| controller_requests::get(&r));
    taken(data, controller_requests::validate);
    taken(data, controller_requests::capacity);
}

fn node(data: &[u8]) {
    if let Some(stage) = taken(data, node_requests::stage) {
        assert_path(&stage.staging_path);
        assert_access(&stage.access);
    }
    if let Some(publish) = taken(data, node_requests::publish) {
        assert_path(&publish.staging_path);
        assert_path(&publish.target_path);
    }
    for (_, path) in
        taken(data, node_requests::unstage).into_iter().chain(taken(data, node_requests::unpublish))
    {
        assert_path(&path);
    }
    if let Some(stats) = taken(data, node_requests::stats) {
        assert_path(&stats.volume_path);
    }
    if let Some(expand) = taken(data, node_requests::expand) {
        assert_path(&expand.volume_path);
        assert_sizes(expand.sizes);
    }
}

fn taken<M: Message + Default, T>(
    data: &[u8],
    take: impl FnOnce(M) -> Result<T, Refusal>,
) -> Option<T> {
    match take(M::decode(data).ok()?) {
        Ok(value) => Some(value),
        Err(refusal) => {
            assert_plain(&refusal);
            assert!(refusal.to_string().len() < 10_000, "too long for an answer: {refusal}");
            None
        }
    }
}

fn assert_sizes(sizes: Sizes) {
    let largest = sizes.limit_bytes.unwrap_or(sizes.required_bytes);
    assert!(sizes.fits(largest) && i64::try_from(largest).is_ok(), "{sizes:?}");
}

fn assert_access(access: &Access) {
    if let Access::Mount { fs_type, flags } = access {
        assert!(!fs_type.contains(['/', ' ', '\0']) && !fs_type.starts_with('-'), "{fs_type:?}");
        assert!(!flags.iter().any(|flag| flag.contains(['\0', '\n'])), "{flags:?}");
    }
}

fn assert_path(path: &Path) {
    assert!(path.is_absolute() && path.as_os_str().len() <= PATH_BYTES_MAX, "{path:?}");
    assert!(!path.components().any(|part| part == Component::ParentDir), "{path:?}");
}

fn capability() -> csi::VolumeCapability {
    let mount = MountVolume {
        fs_type: "ext4".to_owned(),
        mount_flags: vec!["noatime".to_owned()],
        ..MountVolume::default()
    };
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(AccessMode { mode: 7 }),
    }
}

const ID: &str = "7f3a91c07f3a91c07f3a91c07f3a91c0";
const RANGE: csi::CapacityRange =
    csi::CapacityRange { required_bytes: 1 << 30, limit_bytes: 2 << 30 };

pub(crate) fn request_seeds() -> Vec<Vec<u8>> {
    [controller_seeds(), node_seeds()].concat()
}

fn controller_seeds() -> Vec<Vec<u8>> {
    let id = ID.to_owned();
    let segments = [("hotbay.dev/node".to_owned(), id.clone())].into();
    let topology = csi::Topology { segments };
    let create = csi::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        capacity_range: Some(RANGE),
        volume_capabilities: vec![capability()],
        parameters: [("media".to_owned(), "ssd".to_owned())].into(),
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![topology.clone()],
            preferred: vec![topology.clone()],
        }),
        ..Default::default()
    };
    let attach = csi::ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: id.clone(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    let grow = csi::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: Some(RANGE),
        ..Default::default()
    };
    let list = csi::ListVolumesRequest { max_entries: 10, starting_token: id };
    let capacity = csi::GetCapacityRequest {
        volume_capabilities: vec![capability()],
        accessible_topology: Some(topology),
        ..Default::default()
    };
    vec![
        create.encode_to_vec(),
        attach.encode_to_vec(),
        grow.encode_to_vec(),
        list.encode_to_vec(),
        capacity.encode_to_vec(),
    ]
}

fn node_seeds() -> Vec<Vec<u8>> {
    let id = ID.to_owned();
    let publish = csi::NodePublishVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: "/var/lib/kubelet/staging".to_owned(),
        target_path: "/var/lib/kubelet/pods/a b/mount".to_owned(),
        volume_capability: Some(capability()),
        readonly: true,
        ..Default::default()
    };
    let stage = csi::NodeStageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: "/var/lib/kubelet/staging".to_owned(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    let expand = csi::NodeExpandVolumeRequest {
        volume_id: id.clone(),
        volume_path: "/var/lib/kubelet/pods/a".to_owned(),
        capacity_range: Some(RANGE),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    let unpublish = csi::NodeUnpublishVolumeRequest {
        volume_id: id.clone(),
        target_path: "/var/lib/kubelet/pods/a".to_owned(),
    };
    vec![
        publish.encode_to_vec(),
        stage.encode_to_vec(),
        expand.encode_to_vec(),
        unpublish.encode_to_vec(),
    ]
}
