//! Calls that meet: on one volume the second is told to come again; others do not wait. Callers that go away.

use std::sync::Arc;
use std::time::Duration;

use hotbay_api::csi::controller_client::ControllerClient;
use hotbay_csi::identity::Identity;
use hotbay_csi::serve::{self, Socket};
use hotbay_csi::simulated::{Call, Simulated};
use tokio::sync::oneshot;
use tonic::{Code, Request};

use crate::rig::{
    HERE, Rig, attach, create, delete, dial, expand, made, publish, stage, stats, unpublish,
    unstage,
};

#[tokio::test]
async fn second_call_on_a_volume_is_aborted_and_others_go_on() {
    let rig = Rig::new();
    let mut controller = rig.controller();
    let (one, other) = (made(&mut controller, "a").await, made(&mut controller, "b").await);
    let hold = rig.cluster.faults().hold(Call::Attach);
    let mut first = rig.controller();
    let held = {
        let request = attach(&one, HERE);
        tokio::spawn(async move { first.controller_publish_volume(request).await })
    };
    hold.arrived().await;
    for answer in [
        controller.controller_publish_volume(attach(&one, HERE)).await.map(drop),
        controller.delete_volume(delete(&one)).await.map(drop),
        controller.controller_expand_volume(expand(&one, 1)).await.map(drop),
    ] {
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "{status}");
        assert!(status.message().contains("ControllerPublishVolume"), "{status}");
    }
    controller.delete_volume(delete(&other)).await.unwrap();
    drop(hold);
    held.await.unwrap().unwrap();
    controller.controller_publish_volume(attach(&one, HERE)).await.unwrap();
}

#[tokio::test]
async fn two_creates_of_one_name_do_not_meet() {
    let rig = Rig::new();
    let hold = rig.cluster.faults().hold(Call::Create);
    let mut first = rig.controller();
    let held = tokio::spawn(async move { first.create_volume(create("a")).await });
    hold.arrived().await;
    let mut second = rig.controller();
    let status = second.create_volume(create("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    drop(hold);
    held.await.unwrap().unwrap();
    assert_eq!(rig.cluster.counts().0, 1);
}

#[tokio::test]
async fn on_a_node_stats_do_not_wait_for_a_stage_that_hangs() {
    let rig = Rig::new();
    let (mut controller, mut node) = (rig.controller(), rig.node());
    let id = made(&mut controller, "a").await;
    controller.controller_publish_volume(attach(&id, HERE)).await.unwrap();
    let (staging, target) = (rig.path("staging"), rig.path("target"));
    node.node_stage_volume(stage(&id, &staging)).await.unwrap();
    let hold = rig.cluster.faults().hold(Call::Publish);
    let mut first = rig.node();
    let request = publish(&id, &staging, &target);
    let held = tokio::spawn(async move { first.node_publish_volume(request).await });
    hold.arrived().await;
    node.node_get_volume_stats(stats(&id, &staging)).await.unwrap();
    let status = node.node_unstage_volume(unstage(&id, &staging)).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    drop(hold);
    held.await.unwrap().unwrap();
    node.node_unpublish_volume(unpublish(&id, &target)).await.unwrap();
    node.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
}

/// The caller's time is up; the work is not cut in half, and whoever calls again hears that it is under way, and in
/// the end of the same volume.
#[tokio::test]
async fn deadline_is_told_and_the_work_goes_on() {
    let rig = Rig::new();
    let mut controller = rig.controller();
    let hold = rig.cluster.faults().hold(Call::Create);
    let mut request = Request::new(create("late"));
    request.metadata_mut().insert("grpc-timeout", "200m".parse().unwrap());
    let mut patient = rig.patient_controller().await;
    let status = patient.create_volume(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(status.message().contains("call again"), "{status}");
    let status = controller.create_volume(create("late")).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert_eq!(rig.cluster.counts().0, 0);
    drop(hold);
    let id = loop {
        match controller.create_volume(create("late")).await {
            Ok(answer) => break answer.into_inner().volume.unwrap().volume_id,
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    };
    assert_eq!(id, made(&mut controller, "late").await);
    assert_eq!(rig.cluster.counts().0, 1);
}

#[tokio::test]
async fn deadline_holds_for_reads_as_well() {
    let rig = Rig::new();
    let mut controller = rig.patient_controller().await;
    let hold = rig.cluster.faults().hold(Call::Volumes);
    let mut request = Request::new(hotbay_api::csi::ListVolumesRequest::default());
    request.metadata_mut().insert("grpc-timeout", "100m".parse().unwrap());
    let status = controller.list_volumes(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    drop(hold);
}

/// A sidecar that is killed in the middle of a call.
#[tokio::test]
async fn work_of_a_caller_that_has_gone_comes_to_its_end() {
    let rig = Rig::new();
    let mut controller = rig.controller();
    let id = made(&mut controller, "a").await;
    let hold = rig.cluster.faults().hold(Call::Delete);
    let mut goes = rig.controller();
    let request = delete(&id);
    let gone = tokio::spawn(async move { goes.delete_volume(request).await });
    hold.arrived().await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    drop(hold);
    // Nothing tells when it is done but the volume itself.
    while rig.cluster.counts().0 > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    controller.delete_volume(delete(&id)).await.unwrap();
}

/// A program that is told to stop answers what it has begun, and takes its socket with it.
#[tokio::test]
async fn stop_waits_for_the_calls_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    let cluster = Simulated::default();
    cluster.add_node(HERE, 1 << 30, None);
    let identity = Identity::new("1", || true);
    let routes = serve::controller(identity, Arc::new(cluster.controller()));
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let serving = tokio::spawn(serve::serve(Socket::bind(&path).unwrap(), routes, stopped));
    let hold = cluster.faults().hold(Call::Create);
    let mut client = ControllerClient::new(dial(path.clone()));
    let call = tokio::spawn(async move { client.create_volume(create("last")).await });
    hold.arrived().await;
    stop.send(()).unwrap();
    drop(hold);
    call.await.unwrap().unwrap();
    serving.await.unwrap().unwrap();
    assert!(!path.exists());
}
