//! Mounts of filesystems and device nodes: of what, where, in the way of each other, and cut in the middle.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, symlink};

use hotbay_host::filesystem::{
    FilesystemError as Error, FilesystemKind, FilesystemTask as Task, VolumeDevice,
};
use hotbay_host::worker::{Request, WorkerError};
use rustix::process::Signal;

use crate::Test;
use crate::lab::{Lab, VOLUME_MIB, is_missing, mount, mounted};
use crate::rig::{LIMIT, Other, block_on, kill, run, state_of, until};
use crate::volumes::{fence, mappings, unmap, wanted};

pub(crate) const TESTS: &[Test] = &[
    ("a_mount_is_believed_by_its_identity_only", identity),
    ("targets_that_are_not_what_they_should_be_are_left_alone", targets),
    ("a_bind_is_read_only_from_its_first_moment", binds),
    ("a_mount_in_use_stays", in_use),
    ("options_that_the_kernel_does_not_know_are_told_in_words", options),
    ("a_filesystem_whose_device_is_cut_is_still_unmounted", cut),
    ("a_child_killed_around_a_mount_leaves_what_the_next_one_finishes", killed),
];

/// Something else at the target was once believed to be the volume, because the target was in the mount table.
fn identity() {
    if is_missing(FilesystemKind::Ext4) {
        return;
    }
    block_on(async {
        let lab = Lab::new().await;
        let (_, device) = lab.volume(1, 4).await;
        let (_, other) = lab.volume(2, 4 + VOLUME_MIB).await;
        for device in [&device, &other] {
            lab.make(device, FilesystemKind::Ext4).await.unwrap();
        }
        let target = lab.path("mnt");
        let seen = lab.mount(&device, &target).await.unwrap();
        let found = |result| match result {
            Err(Error::OtherMount { found, path }) => (path, *found),
            other => panic!("{other:?}"),
        };
        let taken = (target.clone(), seen);
        assert_eq!(found(lab.mount(&other, &target).await), taken);
        assert_eq!(found(lab.bind(&other.path, &target, false).await), taken);
        let read_only = mount(&device, &target, FilesystemKind::Ext4, &["ro"]);
        assert_eq!(found(mounted(lab.ask(read_only).await)), taken);
        // A name that only begins like the target's is another one.
        let longer = format!("{target}-longer");
        assert_eq!(lab.at(&longer).await, None);
        lab.mount(&other, &longer).await.unwrap();
        assert_eq!(lab.unmount(&longer).await, Ok(1));
        // By a link among its parents it is the same target.
        symlink(lab.rig.dir.path(), lab.place("link")).unwrap();
        let by_link = lab.path("link/mnt");
        assert_eq!(lab.at(&by_link).await.unwrap().device, Some(device.number));
        assert_eq!(lab.mount(&device, &by_link).await.unwrap(), taken.1);
        // A tmpfs on top, as of a fake volume, is what is there; both go.
        run("mount", &["-t", "tmpfs", "-o", "size=1M", "fake", &target]);
        assert_eq!(found(lab.mount(&device, &target).await).1.kind, "tmpfs");
        assert_eq!(lab.unmount(&target).await, Ok(2));
        assert_eq!(lab.at(&target).await, None);
        let grow = Task::Grow {
            device: device.clone(),
            kind: FilesystemKind::Ext4,
            mounted_at: Some(target.clone()),
            limit: LIMIT,
        };
        assert_eq!(lab.ask(grow).await, Err(Error::NotMounted { path: target.clone() }));
        let usage = lab.ask(Task::Usage { target: target.clone() }).await;
        assert_eq!(usage, Err(Error::NotMounted { path: target }), "that of the parent");
    });
}

fn targets() {
    if is_missing(FilesystemKind::Ext4) {
        return;
    }
    block_on(async {
        let lab = Lab::new().await;
        let (_, device) = lab.volume(1, 4).await;
        lab.make(&device, FilesystemKind::Ext4).await.unwrap();
        let (file, link, full) = (lab.path("file"), lab.path("link"), lab.path("full"));
        std::fs::write(&file, "someone's").unwrap();
        std::fs::create_dir_all(lab.place("full/of things")).unwrap();
        symlink(lab.place("full"), lab.place("link")).unwrap();
        let wrong = lab.mount(&device, &file).await.unwrap_err();
        assert_eq!(wrong.to_string(), format!("{file} is a file, not a directory"));
        let wrong = lab.bind(&device.path, &full, false).await.unwrap_err();
        assert_eq!(wrong.to_string(), format!("{full} is a directory, not a file"));
        assert_eq!(lab.mount(&device, &link).await, Err(Error::Link { path: link.clone() }));
        assert_eq!(lab.remove(&link).await, Err(Error::Link { path: link.clone() }));
        assert_eq!(lab.unmount(&link).await, Ok(0));
        assert_eq!(lab.remove(&file).await, Err(Error::NotEmpty { path: file.clone() }));
        assert_eq!(lab.remove(&full).await, Err(Error::NotEmpty { path: full.clone() }));
        let orphan = lab.path("no such/directory");
        let no_parent = Err(Error::NoParent { path: orphan.clone() });
        assert_eq!(lab.mount(&device, &orphan).await, no_parent);
        assert_eq!((lab.unmount(&orphan).await, lab.remove(&orphan).await), (Ok(0), Ok(false)));
        // A target that is mounted is not removed, be it empty or not.
        let target = lab.path("mnt");
        lab.mount(&device, &target).await.unwrap();
        assert!(matches!(lab.remove(&target).await, Err(Error::OtherMount { .. })));
        assert_eq!(lab.unmount(&target).await, Ok(1));
        assert_eq!(std::fs::read(&file).unwrap(), b"someone's");
    });
}

fn binds() {
    if is_missing(FilesystemKind::Ext4) {
        return;
    }
    block_on(async {
        let lab = Lab::new().await;
        let (_, device) = lab.volume(1, 4).await;
        lab.make(&device, FilesystemKind::Ext4).await.unwrap();
        let (staged, readers) = (lab.path("stage"), lab.path("readers"));
        lab.mount(&device, &staged).await.unwrap();
        let seen = lab.bind(&staged, &readers, true).await.unwrap();
        assert!(seen.read_only);
        assert_eq!(lab.bind(&staged, &readers, true).await, Ok(seen), "again");
        assert!(std::fs::write(format!("{readers}/x"), "").is_err());
        std::fs::write(format!("{staged}/x"), "").unwrap();
        assert!(lab.bind(&staged, &readers, false).await.is_err(), "it is read-only");
        // A device node is shown on a file.
        let node = lab.path("a device");
        for _ in 0..2 {
            lab.bind(&device.path, &node, false).await.unwrap();
        }
        assert!(std::fs::metadata(&node).unwrap().file_type().is_block_device());
        assert!(matches!(lab.remove(&node).await, Err(Error::OtherMount { .. })));
        assert_eq!(lab.unmount(&node).await, Ok(1));
        assert_eq!(lab.remove(&node).await, Ok(true));
        assert!(std::fs::metadata(&device.path).unwrap().file_type().is_block_device());
        for target in [&readers, &staged] {
            assert_eq!(lab.unmount(target).await, Ok(1));
        }
        assert!(lab.bind(&lab.path("nowhere"), &node, false).await.is_err());
        assert!(!lab.place("a device").exists(), "nothing was made for it");
    });
}

fn in_use() {
    if is_missing(FilesystemKind::Ext4) {
        return;
    }
    block_on(async {
        let lab = Lab::new().await;
        let (mapping, device) = lab.volume(1, 4).await;
        lab.make(&device, FilesystemKind::Ext4).await.unwrap();
        let target = lab.path("mnt");
        lab.mount(&device, &target).await.unwrap();
        let file = format!("{target}/file");
        std::fs::write(&file, "open").unwrap();
        let holder = Other::holding("hold-for-reading", &file);
        assert_eq!(lab.unmount(&target).await, Err(Error::InUse { path: target.clone() }));
        assert_eq!(lab.at(&target).await.unwrap().device, Some(mapping.number));
        assert!(unmap(&lab.workers, mapping.volume).await.is_err());
        drop(holder);
        assert_eq!(lab.unmount(&target).await, Ok(1));
        assert_eq!(unmap(&lab.workers, mapping.volume).await, Ok(true));
        assert!(lab.mount(&device, &target).await.is_err(), "nothing is behind it");
    });
}

fn options() {
    if is_missing(FilesystemKind::Ext4) {
        return;
    }
    block_on(async {
        let lab = Lab::new().await;
        let (_, device) = lab.volume(1, 4).await;
        lab.make(&device, FilesystemKind::Ext4).await.unwrap();
        let target = lab.path("mnt");
        let unknown = mount(&device, &target, FilesystemKind::Ext4, &["nosuchoption"]);
        let told = lab.ask(unknown).await.unwrap_err().to_string();
        assert!(told.contains("nosuchoption"), "{told}");
        let two = mount(&device, &target, FilesystemKind::Ext4, &["noatime,suid"]);
        assert!(matches!(lab.ask(two).await, Err(Error::Option { .. })));
        let other_kind = mount(&device, &target, FilesystemKind::Xfs, &[]);
        assert!(matches!(lab.ask(other_kind).await, Err(Error::Mount { .. })));
        assert_eq!(lab.at(&target).await, None);
        let flags = ["noexec", "nosuid", "noatime", "data=writeback", "defaults"];
        let seen = lab.ask(mount(&device, &target, FilesystemKind::Ext4, &flags)).await;
        mounted(seen).unwrap();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|line| line.contains(&target)).unwrap();
        for word in ["noexec", "nosuid", "noatime", "data=writeback"] {
            assert!(line.contains(word), "{line}");
        }
        lab.unmount(&target).await.unwrap();
    });
}

fn cut() {
    if is_missing(FilesystemKind::Xfs) {
        return;
    }
    block_on(async {
        for (kind, start_mib) in [(FilesystemKind::Ext4, 4), (FilesystemKind::Xfs, 4)] {
            let lab = Lab::new().await;
            let (mapping, device) = lab.volume(1, start_mib).await;
            lab.make(&device, kind).await.unwrap();
            let target = lab.path("mnt");
            mounted(lab.ask(mount(&device, &target, kind, &[])).await).unwrap();
            std::fs::write(format!("{target}/before"), "synced").unwrap();
            File::open(format!("{target}/before")).unwrap().sync_all().unwrap();
            assert!(fence(&lab.workers, mapping.volume).await.unwrap().fenced);
            let written = File::create(format!("{target}/after")).and_then(|file| file.sync_all());
            assert!(written.is_err(), "{kind}: written after the fence");
            // A filesystem that has shut itself down answers nothing, and is known all the same.
            assert_eq!(lab.at(&target).await.unwrap().device, Some(mapping.number), "{kind}");
            assert_eq!(lab.unmount(&target).await, Ok(1), "{kind}");
            let no_size = Err(Error::NoSize { path: device.path.clone() });
            assert_eq!(lab.make(&device, kind).await, no_size, "{kind}");
            assert_eq!(unmap(&lab.workers, mapping.volume).await, Ok(true));
            // Made anew, the volume has what was synced.
            let mapping =
                lab.drive.map(&lab.workers, &wanted(1, start_mib, VOLUME_MIB)).await.unwrap();
            let device = VolumeDevice::from(&mapping);
            lab.ask(Task::Check { device: device.clone(), kind, limit: LIMIT }).await.unwrap();
            mounted(lab.ask(mount(&device, &target, kind, &[])).await).unwrap();
            assert_eq!(std::fs::read(format!("{target}/before")).unwrap(), b"synced");
            lab.unmount(&target).await.unwrap();
        }
    });
}

fn killed() {
    if is_missing(FilesystemKind::Ext4) {
        return;
    }
    block_on(async {
        let lab = Lab::new().await;
        let (_, device) = lab.volume(1, 4).await;
        let (target, second) = (lab.path("mnt"), lab.path("second"));
        let killed_at = async |step: &str, task: Task| {
            let stopping = lab.rig.workers_with(&["drive-worker", step]);
            let running = stopping.start(Request::Filesystem(task), vec![]).unwrap();
            let pid = running.pid();
            until("it stops", || state_of(pid) == Some('T')).await;
            kill(pid, Signal::KILL);
            assert!(matches!(running.await, Err(WorkerError::Died { .. })), "{step}");
        };
        let kind = FilesystemKind::Ext4;
        let make = Task::Make { device: device.clone(), kind, options: vec![], limit: LIMIT };
        killed_at("make-proved", make).await;
        lab.make(&device, kind).await.unwrap();
        for step in ["mount-looked", "mount-made", "mount-put"] {
            killed_at(step, mount(&device, &target, kind, &[])).await;
            lab.mount(&device, &target).await.unwrap();
            assert_eq!(lab.unmount(&target).await, Ok(1), "{step}: mounted once");
        }
        lab.mount(&device, &target).await.unwrap();
        for step in ["bind-looked", "bind-made", "bind-put"] {
            let (source, target) = (target.clone(), second.clone());
            killed_at(step, Task::Bind { source, target, read_only: true }).await;
            lab.bind(&lab.path("mnt"), &second, true).await.unwrap();
            assert_eq!(lab.unmount(&second).await, Ok(1), "{step}: bound once");
        }
        for step in ["unmount-found", "unmount-done"] {
            lab.bind(&target, &second, false).await.unwrap();
            killed_at(step, Task::Unmount { target: second.clone() }).await;
            lab.unmount(&second).await.unwrap();
            assert_eq!(lab.at(&second).await, None, "{step}");
        }
        killed_at("remove-looked", Task::RemoveTarget { target: second.clone() }).await;
        assert_eq!(lab.remove(&second).await, Ok(true));
        lab.unmount(&target).await.unwrap();
        assert_eq!(mappings(&lab.workers).await.len(), 1);
    });
}
