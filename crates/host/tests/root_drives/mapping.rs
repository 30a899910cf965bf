//! Volumes as block devices, by real loop devices.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use hotbay_core::ids::VolumeId;
use hotbay_core::label::change::Change;
use hotbay_host::mapping::{MappingError, MappingKind, Segment, Wanted};
use hotbay_host::proof::{Blocker, Proof};
use hotbay_host::worker::{AttachError, Detach, Request, Response, WorkerError};
use rustix::process::Signal;

use crate::Test;
use crate::rig::{
    DRIVE_BYTES, Mounted, Other, Rig, attach, attach_of, block_on, candidate, detach, detach_of,
    exclusive_is_free, kill, prove, run, seen, skipped, state_of, until,
};
use crate::volumes::{Drive, MIB, ask, fence, mappings, unmap, wanted};

pub(crate) const TESTS: &[Test] = &[
    ("a_mapping_is_exactly_its_volume", exactly_its_volume),
    ("a_mapping_is_made_once_and_any_other_is_refused", made_once),
    ("only_what_the_label_gives_to_a_volume_is_mapped", only_by_label),
    ("a_mapping_in_use_is_not_removed", in_use),
    ("a_fenced_mapping_takes_no_more_writes", fenced),
    ("a_mapping_grows_under_its_users", grows),
    ("a_mapping_over_a_plain_file_says_whether_it_is_direct", over_a_plain_file),
    ("a_mapping_that_is_not_direct_is_made_anew", not_direct),
    ("a_child_killed_at_any_step_leaves_what_the_next_one_finishes", killed),
    ("an_agent_that_starts_again_gets_its_mapped_drive_back", started_again),
    ("a_drive_is_not_proved_closed_while_a_volume_is_mapped", not_closed),
];

fn volume(bits: u128) -> VolumeId {
    VolumeId::from_bits(bits)
}

fn exactly_its_volume() {
    if skipped("exactly_its_volume") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let drive = Drive::attached(&rig, &workers, DRIVE_BYTES).await;
        let mapping = drive.map(&workers, &drive.place(1, 4, 8)).await.unwrap();
        assert_eq!((mapping.volume, mapping.epoch), (volume(1), 7));
        assert_eq!((mapping.kind, mapping.direct), (MappingKind::Loop, true));
        assert_eq!(mapping.drive, Some(candidate(&drive.seen.path).id));
        assert_eq!(mappings(&workers).await, std::slice::from_ref(&mapping));

        let mut device = File::options().read(true).write(true).open(&mapping.path).unwrap();
        assert_eq!(device.seek(SeekFrom::End(0)).unwrap(), 8 * MIB);
        device.write_all_at(&[0xaa; 512], 0).unwrap();
        device.write_all_at(&[0xbb; 512], 8 * MIB - 512).unwrap();
        assert!(device.write_all_at(&[0xcc; 512], 8 * MIB).is_err(), "past its end");
        device.sync_all().unwrap();
        let on_drive = |at: u64| {
            let mut bytes = [0; 512];
            // Past the page cache of the drive, which does not know of direct writes beside it.
            let file = File::options()
                .read(true)
                .custom_flags(libc::O_DIRECT)
                .open(&drive.seen.path)
                .unwrap();
            let mut aligned = vec![0_u8; 8192];
            let skip = aligned.as_ptr().align_offset(4096);
            file.read_exact_at(&mut aligned[skip..skip + 512], at).unwrap();
            bytes.copy_from_slice(&aligned[skip..skip + 512]);
            bytes
        };
        assert_eq!(on_drive(4 * MIB), [0xaa; 512]);
        assert_eq!(on_drive(12 * MIB - 512), [0xbb; 512]);
        assert_eq!((on_drive(4 * MIB - 512), on_drive(12 * MIB)), ([0; 512], [0; 512]));

        let read_only = Wanted { read_only: true, ..drive.place(2, 20, 1) };
        let second = drive.map(&workers, &read_only).await.unwrap();
        assert!(second.read_only);
        let writing = File::options().write(true).open(&second.path);
        assert!(writing.and_then(|device| device.write_all_at(&[1; 512], 0)).is_err());
        drop(device);
        for bits in [1, 2] {
            assert_eq!(unmap(&workers, volume(bits)).await, Ok(true));
            assert_eq!(unmap(&workers, volume(bits)).await, Ok(false), "again");
        }
        assert_eq!(mappings(&workers).await, []);
    });
}

fn made_once() {
    if skipped("made_once") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let drive = Drive::attached(&rig, &workers, DRIVE_BYTES).await;
        let wanted = drive.place(1, 4, 8);
        let first = drive.map(&workers, &wanted).await.unwrap();
        assert_eq!(drive.map(&workers, &wanted).await, Ok(first.clone()));
        // Several at once, of which none was mapped before.
        let other = drive.place(2, 12, 1);
        let at_once = (0..4).map(|_| drive.map(&workers, &other));
        let mut made = Vec::new();
        for mapping in futures(at_once).await {
            made.push(mapping.unwrap());
        }
        assert!(made.iter().all(|mapping| *mapping == made[0]), "{made:?}");
        assert_eq!(mappings(&workers).await.len(), 2);

        let read_only = Wanted { read_only: true, ..wanted.clone() };
        match drive.map(&workers, &read_only).await {
            Err(MappingError::OtherMapping { difference, found }) => {
                assert_eq!((difference.as_str(), *found), ("writable", first.clone()));
            }
            other => panic!("{other:?}"),
        }
        // The label was changed behind it: the mapping shows too little.
        drive.change(&Change::Grow { volume: volume(2), part: 0, length_bytes: 2 * MIB });
        let longer = Wanted { parts: crate::volumes::wanted(2, 12, 2).parts, ..other };
        match drive.map(&workers, &longer).await {
            Err(MappingError::OtherMapping { difference, .. }) => {
                assert_eq!(difference, "with other parts");
            }
            other => panic!("{other:?}"),
        }
        // A newer epoch is told by the mapping that is there, and the caller's to judge.
        let newer = Wanted { epoch: 8, ..wanted };
        assert_eq!(drive.map(&workers, &newer).await.unwrap().epoch, 7);
    });
}

async fn futures<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = all.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(move |context| {
        for (future, output) in &mut pending {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if pending.iter().any(|(_, output)| output.is_none()) {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(
            pending.iter_mut().map(|(_, output)| output.take().unwrap()).collect(),
        )
    })
    .await
}

fn only_by_label() {
    if skipped("only_by_label") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let drive = Drive::attached(&rig, &workers, DRIVE_BYTES).await;
        drive.place(1, 4, 8);
        drive.place(2, 12, 8);
        let not_on_label = |bits| Err(MappingError::NotOnLabel { volume: volume(bits) });
        for wrong in [wanted(1, 4, 9), wanted(1, 5, 7), wanted(1, 12, 8), wanted(1, 4, 7)] {
            assert_eq!(drive.map(&workers, &wrong).await, not_on_label(1), "{wrong:?}");
        }
        assert_eq!(drive.map(&workers, &wanted(3, 20, 1)).await, not_on_label(3));
        let odd = Segment { start_bytes: 4 * MIB + 512, length_bytes: MIB };
        let huge = Segment { start_bytes: u64::MAX - MIB + 1, length_bytes: MIB };
        for part in [odd, huge, Segment { length_bytes: 0, ..odd }] {
            let wrong = Wanted { parts: vec![part], ..wanted(1, 4, 8) };
            assert_eq!(drive.map(&workers, &wrong).await, Err(MappingError::OutOfPlace { part }));
        }
        let none = Wanted { parts: vec![], ..wanted(1, 4, 8) };
        assert_eq!(drive.map(&workers, &none).await, Err(MappingError::Parts { parts: 0 }));
        drive.change(&Change::Free { volume: volume(2) });
        assert_eq!(drive.map(&workers, &wanted(2, 12, 8)).await, not_on_label(2), "dirty");
        let without = ask(&workers, Request::Map(wanted(1, 4, 8)), vec![]).await;
        assert!(format!("{without:?}").contains("NoDescriptor"), "{without:?}");
        assert_eq!(mappings(&workers).await, []);
    });
}

fn in_use() {
    if skipped("in_use") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let drive = Drive::attached(&rig, &workers, DRIVE_BYTES).await;
        let mapping = drive.map(&workers, &drive.place(1, 4, 32)).await.unwrap();
        let busy = |result| match result {
            Err(MappingError::InUse { by, path }) => {
                assert_eq!(path, mapping.path);
                by
            }
            other => panic!("{other:?}"),
        };
        let holder = Other::holding("hold-for-reading", &mapping.path);
        let by = busy(unmap(&workers, volume(1)).await);
        assert!(matches!(by[..], [Blocker::Process { pid, .. }] if pid == holder.pid()), "{by:?}");
        drop(holder);
        run("mkfs.ext4", &["-q", &mapping.path]);
        let mounted = Mounted::new(&mapping.path, &rig.dir.path().join("mnt"));
        let by = busy(unmap(&workers, volume(1)).await);
        assert_eq!(by, [Blocker::Mount { at: mounted.at.clone() }]);
        // Nothing of it was undone.
        assert_eq!(mappings(&workers).await, std::slice::from_ref(&mapping));
        std::fs::write(rig.dir.path().join("mnt/file"), "still there").unwrap();
        drop(mounted);
        assert_eq!(unmap(&workers, volume(1)).await, Ok(true));
    });
}

fn fenced() {
    if skipped("fenced") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let drive = Drive::attached(&rig, &workers, DRIVE_BYTES).await;
        let wanted = drive.place(1, 4, 8);
        let mapping = drive.map(&workers, &wanted).await.unwrap();
        let device = File::options().read(true).write(true).open(&mapping.path).unwrap();
        device.write_all_at(&[1; 4096], 0).unwrap();
        let told = fence(&workers, volume(1)).await.unwrap();
        assert!(told.fenced && told.parts.is_empty(), "{told:?}");
        assert!(device.write_all_at(&[2; 4096], 4096).is_err(), "written after the fence");
        assert!(device.read_exact_at(&mut [0; 4096], 4096).is_err(), "read after the fence");
        assert_eq!(fence(&workers, volume(1)).await.as_ref(), Some(&told), "again");
        for result in [drive.map(&workers, &wanted).await, drive.grow(&workers, &wanted).await] {
            match result {
                Err(MappingError::OtherMapping { difference, .. }) => {
                    assert_eq!(difference, "fenced");
                }
                other => panic!("{other:?}"),
            }
        }
        drop(device);
        assert_eq!(unmap(&workers, volume(1)).await, Ok(true));
        let anew = drive.map(&workers, &wanted).await.unwrap();
        assert!(!anew.fenced);
        let mut start = [0; 4096];
        File::open(&anew.path).unwrap().read_exact(&mut start).unwrap();
        assert_eq!(start, [1; 4096], "what was written before the fence is there");
        assert_eq!(unmap(&workers, volume(1)).await, Ok(true));
        assert_eq!(fence(&workers, volume(1)).await, None, "nothing to fence");
    });
}

fn grows() {
    if skipped("grows") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let drive = Drive::attached(&rig, &workers, DRIVE_BYTES).await;
        let before = drive.place(1, 4, 16);
        let mapping = drive.map(&workers, &before).await.unwrap();
        run("mkfs.ext4", &["-q", &mapping.path]);
        let _mounted = Mounted::new(&mapping.path, &rig.dir.path().join("mnt"));
        drive.change(&Change::Grow { volume: volume(1), part: 0, length_bytes: 32 * MIB });
        let after = wanted(1, 4, 32);
        let grown = drive.grow(&workers, &after).await.unwrap();
        assert_eq!((grown.parts.as_slice(), grown.number), (&after.parts[..], mapping.number));
        assert_eq!(drive.grow(&workers, &after).await, Ok(grown), "again");
        let size = File::open(&mapping.path).unwrap().seek(SeekFrom::End(0)).unwrap();
        assert_eq!(size, 32 * MIB);
        let not_mapped = Err(MappingError::NotMapped { volume: volume(2) });
        assert_eq!(drive.grow(&workers, &drive.place(2, 40, 1)).await, not_mapped);
    });
}

fn over_a_plain_file() {
    if skipped("over_a_plain_file") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let file = rig.file("plain.img");
        let drive = Drive::existing(&workers, file.to_str().unwrap().into(), DRIVE_BYTES).await;
        let mapping = drive.map(&workers, &drive.place(1, 4, 8)).await.unwrap();
        assert_eq!(mapping.drive, Some(candidate(&drive.seen.path).id));
        let name = mapping.path.trim_start_matches("/dev/");
        let dio = std::fs::read_to_string(format!("/sys/block/{name}/loop/dio")).unwrap();
        assert_eq!(mapping.direct, dio.trim() == "1");
        assert_eq!(unmap(&workers, volume(1)).await, Ok(true));
    });
}

/// A child that is killed before it has read its loop device back may leave one that is not direct.
fn not_direct() {
    if skipped("not_direct") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let drive = Drive::attached(&rig, &workers, DRIVE_BYTES).await;
        let wanted = drive.place(1, 4, 8);
        let mapping = drive.map(&workers, &wanted).await.unwrap();
        let device = File::options().read(true).open(&mapping.path).unwrap();
        #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
        // SAFETY: LOOP_SET_DIRECT_IO takes an integer.
        let done = unsafe { libc::ioctl(device.as_raw_fd(), 0x4c08, 0) };
        assert_eq!(done, 0);
        drop(device);
        assert!(!mappings(&workers).await[0].direct);
        let anew = drive.map(&workers, &wanted).await.unwrap();
        assert!(anew.direct);
        assert_eq!(mappings(&workers).await, [anew]);
    });
}

fn killed() {
    if skipped("killed") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let drive = Drive::attached(&rig, &workers, DRIVE_BYTES).await;
        let wanted = drive.place(1, 4, 8);
        let killed_at = async |step: &str, request: Request| {
            let stopping = rig.workers_with(&["drive-worker", step]);
            let running = stopping.start(request, vec![drive.descriptor()]).unwrap();
            let pid = running.pid();
            until("it stops", || state_of(pid) == Some('T')).await;
            kill(pid, Signal::KILL);
            assert!(matches!(running.await, Err(WorkerError::Died { .. })), "{step}");
        };
        for step in ["map-locked", "map-opened", "map-configured", "map-verified"] {
            killed_at(step, Request::Map(wanted.clone())).await;
            let mapping = drive.map(&workers, &wanted).await.unwrap();
            assert_eq!(mappings(&workers).await, [mapping], "{step}");
            unmap(&workers, volume(1)).await.unwrap();
        }
        for step in ["unmap-found", "unmap-opened", "unmap-cleared"] {
            drive.map(&workers, &wanted).await.unwrap();
            killed_at(step, Request::Unmap { volume: volume(1) }).await;
            unmap(&workers, volume(1)).await.unwrap();
            assert_eq!(mappings(&workers).await, [], "{step}");
        }
        for step in ["fence-found", "fence-done"] {
            drive.map(&workers, &wanted).await.unwrap();
            killed_at(step, Request::Fence { volume: volume(1) }).await;
            assert!(fence(&workers, volume(1)).await.unwrap().fenced, "{step}");
            unmap(&workers, volume(1)).await.unwrap();
        }
    });
}

/// The claim on the drive is the loop device's when its agent is gone. The next agent must not be kept out by it, and
/// nobody else may get in.
fn started_again() {
    if skipped("started_again") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let mut drive = Drive::attached(&rig, &workers, DRIVE_BYTES).await;
        let wanted = drive.place(1, 4, 8);
        let mapping = drive.map(&workers, &wanted).await.unwrap();
        let path = drive.seen.path.clone();
        let other = drive.descriptor.take();
        drop(workers);
        let workers = rig.workers();
        // While the old agent has it, its process is in the way.
        let Err(AttachError::Busy { by }) = attach(&workers, attach_of(&drive.seen)).await else {
            panic!("attached twice");
        };
        assert!(matches!(by[..], [Blocker::Process { .. }]), "{by:?}");
        drop(other);
        assert!(!exclusive_is_free(&path), "the claim went with the agent");

        assert_eq!(seen(&workers, &path).await.denied, [], "its own mapping is no reason");
        let (attached, descriptor) = attach(&workers, attach_of(&drive.seen)).await.unwrap();
        assert!(attached.label.in_operation);
        drive.descriptor = Some(descriptor);
        assert_eq!(drive.map(&workers, &wanted).await, Ok(mapping.clone()));
        let mapped = Blocker::Mapping { volume: volume(1), path: mapping.path };
        // Invariant 5: also a drive whose volumes were given up stays open while one of them is mapped.
        let given_up = || Detach { even_with_volumes: true, ..detach_of(&drive.seen) };
        let descriptors = drive.descriptor.take().into_iter().collect();
        let running = workers.start(Request::Detach(given_up()), descriptors).unwrap();
        let mut done = running.await.unwrap();
        assert_eq!(done.response, Response::StillMapped { by: vec![mapped] });
        assert!(seen(&workers, &path).await.label.unwrap().in_operation, "nothing was done");
        assert_eq!(unmap(&workers, volume(1)).await, Ok(true));
        let detached = detach(&workers, given_up(), done.descriptors.pop()).await;
        assert_eq!((detached.label_not_updated, detached.proof), (None, Proof::Proved));
        assert!(exclusive_is_free(&path));
    });
}

/// Invariant 3: a mapping shows in neither descriptors nor holders, and is named all the same.
fn not_closed() {
    if skipped("not_closed") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let mut drive = Drive::attached(&rig, &workers, DRIVE_BYTES).await;
        let mapping = drive.map(&workers, &drive.place(1, 4, 8)).await.unwrap();
        drop(drive.descriptor.take());
        let path = drive.seen.path.clone();
        let Proof::Blocked { by } = prove(&workers, &path, drive.seen.kind).await else {
            panic!("proved");
        };
        let mapped = Blocker::Mapping { volume: volume(1), path: mapping.path.clone() };
        assert_eq!(by, std::slice::from_ref(&mapped));
        let told = format!("volume {}, mapped at {}", volume(1), mapping.path);
        assert_eq!(mapped.to_string(), told);
        // Pulled out: nothing is at the path any more, and the mapping still holds the drive.
        let gone = Detach {
            path: "/dev/nonexistent".into(),
            known: Some(candidate(&path).id),
            release: None,
            ..detach_of(&drive.seen)
        };
        let detached = detach(&workers, gone, None).await;
        assert_eq!(detached.proof, Proof::Blocked { by: vec![mapped] });
        assert_eq!(unmap(&workers, volume(1)).await, Ok(true));
        assert_eq!(prove(&workers, &path, drive.seen.kind).await, Proof::Proved);
    });
}
