//! The cases, inside the guest, on a drive of its own.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::process::ExitCode;

use hotbay_core::device::DeviceKind;
use hotbay_core::ids::VolumeId;
use hotbay_core::label::change::Change;
use hotbay_core::label::extents::{Extent, Use};
use hotbay_host::filesystem::{
    Checked, FilesystemDone as Done, FilesystemKind, FilesystemTask as Task, VolumeDevice,
};
use hotbay_host::mapping::{Mapping, MappingError, MappingKind, Segment, Wanted};
use hotbay_host::proof::{Blocker, Proof};
use hotbay_host::worker::{Attach, Detach, Request, Response, WorkerError};
use rustix::process::Signal;

use crate::lab::{Lab, mount, mounted};
use crate::rig::{
    LIMIT, Rig, WANT, attach, attach_of, block_on, detach, detach_of, exclusive_is_free, kill,
    seen, state_of, until,
};
use crate::volumes::{Drive, MIB, ask, fence, mappings, unmap};

const KIND: FilesystemKind = FilesystemKind::Ext4;
const VOLUME: VolumeId = VolumeId::from_bits(1);

pub(crate) fn run(case: &str, drive: &str) -> ExitCode {
    let drive = drive.to_owned();
    match case {
        "life" => block_on(life(drive)),
        "fenced" => block_on(fenced(drive)),
        "killed" => block_on(killed(drive)),
        "started-again" => block_on(started_again(drive)),
        "mapped-before" => block_on(mapped_before(drive)),
        "attach-killed" => block_on(attach_killed(drive)),
        other => panic!("no case {other}"),
    }
    ExitCode::SUCCESS
}

/// The drive, attached and guarded, with one volume of two parts, the second before the first.
async fn guarded(path: String) -> (Lab, Wanted) {
    let rig = Rig::new();
    let workers = rig.workers();
    let drive = Drive::existing(&workers, path, crate::DRIVE_BYTES).await;
    let lab = Lab { drive, workers, rig };
    assert_eq!(guards(), the_guard());
    assert!(!exclusive_is_free(&lab.drive.seen.path), "the guard has no claim");
    let wanted = Wanted {
        volume: VOLUME,
        epoch: 7,
        parts: vec![part(&lab, 0, 200, 32), part(&lab, 1, 8, 64)],
        read_only: false,
    };
    (lab, wanted)
}

fn part(lab: &Lab, part: u32, start_mib: u64, length_mib: u64) -> Segment {
    let segment = Segment { start_bytes: start_mib * MIB, length_bytes: length_mib * MIB };
    lab.drive.change(&Change::Place(Extent {
        volume: VOLUME,
        part,
        start_bytes: segment.start_bytes,
        length_bytes: segment.length_bytes,
        usage: Use::Used,
        formatted: false,
        name: "pvc-1".parse().unwrap(),
        claim: None,
    }));
    segment
}

/// The guards of this machine, by their uuids.
fn guards() -> Vec<String> {
    let devices = std::fs::read_dir("/sys/block").unwrap().flatten();
    let uuids = devices.filter_map(|device| {
        let uuid = std::fs::read_to_string(device.path().join("dm/uuid")).ok()?;
        uuid.starts_with("HOTBAY-GUARD-").then(|| uuid.trim().to_owned())
    });
    uuids.collect()
}

fn the_guard() -> Vec<String> {
    vec![format!("HOTBAY-GUARD-{}", WANT.drive)]
}

/// No volume may be on the label any more, as on any drive that is closed.
async fn closed(mut lab: Lab) {
    lab.drive.change(&Change::Free { volume: VOLUME });
    let descriptor = lab.drive.descriptor.take();
    let detached = detach(&lab.workers, detach_of(&lab.drive.seen), descriptor).await;
    assert_eq!((detached.label_not_updated, detached.proof), (None, Proof::Proved));
    assert_eq!(guards(), Vec::<String>::new());
}

async fn life(drive: String) {
    let (lab, wanted) = guarded(drive).await;
    let mapping = lab.drive.map(&lab.workers, &wanted).await.unwrap();
    assert_eq!((mapping.kind, mapping.epoch, mapping.direct), (MappingKind::DeviceMapper, 7, true));
    assert_eq!(mapping.parts, wanted.parts);
    assert_eq!(lab.drive.map(&lab.workers, &wanted).await, Ok(mapping.clone()), "again");
    assert_eq!(size_of(&mapping), 96 * MIB);

    let device = VolumeDevice::from(&mapping);
    assert_eq!(lab.make(&device, KIND).await, Ok(Done::Made));
    let target = lab.path("mnt");
    assert_eq!(lab.mount(&device, &target).await.unwrap().device, Some(mapping.number));
    std::fs::write(format!("{target}/file"), "kept").unwrap();
    match unmap(&lab.workers, VOLUME).await {
        Err(MappingError::InUse { by, .. }) => {
            assert_eq!(by, [Blocker::Mount { at: target.clone() }]);
        }
        other => panic!("{other:?}"),
    }

    // A third part, under the mounted filesystem, which grows into it.
    let mut parts = wanted.parts.clone();
    parts.push(part(&lab, 2, 300, 100));
    let longer = Wanted { parts, ..wanted.clone() };
    let grown = lab.drive.grow(&lab.workers, &longer).await.unwrap();
    assert_eq!((grown.number, size_of(&grown)), (mapping.number, 196 * MIB));
    let grow = Task::Grow { device, kind: KIND, mounted_at: Some(target.clone()), limit: LIMIT };
    assert_eq!(lab.ask(grow).await, Ok(Done::Grown));
    match lab.ask(Task::Usage { target: target.clone() }).await {
        Ok(Done::Usage(usage)) => assert!(usage.total_bytes > 150 * MIB, "{usage:?}"),
        other => panic!("{other:?}"),
    }
    assert!(lab.drive.grow(&lab.workers, &wanted).await.is_err(), "smaller again");
    assert_eq!(std::fs::read(format!("{target}/file")).unwrap(), b"kept");
    assert_eq!(lab.unmount(&target).await, Ok(1));
    assert_eq!(unmap(&lab.workers, VOLUME).await, Ok(true));
    assert_eq!(unmap(&lab.workers, VOLUME).await, Ok(false), "again");
    let read_only = Wanted { read_only: true, ..longer };
    assert!(lab.drive.map(&lab.workers, &read_only).await.unwrap().read_only);
    assert_eq!(unmap(&lab.workers, VOLUME).await, Ok(true));
    closed(lab).await;
}

fn size_of(mapping: &Mapping) -> u64 {
    File::open(&mapping.path).unwrap().seek(SeekFrom::End(0)).unwrap()
}

async fn fenced(drive: String) {
    let (lab, wanted) = guarded(drive).await;
    let mapping = lab.drive.map(&lab.workers, &wanted).await.unwrap();
    let device = VolumeDevice::from(&mapping);
    lab.make(&device, KIND).await.unwrap();
    let target = lab.path("mnt");
    lab.mount(&device, &target).await.unwrap();
    std::fs::write(format!("{target}/before"), "synced").unwrap();
    File::open(format!("{target}/before")).unwrap().sync_all().unwrap();
    let told = fence(&lab.workers, VOLUME).await.unwrap();
    assert!(told.fenced && told.parts.is_empty() && told.drive.is_none(), "{told:?}");
    assert_eq!(fence(&lab.workers, VOLUME).await, Some(told), "again");
    let written = File::create(format!("{target}/after")).and_then(|file| file.sync_all());
    assert!(written.is_err(), "written after the fence");
    assert!(lab.drive.map(&lab.workers, &wanted).await.is_err(), "mapped in spite of it");
    assert_eq!(lab.unmount(&target).await, Ok(1));
    assert_eq!(unmap(&lab.workers, VOLUME).await, Ok(true));
    let mapping = lab.drive.map(&lab.workers, &wanted).await.unwrap();
    let device = VolumeDevice::from(&mapping);
    let check = Task::Check { device: device.clone(), kind: KIND, limit: LIMIT };
    let checked = lab.ask(check).await.unwrap();
    assert!(matches!(checked, Done::Checked(Checked::Clean | Checked::Repaired { .. })));
    mounted(lab.ask(mount(&device, &target, KIND, &[])).await).unwrap();
    assert_eq!(std::fs::read(format!("{target}/before")).unwrap(), b"synced");
    assert_eq!(lab.unmount(&target).await, Ok(1));
    assert_eq!(unmap(&lab.workers, VOLUME).await, Ok(true));
    closed(lab).await;
}

async fn killed(drive: String) {
    let (lab, wanted) = guarded(drive).await;
    let killed_at = async |step: &str, request: Request| {
        let stopping = lab.rig.workers_with(&["drive-worker", step]);
        let running = stopping.start(request, vec![lab.drive.descriptor()]).unwrap();
        let pid = running.pid();
        until("it stops", || state_of(pid) == Some('T')).await;
        kill(pid, Signal::KILL);
        assert!(matches!(running.await, Err(WorkerError::Died { .. })), "{step}");
    };
    for step in ["map-locked", "map-created", "table-loaded", "table-suspended", "map-verified"] {
        killed_at(step, Request::Map(wanted.clone())).await;
        let mapping = lab.drive.map(&lab.workers, &wanted).await.unwrap();
        assert_eq!(size_of(&mapping), 96 * MIB, "{step}");
        assert_eq!(mappings(&lab.workers).await, [mapping], "{step}");
        assert_eq!(unmap(&lab.workers, VOLUME).await, Ok(true), "{step}");
    }
    for step in ["unmap-found", "unmap-opened", "unmap-cleared"] {
        lab.drive.map(&lab.workers, &wanted).await.unwrap();
        killed_at(step, Request::Unmap { volume: VOLUME }).await;
        unmap(&lab.workers, VOLUME).await.unwrap();
        assert_eq!(mappings(&lab.workers).await, [], "{step}");
    }
    for step in ["fence-found", "table-loaded", "table-suspended", "fence-done"] {
        lab.drive.map(&lab.workers, &wanted).await.unwrap();
        killed_at(step, Request::Fence { volume: VOLUME }).await;
        assert!(fence(&lab.workers, VOLUME).await.unwrap().fenced, "{step}");
        assert_eq!(unmap(&lab.workers, VOLUME).await, Ok(true), "{step}");
    }
    let mut longer = wanted.clone();
    lab.drive.map(&lab.workers, &wanted).await.unwrap();
    for (step, at) in [("grow-found", 2), ("table-loaded", 3), ("table-suspended", 4)] {
        longer.parts.push(part(&lab, at, 300 + u64::from(at), 1));
        killed_at(step, Request::GrowMapping(longer.clone())).await;
        let grown = lab.drive.grow(&lab.workers, &longer).await.unwrap();
        assert_eq!(size_of(&grown), (95 + u64::from(at)) * MIB, "{step}");
    }
    assert_eq!(unmap(&lab.workers, VOLUME).await, Ok(true));
    closed(lab).await;
}

/// The guard keeps the claim of an agent that is gone, and lets the next one in, and nobody else.
async fn started_again(drive: String) {
    let (mut lab, wanted) = guarded(drive).await;
    let mapping = lab.drive.map(&lab.workers, &wanted).await.unwrap();
    let path = lab.drive.seen.path.clone();
    drop(lab.drive.descriptor.take());
    assert!(!exclusive_is_free(&path), "the claim went with the agent");
    let (_, descriptor) = attach(&lab.workers, attach_of(&lab.drive.seen)).await.unwrap();
    lab.drive.descriptor = Some(descriptor);
    assert_eq!(guards(), the_guard());
    assert_eq!(lab.drive.map(&lab.workers, &wanted).await, Ok(mapping.clone()));
    // Neither one that minds its volume closes it, nor one that does not, as long as the volume is mapped.
    let refused = ask(&lab.workers, Request::Detach(detach_of(&lab.drive.seen)), vec![]).await;
    assert!(matches!(refused, Response::InUse { .. }), "{refused:?}");
    let close = Detach { even_with_volumes: true, ..detach_of(&lab.drive.seen) };
    let refused = ask(&lab.workers, Request::Detach(close.clone()), vec![]).await;
    let mapped = Blocker::Mapping { volume: VOLUME, path: mapping.path };
    assert_eq!(refused, Response::StillMapped { by: vec![mapped] });
    assert_eq!(guards(), the_guard(), "it is open as before");
    assert!(!exclusive_is_free(&path));
    assert_eq!(unmap(&lab.workers, VOLUME).await, Ok(true));
    let closed = detach(&lab.workers, close, lab.drive.descriptor.take()).await;
    assert_eq!((closed.proof, guards()), (Proof::Proved, vec![]));
    assert!(!seen(&lab.workers, &path).await.label.unwrap().in_operation);
}

/// A loop device of an agent that had no device-mapper: it keeps its claim, and the next agent goes on with it.
async fn mapped_before(drive: String) {
    let rig = Rig::new();
    let workers = rig.workers();
    let mut drive = Drive::existing(&workers, drive, crate::DRIVE_BYTES).await;
    let wanted = drive.place(1, 200, 32);
    let close = Detach { even_with_volumes: true, ..detach_of(&drive.seen) };
    let closed = detach(&workers, close.clone(), drive.descriptor.take()).await;
    assert_eq!(closed.proof, Proof::Proved);
    // Attached as a loop device is, it gets no guard.
    let without = Attach { kind: DeviceKind::Loop, ..attach_of(&drive.seen) };
    let (_, descriptor) = attach(&workers, without).await.unwrap();
    drive.descriptor = Some(descriptor);
    let mapping = drive.map(&workers, &wanted).await.unwrap();
    assert_eq!((mapping.kind, guards()), (MappingKind::Loop, vec![]));
    drop(drive.descriptor.take());
    let (_, descriptor) = attach(&workers, attach_of(&drive.seen)).await.unwrap();
    drive.descriptor = Some(descriptor);
    assert_eq!(guards(), Vec::<String>::new(), "the loop device has the claim");
    assert_eq!(drive.map(&workers, &wanted).await, Ok(mapping));
    assert_eq!(unmap(&workers, VOLUME).await, Ok(true));
    drop(drive.descriptor.take());
    let (_, descriptor) = attach(&workers, attach_of(&drive.seen)).await.unwrap();
    drive.descriptor = Some(descriptor);
    assert_eq!(guards(), the_guard());
    assert_eq!(drive.map(&workers, &wanted).await.unwrap().kind, MappingKind::DeviceMapper);
    assert_eq!(unmap(&workers, VOLUME).await, Ok(true));
    let closed = detach(&workers, close, drive.descriptor.take()).await;
    assert_eq!((closed.proof, guards()), (Proof::Proved, vec![]));
}

/// An agent that dies after it has put a guard, before it has the drive: the next one closes it all the same.
async fn attach_killed(drive: String) {
    for step in ["guard-unclaimed", "guard-created", "table-loaded", "table-suspended"] {
        let rig = Rig::new();
        let workers = rig.workers();
        let seen = seen(&workers, &drive).await;
        let stopping = rig.workers_with(&["drive-worker", step]);
        let running = stopping.start(Request::Attach(attach_of(&seen)), vec![]).unwrap();
        let pid = running.pid();
        until("it stops", || state_of(pid) == Some('T')).await;
        kill(pid, Signal::KILL);
        assert!(matches!(running.await, Err(WorkerError::Died { .. })), "{step}");
        if step != "guard-unclaimed" {
            let (_, descriptor) = attach(&workers, attach_of(&seen)).await.unwrap();
            assert_eq!(guards(), the_guard(), "{step}");
            drop(descriptor);
        }
        let detached = detach(&workers, detach_of(&seen), None).await;
        assert_eq!((detached.label_not_updated, detached.proof), (None, Proof::Proved), "{step}");
        assert_eq!(guards(), Vec::<String>::new(), "{step}");
    }
}
