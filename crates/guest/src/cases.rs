//! Runs the cases of a test one after another on a guest that is booted once, since a boot costs more than any case.
//!
//! A case that fails does not keep the others from running. What the guest printed meanwhile is shown after it, and how
//! the guest is.

use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use crate::guest::Guest;

/// What cases are run on: a guest, with whatever the test keeps beside it.
pub trait Subject {
    fn guest(&mut self) -> &mut Guest;
}

impl Subject for Guest {
    fn guest(&mut self) -> &mut Guest {
        self
    }
}

/// A case: its name, and what it does. It fails by a panic.
pub type Case<T> = (&'static str, fn(&mut T));

/// Most of the console that is shown for one case.
const MAX_CONSOLE_BYTES: usize = 64 << 10;

/// Runs the cases whose name contains one of the arguments of this process, or all of them if there is none.
pub fn run<T: Subject>(subject: &mut T, console: &Path, cases: &[Case<T>]) -> ExitCode {
    let wanted: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, case) in cases.iter().filter(|(name, _)| is_wanted(name)) {
        let (started, before) = (Instant::now(), length(console));
        println!("case {name}");
        let ended = catch_unwind(AssertUnwindSafe(|| case(subject)));
        let seconds = started.elapsed().as_secs_f64();
        if ended.is_ok() {
            println!("case {name}: passed in {seconds:.1} s");
            passed += 1;
        } else {
            println!("---- console of the guest during {name} ----\n{}", since(console, before));
            println!("---- the guest after {name} ----\n{}", subject.guest().explain());
            println!("case {name}: FAILED after {seconds:.1} s");
            failed.push(*name);
        }
    }
    println!("{passed} cases passed, {} failed", failed.len());
    for name in &failed {
        println!("  failed: {name}");
    }
    if failed.is_empty() && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the console says after its first `before` bytes, or the end of it.
pub fn since(console: &Path, before: usize) -> String {
    let bytes = fs::read(console).unwrap_or_default();
    let new = bytes.get(before..).unwrap_or_default();
    let shown = &new[new.len().saturating_sub(MAX_CONSOLE_BYTES)..];
    String::from_utf8_lossy(shown).into_owned()
}

fn length(console: &Path) -> usize {
    fs::read(console).map_or(0, |bytes| bytes.len())
}
