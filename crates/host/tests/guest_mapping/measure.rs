//! What a mapping costs against the drive that it is on: the same bytes, read and written through both in turn.
//! `cargo xtask bench mapping` has it done in the guest, where there is device-mapper; wall times are emulated there, and
//! only their ratios say something.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use hotbay_core::device::DeviceKind;
use hotbay_host::mapping::{Mapping, MappingKind};
use hotbay_host::worker::{Attach, Detach};
use rustix::fs::{Mode, OFlags};

use crate::rig::{Rig, attach, attach_of, detach, detach_of};
use crate::volumes::{Drive, MIB, unmap};

const VOLUME_MIB: u64 = 256;
const START_MIB: u64 = 200;
/// Of each kind of I/O, on each device in turn.
const ROUNDS: usize = 15;
const LARGE: usize = 1 << 20;
const SMALL: usize = 4096;
/// How many of each in a round.
const LARGE_COUNT: u64 = 96;
const SMALL_COUNT: u64 = 1_024;
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

pub(crate) async fn run(path: String) {
    let rig = Rig::new();
    let workers = rig.workers();
    let mut drive = Drive::existing(&workers, path.clone(), crate::DRIVE_BYTES).await;
    let wanted = drive.place(1, START_MIB, VOLUME_MIB);
    println!("| I/O through | what | of the drive's rate | drive, MiB/s | budget |");
    println!("|---|---|---|---|---|");
    let mapping = drive.map(&workers, &wanted).await.unwrap();
    assert_eq!(mapping.kind, MappingKind::DeviceMapper);
    compare("device-mapper", &path, &mapping);
    assert_eq!(unmap(&workers, wanted.volume).await, Ok(true));

    // Attached as a loop device is, it gets no guard.
    let close = Detach { even_with_volumes: true, ..detach_of(&drive.seen) };
    detach(&workers, close, drive.descriptor.take()).await;
    let as_loop = Attach { kind: DeviceKind::Loop, ..attach_of(&drive.seen) };
    let (_, descriptor) = attach(&workers, as_loop).await.unwrap();
    drive.descriptor = Some(descriptor);
    let mapping = drive.map(&workers, &wanted).await.unwrap();
    assert_eq!(mapping.kind, MappingKind::Loop);
    compare("loop device", &path, &mapping);
    assert_eq!(unmap(&workers, wanted.volume).await, Ok(true));
}

fn compare(name: &str, drive: &str, mapping: &Mapping) {
    let (on_drive, on_mapping) = (open(drive), open(&mapping.path));
    let start = mapping.parts[0].start_bytes;
    for workload in WORKLOADS {
        let (mut base, mut mapped) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            // Whoever comes first finds the machine otherwise than whoever comes second.
            let mut drive_first = || base.push(timed(&on_drive, start, workload));
            if round % 2 == 0 {
                drive_first();
                mapped.push(timed(&on_mapping, 0, workload));
            } else {
                mapped.push(timed(&on_mapping, 0, workload));
                drive_first();
            }
        }
        let (base, mapped) = (median(base), median(mapped));
        let ratio = base.as_secs_f64() / mapped.as_secs_f64();
        let mib = workload.count as f64 * workload.bytes as f64 / MIB as f64;
        let budgeted = mapping.kind == MappingKind::DeviceMapper && workload.bytes == LARGE;
        let budget = if budgeted { "at least 0.97" } else { "" };
        let rate = mib / base.as_secs_f64();
        println!("| {name} | {} | {ratio:.3} | {rate:.0} | {budget} |", workload.name);
    }
}

fn open(path: &str) -> File {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    File::from(rustix::fs::open(path, flags, Mode::empty()).unwrap())
}

fn timed(device: &File, start: u64, workload: Workload) -> Duration {
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
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
