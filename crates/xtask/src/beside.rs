//! Steps that run at the same time: most tests wait for disks, processes and each other, and leave a core idle. Called
//! by `run` for steps that do not mind each other.
//!
//! What a step prints is kept and told when it ends, so that each can be read as if it had run alone.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::num::NonZero;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::step::{self, End, Interrupts};

/// What became of a step.
pub(crate) struct Ended {
    /// Which, as they were given.
    pub(crate) step: usize,
    /// `None`: it was not begun, for want of time or because somebody interrupted.
    pub(crate) end: Option<anyhow::Result<End>>,
    pub(crate) took: Duration,
    /// All that it printed.
    pub(crate) output: Vec<u8>,
}

/// Runs all of them, one more at a time than there are cores, each at the latest until `deadline`. Tells of each when
/// it has ended.
pub(crate) fn run(
    commands: &mut [Command],
    deadline: Instant,
    interrupts: &Interrupts,
    mut tell: impl FnMut(Ended),
) {
    let at_once = thread::available_parallelism().map_or(1, NonZero::get) + 1;
    let stopped = AtomicBool::new(false);
    let waiting = Mutex::new(commands.iter_mut().enumerate());
    let (sender, told) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_once {
            let (sender, waiting, stopped) = (sender.clone(), &waiting, &stopped);
            scope.spawn(move || {
                let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some((step, command)) = next() {
                    let begun = Instant::now();
                    let (mut end, mut output) = (None, Vec::new());
                    if begun < deadline && !stopped.load(Ordering::Relaxed) {
                        let ended = one(command, &mut output, deadline, interrupts);
                        stopped.fetch_or(matches!(ended, Ok(End::Interrupted)), Ordering::Relaxed);
                        end = Some(ended);
                    }
                    let ended = Ended { step, end, took: begun.elapsed(), output };
                    sender.send(ended).expect("it is listened to until all have ended");
                }
            });
        }
        drop(sender);
        told.iter().for_each(&mut tell);
    });
}

fn one(
    command: &mut Command,
    output: &mut Vec<u8>,
    deadline: Instant,
    interrupts: &Interrupts,
) -> anyhow::Result<End> {
    let (mut kept, stdout, stderr) = in_memory().context("cannot keep what it prints")?;
    command.stdout(stdout).stderr(stderr);
    let end = step::run(command, deadline, interrupts);
    kept.rewind().and_then(|()| kept.read_to_end(output)).context("cannot read what it printed")?;
    end
}

/// A file that is in memory alone, and two more descriptors of it: what is written by either follows the other.
fn in_memory() -> io::Result<(File, File, File)> {
    let file = File::from(memfd_create("output", MemfdFlags::CLOEXEC)?);
    Ok((file.try_clone()?, file.try_clone()?, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: String) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        command
    }

    #[test]
    fn each_is_told_with_all_that_it_printed() {
        let mut commands: Vec<_> =
            (0..10).map(|n| shell(format!("echo {n}; echo of {n} >&2; exit {n}"))).collect();
        let deadline = Instant::now() + Duration::from_secs(50);
        let mut told = Vec::new();
        run(&mut commands, deadline, &Interrupts::listen().unwrap(), |ended| told.push(ended));
        told.sort_by_key(|ended| ended.step);
        assert_eq!(told.len(), 10);
        for (n, ended) in told.iter().enumerate() {
            let Some(Ok(End::Exited(status))) = &ended.end else { panic!("{:?}", ended.end) };
            assert_eq!(status.code(), i32::try_from(n).ok());
            assert_eq!(String::from_utf8_lossy(&ended.output), format!("{n}\nof {n}\n"));
        }
    }

    #[test]
    fn they_run_at_the_same_time() {
        // Each waits for the other: one after the other they would never end.
        let dir = std::env::temp_dir().join(format!("xtask-beside-{}", std::process::id()));
        let (one, other) = (dir.join("one"), dir.join("other"));
        std::fs::create_dir(&dir).unwrap();
        let meet = |mine: &std::path::Path, theirs: &std::path::Path| {
            let (mine, theirs) = (mine.display(), theirs.display());
            shell(format!("mkfifo {mine}; until [ -p {theirs} ]; do sleep 0.01; done"))
        };
        let mut commands = [meet(&one, &other), meet(&other, &one)];
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut good = 0;
        run(&mut commands, deadline, &Interrupts::listen().unwrap(), |ended| {
            good +=
                usize::from(matches!(ended.end, Some(Ok(End::Exited(status))) if status.success()));
        });
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(good, 2);
    }

    #[test]
    fn what_comes_too_late_is_not_begun() {
        let mut commands = [shell("exit 0".to_owned())];
        let mut ends = Vec::new();
        run(&mut commands, Instant::now(), &Interrupts::listen().unwrap(), |ended| {
            ends.push(ended.end);
        });
        assert!(matches!(ends[..], [None]), "{ends:?}");
    }
}
