//! The fuzzer's part of the soak: every program in `fuzz/`, one after the other, each for a while. The targets are in
//! `crates/fuzz-targets`, whose test runs them in `check` without a fuzzer.

use std::env;
use std::path::Path;
use std::process::Command;

use crate::tier::{Step, Work, answers};
use crate::workspace::cargo;

/// How long each target runs, unless this variable says otherwise.
const SECONDS: &str = "HOTBAY_FUZZ_SECONDS";
const SECONDS_DEFAULT: u64 = 60;

/// No input may take longer or need more: whoever sends bytes must not stop the one who reads them.
const LIMITS: [&str; 3] = ["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"];

/// The steps, or one that says why there are none.
pub(crate) fn steps(root: &Path) -> anyhow::Result<Vec<Step>> {
    let mut probe = cargo();
    probe.arg("fuzz");
    if !answers(&mut probe) {
        let why = "NOT RUN: cargo fuzz is not installed; cargo install cargo-fuzz".to_owned();
        return Ok(vec![Step { name: "fuzz".to_owned(), work: Work::LeftOut(why) }]);
    }
    let seconds = match env::var(SECONDS) {
        Ok(text) => text.parse().map_err(|_| anyhow::anyhow!("{SECONDS}={text} is no number"))?,
        Err(_) => SECONDS_DEFAULT,
    };
    let folder = root.join("fuzz");
    let mut seeds = cargo();
    seeds.args(["run", "--quiet", "--package", "hotbay-fuzz-targets", "--"]);
    seeds.arg(folder.join("corpus"));
    let mut steps = vec![Step { name: "fuzz seeds".to_owned(), work: Work::Child(seeds) }];
    for target in targets(&folder)? {
        let work = Work::Child(run(root, &target, seconds));
        steps.push(Step { name: format!("fuzz {target}"), work });
    }
    Ok(steps)
}

/// Their names, as the table of `crates/fuzz-targets` has them: its test compares the two.
fn targets(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in folder.join("fuzz_targets").read_dir()? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort_unstable();
    Ok(names)
}

/// One target for so long, from its seeds and from what once broke it. No sanitizer: nothing here is unsafe, and each
/// run is some times quicker without.
fn run(root: &Path, target: &str, seconds: u64) -> Command {
    let mut command = cargo();
    // The flags of a fuzzer are not among the stable ones; the toolchain stays the pinned one.
    command.env("RUSTC_BOOTSTRAP", "1").current_dir(root);
    command.args(["fuzz", "run", "--sanitizer", "none", target]);
    command.arg(format!("fuzz/corpus/{target}"));
    let found = format!("fuzz/found/{target}");
    if root.join(&found).is_dir() {
        command.arg(found);
    }
    command.arg("--").arg(format!("-max_total_time={seconds}")).args(LIMITS);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn every_target_is_a_step_or_the_reason_is_told() {
        let root = Workspace::load().unwrap().root;
        let steps = steps(&root).unwrap();
        match &steps[0].work {
            Work::LeftOut(why) => assert!(why.starts_with("NOT RUN"), "{why}"),
            Work::Child(_) => {
                assert_eq!(steps.len(), targets(&root.join("fuzz")).unwrap().len() + 1);
            }
            Work::Check(_) | Work::Setup(_) | Work::Beside(_) => panic!("{steps:?}"),
        }
    }
}
