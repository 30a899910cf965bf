//! Wrong requests get the code that makes their callers do the right thing, words that say what to do, and change
//! nothing.

use std::cell::RefCell;

use hotbay_api::csi;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use hotbay_api::csi::volume_content_source::{SnapshotSource, Type};
use hotbay_csi::platform::FailureKind;
use hotbay_csi::simulated::{Call, Fault, When};
use tonic::{Code, Status};

use crate::rig::{
    HERE, MIB, Rig, THERE, attach, block, create, delete, expand, made, mount, publish, stage,
    stats, topology, unpublish, unstage, writer,
};

/// Well formed, and nobody's.
const NOBODY: &str = "00000000000000000000000000000fff";

/// What is wrong with a request that is good otherwise.
type Wrong = (&'static str, fn(&mut csi::CreateVolumeRequest));

fn assert_refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, what: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{what}: {status}");
    assert!(status.message().contains("(call "), "{what}: {status}");
}

#[tokio::test]
async fn create_refuses_what_cannot_be_meant() {
    let rig = Rig::new();
    let mut controller = rig.controller();
    let change = |change: fn(&mut csi::CreateVolumeRequest)| {
        let mut request = create("a");
        change(&mut request);
        request
    };
    let wrong: &[Wrong] = &[
        ("no name", |r| r.name.clear()),
        ("long name", |r| r.name = "x".repeat(129)),
        ("NUL in the name", |r| r.name = "a\0b".to_owned()),
        ("no capabilities", |r| r.volume_capabilities.clear()),
        ("empty capability", |r| r.volume_capabilities = vec![csi::VolumeCapability::default()]),
        ("block and mount", |r| {
            r.volume_capabilities.push(block(Mode::SingleNodeWriter));
        }),
        ("several nodes", |r| {
            r.volume_capabilities = vec![mount(Mode::MultiNodeMultiWriter)];
        }),
        ("several nodes, block", |r| {
            r.volume_capabilities = vec![block(Mode::MultiNodeMultiWriter)];
        }),
        ("negative size", |r| {
            r.capacity_range = Some(csi::CapacityRange { required_bytes: -1, limit_bytes: 0 });
        }),
        ("limit below required", |r| {
            r.capacity_range = Some(csi::CapacityRange { required_bytes: 2, limit_bytes: 1 });
        }),
        ("no size in the range", |r| r.capacity_range = Some(csi::CapacityRange::default())),
        ("a snapshot as source", |r| {
            let snapshot = SnapshotSource { snapshot_id: "s".to_owned() };
            let source = csi::VolumeContentSource { r#type: Some(Type::Snapshot(snapshot)) };
            r.volume_content_source = Some(source);
        }),
        ("an empty source", |r| {
            r.volume_content_source = Some(csi::VolumeContentSource::default());
        }),
        ("mutable parameters", |r| {
            r.mutable_parameters.insert("iops".to_owned(), "1".to_owned());
        }),
        ("parameters without end", |r| {
            r.parameters.insert("k".to_owned(), "v".repeat(5000));
        }),
        ("a zone", |r| {
            let segments = [("topology.kubernetes.io/zone".to_owned(), "z".to_owned())].into();
            let preferred = vec![csi::Topology { segments }];
            let asked = csi::TopologyRequirement { requisite: vec![], preferred };
            r.accessibility_requirements = Some(asked);
        }),
    ];
    for (what, wrong) in wrong {
        let answer = controller.create_volume(change(*wrong)).await;
        assert_refused(answer, Code::InvalidArgument, what);
    }
    let huge = change(|r| {
        r.capacity_range = Some(csi::CapacityRange { required_bytes: i64::MAX, limit_bytes: 0 });
    });
    assert_refused(controller.create_volume(huge).await, Code::ResourceExhausted, "huge");
    let odd = change(|r| {
        r.capacity_range = Some(csi::CapacityRange { required_bytes: 1, limit_bytes: 2 });
    });
    assert_refused(controller.create_volume(odd).await, Code::OutOfRange, "no extent fits");
    assert_eq!(rig.cluster.counts().0, 0);
}

#[tokio::test]
async fn other_volume_of_the_same_name_is_not_given_out() {
    let rig = Rig::new();
    let mut controller = rig.controller();
    made(&mut controller, "a").await;
    let wrong: &[Wrong] = &[
        ("another size", |r| {
            let size = csi::CapacityRange { required_bytes: 128 * MIB, limit_bytes: 0 };
            r.capacity_range = Some(size);
        }),
        ("a smaller limit", |r| {
            r.capacity_range = Some(csi::CapacityRange { required_bytes: 0, limit_bytes: MIB });
        }),
        ("other parameters", |r| {
            r.parameters.insert("media".to_owned(), "ssd".to_owned());
        }),
        ("the other access", |r| r.volume_capabilities = vec![block(Mode::SingleNodeWriter)]),
        ("another node", |r| {
            let requisite = vec![topology(THERE)];
            let asked = csi::TopologyRequirement { requisite, preferred: vec![] };
            r.accessibility_requirements = Some(asked);
        }),
    ];
    for (what, change) in wrong {
        let mut request = create("a");
        change(&mut request);
        let answer = controller.create_volume(request).await;
        assert_refused(answer, Code::AlreadyExists, what);
    }
    assert_eq!(rig.cluster.counts().0, 1);
}

#[tokio::test]
async fn ids_that_nobody_has_are_not_found_whatever_their_shape() {
    let rig = Rig::new();
    let (mut controller, mut node) = (rig.controller(), rig.node());
    let long = "f".repeat(5000);
    for id in [NOBODY, "fake-vol-id", "../x", "\u{1f}", &long, &NOBODY.to_uppercase()] {
        let (staging, target) = (rig.path("staging"), rig.path("target"));
        let get = csi::ControllerGetVolumeRequest { volume_id: id.to_owned() };
        let validate = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.to_owned(),
            volume_capabilities: vec![writer()],
            ..Default::default()
        };
        let on_node = csi::NodeExpandVolumeRequest {
            volume_id: id.to_owned(),
            volume_path: target.clone(),
            ..Default::default()
        };
        let not_found = Code::NotFound;
        assert_refused(controller.controller_get_volume(get).await, not_found, id);
        assert_refused(controller.validate_volume_capabilities(validate).await, not_found, id);
        let answer = controller.controller_publish_volume(attach(id, HERE)).await;
        assert_refused(answer, not_found, id);
        let answer = controller.controller_expand_volume(expand(id, MIB)).await;
        assert_refused(answer, not_found, id);
        assert_refused(node.node_stage_volume(stage(id, &staging)).await, not_found, id);
        let answer = node.node_publish_volume(publish(id, &staging, &target)).await;
        assert_refused(answer, not_found, id);
        assert_refused(node.node_get_volume_stats(stats(id, &target)).await, not_found, id);
        assert_refused(node.node_expand_volume(on_node).await, not_found, id);
        if id != NOBODY {
            let answer = node.node_unpublish_volume(unpublish(id, &target)).await;
            assert_refused(answer, not_found, id);
            let answer = node.node_unstage_volume(unstage(id, &staging)).await;
            assert_refused(answer, not_found, id);
        }
    }
    let id = made(&mut controller, "a").await;
    for wrong in [NOBODY, "worker-1"] {
        let mut request = attach(&id, HERE);
        request.node_id = wrong.to_owned();
        let answer = controller.controller_publish_volume(request).await;
        assert_refused(answer, Code::NotFound, wrong);
    }
}

#[tokio::test]
async fn paths_that_could_lead_anywhere_are_refused() {
    let rig = Rig::new();
    let (mut controller, mut node) = (rig.controller(), rig.node());
    let id = made(&mut controller, "a").await;
    controller.controller_publish_volume(attach(&id, HERE)).await.unwrap();
    let long = format!("/{}", "a".repeat(5000));
    for path in ["", "target", "/a/../../etc", "/a\0", &long] {
        let invalid = Code::InvalidArgument;
        assert_refused(node.node_stage_volume(stage(&id, path)).await, invalid, path);
        assert_refused(node.node_unstage_volume(unstage(&id, path)).await, invalid, path);
        assert_refused(node.node_publish_volume(publish(&id, "/s", path)).await, invalid, path);
        assert_refused(node.node_unpublish_volume(unpublish(&id, path)).await, invalid, path);
        if !path.is_empty() {
            let answer = node.node_get_volume_stats(stats(&id, path)).await;
            assert_refused(answer, Code::NotFound, path);
        }
    }
    let answer = node.node_publish_volume(publish(&id, "", &rig.path("t"))).await;
    assert_refused(answer, Code::FailedPrecondition, "not staged");
    assert_eq!(rig.cluster.counts(), (1, 0, 0));
}

#[tokio::test]
async fn use_in_the_wrong_order_or_way_is_refused() {
    let rig = Rig::new();
    let (mut controller, mut node) = (rig.controller(), rig.node());
    let id = made(&mut controller, "a").await;
    let (staging, target) = (rig.path("staging"), rig.path("target"));
    let first = Code::FailedPrecondition;
    assert_refused(node.node_stage_volume(stage(&id, &staging)).await, first, "not attached");
    controller.controller_publish_volume(attach(&id, HERE)).await.unwrap();
    let answer = node.node_publish_volume(publish(&id, &staging, &target)).await;
    assert_refused(answer, first, "not staged");
    assert_refused(controller.delete_volume(delete(&id)).await, first, "attached");
    let answer = controller.controller_publish_volume(attach(&id, THERE)).await;
    assert_refused(answer, first, "on another node");
    let mut request = attach(&id, HERE);
    request.readonly = true;
    let answer = controller.controller_publish_volume(request).await;
    assert_refused(answer, Code::AlreadyExists, "another readonly");
    node.node_stage_volume(stage(&id, &staging)).await.unwrap();
    let answer = node.node_stage_volume(stage(&id, &rig.path("elsewhere"))).await;
    assert_refused(answer, Code::AlreadyExists, "staged elsewhere");
    let mut request = expand(&id, 128 * MIB);
    request.capacity_range = Some(csi::CapacityRange { required_bytes: 0, limit_bytes: MIB });
    let answer = controller.controller_expand_volume(request).await;
    assert_refused(answer, Code::InvalidArgument, "expand without a size");
    let mut request = expand(&id, MIB);
    request.capacity_range = Some(csi::CapacityRange { required_bytes: MIB, limit_bytes: MIB });
    let answer = controller.controller_expand_volume(request).await;
    assert_refused(answer, Code::OutOfRange, "shrink");
}

#[tokio::test]
async fn one_writer_means_one_target() {
    let rig = Rig::new();
    let (mut controller, mut node) = (rig.controller(), rig.node());
    let id = made(&mut controller, "a").await;
    controller.controller_publish_volume(attach(&id, HERE)).await.unwrap();
    let staging = rig.path("staging");
    node.node_stage_volume(stage(&id, &staging)).await.unwrap();
    let at = |name: &str, mode| {
        let mut request = publish(&id, &staging, &rig.path(name));
        request.volume_capability = Some(mount(mode));
        request
    };
    node.node_publish_volume(at("one", Mode::SingleNodeSingleWriter)).await.unwrap();
    for mode in [Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter] {
        let answer = node.node_publish_volume(at("two", mode)).await;
        assert_refused(answer, Code::FailedPrecondition, "a second target");
    }
    node.node_unpublish_volume(unpublish(&id, &rig.path("one"))).await.unwrap();
    for name in ["one", "two"] {
        node.node_publish_volume(at(name, Mode::SingleNodeMultiWriter)).await.unwrap();
    }
}

#[tokio::test]
async fn validation_says_no_with_words_and_yes_with_what_was_asked() {
    let rig = Rig::new();
    let mut controller = rig.controller();
    let id = made(&mut controller, "a").await;
    let ask = |capabilities: Vec<csi::VolumeCapability>| csi::ValidateVolumeCapabilitiesRequest {
        volume_id: id.clone(),
        volume_capabilities: capabilities,
        ..Default::default()
    };
    let yes = controller.validate_volume_capabilities(ask(vec![writer()])).await.unwrap();
    assert_eq!(yes.into_inner().confirmed.unwrap().volume_capabilities, [writer()]);
    let no = ask(vec![mount(Mode::MultiNodeMultiWriter)]);
    let no = controller.validate_volume_capabilities(no).await.unwrap().into_inner();
    assert_eq!(no.confirmed, None);
    assert!(no.message.contains("ReadWriteOnce"), "{}", no.message);
    let mut other = ask(vec![writer()]);
    other.volume_context.insert("drive".to_owned(), "another".to_owned());
    let no = controller.validate_volume_capabilities(other).await.unwrap().into_inner();
    assert_eq!(no.confirmed, None);
    let malformed = ask(vec![csi::VolumeCapability::default()]);
    let answer = controller.validate_volume_capabilities(malformed).await;
    assert_refused(answer, Code::InvalidArgument, "malformed");
}

#[tokio::test]
async fn failures_of_the_platform_keep_their_kind() {
    let rig = Rig::new();
    let mut controller = rig.controller();
    for kind in FailureKind::ALL {
        let fault = Fault { kind, when: When::Before, times: 1 };
        rig.cluster.faults().fail(Call::Create, fault);
        let status = controller.create_volume(create("a")).await.unwrap_err();
        let expected = format!("{kind:?}");
        assert_eq!(format!("{:?}", status.code()), expected, "{status}");
    }
}

thread_local! {
    /// What was logged on this thread; a test has one of its own.
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct Log;

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Each failed call has one line, which the answer names. Secrets of a request are in neither.
#[tokio::test]
async fn failed_call_is_logged_once_and_no_secret_is() {
    let rig = Rig::new();
    let (mut controller, mut node) = (rig.controller(), rig.node());
    // For all threads: one for this alone would not be asked about lines that other tests came to first.
    tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).init();
    let secrets = || [("password".to_owned(), "hunter2".to_owned())].into();
    let mut refused = create("a");
    (refused.secrets, refused.name) = (secrets(), String::new());
    let mut lost = create("a");
    lost.secrets = secrets();
    let fault = Fault { kind: FailureKind::Unavailable, when: When::After, times: 1 };
    rig.cluster.faults().fail(Call::Create, fault);
    let mut unknown = stage(NOBODY, "/s");
    unknown.secrets = secrets();
    let failures = [
        controller.create_volume(refused).await.unwrap_err(),
        controller.create_volume(lost).await.unwrap_err(),
        node.node_stage_volume(unknown).await.unwrap_err(),
    ];
    let log = String::from_utf8(LOG.take()).unwrap();
    let ours: Vec<_> = log.lines().filter(|line| line.contains("hotbay_csi")).collect();
    assert_eq!(ours.len(), failures.len(), "{log}");
    assert!(!log.contains("hunter2"), "{log}");
    for (status, line) in failures.iter().zip(ours) {
        let (_, id) = status.message().rsplit_once("(call ").unwrap();
        assert!(line.contains(id.trim_end_matches(')')), "{status}: {line}");
        assert!(!status.message().contains("hunter2"), "{status}");
    }
}

#[tokio::test]
async fn list_tokens_and_limits_are_ours() {
    let rig = Rig::new();
    let mut controller = rig.controller();
    for token in ["invalid-token", "7", &NOBODY.to_uppercase()] {
        let starting_token = token.to_owned();
        let request = csi::ListVolumesRequest { max_entries: 0, starting_token };
        assert_refused(controller.list_volumes(request).await, Code::Aborted, token);
    }
    let request = csi::ListVolumesRequest { max_entries: -1, starting_token: String::new() };
    assert_refused(controller.list_volumes(request).await, Code::InvalidArgument, "negative");
}

#[tokio::test]
async fn what_is_not_served_says_so() {
    let rig = Rig::new();
    let mut controller = rig.controller();
    let status = [
        controller.create_snapshot(csi::CreateSnapshotRequest::default()).await.unwrap_err(),
        controller.delete_snapshot(csi::DeleteSnapshotRequest::default()).await.unwrap_err(),
        controller.list_snapshots(csi::ListSnapshotsRequest::default()).await.unwrap_err(),
        controller.get_snapshot(csi::GetSnapshotRequest::default()).await.unwrap_err(),
        controller
            .controller_modify_volume(csi::ControllerModifyVolumeRequest::default())
            .await
            .unwrap_err(),
    ];
    assert!(status.iter().all(|status| status.code() == Code::Unimplemented), "{status:?}");
}
