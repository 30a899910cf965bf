//! Orders to change the label of an open drive, through real children: what they do, and what a kill leaves.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hotbay_core::device::Observed;
use hotbay_core::ids::VolumeId;
use hotbay_core::label::change::{Basis, Change, ChangeRefused, LabelTold, MOST_CHANGES};
use hotbay_core::label::extents::{Claim, Extent, MOST_EXTENTS, Use};
use hotbay_core::label::update::Want;
use hotbay_core::label::{Found, Slot};
use hotbay_host::locks::WriterLock;
use hotbay_host::mapping::{Segment, Wanted};
use hotbay_host::proof::Proof;
use hotbay_host::worker::{
    Attach, ChangeLabel, Detach, LabelChangeError, LabelWant, ReadLabel, Request, Response, Workers,
};
use rustix::process::Signal;

use crate::Test;
use crate::rig::{
    LIMIT, Rig, WANT, attach, attach_of, block_on, detach, detach_of, seen, skipped, until,
};
use crate::rig::{kill, state_of};

pub(crate) const TESTS: &[Test] = &[
    ("a_volume_comes_and_goes_and_its_bytes_are_zero", comes_and_goes),
    ("an_erase_that_is_killed_goes_on", killed),
    ("orders_that_are_not_for_this_label_write_nothing", refused),
    ("a_volume_that_is_mapped_is_not_taken_off_its_drive", mapped),
    ("a_full_label_goes_through_a_child", full),
    ("an_attach_tells_the_label_whole", told),
    ("a_drive_with_volumes_is_not_closed", in_use),
    ("a_file_that_is_gone_is_closed_with_its_volumes", gone),
    ("the_third_copy_follows_the_label", third_copy),
];

const MIB: u64 = 1 << 20;

/// A drive that is open, and the label on it.
struct Open {
    drive: Observed,
    descriptor: OwnedFd,
}

impl Open {
    async fn new(workers: &Workers, path: &str) -> Self {
        let drive = seen(workers, path).await;
        let (_, descriptor) = attach(workers, attach_of(&drive)).await.unwrap();
        Self { drive, descriptor }
    }

    fn order(&self, basis: Basis, changes: Vec<Change>) -> ChangeLabel {
        let Observed { path, kind, evidence, .. } = self.drive.clone();
        let held = LabelWant(WANT);
        ChangeLabel { path, kind, evidence, held, basis, changes, erase_bytes_per_second: None }
    }

    async fn change(
        &self,
        workers: &Workers,
        order: ChangeLabel,
    ) -> Result<LabelTold, LabelChangeError> {
        match self.ask(workers, Request::ChangeLabel(order)).await {
            Response::LabelChanged(result) => result,
            other => panic!("{other:?}"),
        }
    }

    async fn read(&self, workers: &Workers) -> LabelTold {
        let Observed { path, kind, evidence, .. } = self.drive.clone();
        let request = ReadLabel { path, kind, evidence, held: LabelWant(WANT) };
        match self.ask(workers, Request::ReadLabel(request)).await {
            Response::LabelRead(result) => result.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn ask(&self, workers: &Workers, request: Request) -> Response {
        let running = workers.start(request, self.copy()).unwrap();
        tokio::time::timeout(LIMIT, running).await.expect("in time").unwrap().response
    }

    fn copy(&self) -> Vec<OwnedFd> {
        vec![self.descriptor.try_clone().unwrap()]
    }

    /// Writes a byte all over some MiB, down to the drive.
    fn fill(&self, mebibytes: std::ops::Range<u64>, byte: u8) {
        let file = File::from(self.descriptor.try_clone().unwrap());
        for mib in mebibytes {
            file.write_all_at(&[byte; 1 << 20], mib * MIB).unwrap();
        }
        file.sync_all().unwrap();
    }

    /// Whether some MiB have this byte and no other: as the drive is read, and as it is in the file behind it.
    fn has(&self, backing: &Path, mebibytes: std::ops::Range<u64>, byte: u8) -> bool {
        let opened = File::from(self.descriptor.try_clone().unwrap());
        let behind = File::open(backing).unwrap();
        mebibytes.into_iter().all(|mib| {
            [&opened, &behind].into_iter().all(|file| {
                let mut seen = vec![!byte; 1 << 20];
                file.read_exact_at(&mut seen, mib * MIB).unwrap();
                seen.iter().all(|seen| *seen == byte)
            })
        })
    }
}

fn extent(volume: u128, start_mib: u64, length_mib: u64) -> Extent {
    Extent {
        volume: VolumeId::from_bits(volume),
        part: 0,
        start_bytes: start_mib * MIB,
        length_bytes: length_mib * MIB,
        usage: Use::Used,
        formatted: false,
        name: format!("pvc-{volume}").parse().unwrap(),
        claim: None,
    }
}

fn erase(volume: u128, mib: u64) -> Vec<Change> {
    let volume = VolumeId::from_bits(volume);
    vec![Change::Erase { volume, part: 0, length_bytes: mib * MIB }]
}

fn free(volume: u128) -> Vec<Change> {
    vec![Change::Free { volume: VolumeId::from_bits(volume) }]
}

/// Two volumes beside each other, with bytes in them, the first one of them deleted.
async fn deleted(workers: &Workers, path: &str) -> (Open, LabelTold) {
    let open = Open::new(workers, path).await;
    let empty = open.read(workers).await;
    assert_eq!(empty.extents, []);
    let places = vec![Change::Place(extent(1, 2, 40)), Change::Place(extent(2, 42, 4))];
    let placed = open.change(workers, open.order(empty.basis, places)).await.unwrap();
    assert_eq!(placed.extents, [extent(1, 2, 40), extent(2, 42, 4)]);
    assert_eq!(open.read(workers).await, placed);
    open.fill(2..42, 1);
    open.fill(42..46, 2);
    let label = open.change(workers, open.order(placed.basis, free(1))).await.unwrap();
    (open, label)
}

fn comes_and_goes() {
    if skipped("comes_and_goes") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let device = rig.loop_drive("a.img");
        let backing = [rig.dir.path().join("a.img"), rig.file("b.img")];
        let paths = [device.path.clone(), backing[1].to_str().unwrap().to_owned()];
        for (path, backing) in paths.iter().zip(&backing) {
            let (open, label) = deleted(&workers, path).await;
            let began = std::time::Instant::now();
            let slowly = ChangeLabel {
                erase_bytes_per_second: Some(80 * MIB),
                ..open.order(label.basis, erase(1, 20))
            };
            let label = open.change(&workers, slowly).await.unwrap();
            assert!(began.elapsed().as_millis() >= 200, "16 MiB of 20 are due after 0.2 s");
            let rest = Extent { usage: Use::Dirty, ..extent(1, 22, 20) };
            assert_eq!(label.extents, [rest, extent(2, 42, 4)]);
            assert!(open.has(backing, 2..22, 0) && open.has(backing, 22..42, 1));
            let label = open.change(&workers, open.order(label.basis, erase(1, 99))).await.unwrap();
            assert_eq!(label.extents, [extent(2, 42, 4)]);
            assert!(open.has(backing, 2..42, 0) && open.has(backing, 42..46, 2));
            let label = open.change(&workers, open.order(label.basis, free(2))).await.unwrap();
            assert_eq!(label.extents, [Extent { usage: Use::Dirty, ..extent(2, 42, 4) }]);
            // What is dirty keeps nobody from taking the drive out.
            let detached = detach(&workers, detach_of(&open.drive), Some(open.descriptor)).await;
            assert_eq!((detached.label_not_updated, detached.proof), (None, Proof::Proved));
        }
    });
}

fn killed() {
    if skipped("killed") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let steps = ["erase-piece", "erase-zeroed", "erase-synced", "slot-written", "slot-synced"];
        for step in steps {
            let device = rig.loop_drive(step);
            let backing = rig.dir.path().join(step);
            let (open, label) = deleted(&workers, &device.path).await;
            let order = || Request::ChangeLabel(open.order(label.basis, erase(1, 40)));
            let stopping = rig.workers_with(&["drive-worker", step]);
            let stopped = stopping.start(order(), open.copy()).unwrap();
            let pid = stopped.pid();
            until(step, || state_of(pid) == Some('T')).await;
            kill(pid, Signal::KILL);
            assert!(tokio::time::timeout(LIMIT, stopped).await.unwrap().is_err(), "{step}");

            assert!(open.has(&backing, 42..46, 2), "{step}: another volume was touched");
            let found = open.read(&workers).await;
            let came = found.extents == [extent(2, 42, 4)];
            assert_eq!(came, ["slot-written", "slot-synced"].contains(&step), "{step}");
            if came {
                let Response::LabelChanged(Err(LabelChangeError::Refused { now, .. })) =
                    open.ask(&workers, order()).await
                else {
                    panic!("{step}: carried out twice");
                };
                assert_eq!(now, found);
            } else {
                assert_eq!(found, label, "{step}: nobody else gets it yet");
                let erased = open.order(label.basis, erase(1, 40));
                open.change(&workers, erased).await.unwrap();
            }
            assert!(open.has(&backing, 2..42, 0), "{step}: free, and not zero");
            assert!(open.has(&backing, 42..46, 2), "{step}");
        }
    });
}

fn refused() {
    if skipped("refused") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let device = rig.loop_drive("a.img");
        let backing = rig.dir.path().join("a.img");
        let (open, label) = deleted(&workers, &device.path).await;
        let why = async |order: ChangeLabel| open.change(&workers, order).await.unwrap_err();

        let used = why(open.order(label.basis, erase(2, 1))).await;
        let volume = VolumeId::from_bits(2);
        let not_freed = ChangeRefused::NotFreed { volume };
        assert_eq!(used, LabelChangeError::Refused { why: not_freed, now: label.clone() });
        let old = Basis { sequence: label.basis.sequence - 1, ..label.basis };
        let late = why(open.order(old, erase(1, 1))).await;
        let other = ChangeRefused::OtherLabel { decided: old, found: label.basis };
        assert_eq!(late, LabelChangeError::Refused { why: other, now: label.clone() });
        let newer = LabelWant(Want { generation: WANT.generation.next(), ..WANT });
        let not_held = why(ChangeLabel { held: newer, ..open.order(label.basis, erase(1, 1)) });
        assert!(matches!(not_held.await, LabelChangeError::NotHeld { .. }));
        let elsewhere = ChangeLabel {
            evidence: hotbay_core::evidence::Evidence::default(),
            ..open.order(label.basis, erase(1, 1))
        };
        assert!(matches!(why(elsewhere).await, LabelChangeError::OtherDrive { .. }));
        let id = crate::rig::candidate(&device.path).id;
        let lock = WriterLock::take(&rig.runtime_dir, id).unwrap();
        let locked = why(open.order(label.basis, erase(1, 1))).await;
        assert!(matches!(&locked, LabelChangeError::LockedBy { .. }) && locked.retryable());
        drop(lock);

        assert_eq!(open.read(&workers).await, label);
        assert!(open.has(&backing, 2..42, 1) && open.has(&backing, 42..46, 2));
    });
}

/// The story: the agent had lost its record, and the host had been given up and taken back. Nobody knew of the use, and
/// the volume was freed, to be given to the next, while it was mounted.
fn mapped() {
    if skipped("mapped") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let device = rig.loop_drive("a.img");
        let (open, label) = deleted(&workers, &device.path).await;
        let volume = VolumeId::from_bits(2);
        let parts = vec![Segment { start_bytes: 42 * MIB, length_bytes: 4 * MIB }];
        let wanted = Wanted { volume, epoch: 7, parts, read_only: false };
        let Response::Mapped(Ok(_)) = open.ask(&workers, Request::Map(wanted)).await else {
            panic!("it is not mapped");
        };
        for change in [Change::Free { volume }, Change::Withdraw { volume }] {
            let refused = open.change(&workers, open.order(label.basis, vec![change])).await;
            assert_eq!(refused, Err(LabelChangeError::Mapped { uses: vec![(volume, 7)] }));
        }
        // What another volume had is erased all the same.
        let label = open.change(&workers, open.order(label.basis, erase(1, 40))).await.unwrap();
        assert_eq!(label.extents, [extent(2, 42, 4)]);
        open.ask(&workers, Request::Unmap { volume }).await;
        let label = open.change(&workers, open.order(label.basis, free(2))).await.unwrap();
        assert_eq!(label.extents, [Extent { usage: Use::Dirty, ..extent(2, 42, 4) }]);
    });
}

/// As many extents as there is room for, with names that are as long as names get in a message.
fn full() {
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let path = rig.file("a.img");
        File::options().write(true).open(&path).unwrap().set_len(1100 * MIB).unwrap();
        let open = Open::new(&workers, path.to_str().unwrap()).await;
        let longest = |number: usize| Extent {
            name: "\"".repeat(128).parse().unwrap(),
            claim: Some(Claim::new(&"\\".repeat(63), &"\"".repeat(253)).unwrap()),
            part: u32::MAX,
            ..extent(u128::MAX - number as u128, 2 + number as u64, 1)
        };
        let all: Vec<Extent> = (0..MOST_EXTENTS).map(longest).collect();
        let mut label = open.read(&workers).await;
        for some in all.chunks(MOST_CHANGES) {
            let places = some.iter().cloned().map(Change::Place).collect();
            label = open.change(&workers, open.order(label.basis, places)).await.unwrap();
        }
        assert!(label.extents == all);
        assert!(open.read(&workers).await == label);
        let more = open.order(label.basis, vec![Change::Place(extent(1, 1050, 1))]);
        let refused = open.change(&workers, more).await.unwrap_err();
        assert!(refused == LabelChangeError::Refused { why: ChangeRefused::Full, now: label });
    });
}

fn told() {
    if skipped("told") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let device = rig.loop_drive("a.img");
        let (open, label) = deleted(&workers, &device.path).await;
        let relabel = Request::Relabel(attach_of(&open.drive));
        let Response::Attached(Ok(again)) = open.ask(&workers, relabel).await else {
            panic!("not relabelled");
        };
        assert_eq!(again.told, label, "nothing was to be written");

        let Open { drive, descriptor } = open;
        drop(descriptor);
        let generation = WANT.generation.next();
        let want = LabelWant(Want { generation, ..WANT });
        let (attached, descriptor) =
            attach(&workers, Attach { want, ..attach_of(&drive) }).await.unwrap();
        assert_eq!(attached.told.extents, label.extents);
        assert_eq!(attached.told.basis.sequence, label.basis.sequence + 1);
        let open = Open { drive, descriptor };
        let order = open.order(attached.told.basis, erase(1, 40));
        let order = ChangeLabel { held: want, ..order };
        assert_eq!(open.change(&workers, order).await.unwrap().extents, [extent(2, 42, 4)]);
    });
}

/// Invariant 5: a drive with live volumes is never closed by an order.
fn in_use() {
    if skipped("in_use") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let device = rig.loop_drive("a.img");
        let (open, label) = deleted(&workers, &device.path).await;
        let Open { drive, mut descriptor } = open;
        let lock = WriterLock::take(&rig.runtime_dir, crate::rig::candidate(&device.path).id);
        // Also while somebody else may write to it.
        for lock in [Some(lock.unwrap()), None] {
            let request = Request::Detach(detach_of(&drive));
            let running = workers.start(request, vec![descriptor]).unwrap();
            let mut done = tokio::time::timeout(LIMIT, running).await.unwrap().unwrap();
            let volumes = vec!["pvc-2".to_owned()];
            assert_eq!(done.response, Response::InUse { volumes }, "the deleted one is not named");
            descriptor = done.descriptors.remove(0);
            drop(lock);
        }
        let open = Open { drive, descriptor };
        assert_eq!(open.read(&workers).await, label, "nothing was written");

        // Nor is the label of one released that nobody has open.
        drop(open.descriptor);
        let request = Request::Detach(detach_of(&open.drive));
        let done = workers.start(request, vec![]).unwrap().await.unwrap();
        assert!(matches!(done.response, Response::InUse { .. }), "{done:?}");
        assert!(seen(&workers, &device.path).await.label.unwrap().in_operation);
        let purged = Detach { even_with_volumes: true, ..detach_of(&open.drive) };
        let detached = detach(&workers, purged, None).await;
        assert_eq!((detached.label_not_updated, detached.proof), (None, Proof::Proved));
        assert!(!detached.label.unwrap().in_operation);
    });
}

/// The third copy follows every write of a label by a child.
fn third_copy() {
    if skipped("third_copy") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let device = rig.loop_drive("a.img");
        let inspected = || hotbay_host::label::inspect(Path::new(&device.path)).unwrap();
        let follows = |step: &str| {
            let inspected = inspected();
            let third = inspected.third_copy.unwrap();
            let Found::Valid { header, .. } = inspected.found else { panic!("{step}: no label") };
            assert_eq!(third.slot, Slot::Valid(header), "{step}");
            assert_eq!(third.extents, inspected.extents, "{step}");
        };
        let (open, label) = deleted(&workers, &device.path).await;
        follows("changed");
        let label = open.change(&workers, open.order(label.basis, erase(1, 40))).await.unwrap();
        follows("erased");
        open.change(&workers, open.order(label.basis, free(2))).await.unwrap();
        detach(&workers, detach_of(&open.drive), Some(open.descriptor)).await;
        follows("released");
        let (_, descriptor) = attach(&workers, attach_of(&open.drive)).await.unwrap();
        follows("attached");

        // One that was lost is written again by the next attach, which has nothing else to write.
        let before = inspected();
        let at = 62 * MIB;
        File::from(descriptor.try_clone().unwrap()).write_all_at(&[0; 512], at).unwrap();
        assert_eq!(inspected().third_copy.unwrap().slot, Slot::Empty);
        let open = Open { drive: open.drive, descriptor };
        open.ask(&workers, Request::Relabel(attach_of(&open.drive))).await;
        assert_eq!(inspected(), before);
    });
}

/// What is gone from the machine is let go, so that it is opened anew when it is back.
fn gone() {
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let path = rig.file("a.img");
        let (open, _) = deleted(&workers, path.to_str().unwrap()).await;
        std::fs::remove_file(&path).unwrap();
        let running = workers.start(Request::Detach(detach_of(&open.drive)), open.copy()).unwrap();
        let done = tokio::time::timeout(LIMIT, running).await.unwrap().unwrap();
        assert!(matches!(done.response, Response::Detached(_)), "{done:?}");
    });
}
