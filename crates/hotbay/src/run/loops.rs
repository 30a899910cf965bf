//! Loop devices over the demo's files, made and removed with `losetup`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// The loop device over a file: the one that is there already, or a new one.
pub(crate) fn over(file: &Path) -> anyhow::Result<String> {
    if let Some(device) = existing(file)?.into_iter().next() {
        return Ok(device);
    }
    // Direct I/O, so that what the demo shows is what a drive would do.
    let direct = losetup(&[
        "--find".as_ref(),
        "--show".as_ref(),
        "--direct-io=on".as_ref(),
        file.as_os_str(),
    ]);
    let made = match direct {
        Ok(made) => made,
        Err(_) => losetup(&["--find".as_ref(), "--show".as_ref(), file.as_os_str()])?,
    };
    Ok(made.trim().to_owned())
}

/// Removes every loop device over a file.
pub(crate) fn remove(file: &Path) -> anyhow::Result<()> {
    for device in existing(file)? {
        losetup(&["--detach".as_ref(), device.as_ref()])?;
    }
    Ok(())
}

fn existing(file: &Path) -> anyhow::Result<Vec<String>> {
    let listed = losetup(&[
        "--associated".as_ref(),
        file.as_os_str(),
        "--noheadings".as_ref(),
        "--raw".as_ref(),
        "--output".as_ref(),
        "NAME,AUTOCLEAR".as_ref(),
    ])?;
    // One that is to be cleared goes when the last process lets it go; nothing can be done with it any more.
    let lasting = listed.lines().filter_map(|line| line.trim().strip_suffix(" 0"));
    Ok(lasting.map(str::to_owned).collect())
}

fn losetup(arguments: &[&std::ffi::OsStr]) -> anyhow::Result<String> {
    let output = Command::new("losetup")
        .args(arguments)
        .output()
        .context("cannot run losetup; it is in the package util-linux (or mount)")?;
    if !output.status.success() {
        bail!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
