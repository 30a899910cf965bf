//! Paths and targets that are not what a kubelet usually names.

use std::os::unix::fs::symlink;
use std::process::Command;

use hotbay_api::csi;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::rig::{As, Rig, Volume, capability, refused};

#[test]
fn paths_with_spaces_and_line_breaks_are_paths() {
    let rig = Rig::new(1);
    let caller = rig.caller();
    for (number, access) in [As::Filesystem, As::Block].into_iter().enumerate() {
        let folder = rig.path(&format!("with space {number}\nand\ta \\ line"));
        std::fs::create_dir(&folder).unwrap();
        let mut volume = rig.attached(&format!("a{number}"), access);
        volume.staging = format!("{folder}/stag ing\n");
        volume.target = format!("{folder}/tar\nget ");
        rig.runtime.block_on(async {
            // Each of them twice: what is there already is known again by such a name.
            for _ in 0..2 {
                volume.stage(&caller).await.unwrap();
            }
            for _ in 0..2 {
                volume.publish(&caller).await.unwrap();
            }
            assert!(volume.stats(&caller).await.unwrap() > 0);
            for _ in 0..2 {
                volume.unpublish(&caller).await.unwrap();
            }
            for _ in 0..2 {
                volume.unstage(&caller).await.unwrap();
            }
        });
        rig.end(&volume);
        std::fs::remove_dir_all(folder).unwrap();
    }
    rig.assert_nothing_left();
}

#[test]
fn paths_that_lead_elsewhere_are_refused() {
    let rig = Rig::new(1);
    let caller = rig.caller();
    let volume = rig.attached("a", As::Filesystem);
    let up = rig.path("x/../y");
    let invalid = Code::InvalidArgument;
    rig.runtime.block_on(async {
        let wrong = Volume { staging: up.clone(), ..volume.clone() };
        refused(wrong.stage(&caller).await, invalid, "staging_target_path");
        refused(wrong.unstage(&caller).await, invalid, "staging_target_path");
        volume.stage(&caller).await.unwrap();
        for target in [up.as_str(), "target", ""] {
            let wrong = Volume { target: target.to_owned(), ..volume.clone() };
            refused(wrong.publish(&caller).await, invalid, "target_path");
            refused(wrong.unpublish(&caller).await, invalid, "target_path");
        }
    });
    rig.end(&volume);
    rig.assert_nothing_left();
}

/// What is at a target already stays, and is named in the answer.
#[test]
fn targets_that_are_something_else_are_left_alone() {
    let rig = Rig::new(1);
    let caller = rig.caller();
    let volume = rig.attached("a", As::Filesystem);
    let (file, link) = (rig.path("file"), rig.path("link"));
    let (busy, elsewhere) = (rig.path("busy"), rig.path("elsewhere"));
    std::fs::write(&file, "precious").unwrap();
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::create_dir(&busy).unwrap();
    symlink(&elsewhere, &link).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "hotbay-test", &busy]).status();
    assert!(mounted.unwrap().success());
    let first = Code::FailedPrecondition;
    rig.runtime.block_on(async {
        let at =
            |path: &str| Volume { staging: path.into(), target: path.into(), ..volume.clone() };
        refused(at(&file).stage(&caller).await, first, "is a file, not a directory");
        refused(at(&link).stage(&caller).await, first, "symbolic link");
        refused(at(&busy).stage(&caller).await, Code::AlreadyExists, "tmpfs");
        // It stays where it is mapped, until it is staged or given up.
        volume.stage(&caller).await.unwrap();
        let to = |path: &str| Volume { target: path.into(), ..volume.clone() };
        refused(to(&file).publish(&caller).await, first, "is a file, not a directory");
        refused(to(&link).publish(&caller).await, first, "symbolic link");
        refused(to(&busy).publish(&caller).await, Code::AlreadyExists, "tmpfs");
        let nowhere = rig.path("no/such/parent");
        refused(to(&nowhere).publish(&caller).await, Code::Unavailable, "parent directory");
    });
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    assert!(std::fs::read_link(&link).is_ok());
    assert!(Command::new("umount").arg(&busy).status().unwrap().success());
    rig.end(&volume);
    rig.assert_nothing_left();
}

#[test]
fn a_volume_is_used_in_one_way() {
    let rig = Rig::new(1);
    let caller = rig.caller();
    let volume = rig.attached("a", As::Filesystem);
    rig.runtime.block_on(async {
        refused(volume.publish(&caller).await, Code::FailedPrecondition, "staged");
        volume.stage(&caller).await.unwrap();
        let block = Volume { access: As::Block, ..volume.clone() };
        refused(block.publish(&caller).await, Code::FailedPrecondition, "not as raw block");
        refused(block.stage(&caller).await, Code::AlreadyExists, "not as raw block");
        let elsewhere = Volume { staging: rig.path("elsewhere"), ..volume.clone() };
        refused(elsewhere.stage(&caller).await, Code::AlreadyExists, "a-staging already");
        volume.publish(&caller).await.unwrap();
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: volume.id.clone(),
            volume_capabilities: vec![capability(As::Filesystem, Mode::MultiNodeMultiWriter)],
            ..Default::default()
        };
        let mut controller = caller.controller.clone();
        let answer = controller.validate_volume_capabilities(request).await.unwrap().into_inner();
        assert!(answer.confirmed.is_none() && answer.message.contains("node"), "{answer:?}");
    });
    rig.end(&volume);
    rig.assert_nothing_left();
}
