//! What a look at the whole machine costs, by the number of its devices: over trees of files made as sysfs would show
//! them, and on this machine beside `lsblk`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use hotbay_host::scan::{self, Selection};

use crate::registry::median;

const SIZES: [usize; 4] = [10, 100, 1_000, 5_000];
const ROUNDS: usize = 5;
const ROUNDS_BESIDE: usize = 15;

pub(crate) fn run() -> anyhow::Result<()> {
    println!("List a machine, over files made as sysfs shows drives (median of {ROUNDS}):\n");
    println!("| drives | ms | µs a drive |\n|---|---|---|");
    for drives in SIZES {
        let tree = tempfile::tempdir()?;
        (0..drives).try_for_each(|number| drive(tree.path(), number))?;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let found = scan::list_below(tree.path())?.len();
            times.push(began.elapsed());
            anyhow::ensure!(found == drives, "{found} of {drives} drives were found");
        }
        let time = median(times).as_secs_f64();
        println!("| {drives} | {:.1} | {:.0} |", time * 1e3, time * 1e6 / drives as f64);
    }
    println!();
    beside_lsblk()
}

/// An NVMe drive.
fn drive(root: &Path, number: usize) -> anyhow::Result<()> {
    let disk = root.join(format!("block/nvme{number}n1"));
    for (file, text) in [
        ("dev", format!("259:{number}")),
        ("size", "3907029168".to_owned()),
        ("ro", "0".to_owned()),
        ("removable", "0".to_owned()),
        ("hidden", "0".to_owned()),
        ("diskseq", (number + 1).to_string()),
        ("nguid", format!("00000000-0000-0001-0000-{number:012x}")),
        ("wwid", format!("eui.0000000000000001{number:016x}")),
        ("queue/logical_block_size", "512".to_owned()),
        ("queue/physical_block_size", "4096".to_owned()),
        ("queue/rotational", "0".to_owned()),
        ("queue/zoned", "none".to_owned()),
        ("device/serial", format!("S{number:08}")),
        ("device/model", "ACME NV-2000".to_owned()),
        ("device/firmware_rev", "2.1.0".to_owned()),
    ] {
        let path = disk.join(file);
        std::fs::create_dir_all(path.parent().context("a file of the disk")?)?;
        std::fs::write(path, text + "\n")?;
    }
    for directory in ["holders", "slaves"] {
        std::fs::create_dir_all(disk.join(directory))?;
    }
    Ok(())
}

fn beside_lsblk() -> anyhow::Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS_BESIDE {
        let began = Instant::now();
        scan::list(&Selection::All)?;
        ours.push(began.elapsed());
        let mut lsblk = Command::new("lsblk");
        lsblk.args(["-J", "-O"]).stdout(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        match lsblk.status() {
            Ok(status) if status.success() => theirs.push(began.elapsed()),
            Ok(_) | Err(_) => {}
        }
    }
    let ms = |times: Vec<Duration>| median(times).as_secs_f64() * 1e3;
    if theirs.is_empty() {
        println!("!! Not compared: lsblk -J -O does not run here.\n");
    } else {
        let (ours, theirs) = (ms(ours), ms(theirs));
        println!(
            "This machine, listed: {ours:.2} ms; `lsblk -J -O` beside it: {theirs:.1} ms, {:.0} times that.\n",
            theirs / ours
        );
    }
    if Command::new("udevadm").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("!! Not compared: there is no udevadm here.\n");
    }
    Ok(())
}
