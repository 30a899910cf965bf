//! One step of a tier: a child process that may hang, run so that it cannot take the whole run with it.
//!
//! The child leads its own process group. When the tier's time is up, or a person presses Ctrl-C, the whole group is
//! killed: the child and everything it started that did not leave the group on purpose. The group is named by the
//! child's own pid, and the child is reaped only afterwards, so the pid cannot by then belong to a stranger.
//!
//! `run` is the only caller.

use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How a child came to its end.
#[derive(Debug)]
pub(crate) enum End {
    Exited(ExitStatus),
    /// The deadline came first; the group was killed.
    OutOfTime,
    /// Somebody asked us to stop; the group was killed.
    Interrupted,
}

/// Requests to stop, heard while a child runs. The child is in another process group, so that Ctrl-C reaches us alone.
#[derive(Debug)]
pub(crate) struct Interrupts {
    /// Becomes readable with the first signal, and stays so.
    requested: UnixStream,
}

impl Interrupts {
    /// From now on SIGINT, SIGTERM and SIGHUP end the step that runs, not this process.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let (requested, by_signal) =
            UnixStream::pair().context("cannot make a socket for signals")?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let by_signal = by_signal.try_clone().context("cannot copy the socket for signals")?;
            signal_hook::low_level::pipe::register(signal, by_signal)
                .with_context(|| format!("cannot listen for signal {signal}"))?;
        }
        Ok(Self { requested })
    }
}

/// Runs `command` to its end, at the latest until `deadline`. Its output goes where the command says, by default to
/// ours; it has no input.
pub(crate) fn run(
    command: &mut Command,
    deadline: Instant,
    interrupts: &Interrupts,
) -> anyhow::Result<End> {
    let mut child = command
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let end = wait(&child, deadline, interrupts);
    // Also after a good end: what a step left running in its group ends with the step.
    kill_group(&child);
    let status = child.wait().context("cannot reap the step's process")?;
    Ok(end?.unwrap_or(End::Exited(status)))
}

/// Waits until the child has exited (`None`; it is not reaped yet) or must be stopped.
fn wait(child: &Child, deadline: Instant, interrupts: &Interrupts) -> anyhow::Result<Option<End>> {
    let exited =
        pidfd_open(pid(child), PidfdFlags::empty()).context("cannot watch the step's process")?;
    loop {
        let mut fds = [
            PollFd::new(&exited, PollFlags::IN),
            PollFd::new(&interrupts.requested, PollFlags::IN),
        ];
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).context("the time cap is too long")?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(Some(End::OutOfTime)),
            Ok(_) if !fds[0].revents().is_empty() => return Ok(None),
            Ok(_) => return Ok(Some(End::Interrupted)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the step's process"),
        }
    }
}

fn kill_group(child: &Child) {
    match kill_process_group(pid(child), Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => {
            let error = io::Error::from(error);
            eprintln!("xtask: cannot kill process group {}: {error}", child.id());
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write, pipe};
    use std::time::Duration;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn nobody_interrupts() -> (Interrupts, UnixStream) {
        let (requested, by_signal) = UnixStream::pair().unwrap();
        (Interrupts { requested }, by_signal)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(50)
    }

    /// Runs `script` with a pipe as its output and returns once nobody holds the pipe: when the script and all that
    /// it started are gone.
    fn run_until_all_are_gone(script: &str, deadline: Instant, interrupts: &Interrupts) -> End {
        let (mut output, writer) = pipe().unwrap();
        let mut command = shell(script);
        command.stdout(writer);
        let end = run(&mut command, deadline, interrupts).unwrap();
        // The command itself holds a copy of the pipe's end.
        drop(command);
        output.read_to_end(&mut Vec::new()).unwrap();
        end
    }

    #[test]
    fn exit_status_is_told() {
        let (interrupts, _by_signal) = nobody_interrupts();
        for (script, code) in [("exit 0", 0), ("exit 3", 3)] {
            let end = run(&mut shell(script), late(), &interrupts).unwrap();
            assert!(matches!(end, End::Exited(status) if status.code() == Some(code)), "{end:?}");
        }
    }

    #[test]
    fn cap_kills_child_and_grandchildren() {
        let (interrupts, _by_signal) = nobody_interrupts();
        let started = Instant::now();
        let end = run_until_all_are_gone(
            "sleep 60 & (sleep 60 & sleep 60) & sleep 60",
            soon(),
            &interrupts,
        );
        assert!(matches!(end, End::OutOfTime), "{end:?}");
        assert!(started.elapsed() < Duration::from_secs(30), "a sleeper outlived the cap");
    }

    #[test]
    fn what_a_step_left_running_ends_with_it() {
        let (interrupts, _by_signal) = nobody_interrupts();
        let started = Instant::now();
        let end = run_until_all_are_gone("sleep 60 & exit 0", late(), &interrupts);
        assert!(matches!(end, End::Exited(status) if status.success()), "{end:?}");
        assert!(started.elapsed() < Duration::from_secs(30), "the sleeper was left running");
    }

    #[test]
    fn signal_ends_the_step() {
        let (interrupts, mut by_signal) = nobody_interrupts();
        by_signal.write_all(b"x").unwrap();
        let end = run_until_all_are_gone("sleep 60 & sleep 60", late(), &interrupts);
        assert!(matches!(end, End::Interrupted), "{end:?}");
    }

    #[test]
    fn missing_program_is_named() {
        let (interrupts, _by_signal) = nobody_interrupts();
        let error = run(&mut Command::new("no-such-program"), late(), &interrupts).unwrap_err();
        assert!(error.to_string().contains("no-such-program"), "{error:#}");
    }
}
