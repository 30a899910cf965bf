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
use crate::kernel_id::{DeviceNumber, KernelId};
use crate::loop_ioctl::{LoopStatus, loop_status};
use crate::mapping;
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
    let loops = sysfs.loops()?.into_iter();
    let asked = loops.filter(|l| sysfs.disk(&l.name).number() != Some(drive)).collect();
    let answers = statuses(asked).into_iter();
    Ok(answers
        .filter(|(device, answer)| match answer {
            Some(answer) => is_over(device, answer, searched),
            None => is_over_by_path(&device.backing, searched),
        })
        .map(|(device, answer)| blocker(&device, answer))
        .collect())
}

/// Asks loop devices what they are; `None` for one that does not answer in time.
pub(crate) fn statuses(mut asked: Vec<Loop>) -> Vec<(Loop, Option<io::Result<LoopStatus>>)> {
    let mut all = Vec::with_capacity(asked.len());
    let mut hanging = 0;
    while !asked.is_empty() {
        let answers = if hanging < MAX_HANGING { ask(&asked) } else { vec![] };
        let mut answered: Vec<_> = answers.into_iter().map(Some).collect();
        if answered.len() < asked.len() {
            // The one after the last that answered hangs.
            answered.push(None);
            hanging += 1;
        }
        all.extend(asked.drain(..answered.len()).zip(answered));
    }
    all
}

/// The answers of as many as answered, in order.
fn ask(loops: &[Loop]) -> Vec<io::Result<LoopStatus>> {
    let (sender, receiver) = mpsc::channel();
    let paths: Vec<String> = loops.iter().map(|l| format!("/dev/{}", l.name)).collect();
    // Left behind if it hangs; it ends with the process, or when the filesystem answers.
    let asking = std::thread::Builder::new().name("ask-loops".into()).spawn(move || {
        for path in paths {
            if sender.send(status_of(&path)).is_err() {
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

fn status_of(path: &str) -> io::Result<LoopStatus> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    loop_status(rustix::fs::open(path, flags, Mode::empty())?)
}

fn is_over(device: &Loop, answer: &io::Result<LoopStatus>, searched: &Searched) -> bool {
    match answer {
        Ok(LoopStatus { backing, .. }) => {
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

fn blocker(device: &Loop, answer: Option<io::Result<LoopStatus>>) -> Blocker {
    let path = format!("/dev/{}", device.name);
    match answer.and_then(Result::ok).and_then(|status| mapping::volume_of(&status)) {
        Some(volume) => Blocker::Mapping { volume, path },
        None => Blocker::LoopDevice { path },
    }
}
