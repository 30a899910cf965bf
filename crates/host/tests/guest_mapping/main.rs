//! Volumes mapped by device-mapper, on a kernel that has it: in a QEMU guest, with this program as the one that runs
//! in it.
//!
//! Run by `cargo xtask guest`. Outside it boots the guest and asks itself, inside, for one case after another; inside
//! it is also the child that a case asks (`drive-worker`). With `measure` it measures instead, for `cargo xtask bench
//! mapping`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

#[expect(dead_code, reason = "the tests on loop devices call the rest")]
#[path = "../root_drives/holders.rs"]
mod holders;
mod inside;
#[expect(dead_code, reason = "the tests on loop devices call the rest")]
#[path = "../root_drives/lab.rs"]
mod lab;
mod measure;
#[expect(dead_code, reason = "the tests on loop devices call the rest")]
#[path = "../root_drives/rig.rs"]
mod rig;
#[path = "../root_drives/volumes.rs"]
mod volumes;

use std::process::ExitCode;
use std::sync::Arc;

use hotbay_guest::{Bus, Drive, Guest, Machine, cases};
use hotbay_host::mapping::MappingKind;

const DRIVE_BYTES: u64 = 1 << 30;

const CASES: &[cases::Case<Guest>] = &[
    ("a volume of several parts", |guest| ask(guest, "life")),
    ("a fence under a mounted filesystem", |guest| ask(guest, "fenced")),
    ("children killed at every step", |guest| ask(guest, "killed")),
    ("an agent that starts again", |guest| ask(guest, "started-again")),
    ("a loop device from before", |guest| ask(guest, "mapped-before")),
    ("an agent that dies while it attaches", |guest| ask(guest, "attach-killed")),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["drive-worker"] => hotbay_host::worker::worker_main(|_| {}),
        ["drive-worker", step] => holders::worker_that_stops_at(step),
        [hold, path] if hold.starts_with("hold-") => holders::hold(hold, path),
        ["inside", "measure-device-mapper", drive] => measured(drive, MappingKind::DeviceMapper),
        ["inside", "measure-loop", drive] => measured(drive, MappingKind::Loop),
        ["inside", case, drive] => inside::run(case, drive),
        ["measure"] => outside(|guest, _| {
            println!("| I/O through | what | of the drive's rate | drive, MiB/s | budget |");
            println!("|---|---|---|---|---|");
            ask(guest, "measure-device-mapper");
            ask(guest, "measure-loop");
            ExitCode::SUCCESS
        }),
        _ => outside(|guest, machine| cases::run(guest, &machine.console(), CASES)),
    }
}

fn measured(drive: &str, kind: MappingKind) -> ExitCode {
    rig::block_on(measure::run(drive.to_owned(), kind));
    ExitCode::SUCCESS
}

fn outside(with: impl FnOnce(&mut Guest, &Machine) -> ExitCode) -> ExitCode {
    let machine = Arc::new(Machine::build(&std::env::current_exe().unwrap()).unwrap());
    let drive = Drive::new("mapped", Bus::Virtio { slot: 1 }, "MAPPED", DRIVE_BYTES);
    let mut guest = match Guest::boot(&machine, &[drive]) {
        Ok(guest) => guest,
        Err(error) => {
            println!("{error}\n{}", cases::since(&machine.console(), 0));
            return ExitCode::FAILURE;
        }
    };
    with(&mut guest, &machine)
}

/// Runs one case inside, on the drive, wiped before.
fn ask(guest: &mut Guest, case: &str) {
    let find =
        "for s in /sys/block/vd*/serial; do grep -q MAPPED $s && basename ${s%/serial}; done";
    let output = guest.run(find).unwrap();
    let drive = output.stdout.trim().to_owned();
    assert!(drive.starts_with("vd"), "{output:?}");
    // What a case before left behind goes: labels, and where the volume of every case begins.
    let end = (DRIVE_BYTES >> 20) - 8;
    let zero = format!(
        "modprobe dm_mod && dmsetup remove_all -f && for at in 0 200 {end}; do \
         dd if=/dev/zero of=/dev/{drive} bs=1M count=8 seek=$at 2>/dev/null; done"
    );
    let output = guest.run(&zero).unwrap();
    assert!(output.success(), "{output:?}");
    let output = guest.run(&format!("hotbay inside {case} /dev/{drive}")).unwrap();
    print!("{}{}", output.stdout, output.stderr);
    assert!(output.success(), "{case}");
}
