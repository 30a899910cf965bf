//! Requests that cannot be meant, or cannot be met: the right code, words that help, and nothing left behind.

use hotbay_api::csi;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::rig::{As, MIB, Rig, Volume, capability, refused};

const NOBODY: &str = "0123456789abcdef0123456789abcdef";

/// What is wrong, what is changed for it, the code and words of the answer.
type Wrong = (&'static str, fn(&mut csi::CreateVolumeRequest), Code, &'static str);

fn range(required_bytes: i64, limit_bytes: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange { required_bytes, limit_bytes })
}

#[test]
fn wishes_that_cannot_be_met_are_refused() {
    let rig = Rig::new(1);
    let invalid = Code::InvalidArgument;
    let wrong: &[Wrong] = &[
        ("negative size", |r| r.capacity_range = range(-1, 0), invalid, "required_bytes"),
        ("no size in the range", |r| r.capacity_range = range(0, 0), invalid, "capacity_range"),
        ("negative limit", |r| r.capacity_range = range(MIB, -1), invalid, "limit_bytes"),
        ("limit below", |r| r.capacity_range = range(2 * MIB, MIB), invalid, "limit_bytes"),
        ("no whole MiB", |r| r.capacity_range = range(1, 2), Code::OutOfRange, "MiB"),
        ("huge", |r| r.capacity_range = range(i64::MAX, 0), Code::OutOfRange, "EiB"),
        ("too large", |r| r.capacity_range = range(1 << 40, 0), Code::ResourceExhausted, "room"),
        ("no name", |r| r.name.clear(), invalid, "name"),
        ("a long name", |r| r.name = "n".repeat(10_000), invalid, "128"),
        ("a line break in the name", |r| r.name = "a\nb".into(), invalid, "control"),
        (
            "block and filesystem",
            |r| r.volume_capabilities.push(capability(As::Block, Mode::SingleNodeWriter)),
            invalid,
            "block",
        ),
        (
            "several nodes",
            |r| {
                r.volume_capabilities = vec![capability(As::Filesystem, Mode::MultiNodeMultiWriter)]
            },
            invalid,
            "node",
        ),
        (
            "a snapshot as its source",
            |r| {
                use csi::volume_content_source::{SnapshotSource, Type};
                let snapshot = Type::Snapshot(SnapshotSource { snapshot_id: "s".into() });
                let source = csi::VolumeContentSource { r#type: Some(snapshot) };
                r.volume_content_source = Some(source);
            },
            invalid,
            "snapshot",
        ),
    ];
    let wish = Volume::new(&rig, "a", As::Filesystem).wish();
    let mut controller = rig.caller().controller;
    for (what, change, code, words) in wrong {
        println!("{what}");
        let mut request = wish.clone();
        change(&mut request);
        refused(rig.runtime.block_on(controller.create_volume(request)), *code, words);
    }
    let snapshot = csi::CreateSnapshotRequest::default();
    let answer = rig.runtime.block_on(controller.create_snapshot(snapshot));
    refused(answer, Code::Unimplemented, "");
    rig.assert_nothing_left();
}

#[test]
fn the_longest_name_and_odd_sizes_are_taken() {
    let rig = Rig::new(1);
    let caller = rig.caller();
    for (name, asked, bytes) in
        [("n".repeat(128), 1, MIB), ("name with spaces".into(), MIB + 1, 2 * MIB)]
    {
        let mut volume = Volume::new(&rig, "x", As::Filesystem);
        (volume.name, volume.bytes) = (name, asked);
        let answer = rig.runtime.block_on(caller.controller.clone().create_volume(volume.wish()));
        assert_eq!(answer.unwrap().into_inner().volume.unwrap().capacity_bytes, bytes);
        rig.runtime.block_on(volume.create(&caller)).unwrap();
        rig.runtime.block_on(volume.delete(&caller)).unwrap();
    }
    rig.assert_nothing_left();
}

#[test]
fn a_full_drive_is_told_and_takes_volumes_again_when_there_is_room() {
    let rig = Rig::new(1);
    let caller = rig.caller();
    let mut large = Volume { bytes: 40 * MIB, ..Volume::new(&rig, "large", As::Filesystem) };
    rig.runtime.block_on(large.create(&caller)).unwrap();
    let mut more = Volume { bytes: 40 * MIB, ..Volume::new(&rig, "more", As::Filesystem) };
    let answer = rig.runtime.block_on(more.create(&caller));
    refused(answer, Code::ResourceExhausted, "no room");
    let expand = csi::ControllerExpandVolumeRequest {
        volume_id: large.id.clone(),
        capacity_range: range(80 * MIB, 0),
        ..Default::default()
    };
    let answer = rig.runtime.block_on(caller.controller.clone().controller_expand_volume(expand));
    refused(answer, Code::OutOfRange, "room for 20 MiB behind it");
    rig.runtime.block_on(large.delete(&caller)).unwrap();
    rig.runtime.block_on(async {
        // Until its place is erased there is none.
        crate::rig::insist("more", async || match more.create(&caller).await {
            Err(full) if full.code() == Code::ResourceExhausted => {
                Err(tonic::Status::unavailable("full"))
            }
            answer => answer,
        })
        .await;
        more.delete(&caller).await.unwrap();
    });
    rig.assert_nothing_left();
}

#[test]
fn what_nobody_has_is_not_found() {
    let rig = Rig::new(1);
    let caller = rig.caller();
    let stranger = Volume { id: NOBODY.into(), ..Volume::new(&rig, "x", As::Filesystem) };
    rig.runtime.block_on(async {
        refused(stranger.clone().attach(&caller).await, Code::NotFound, "volume");
        refused(stranger.stage(&caller).await, Code::NotFound, "volume");
        refused(stranger.publish(&caller).await, Code::NotFound, "volume");
        refused(stranger.stats(&caller).await, Code::NotFound, "volume");
        // Letting go of what is not there is good.
        stranger.unpublish(&caller).await.unwrap();
        stranger.unstage(&caller).await.unwrap();
        stranger.detach(&caller).await.unwrap();
        stranger.delete(&caller).await.unwrap();
    });
    let volume = rig.attached("a", As::Filesystem);
    let request = csi::ControllerPublishVolumeRequest {
        volume_id: volume.id.clone(),
        node_id: NOBODY.into(),
        volume_capability: Some(capability(As::Filesystem, Mode::SingleNodeWriter)),
        ..Default::default()
    };
    let mut controller = rig.caller().controller;
    let answer = rig.runtime.block_on(controller.controller_publish_volume(request));
    refused(answer, Code::NotFound, "node");
    rig.end(&volume);
    rig.assert_nothing_left();
}
