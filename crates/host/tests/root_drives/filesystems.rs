//! Filesystems on mapped volumes: made, checked, damaged, grown.

use std::fs::File;
use std::os::unix::fs::FileExt;

use hotbay_core::label::change::Change;
use hotbay_host::filesystem::{
    Checked, FilesystemDone as Done, FilesystemError as Error, FilesystemKind,
    FilesystemTask as Task, VolumeDevice,
};
use hotbay_host::scan::Signatures;

use crate::Test;
use crate::lab::{Lab, VOLUME_MIB, is_missing, mount, mounted};
use crate::rig::{LIMIT, block_on, run};
use crate::volumes::{MIB, unmap, wanted};

pub(crate) const TESTS: &[Test] = &[
    ("ext4_goes_through_its_life", || life_of(FilesystemKind::Ext4)),
    ("xfs_goes_through_its_life", || life_of(FilesystemKind::Xfs)),
    ("btrfs_goes_through_its_life", || life_of(FilesystemKind::Btrfs)),
    ("no_filesystem_is_made_over_anything", over_anything),
    ("an_xfs_that_was_never_finished_is_made_again", unfinished),
    ("a_damaged_filesystem_is_repaired_or_told", damaged),
    ("two_clones_of_one_xfs_are_mounted_side_by_side", clones),
];

fn life_of(kind: FilesystemKind) {
    if is_missing(kind) {
        return;
    }
    block_on(async {
        let lab = Lab::new().await;
        let (mapping, device) = lab.volume(1, 4).await;
        assert_eq!(lab.make(&device, kind).await, Ok(Done::Made));
        let signature = Task::Signature { device: device.clone(), limit: LIMIT };
        let told = format!("{:?}", lab.ask(signature).await.unwrap());
        assert!(told.contains(kind.name()), "{told}");
        let check = Task::Check { device: device.clone(), kind, limit: LIMIT };
        let expected = match kind {
            FilesystemKind::Ext4 => Checked::Clean,
            FilesystemKind::Xfs | FilesystemKind::Btrfs => Checked::AtMount,
        };
        assert_eq!(lab.ask(check).await, Ok(Done::Checked(expected)));

        let staged = lab.path("a stage\nof two lines");
        let stage = mount(&device, &staged, kind, &["noatime"]);
        let seen = mounted(lab.ask(stage.clone()).await).unwrap();
        assert_eq!((seen.device, seen.kind.as_str()), (Some(mapping.number), kind.name()));
        assert_eq!(mounted(lab.ask(stage).await), Ok(seen.clone()), "again");
        assert_eq!(lab.at(&staged).await, Some(seen));
        std::fs::write(format!("{staged}/file"), "kept").unwrap();
        let published = lab.path("published");
        for _ in 0..2 {
            lab.bind(&staged, &published, false).await.unwrap();
        }
        assert_eq!(std::fs::read(format!("{published}/file")).unwrap(), b"kept");

        let before = usage(&lab, &staged).await;
        lab.drive.change(&Change::Grow {
            volume: mapping.volume,
            part: 0,
            length_bytes: 2 * VOLUME_MIB * MIB,
        });
        lab.drive.grow(&lab.workers, &wanted(1, 4, 2 * VOLUME_MIB)).await.unwrap();
        // Only a process with CAP_SYS_RESOURCE may grow a mounted ext4.
        let online = kind != FilesystemKind::Ext4;
        let grow =
            |mounted_at| Task::Grow { device: device.clone(), kind, mounted_at, limit: LIMIT };
        if online {
            assert_eq!(lab.ask(grow(Some(staged.clone()))).await, Ok(Done::Grown));
            assert_eq!(lab.ask(grow(Some(staged.clone()))).await, Ok(Done::Grown), "again");
        }
        assert_eq!(lab.unmount(&published).await, Ok(1));
        assert_eq!(lab.unmount(&published).await, Ok(0), "again");
        assert_eq!(lab.remove(&published).await, Ok(true));
        assert_eq!(lab.remove(&published).await, Ok(false), "again");
        assert_eq!(lab.unmount(&staged).await, Ok(1));
        if !online {
            assert_eq!(lab.ask(grow(None)).await, Ok(Done::Grown));
        }
        mounted(lab.ask(mount(&device, &staged, kind, &[])).await).unwrap();
        let after = usage(&lab, &staged).await;
        assert!(after > before + 200 * MIB, "{before} to {after}");
        assert_eq!(std::fs::read(format!("{staged}/file")).unwrap(), b"kept");
        assert_eq!(lab.unmount(&staged).await, Ok(1));
        assert_eq!(lab.remove(&staged).await, Ok(true));
        assert_eq!(unmap(&lab.workers, mapping.volume).await, Ok(true));
    });
}

async fn usage(lab: &Lab, target: &str) -> u64 {
    match lab.ask(Task::Usage { target: target.into() }).await.unwrap() {
        Done::Usage(usage) => {
            assert!(usage.used_bytes <= usage.total_bytes && usage.available_bytes > 0);
            assert!(usage.free_inodes <= usage.total_inodes);
            usage.total_bytes
        }
        other => panic!("{other:?}"),
    }
}

fn over_anything() {
    if is_missing(FilesystemKind::Ext4) {
        return;
    }
    block_on(async {
        let lab = Lab::new().await;
        let (_, device) = lab.volume(1, 4).await;
        let not_there = VolumeDevice { path: "/dev/nonexistent".into(), ..device.clone() };
        let another = VolumeDevice { path: lab.drive.seen.path.clone(), ..device.clone() };
        for wrong in [not_there, another] {
            let refused = lab.make(&wrong, FilesystemKind::Ext4).await;
            assert_eq!(refused, Err(Error::OtherDevice { path: wrong.path }));
        }
        let contents: [(&str, &dyn Fn()); 3] = [
            ("ext4", &|| drop(run("mkfs.ext4", &["-q", "-F", &device.path]))),
            ("dos", &|| {
                drop(run("sh", &["-c", &format!("echo 2048,2048 | sfdisk -q {}", device.path)]))
            }),
            ("swap", &|| drop(run("mkswap", &[&device.path]))),
        ];
        for (what, make) in contents {
            run("wipefs", &["-qa", &device.path]);
            make();
            for kind in [FilesystemKind::Ext4, FilesystemKind::Xfs] {
                let what = what.to_owned();
                let refused = Err(Error::HasContents { path: device.path.clone(), what });
                assert_eq!(lab.make(&device, kind).await, refused);
            }
        }
        // Two that contradict each other: whichever is right, it is theirs.
        run("wipefs", &["-qa", &device.path]);
        let file = File::options().write(true).open(&device.path).unwrap();
        file.write_all_at(b"XFSB", 0).unwrap();
        run("mkswap", &[&device.path]);
        file.write_all_at(b"_BHRfS_M", (64 << 10) + 64).unwrap();
        file.sync_all().unwrap();
        let refused = lab.make(&device, FilesystemKind::Ext4).await.unwrap_err();
        assert!(matches!(refused, Error::Unclear { .. } | Error::HasContents { .. }), "{refused}");
        run("wipefs", &["-qa", &device.path]);
        assert_eq!(lab.make(&device, FilesystemKind::Ext4).await, Ok(Done::Made));
        assert!(matches!(
            lab.make(&device, FilesystemKind::Ext4).await,
            Err(Error::HasContents { .. })
        ));
    });
}

/// `mkfs.xfs` marks its superblock while it works. What it leaves when it is killed has a signature, but was never a
/// filesystem, and a volume must not be lost by it.
fn unfinished() {
    if is_missing(FilesystemKind::Xfs) {
        return;
    }
    block_on(async {
        let lab = Lab::new().await;
        let (_, device) = lab.volume(1, 4).await;
        assert_eq!(lab.make(&device, FilesystemKind::Xfs).await, Ok(Done::Made));
        assert!(lab.make(&device, FilesystemKind::Xfs).await.is_err(), "this one is finished");
        let write = ["-x", "-c", "sb 0", "-c", "write -c inprogress 1", &device.path];
        run("xfs_db", &write);
        let signature = Task::Signature { device: device.clone(), limit: LIMIT };
        assert_eq!(lab.ask(signature).await, Ok(Done::Signature(Signatures::Nothing)));
        assert!(matches!(
            lab.make(&device, FilesystemKind::Ext4).await,
            Err(Error::HasContents { .. })
        ));
        assert_eq!(lab.make(&device, FilesystemKind::Xfs).await, Ok(Done::Made));
        let target = lab.path("mnt");
        mounted(lab.ask(mount(&device, &target, FilesystemKind::Xfs, &[])).await).unwrap();
        lab.unmount(&target).await.unwrap();
    });
}

fn damaged() {
    if is_missing(FilesystemKind::Ext4) {
        return;
    }
    block_on(async {
        let lab = Lab::new().await;
        let (_, device) = lab.volume(1, 4).await;
        let kind = FilesystemKind::Ext4;
        let check = || lab.ask(Task::Check { device: device.clone(), kind, limit: LIMIT });
        assert!(matches!(check().await, Err(Error::ToolFailed { .. })), "nothing is there");
        lab.make(&device, kind).await.unwrap();
        // An inode that nobody can reach: repaired by itself.
        let debugfs = |request: &str| run("debugfs", &["-w", "-R", request, &device.path]);
        debugfs("write /etc/passwd lost");
        debugfs("ssv state 2");
        debugfs("sif lost links_count 7");
        let repaired = check().await.unwrap();
        assert!(matches!(repaired, Done::Checked(Checked::Repaired { .. })), "{repaired:?}");
        assert_eq!(check().await, Ok(Done::Checked(Checked::Clean)));
        // The root directory is gone: a person must decide.
        debugfs("clri <2>");
        debugfs("ssv state 2");
        let told = check().await.unwrap_err();
        assert!(matches!(told, Error::Damaged { .. }), "{told}");
        assert!(told.to_string().contains("RUN fsck MANUALLY"), "{told}");
        // Not a filesystem any more.
        File::options()
            .write(true)
            .open(&device.path)
            .unwrap()
            .write_all_at(&[0; 4096], 0)
            .unwrap();
        let told = lab.mount(&device, &lab.path("mnt")).await.unwrap_err();
        assert!(matches!(told, Error::Mount { .. }), "{told}");
        assert_eq!(lab.at(&lab.path("mnt")).await, None);
        assert_eq!(lab.remove(&lab.path("mnt")).await, Ok(true));
    });
}

fn clones() {
    if is_missing(FilesystemKind::Xfs) {
        return;
    }
    block_on(async {
        let lab = Lab::new().await;
        let (_, source) = lab.volume(1, 4).await;
        let (_, clone) = lab.volume(2, 4 + VOLUME_MIB).await;
        lab.make(&source, FilesystemKind::Xfs).await.unwrap();
        let copy = [&format!("if={}", source.path), &format!("of={}", clone.path)];
        run("dd", &[copy[0], copy[1], "bs=4M", "oflag=direct", "status=none"]);
        for (device, name) in [(&source, "one"), (&clone, "two")] {
            let task = mount(device, &lab.path(name), FilesystemKind::Xfs, &[]);
            let seen = mounted(lab.ask(task).await).unwrap();
            assert_eq!(seen.device, Some(device.number));
        }
        for name in ["one", "two"] {
            lab.unmount(&lab.path(name)).await.unwrap();
        }
    });
}
