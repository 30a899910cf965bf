//! Faults of the machine while volumes are made and used: a full disk below the registry, tools that fail or are not
//! there, a drive that cannot be written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tonic::Code;

use crate::cluster::Cluster;
use crate::machine::Tmpfs;
use crate::rig::{As, MIB, Rig, Volume, insist, refused};

/// Volumes that may be acknowledged before the registry's disk is full.
const BEFORE: usize = 8;

#[test]
fn a_full_disk_below_the_registry_loses_no_volume() {
    let mut cluster = Cluster::new(1, true);
    let disk = Tmpfs::at(cluster.path().join("registry"), "12m");
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    let rig = Rig::of(cluster);
    // Named again, so that it goes first: the folder is removed with the rig.
    let disk = disk;
    let caller = rig.caller();
    let volume = |number: usize| Volume {
        bytes: MIB,
        ..Volume::new(&rig, &format!("v-{number}"), As::Filesystem)
    };
    let mut made: Vec<_> = (0..BEFORE).map(volume).collect();
    for volume in &mut made {
        rig.runtime.block_on(volume.create(&caller)).unwrap();
    }
    disk.fill();
    // It may have room within its file for a few more.
    let full = loop {
        let mut next = volume(made.len());
        match rig.runtime.block_on(next.create(&caller)) {
            Ok(()) => made.push(next),
            Err(full) => break full,
        }
        assert!(made.len() < 60, "the drive is full before the disk is");
    };
    refused::<()>(Err(full), Code::Unavailable, "no space left");
    refused(rig.runtime.block_on(made[0].delete(&caller)), Code::Unavailable, "no space left");
    disk.empty();
    // Without a restart it goes on; what was asked for meanwhile may be done or not, and is finished by asking again.
    let mut last = volume(made.len());
    rig.runtime.block_on(async {
        insist("the one that was refused", async || last.create(&caller).await).await;
    });
    made.push(last);
    // Everything that was acknowledged is still there under its id.
    for volume in &mut made {
        let id = volume.id.clone();
        rig.runtime.block_on(async {
            insist(&id, async || volume.create(&caller).await).await;
            if volume.name != "v-0" {
                assert_eq!(volume.id, id, "{} was made anew", volume.name);
            }
            insist(&id, async || volume.delete(&caller).await).await;
        });
    }
    rig.assert_nothing_left();
}

/// A program of this name, first in the agent's path.
fn fake(folder: &Path, name: &str, script: &str) {
    fs::create_dir_all(folder).unwrap();
    let program = folder.join(name);
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_filesystem_that_cannot_be_made_is_told_and_made_later() {
    let mut cluster = Cluster::new(1, true);
    let tools = cluster.path().join("tools");
    fake(&tools, "mkfs.ext4", "echo 'mkfs.ext4: Input/output error while writing' >&2; exit 1");
    cluster.set("PATH", &format!("{}:{}", tools.display(), std::env::var("PATH").unwrap()));
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    let rig = Rig::of(cluster);
    let caller = rig.caller();
    let volume = rig.attached("a", As::Filesystem);
    let answer = rig.runtime.block_on(volume.stage(&caller));
    refused(answer, Code::Unavailable, "Input/output error while writing");
    assert_eq!(rig.mounts(), [""; 0]);
    // As good as if nothing had been: it can be given up,
    rig.end(&volume);
    rig.assert_nothing_left();
    // and it can be staged once the fault is gone.
    let volume = rig.attached("b", As::Filesystem);
    let answer = rig.runtime.block_on(volume.stage(&caller));
    refused(answer, Code::Unavailable, "mkfs.ext4 failed with code 1");
    fs::remove_file(tools.join("mkfs.ext4")).unwrap();
    rig.runtime.block_on(async {
        volume.stage(&caller).await.unwrap();
        volume.publish(&caller).await.unwrap();
    });
    fs::write(format!("{}/x", volume.target), "y").unwrap();
    rig.end(&volume);
    rig.assert_nothing_left();
}
