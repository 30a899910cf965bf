//! One program of the rig: started with its log, noted in the rig's folder, asked whether it still runs, and ended by
//! its pid when it is dropped. `ControlPlane` and `Node` are made of these.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::error::RigError;
use crate::folder::Folder;

/// How long a program may take to end when it is told to; then it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// How long the kernel may take to end a killed one, with all that is in its namespace.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// Between two questions whether something is ready.
const STEP: Duration = Duration::from_millis(100);
/// How much of a log an error shows.
const TAIL_BYTES: u64 = 2_000;

#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    note: PathBuf,
    /// Whom signals are for: the child, or the child's own.
    target: u32,
    /// Whether it goes on when this value is dropped.
    kept: bool,
}

impl Process {
    /// Starts `command` with its output in the log of that name, which grows with every start.
    pub(crate) fn start(
        folder: &Folder,
        name: &str,
        mut command: Command,
    ) -> Result<Self, RigError> {
        let log = folder.log(name);
        let output = File::options().create(true).append(true).open(&log);
        let output = output.map_err(RigError::file("open the log", &log))?;
        let errors = output.try_clone().map_err(RigError::file("open the log", &log))?;
        if folder.outlives() {
            // Whoever ends the caller's process group, as Ctrl-C does, does not mean this one.
            command.process_group(0);
        }
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn().map_err(|source| RigError::Start {
            program: command.get_program().to_string_lossy().into_owned(),
            source,
        })?;
        let (note, target) = (folder.note(name), child.id());
        let process = Self { name: name.to_owned(), child, log, note, target, kept: false };
        process.take_note()?;
        Ok(process)
    }

    pub fn pid(&self) -> u32 {
        self.target
    }

    /// From now on the only child of this process is meant, with which it ends.
    pub(crate) fn stand_for_child(&mut self) -> Result<(), RigError> {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(&path).map_err(RigError::file("read", &path))?;
        let child = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
        self.must_run()?;
        self.target = child.unwrap_or(self.target);
        self.take_note()
    }

    fn take_note(&self) -> Result<(), RigError> {
        let running = Running::of(self.target, &self.name);
        let text = running.map(|running| running.to_note()).unwrap_or_default();
        fs::write(&self.note, text).map_err(RigError::file("write", &self.note))
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Stops it where it is, without its knowing: it holds its connections and answers nothing.
    pub fn pause(&self) -> Result<(), RigError> {
        self.signal(Signal::STOP)
    }

    pub fn resume(&self) -> Result<(), RigError> {
        self.signal(Signal::CONT)
    }

    /// Ends it without a chance to tidy up.
    pub fn kill(&mut self) -> Result<(), RigError> {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::KILL)?;
        }
        self.reap();
        Ok(())
    }

    /// Tells it to end, and waits until it has.
    pub fn stop(&mut self) -> Result<(), RigError> {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM)?;
            // One that is paused hears nothing.
            self.signal(Signal::CONT)?;
            if !Running::wait(Pid::from_child(&self.child), STOP_LIMIT) {
                self.signal(Signal::KILL)?;
            }
        }
        self.reap();
        Ok(())
    }

    /// Asks again and again until the answer is `Ok`, which says that it is ready; an `Err` says what is not yet so.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut ask: impl FnMut() -> Result<T, String>,
    ) -> Result<T, RigError> {
        let give_up = Instant::now() + limit;
        loop {
            let heard = match ask() {
                Ok(answer) => return Ok(answer),
                Err(heard) => heard,
            };
            self.must_run()?;
            if Instant::now() > give_up {
                return Err(RigError::NotInTime { what: what.to_owned(), limit, heard });
            }
            sleep(STEP);
        }
    }

    /// Fails, with the end of its log, if it has ended.
    pub(crate) fn must_run(&mut self) -> Result<(), RigError> {
        match self.child.try_wait() {
            Ok(Some(status)) => Err(RigError::Ended {
                name: self.name.clone(),
                status: status.to_string(),
                log: self.log.clone(),
                tail: tail(&self.log),
            }),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// From now on it goes on when this value is dropped, until `rig down`.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }

    fn signal(&self, signal: Signal) -> Result<(), RigError> {
        let target = i32::try_from(self.target).ok().and_then(Pid::from_raw);
        match target.map_or(Ok(()), |target| kill_process(target, signal)) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(RigError::Signal {
                name: self.name.clone(),
                pid: self.pid(),
                source: error.into(),
            }),
        }
    }

    fn reap(&mut self) {
        // Neither can fail in a way that somebody could do something about.
        drop(self.child.wait());
        drop(fs::remove_file(&self.note));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = self.stop()
        {
            eprintln!("hotbay-rig: {error}");
        }
    }
}

/// A process that a rig's folder speaks of, which need not be a child of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) name: String,
    pid: i32,
    /// When it was started, in the kernel's ticks: another one may have got its pid since.
    started: u64,
}

impl Running {
    fn of(pid: u32, name: &str) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        Some(Self { name: name.to_owned(), pid, started: started(pid)? })
    }

    /// The process of this note, if it still runs.
    pub(crate) fn noted(note: &Path) -> Option<Self> {
        let name = note.file_name()?.to_string_lossy().into_owned();
        let text = fs::read_to_string(note).ok()?;
        let (pid, ticks) = text.trim_end().split_once(' ')?;
        let running = Self { name, pid: pid.parse().ok()?, started: ticks.parse().ok()? };
        (started(running.pid) == Some(running.started)).then_some(running)
    }

    /// Ends it, with force if it does not listen. It is gone when this returns, or it is said that it is not.
    pub(crate) fn end(&self) -> Result<(), RigError> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(()) };
        for (signal, limit) in [(Signal::TERM, STOP_LIMIT), (Signal::KILL, KILL_LIMIT)] {
            match kill_process(pid, signal).and_then(|()| kill_process(pid, Signal::CONT)) {
                Ok(()) => {}
                Err(Errno::SRCH) => return Ok(()),
                Err(error) => {
                    let pid = self.pid.unsigned_abs();
                    let name = self.name.clone();
                    return Err(RigError::Signal { name, pid, source: error.into() });
                }
            }
            if Self::wait(pid, limit) {
                return Ok(());
            }
        }
        let what = format!("the end of {}, process {}", self.name, self.pid);
        Err(RigError::NotInTime { what, limit: KILL_LIMIT, heard: "it was killed".to_owned() })
    }

    /// Whether the process ended within the limit.
    fn wait(pid: Pid, limit: Duration) -> bool {
        // One that cannot be watched is gone.
        let Ok(exited) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
        let give_up = Instant::now() + limit;
        loop {
            let mut fds = [PollFd::new(&exited, PollFlags::IN)];
            let left = give_up.saturating_duration_since(Instant::now());
            let Ok(left) = Timespec::try_from(left) else { return false };
            match poll(&mut fds, Some(&left)) {
                Err(Errno::INTR) => {}
                Ok(ready) => return ready > 0,
                Err(_) => return false,
            }
        }
    }

    fn to_note(&self) -> String {
        format!("{} {}\n", self.pid, self.started)
    }
}

/// When a process was started, unless it is gone; one that ended and waits for its parent to take note is.
fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets, and may have brackets in it.
    let (_, after) = stat.rsplit_once(") ")?;
    let mut fields = after.split(' ');
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn tail(log: &Path) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(folder: &Folder, script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start(folder, "sh", command).unwrap()
    }

    fn folder() -> (tempfile::TempDir, Folder) {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::make(place.path(), false).unwrap();
        (place, folder)
    }

    #[test]
    fn dropped_process_ends_even_when_paused() {
        let (_place, folder) = folder();
        let process = shell(&folder, "sleep 60");
        process.pause().unwrap();
        let running = folder.running();
        assert_eq!(running.len(), 1);
        drop(process);
        assert_eq!(folder.running(), []);
        assert_eq!(started(running[0].pid), None);
    }

    #[test]
    fn kept_process_is_ended_by_its_note() {
        let (_place, folder) = folder();
        let mut process = shell(&folder, "sleep 60");
        process.keep();
        let running = folder.running();
        drop(process);
        let sibling = Running { started: 1, ..running[0].clone() };
        fs::write(folder.note("other"), sibling.to_note()).unwrap();
        assert_eq!(folder.running(), running, "a pid that was used again is not ours");
        running[0].end().unwrap();
        assert_eq!(folder.running(), []);
    }

    #[test]
    fn process_that_ended_is_told_of_with_its_log() {
        let (_place, folder) = folder();
        let mut process = shell(&folder, "echo no licence; exit 3");
        let limit = Duration::from_secs(30);
        let error = process.until("it", limit, || Err::<(), _>("no".to_owned())).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.contains("no licence"), "{text}");
    }

    #[test]
    fn what_is_never_ready_is_given_up() {
        let (_place, folder) = folder();
        let mut process = shell(&folder, "sleep 60");
        let error =
            process.until("a miracle", Duration::ZERO, || Err::<(), _>("not yet".to_owned()));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("a miracle") && text.contains("not yet"), "{text}");
    }
}
