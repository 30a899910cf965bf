//! Attach and detach as an agent does them, and what is refused.

use std::fs::File;
use std::os::unix::fs::FileExt;

use hotbay_core::device::{Denied, DeviceKind};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, NodeId};
use hotbay_core::label::update::Want;
use hotbay_host::locks::WriterLock;
use hotbay_host::proof::{Blocker, Proof};
use hotbay_host::worker::{Attach, AttachError, Detach, LabelWant, Request, Response};

use crate::Test;
use crate::rig::{
    LIMIT, LoopDevice, Other, Rig, WANT, attach, attach_of, block_on, detach, detach_of,
    exclusive_is_free, run, seen, skipped, until,
};

pub(crate) const TESTS: &[Test] = &[
    ("a_loop_device_goes_in_and_out_of_operation", loop_device),
    ("a_plain_file_goes_in_and_out_of_operation", plain_file),
    ("a_label_is_released_without_a_descriptor", release_without_a_descriptor),
    ("a_drive_with_something_on_it_is_left_as_it_is", foreign),
    ("another_drive_in_the_same_place_is_refused", swapped),
    ("a_label_held_by_another_node_is_refused", other_node),
    ("the_label_of_an_open_drive_is_brought_up_to_date", relabel),
    ("an_attach_that_nobody_waits_for_leaves_nothing_open", abandoned),
    ("a_label_that_cannot_be_written_does_not_stop_the_close", unwritable_label),
    ("a_drive_that_is_gone_is_proved_closed_by_its_number", gone),
];

fn loop_device() {
    if skipped("loop_device") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        let drive = seen(&workers, &device.path).await;
        assert_eq!((drive.denied.as_slice(), drive.kind), (&[][..], DeviceKind::Loop));

        let (attached, descriptor) = attach(&workers, attach_of(&drive)).await.unwrap();
        assert!(attached.label.in_operation);
        let file = File::from(descriptor);
        file.write_all_at(&[7; 4096], 8 << 20).unwrap();
        let mut back = [0; 4096];
        file.read_exact_at(&mut back, 8 << 20).unwrap();
        assert_eq!(back, [7; 4096]);

        // The claim is the agent's, not the child's: it outlives all children.
        assert!(!exclusive_is_free(&device.path));
        drop(workers);
        until("no child is left", || children_of_this_process() == 0).await;
        assert!(!exclusive_is_free(&device.path));

        let workers = rig.workers();
        let labelled = seen(&workers, &device.path).await;
        assert_eq!(labelled.denied, [], "a drive of ours is not denied");
        let Err(AttachError::Busy { by }) = attach(&workers, attach_of(&drive)).await else {
            panic!("attached twice");
        };
        assert!(
            by.iter()
                .any(|b| matches!(b, Blocker::Process { pid, .. } if *pid == std::process::id()))
        );

        let detached = detach(&workers, detach_of(&drive), Some(file.into())).await;
        assert_eq!((detached.label_not_updated, detached.proof), (None, Proof::Proved));
        assert!(exclusive_is_free(&device.path));
        assert!(!seen(&workers, &device.path).await.label.unwrap().in_operation);
    });
}

fn plain_file() {
    block_on(async {
        let rig = Rig::new();
        let path = rig.file("a.img").to_str().unwrap().to_owned();
        let workers = rig.workers();
        let drive = seen(&workers, &path).await;
        assert_eq!((drive.denied.as_slice(), drive.kind), (&[][..], DeviceKind::File));
        let (_, descriptor) = attach(&workers, attach_of(&drive)).await.unwrap();
        let second = descriptor.try_clone().unwrap();

        let detached = detach(&workers, detach_of(&drive), Some(descriptor)).await;
        let Proof::Blocked { by } = detached.proof else { panic!("{detached:?}") };
        assert!(matches!(by[..], [Blocker::Process { pid, .. }] if pid == std::process::id()));
        drop(second);
        let again = Detach { release: None, ..detach_of(&drive) };
        assert_eq!(detach(&workers, again, None).await.proof, Proof::Proved);
        assert!(!seen(&workers, &path).await.label.unwrap().in_operation);
    });
}

/// A drive whose agent died is removed: its label is released although nobody had it open any more.
fn release_without_a_descriptor() {
    if skipped("release_without_a_descriptor") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let file = rig.file("b.img").to_str().unwrap().to_owned();
        let workers = rig.workers();
        for path in [&device.path, &file] {
            let drive = seen(&workers, path).await;
            let (_, descriptor) = attach(&workers, attach_of(&drive)).await.unwrap();
            drop(descriptor);
            assert!(seen(&workers, path).await.label.unwrap().in_operation);

            let detached = detach(&workers, detach_of(&drive), None).await;
            assert_eq!((detached.label_not_updated, detached.proof), (None, Proof::Proved));
            let label = seen(&workers, path).await.label.unwrap();
            assert_eq!(detached.label, Some(label));
            assert!(!label.in_operation);

            // What is released is not written again.
            let again = detach(&workers, detach_of(&drive), None).await;
            assert_eq!((again.label, again.proof), (Some(label), Proof::Proved));
        }

        // Nothing is written on a drive that somebody has exclusively, and nothing is proved.
        let drive = seen(&workers, &device.path).await;
        let (_, descriptor) = attach(&workers, attach_of(&drive)).await.unwrap();
        let detached = detach(&workers, detach_of(&drive), None).await;
        assert!(detached.label_not_updated.unwrap().contains("in use"));
        assert!(matches!(detached.proof, Proof::Blocked { .. }));
        assert!(seen(&workers, &device.path).await.label.unwrap().in_operation);
        drop(descriptor);
    });
}

fn foreign() {
    block_on(async {
        let rig = Rig::new();
        let path = rig.file("a.img");
        let text = path.to_str().unwrap();
        run("mkfs.ext4", &["-q", text]);
        let before = std::fs::read(&path).unwrap();
        let workers = rig.workers();
        let drive = seen(&workers, text).await;
        assert_eq!(drive.denied, [Denied::Filesystem { kind: "ext4".into() }]);
        let refused = attach(&workers, attach_of(&drive)).await.map(|_| ());
        assert!(matches!(refused, Err(AttachError::NotOurs { .. })), "{refused:?}");
        assert!(std::fs::read(&path).unwrap() == before, "a drive of someone else was written to");

        // Nothing that anyone knows by name is still something.
        let other = rig.file("b.img");
        File::options().write(true).open(&other).unwrap().write_all_at(&[1], 5).unwrap();
        let drive = seen(&workers, other.to_str().unwrap()).await;
        assert_eq!(drive.denied, [Denied::NotEmpty { at_byte: 5 }]);
    });
}

fn swapped() {
    if skipped("swapped") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        let drive = seen(&workers, &device.path).await;
        run("losetup", &["-d", &device.path]);
        run("losetup", &[&device.path, rig.file("b.img").to_str().unwrap()]);
        let refused = attach(&workers, attach_of(&drive)).await.map(|_| ());
        assert!(matches!(refused, Err(AttachError::OtherDrive { .. })), "{refused:?}");
        let nothing_known = Attach { evidence: Evidence::default(), ..attach_of(&drive) };
        let refused = attach(&workers, nothing_known).await.map(|_| ());
        assert!(matches!(refused, Err(AttachError::NoProof { .. })), "{refused:?}");
        let nowhere = Attach { path: "/dev/nonexistent".into(), ..attach_of(&drive) };
        let refused = attach(&workers, nowhere).await.map(|_| ());
        assert!(matches!(refused, Err(AttachError::Missing { .. })), "{refused:?}");
        let after = seen(&workers, &device.path).await;
        assert_eq!((after.label, after.denied.as_slice()), (None, &[][..]), "nothing was written");
        // The drive that was there is closed, whatever is done with the one in its place.
        let _holder = Other::holding("hold-for-reading", &device.path);
        let known = Some(crate::rig::candidate(&device.path).id);
        let old = Detach { known, release: None, ..detach_of(&drive) };
        assert_eq!(detach(&workers, old, None).await.proof, Proof::Proved);
        let new = Detach { known, release: None, ..detach_of(&after) };
        assert!(matches!(detach(&workers, new, None).await.proof, Proof::Blocked { .. }));
    });
}

fn other_node() {
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let drive = seen(&workers, rig.file("a.img").to_str().unwrap()).await;
        drop(attach(&workers, attach_of(&drive)).await.unwrap());
        for want in [
            Want { node: NodeId::from_bits(0xa2), ..WANT },
            Want { cluster: ClusterId::from_bits(0xc2), ..WANT },
        ] {
            let theirs = Attach { want: LabelWant(want), ..attach_of(&drive) };
            let refused = attach(&workers, theirs).await.map(|_| ());
            assert!(matches!(refused, Err(AttachError::NotOurs { .. })), "{refused:?}");
        }
        let taken = Want { node: NodeId::from_bits(0xa2), take_over: true, ..WANT };
        let take_over = Attach { want: LabelWant(taken), ..attach_of(&drive) };
        let (attached, _) = attach(&workers, take_over).await.unwrap();
        assert_eq!(attached.label.node, NodeId::from_bits(0xa2));
    });
}

fn relabel() {
    if skipped("relabel") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        let drive = seen(&workers, &device.path).await;
        let (_, descriptor) = attach(&workers, attach_of(&drive)).await.unwrap();
        let generation = WANT.generation.next();
        let want = LabelWant(Want { generation, ..WANT });
        let request = |attach| Request::Relabel(Attach { want, ..attach });
        let copy = || vec![descriptor.try_clone().unwrap()];
        let running = workers.start(request(attach_of(&drive)), copy()).unwrap();
        let Response::Attached(Ok(attached)) = running.await.unwrap().response else {
            panic!("not relabelled");
        };
        assert_eq!(attached.label.generation, generation);
        assert_eq!(seen(&workers, &device.path).await.label, Some(attached.label));
        assert!(!exclusive_is_free(&device.path), "the claim was lost");

        let other = Attach { evidence: Evidence::default(), ..attach_of(&drive) };
        let running = workers.start(request(other), copy()).unwrap();
        let response = running.await.unwrap().response;
        assert!(matches!(response, Response::Attached(Err(AttachError::NoProof { .. }))));
    });
}

fn abandoned() {
    if skipped("abandoned") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        let drive = seen(&workers, &device.path).await;
        // Dropped at once; and dropped when the answer is there, but not taken.
        drop(workers.start(Request::Attach(attach_of(&drive)), vec![]).unwrap());
        until("the label is written", || label_is_on(&device)).await;
        until("closed by a child", || exclusive_is_free(&device.path)).await;
        let running = workers.start(Request::Attach(attach_of(&drive)), vec![]).unwrap();
        until("the answer is there", || !exclusive_is_free(&device.path)).await;
        until("the child is idle", || is_idle(running.pid())).await;
        drop(running);
        until("closed by a child", || exclusive_is_free(&device.path)).await;
    });
}

fn label_is_on(device: &LoopDevice) -> bool {
    let mut block = [0; 512];
    File::open(&device.path).unwrap().read_exact_at(&mut block, 0).unwrap();
    block[510..] == [0x55, 0xaa]
}

fn is_idle(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/syscall"))
        .is_ok_and(|text| text.starts_with(&format!("{} ", libc::SYS_recvmsg)))
}

fn unwritable_label() {
    if skipped("unwritable_label") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        let drive = seen(&workers, &device.path).await;
        let (attached, descriptor) = attach(&workers, attach_of(&drive)).await.unwrap();
        let lock = WriterLock::take(&rig.runtime_dir, attached.id).unwrap();
        let detached = detach(&workers, detach_of(&drive), Some(descriptor)).await;
        let why = detached.label_not_updated.expect("the lock is ours");
        assert!(why.contains(&std::process::id().to_string()), "{why}");
        assert_eq!(detached.proof, Proof::Proved);
        drop(lock);
        assert!(seen(&workers, &device.path).await.label.unwrap().in_operation);
    });
}

fn gone() {
    if skipped("gone") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let workers = rig.workers();
        let drive = seen(&workers, &device.path).await;
        let (attached, descriptor) = attach(&workers, attach_of(&drive)).await.unwrap();
        let missing = |known| Detach {
            path: "/dev/nonexistent".into(),
            known,
            release: None,
            ..detach_of(&drive)
        };
        let holder = Other::holding("hold-for-reading", &device.path);
        workers.close(vec![descriptor]);
        let Proof::Blocked { by } = detach(&workers, missing(Some(attached.id)), None).await.proof
        else {
            panic!("proved while process {} has it", holder.pid());
        };
        assert!(
            by.iter().any(|b| matches!(b, Blocker::Process { pid, .. } if *pid == holder.pid()))
        );
        // Unknown number: only devices that the machine no longer has would count.
        assert_eq!(detach(&workers, missing(None), None).await.proof, Proof::Proved);
        drop(holder);
        let proved =
            tokio::time::timeout(LIMIT, detach(&workers, missing(Some(attached.id)), None));
        assert_eq!(proved.await.unwrap().proof, Proof::Proved);
    });
}

fn children_of_this_process() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let children = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
    tasks.filter_map(|task| children(task).ok()).map(|c| c.split_whitespace().count()).sum()
}
