//! Hotbay on a machine with real kinds of drives: registry and agent run in a QEMU guest, drives come, go and change
//! places, and what the registry holds is compared with what was done.
//!
//! Run by `cargo xtask guest`. Every case brings its own drives or leaves the shared ones as it found them; the last
//! one cuts the power. `HOTBAY_GUEST_HALF=first` or `last` runs a half of them: each half has a machine of its own, and
//! both together take half the time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod contents;
mod denied;
mod follow;
mod hang;
mod lab;
mod many;
mod operation;
mod plug;
mod power;
mod sizes;
mod stack;
mod udev;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use hotbay_guest::{Machine, cases};
use lab::Lab;

const CASES: &[cases::Case<Lab>] = &[
    ("drives of every kind are found", operation::drives_of_every_kind_are_found),
    ("what is told of a drive", operation::what_the_machine_tells_of_a_drive_is_shown),
    ("drives go into operation and out", operation::drives_go_into_operation_and_out),
    (
        "a killed agent comes back with its drives",
        operation::a_killed_agent_comes_back_with_its_drives,
    ),
    ("a hot-added drive is found", plug::a_hot_added_drive_is_found_and_can_be_added),
    (
        "a drive pulled in operation",
        plug::a_drive_pulled_in_operation_is_missing_and_can_be_removed,
    ),
    ("a drive pulled and put back", plug::a_drive_put_back_is_in_operation_again),
    ("another drive in the same slot", plug::another_drive_in_the_same_slot_is_another_drive),
    ("what is on a drive is left as it is", denied::what_is_on_a_drive_is_left_as_it_is),
    ("a member of a software RAID", denied::a_member_of_a_software_raid_is_told),
    (
        "two drives with one serial number",
        denied::two_drives_with_one_serial_number_are_not_confused,
    ),
    ("a resized drive", sizes::a_resized_drive_is_published_once),
    ("a drive shrinks in operation", sizes::a_drive_that_shrinks_in_operation_says_so),
    ("partitions", contents::partitions_are_told_with_their_sizes),
    ("a filesystem is mounted", contents::a_filesystem_is_mounted_and_unmounted),
    ("a drive is wiped", contents::a_partitioned_drive_is_wiped_and_added),
    ("a mapped drive is held", stack::a_mapped_drive_is_held),
    ("volumes of LVM", stack::volumes_of_lvm_come_grow_and_go),
    ("an encrypted drive", stack::an_encrypted_drive_is_opened_and_closed),
    ("a drive that hangs", hang::a_drive_that_hangs_delays_nobody),
    ("many drives at once", many::many_drives_come_and_go_at_once),
    ("the names of udev", udev::the_names_of_udev_are_shown),
    ("a power cut", power::drives_come_back_after_a_power_cut_under_other_names),
];

/// The cases that this process is to run.
fn chosen() -> &'static [cases::Case<Lab>] {
    let (first, last) = CASES.split_at(CASES.len() / 2);
    match std::env::var("HOTBAY_GUEST_HALF").as_deref() {
        Err(_) => CASES,
        Ok("first") => first,
        Ok("last") => last,
        Ok(other) => panic!("HOTBAY_GUEST_HALF is {other:?}; it may be first or last"),
    }
}

fn main() -> ExitCode {
    let cases = chosen();
    let started = Instant::now();
    let machine = Arc::new(Machine::build(Path::new(env!("CARGO_BIN_EXE_hotbay"))).unwrap());
    let booted = std::panic::catch_unwind(|| Lab::boot(&machine, &lab::cold(), "true"));
    let Ok(mut lab) = booted else {
        println!("---- console of the guest ----\n{}", cases::since(&machine.console(), 0));
        return ExitCode::FAILURE;
    };
    println!("booted in {:.1} s", started.elapsed().as_secs_f64());
    cases::run(&mut lab, &machine.console(), cases)
}
