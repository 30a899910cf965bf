//! Writes the seeds of every target to a folder, one folder per target, where libFuzzer starts from them. Called by
//! `cargo xtask soak`.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use hotbay_fuzz_targets::{TARGETS, Target};

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: hotbay-fuzz-targets FOLDER");
        return Ok(ExitCode::from(2));
    };
    for Target { name, seeds, .. } in &TARGETS {
        let folder = Path::new(&folder).join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for (number, seed) in seeds().iter().enumerate() {
            let file = folder.join(format!("seed-{number}"));
            fs::write(&file, seed).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
