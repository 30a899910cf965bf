//! Volumes on a machine with device-mapper: registry and agent run in a QEMU guest, and volumes on its drives are
//! mapped, mounted, grown and lost as users and broken drives have it.
//!
//! Run by `cargo xtask guest`. Every case brings its own drive and leaves nothing behind; the last one but one cuts the
//! power.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod dead;
mod kept;
#[expect(dead_code, reason = "the tests of drives call the rest")]
#[path = "../guest_drives/lab.rs"]
mod lab;
mod pieces;
mod volumes;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use hotbay_guest::{Machine, cases};
use lab::Lab;

const CASES: &[cases::Case<Lab>] = &[
    ("a volume in several pieces", pieces::a_volume_grows_by_another_piece),
    ("a drive pulled under a volume", dead::a_drive_pulled_under_a_volume),
    ("a drive that fails under a volume", dead::a_drive_that_fails_under_a_volume),
    ("bytes live through kills and a power cut", kept::bytes_live_through_kills_and_a_power_cut),
    ("nothing is left", volumes::nothing_is_left),
];

fn main() -> ExitCode {
    let started = Instant::now();
    let machine = Arc::new(Machine::build(Path::new(env!("CARGO_BIN_EXE_hotbay"))).unwrap());
    let first = "modprobe dm_mod && modprobe dm_flakey";
    let booted = std::panic::catch_unwind(|| Lab::boot(&machine, &[], first));
    let Ok(mut lab) = booted else {
        println!("---- console of the guest ----\n{}", cases::since(&machine.console(), 0));
        return ExitCode::FAILURE;
    };
    println!("booted in {:.1} s", started.elapsed().as_secs_f64());
    cases::run(&mut lab, &machine.console(), CASES)
}
