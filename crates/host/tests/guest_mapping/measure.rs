//! What a mapping costs against the drive that it is on: the same bytes, read and written through both in turn.
//! `cargo xtask bench mapping` has it done in the guest, where there is device-mapper; wall times are emulated there,
//! and only their ratios say something.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use hotbay_core::device::DeviceKind;
use hotbay_host::mapping::{Mapping, MappingKind};
use hotbay_host::worker::{Attach, Detach};
use rustix::fs::{Mode, OFlags};

use crate::rig::{Rig, attach, attach_of, detach, detach_of};
use crate::volumes::{Drive, MIB, unmap};

const VOLUME_MIB: u64 = 256;
const START_MIB: u64 = 200;
/// Of each kind of I/O, on each device in turn.
const ROUNDS: usize = 21;
const LARGE: usize = 1 << 20;
const SMALL: usize = 4096;
/// How many of each in a round.
const LARGE_COUNT: u64 = 192;
const SMALL_COUNT: u64 = 512;
/// Large pages, so that all kinds of drives take the buffer.
const ALIGNMENT: usize = 4096;

#[derive(Clone, Copy)]
struct Workload {
    name: &'static str,
    bytes: usize,
    count: u64,
    write: bool,
}

const WORKLOADS: [Workload; 4] = [
    Workload { name: "1 MiB sequential read", bytes: LARGE, count: LARGE_COUNT, write: false },
    Workload { name: "1 MiB sequential write", bytes: LARGE, count: LARGE_COUNT, write: true },
    Workload { name: "4 KiB random read", bytes: SMALL, count: SMALL_COUNT, write: false },
    Workload { name: "4 KiB random write", bytes: SMALL, count: SMALL_COUNT, write: true },
];

/// Of one kind of mapping, as lines of a table.
pub(crate) async fn run(path: String, kind: MappingKind) {
    let rig = Rig::new();
    let workers = rig.workers();
    let mut drive = Drive::existing(&workers, path.clone(), crate::DRIVE_BYTES).await;
    let wanted = drive.place(1, START_MIB, VOLUME_MIB);
    let close = Detach { even_with_volumes: true, ..detach_of(&drive.seen) };
    let name = match kind {
        MappingKind::DeviceMapper => "device-mapper",
        MappingKind::Loop => {
            // Attached as a loop device is, it gets no guard.
            detach(&workers, close.clone(), drive.descriptor.take()).await;
            let as_loop = Attach { kind: DeviceKind::Loop, ..attach_of(&drive.seen) };
            drive.descriptor = Some(attach(&workers, as_loop).await.unwrap().1);
            "loop device"
        }
    };
    let mapping = drive.map(&workers, &wanted).await.unwrap();
    assert_eq!(mapping.kind, kind);
    compare(name, &path, &mapping);
    assert_eq!(unmap(&workers, wanted.volume).await, Ok(true));
    detach(&workers, close, drive.descriptor.take()).await;
}

fn compare(name: &str, drive: &str, mapping: &Mapping) {
    let (on_drive, on_mapping) = (open(drive), open(&mapping.path));
    let start = mapping.parts[0].start_bytes;
    for workload in WORKLOADS {
        let (mut ratios, mut rates) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            // Whoever comes first finds the machine otherwise than whoever comes second.
            let (base, mapped) = if round % 2 == 0 {
                let base = timed(&on_drive, start, workload);
                (base, timed(&on_mapping, 0, workload))
            } else {
                let mapped = timed(&on_mapping, 0, workload);
                (timed(&on_drive, start, workload), mapped)
            };
            ratios.push(base / mapped);
            rates.push(workload.count as f64 * workload.bytes as f64 / MIB as f64 / base);
        }
        // Of pairs: what else the machine does changes from one round to the next.
        let (ratio, rate) = (median(ratios), median(rates));
        let budgeted = mapping.kind == MappingKind::DeviceMapper && workload.bytes == LARGE;
        let budget = if budgeted { "at least 0.97" } else { "" };
        println!("| {name} | {} | {ratio:.3} | {rate:.0} | {budget} |", workload.name);
    }
}

fn open(path: &str) -> File {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    File::from(rustix::fs::open(path, flags, Mode::empty()).unwrap())
}

/// How many seconds it takes.
fn timed(device: &File, start: u64, workload: Workload) -> f64 {
    let Workload { bytes, count, write, .. } = workload;
    let mut room = vec![0x5a_u8; bytes + ALIGNMENT];
    let aligned = room.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut room[aligned..aligned + bytes];
    let places = VOLUME_MIB * MIB / bytes as u64;
    let began = Instant::now();
    for number in 0..count {
        // Far enough apart, and the same ones in every round.
        let place = if bytes == LARGE { number } else { number * 7_919 % places };
        let at = start + place * bytes as u64;
        if write {
            device.write_all_at(buffer, at).unwrap();
        } else {
            device.read_exact_at(buffer, at).unwrap();
        }
    }
    began.elapsed().as_secs_f64()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
