//! Finds loop devices over a drive.
//!
//! A loop device tells what it is over, but has the backing file's filesystem asked for it, and that may hang (a file
//! served over the network). So the question is put in a thread of its own; one that does not answer is judged by the
//! path that sysfs shows. That can be wrong only for a device node kept on such a filesystem.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::{Blocker, Searched};
use crate::block_ioctl::{LoopBacking, loop_backing};
use crate::kernel_id::{DeviceNumber, KernelId};
use crate::scan::sysfs::{Loop, Sysfs};

/// How long one loop device may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Most loop devices that are waited for in vain; after that all are judged by their paths.
const MAX_HANGING: u32 = 8;

/// Loop devices over what is searched. `drive` itself, if it is one, is not asked: it is not over itself, and
/// nothing of ours opens it.
pub(super) fn over(
    sysfs: &Sysfs,
    searched: &Searched,
    drive: DeviceNumber,
) -> io::Result<Vec<Blocker>> {
    let loops: Vec<Loop> = sysfs.loops()?;
    let mut asked: Vec<Loop> =
        loops.into_iter().filter(|l| sysfs.disk(&l.name).number() != Some(drive)).collect();
    let mut blockers = Vec::new();
    let mut hanging = 0;
    while !asked.is_empty() {
        let answers = if hanging < MAX_HANGING { ask(&asked) } else { vec![] };
        let answered = answers.len();
        for (device, answer) in asked.iter().zip(answers) {
            if is_over(device, &answer, searched) {
                blockers.push(blocker(device));
            }
        }
        // The one after the last that answered hangs.
        if let Some(silent) = asked.get(answered) {
            hanging += 1;
            if is_over_by_path(&silent.backing, searched) {
                blockers.push(blocker(silent));
            }
        }
        asked.drain(..(answered + 1).min(asked.len()));
    }
    Ok(blockers)
}

/// The answers of as many as answered, in order.
fn ask(loops: &[Loop]) -> Vec<io::Result<LoopBacking>> {
    let (sender, receiver) = mpsc::channel();
    let paths: Vec<String> = loops.iter().map(|l| format!("/dev/{}", l.name)).collect();
    // Left behind if it hangs; it ends with the process, or when the filesystem answers.
    let asking = std::thread::Builder::new().name("ask-loops".into()).spawn(move || {
        for path in paths {
            if sender.send(backing_of(&path)).is_err() {
                return;
            }
        }
    });
    if asking.is_err() {
        return vec![];
    }
    let mut answers = Vec::new();
    while let Ok(answer) = receiver.recv_timeout(PATIENCE) {
        answers.push(answer);
    }
    answers
}

fn backing_of(path: &str) -> io::Result<LoopBacking> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    loop_backing(rustix::fs::open(path, flags, Mode::empty())?)
}

fn is_over(device: &Loop, answer: &io::Result<LoopBacking>, searched: &Searched) -> bool {
    match answer {
        Ok(backing) => {
            searched.devices.contains(&backing.device)
                || searched.file == Some((backing.on, backing.inode))
        }
        // Nothing behind it any more.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => false,
        Err(_) => is_over_by_path(&device.backing, searched),
    }
}

/// The path is looked up only under `/dev`, which is in memory, when a file is not what is searched.
fn is_over_by_path(backing: &str, searched: &Searched) -> bool {
    let path = std::path::Path::new(backing);
    if searched.file.is_none() && !path.starts_with("/dev") {
        return false;
    }
    match KernelId::of_path(path) {
        Ok(Some(KernelId::Block(number))) => searched.devices.contains(&number),
        Ok(Some(KernelId::File { on, inode })) => searched.file == Some((on, inode)),
        Ok(None) | Err(_) => false,
    }
}

fn blocker(device: &Loop) -> Blocker {
    Blocker::LoopDevice { path: format!("/dev/{}", device.name) }
}
