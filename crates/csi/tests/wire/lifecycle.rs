//! Volumes from create to delete: each call twice, by a hundred callers at once, with faults on the way.

use std::path::Path;

use hotbay_api::csi;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use hotbay_csi::platform::{Condition, FailureKind};
use hotbay_csi::simulated::{Call, Fault, When};
use tonic::{Code, Status};

use crate::rig::{
    HERE, MIB, Rig, THERE, attach, block, create, delete, detach, expand, made, publish, stage,
    stats, topology, unpublish, unstage,
};

/// Calls until the answer is good or final, as the sidecars do; at most so often.
macro_rules! until_final {
    ($call:expr) => {{
        let mut tries = 0;
        loop {
            tries += 1;
            let answer = $call.await;
            let again = matches!(&answer, Err(status) if !is_final(status));
            if !again || tries == 1000 {
                break answer;
            }
            tokio::task::yield_now().await;
        }
    }};
}

fn is_final(status: &Status) -> bool {
    !matches!(status.code(), Code::Aborted | Code::Unavailable | Code::DeadlineExceeded)
}

/// One volume's life, each call twice: the second must say the same.
async fn live(rig: &Rig, name: &str) {
    let (mut controller, mut node) = (rig.controller(), rig.node());
    let (staging, target) =
        (rig.path(&format!("{name} staging")), rig.path(&format!("{name}\ntarget")));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = until_final!(controller.create_volume(create(name))).unwrap();
        let volume = answer.into_inner().volume.unwrap();
        assert_eq!(volume.capacity_bytes, 64 * MIB);
        assert_eq!(volume.accessible_topology, [topology(HERE)]);
        ids.push(volume.volume_id);
    }
    assert_eq!(ids[0], ids[1]);
    let id = ids.remove(0);
    for _ in 0..2 {
        until_final!(controller.controller_publish_volume(attach(&id, HERE))).unwrap();
    }
    for _ in 0..2 {
        until_final!(node.node_stage_volume(stage(&id, &staging))).unwrap();
    }
    for _ in 0..2 {
        until_final!(node.node_publish_volume(publish(&id, &staging, &target))).unwrap();
    }
    assert!(Path::new(&target).is_dir());
    for _ in 0..2 {
        let larger = until_final!(controller.controller_expand_volume(expand(&id, 128 * MIB)));
        assert_eq!(larger.unwrap().into_inner().capacity_bytes, 128 * MIB);
    }
    let stats = until_final!(node.node_get_volume_stats(stats(&id, &target))).unwrap();
    assert_eq!(stats.into_inner().usage[0].total, 128 * MIB);
    for _ in 0..2 {
        until_final!(node.node_unpublish_volume(unpublish(&id, &target))).unwrap();
    }
    assert!(!Path::new(&target).exists());
    for _ in 0..2 {
        until_final!(node.node_unstage_volume(unstage(&id, &staging))).unwrap();
    }
    let here = HERE.to_string();
    for _ in 0..2 {
        until_final!(controller.controller_unpublish_volume(detach(&id, &here))).unwrap();
    }
    for _ in 0..2 {
        until_final!(controller.delete_volume(delete(&id))).unwrap();
    }
}

#[tokio::test]
async fn every_call_can_be_repeated() {
    let rig = Rig::new();
    live(&rig, "one").await;
    assert_eq!(rig.cluster.counts(), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_callers_live_side_by_side() {
    let rig = std::sync::Arc::new(Rig::new());
    let lives: Vec<_> = (0..100)
        .map(|number| {
            let rig = std::sync::Arc::clone(&rig);
            tokio::spawn(async move { live(&rig, &format!("volume-{number}")).await })
        })
        .collect();
    for life in lives {
        life.await.unwrap();
    }
    assert_eq!(rig.cluster.counts(), (0, 0, 0));
}

/// The same name from everywhere: one volume is made, and all who are answered hear of the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_callers_of_one_name_get_one_volume() {
    let rig = std::sync::Arc::new(Rig::new());
    let callers: Vec<_> = (0..100)
        .map(|_| {
            let rig = std::sync::Arc::clone(&rig);
            tokio::spawn(async move {
                let mut controller = rig.controller();
                let answer = until_final!(controller.create_volume(create("the one")));
                answer.unwrap().into_inner().volume.unwrap().volume_id
            })
        })
        .collect();
    let mut ids = std::collections::BTreeSet::new();
    for caller in callers {
        ids.insert(caller.await.unwrap());
    }
    assert_eq!(ids.len(), 1);
    assert_eq!(rig.cluster.counts().0, 1);
}

/// Whatever answer is lost or late, a caller that calls again comes to the end, and nothing is left behind.
#[tokio::test]
async fn lost_answers_and_outages_leave_nothing_behind() {
    let rig = Rig::new();
    let calls = [
        Call::Create,
        Call::Delete,
        Call::Expand,
        Call::Attach,
        Call::Detach,
        Call::Stage,
        Call::Unstage,
        Call::Publish,
        Call::Unpublish,
        Call::Stats,
        Call::NodeExists,
    ];
    for when in [When::Before, When::After] {
        for kind in [FailureKind::Unavailable, FailureKind::DeadlineExceeded, FailureKind::Aborted]
        {
            for call in calls {
                rig.cluster.faults().fail(call, Fault { kind, when, times: 3 });
            }
            live(&rig, "again").await;
            assert_eq!(rig.cluster.counts(), (0, 0, 0), "{when:?} {kind:?}");
        }
    }
}

#[tokio::test]
async fn block_volume_is_a_file_at_its_target_and_says_its_size() {
    let rig = Rig::new();
    let (mut controller, mut node) = (rig.controller(), rig.node());
    let capability = || Some(block(Mode::SingleNodeWriter));
    let mut request = create("raw");
    request.volume_capabilities = vec![block(Mode::SingleNodeWriter)];
    let answer = controller.create_volume(request).await.unwrap().into_inner();
    let id = answer.volume.unwrap().volume_id;
    let mut request = attach(&id, HERE);
    request.volume_capability = capability();
    controller.controller_publish_volume(request).await.unwrap();
    let (staging, target) = (rig.path("staging"), rig.path("device"));
    let mut request = stage(&id, &staging);
    request.volume_capability = capability();
    node.node_stage_volume(request).await.unwrap();
    let mut request = publish(&id, &staging, &target);
    request.volume_capability = capability();
    node.node_publish_volume(request).await.unwrap();
    assert!(Path::new(&target).is_file());
    let stats = node.node_get_volume_stats(stats(&id, &target)).await.unwrap().into_inner();
    assert_eq!(stats.usage.len(), 1, "inodes of a block device: {stats:?}");
}

#[tokio::test]
async fn list_pages_through_volumes_that_come_and_go() {
    let rig = Rig::new();
    let mut controller = rig.controller();
    let mut ids = Vec::new();
    for number in 0..7 {
        ids.push(made(&mut controller, &format!("v{number}")).await);
    }
    controller.controller_publish_volume(attach(&ids[0], HERE)).await.unwrap();
    let page = |starting_token: String| csi::ListVolumesRequest { max_entries: 3, starting_token };
    let first = controller.list_volumes(page(String::new())).await.unwrap().into_inner();
    let names = |page: &csi::ListVolumesResponse| -> Vec<_> {
        page.entries.iter().map(|entry| entry.volume.clone().unwrap().volume_id).collect()
    };
    assert_eq!(names(&first), ids[..3]);
    let status = first.entries[0].status.clone().unwrap();
    assert_eq!(status.published_node_ids, [HERE.to_string()]);
    assert!(!status.volume_condition.unwrap().abnormal);
    // The last one of the page and the next one go: the token still says where to go on.
    for gone in [&ids[2], &ids[3]] {
        controller.delete_volume(delete(gone)).await.unwrap();
    }
    let second = controller.list_volumes(page(first.next_token)).await.unwrap().into_inner();
    assert_eq!(names(&second), ids[4..]);
    assert_eq!(second.next_token, "");
}

#[tokio::test]
async fn volume_and_its_condition_are_shown_and_capacity_follows() {
    let rig = Rig::new();
    let (mut controller, mut node) = (rig.controller(), rig.node());
    let room =
        csi::GetCapacityRequest { accessible_topology: Some(topology(HERE)), ..Default::default() };
    let before = controller.get_capacity(room.clone()).await.unwrap().into_inner();
    assert_eq!(before.available_capacity, 100 << 30);
    let id = made(&mut controller, "a").await;
    let after = controller.get_capacity(room).await.unwrap().into_inner();
    assert_eq!(after.available_capacity, before.available_capacity - 64 * MIB);
    let both = csi::GetCapacityRequest::default();
    let both = controller.get_capacity(both).await.unwrap().into_inner();
    assert_eq!(both.available_capacity, after.available_capacity + (100 << 30));
    assert_eq!(both.maximum_volume_size, Some(100 << 30));

    let condition = Condition { abnormal: true, message: "the drive is BAD".to_owned() };
    rig.cluster.set_condition(id.parse().unwrap(), condition);
    let get = csi::ControllerGetVolumeRequest { volume_id: id.clone() };
    let status = controller.controller_get_volume(get).await.unwrap().into_inner().status.unwrap();
    assert_eq!(status.volume_condition.unwrap().message, "the drive is BAD");
    controller.controller_publish_volume(attach(&id, HERE)).await.unwrap();
    let staging = rig.path("staging");
    node.node_stage_volume(stage(&id, &staging)).await.unwrap();
    let stats = node.node_get_volume_stats(stats(&id, &staging)).await.unwrap().into_inner();
    assert!(stats.volume_condition.unwrap().abnormal);
}

#[tokio::test]
async fn node_and_driver_say_who_they_are() {
    let rig = Rig::new();
    for mut identity in rig.identities() {
        let info = identity.get_plugin_info(csi::GetPluginInfoRequest {}).await.unwrap();
        let info = info.into_inner();
        assert_eq!((info.name.as_str(), info.vendor_version.as_str()), ("csi.hotbay.dev", "1.2.3"));
        let ready = identity.probe(csi::ProbeRequest {}).await.unwrap().into_inner().ready;
        assert_eq!(ready, Some(true));
    }
    let info = rig.node().node_get_info(csi::NodeGetInfoRequest {}).await.unwrap();
    let info = info.into_inner();
    assert_eq!(info.node_id, HERE.to_string());
    assert_eq!(info.max_volumes_per_node, 1000);
    assert_eq!(info.accessible_topology, Some(topology(HERE)));
}

/// A volume whose node is gone is taken back from everywhere, and one that is deleted can still be let go of.
#[tokio::test]
async fn letting_go_always_works() {
    let rig = Rig::new();
    let (mut controller, mut node) = (rig.controller(), rig.node());
    let id = made(&mut controller, "a").await;
    controller.controller_publish_volume(attach(&id, HERE)).await.unwrap();
    // Without a node: from all of them.
    controller.controller_unpublish_volume(detach(&id, "")).await.unwrap();
    controller.delete_volume(delete(&id)).await.unwrap();
    for node in [HERE.to_string(), THERE.to_string(), String::new(), "gone".to_owned()] {
        controller.controller_unpublish_volume(detach(&id, &node)).await.unwrap();
        controller.controller_unpublish_volume(detach("never-was", &node)).await.unwrap();
    }
    node.node_unpublish_volume(unpublish(&id, &rig.path("target"))).await.unwrap();
    node.node_unstage_volume(unstage(&id, &rig.path("staging"))).await.unwrap();
    controller.delete_volume(delete("never-was")).await.unwrap();
}
