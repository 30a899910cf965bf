//! Children, locks, proofs and news of devices on real drives: loop devices, mounts, and a drive that hangs.
//!
//! The program has a main of its own, because it is also the child that it tests (`drive-worker`) and the other
//! process that is in the way (`hold-...`), poses as the kernel (`send-uevent`) or listens elsewhere (`hear-uevents`).
//! Tests run one after the other: a proof looks at the whole machine. What needs root or a program that is not
//! installed says so and is skipped.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

mod attach;
mod blockers;
mod children;
mod details;
mod filesystems;
mod hang;
mod holders;
mod lab;
mod label_orders;
mod mapping;
mod mounts;
mod news;
mod rig;
mod silent;
mod volumes;
mod wipe;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

type Test = (&'static str, fn());

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["drive-worker"] => hotbay_host::worker::worker_main(|_| {}),
        ["drive-worker", step] => holders::worker_that_stops_at(step),
        ["hear-uevents"] => silent::hear(),
        ["send-uevent", target] => news::send(target),
        [hold, path] if hold.starts_with("hold-") => holders::hold(hold, path),
        _ => run(&arguments),
    }
}

fn run(arguments: &[String]) -> ExitCode {
    let tests: Vec<Test> = [
        attach::TESTS,
        blockers::TESTS,
        children::TESTS,
        details::TESTS,
        filesystems::TESTS,
        hang::TESTS,
        label_orders::TESTS,
        mapping::TESTS,
        mounts::TESTS,
        news::TESTS,
        silent::TESTS,
        wipe::TESTS,
    ]
    .concat();
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in tests {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with("--")).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(*f));
    let mut failed = Vec::new();
    for (name, test) in tests {
        if !wanted(name) {
            continue;
        }
        match std::panic::catch_unwind(AssertUnwindSafe(test)) {
            Ok(()) => println!("test {name} ... ok"),
            Err(_) => {
                println!("test {name} ... FAILED");
                failed.push(name);
            }
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {failed:?}");
    ExitCode::FAILURE
}
