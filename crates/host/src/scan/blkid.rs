//! What `blkid` knows on a device. Called by the child that looks at a drive, never by the agent itself.
//!
//! Its answer only ever adds a reason against a drive: whatever is not a clean "nothing found" counts as theirs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use hotbay_core::words::plain;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::PidfdFlags;
use serde::{Deserialize, Serialize};

/// Most bytes read of each of its outputs; a longer answer is cut, and then still an answer.
const MAX_OUTPUT: usize = 64 << 10;

/// What is on a device, by its signatures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signatures {
    Nothing,
    Found {
        /// The kind of partition table, such as `gpt`.
        table: Option<String>,
        /// The kind of filesystem, RAID member or the like, such as `ext4`.
        content: Option<String>,
    },
    /// No clean answer, and why: the device counts as theirs.
    Unclear(String),
}

/// Asks `blkid` about a path that the caller has open for reading, for at most `limit`.
pub(crate) fn probe(path: &str, limit: Duration) -> Signatures {
    let mut command = Command::new("blkid");
    command.args(["-p", "-o", "export", path]).env("LC_ALL", "C").env("PATH", search_path());
    match run(command, limit) {
        Ok(Some(output)) => judge(output.status.code(), &output.stdout, &output.stderr),
        Ok(None) => Signatures::Unclear(format!("blkid did not end within {} s", limit.as_secs())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Signatures::Unclear("blkid is not installed: install util-linux".into())
        }
        Err(error) => Signatures::Unclear(format!("blkid cannot be run: {error}")),
    }
}

/// A service's path often lacks the `sbin` directories, where blkid is.
pub(crate) fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push("/usr/sbin:/usr/bin:/sbin:/bin");
    path
}

pub(super) fn judge(code: Option<i32>, stdout: &[u8], stderr: &[u8]) -> Signatures {
    let complaint =
        plain(String::from_utf8_lossy(stderr).trim()).chars().take(200).collect::<String>();
    match code {
        Some(0) => {
            let text = String::from_utf8_lossy(stdout);
            let mut found: BTreeMap<&str, &str> =
                text.lines().filter_map(|line| line.split_once('=')).collect();
            let table = found.remove("PTTYPE").map(plain);
            let content = found.remove("TYPE").map(plain);
            if table.is_none() && content.is_none() {
                return Signatures::Unclear("blkid found something that it does not name".into());
            }
            Signatures::Found { table, content }
        }
        // It also says 2 if it cannot open the device, and not always with words: the caller has it open.
        Some(2) if complaint.is_empty() && stdout.is_empty() => Signatures::Nothing,
        Some(8) => Signatures::Unclear("blkid found signatures that contradict each other".into()),
        Some(code) => Signatures::Unclear(format!("blkid ended with code {code}: {complaint}")),
        None => Signatures::Unclear("blkid was killed".into()),
    }
}

pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Runs a command for at most `limit`; `None` if it did not end. It is killed then, but not waited for: a process
/// that hangs in the kernel does not die of it.
pub(crate) fn run(mut command: Command, limit: Duration) -> io::Result<Option<Output>> {
    let end = Instant::now() + limit;
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let outcome = collect(&mut child, end);
    if !matches!(outcome, Ok(Some(_))) {
        child.kill()?;
    }
    outcome
}

fn collect(child: &mut Child, end: Instant) -> io::Result<Option<Output>> {
    let (Some(mut out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("a child without pipes"));
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (mut out_open, mut err_open) = (true, true);
    while out_open || err_open {
        let open: Vec<BorrowedFd<'_>> = [(out_open, out.as_fd()), (err_open, err.as_fd())]
            .into_iter()
            .filter_map(|(open, fd)| open.then_some(fd))
            .collect();
        if !wait_until(&open, end)? {
            return Ok(None);
        }
        // A pipe that has nothing is not read: it would wait.
        if out_open && wait_until(&[out.as_fd()], Instant::now())? {
            out_open = read_some(&mut out, &mut stdout)?;
        }
        if err_open && wait_until(&[err.as_fd()], Instant::now())? {
            err_open = read_some(&mut err, &mut stderr)?;
        }
    }
    let pid = rustix::process::Pid::from_child(child);
    let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    if !wait_until(&[ended.as_fd()], end)? {
        return Ok(None);
    }
    Ok(Some(Output { status: child.wait()?, stdout, stderr }))
}

/// Waits until one of the descriptors has something; false once the time is over.
fn wait_until(descriptors: &[BorrowedFd<'_>], end: Instant) -> io::Result<bool> {
    let mut polled: Vec<PollFd<'_>> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now()))
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        match rustix::event::poll(&mut polled, Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads what is there; false at the end.
fn read_some(pipe: &mut impl Read, into: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let read = pipe.read(&mut buffer)?;
    let room = MAX_OUTPUT.saturating_sub(into.len());
    into.extend_from_slice(&buffer[..read.min(room)]);
    Ok(read > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(table: Option<&str>, content: Option<&str>) -> Signatures {
        Signatures::Found { table: table.map(str::to_owned), content: content.map(str::to_owned) }
    }

    #[test]
    fn only_a_silent_two_means_nothing_found() {
        assert_eq!(judge(Some(2), b"", b""), Signatures::Nothing);
        let gpt = b"DEVNAME=/dev/sdb\nPTUUID=1\nPTTYPE=gpt\n";
        assert_eq!(judge(Some(0), gpt, b""), found(Some("gpt"), None));
        assert_eq!(judge(Some(0), b"UUID=1\nTYPE=ext4\n", b""), found(None, Some("ext4")));
        for (code, out, err) in [
            (Some(2), &b""[..], &b"error: /dev/sdb: No such file"[..]),
            (Some(2), b"TYPE=x", b""),
            (Some(0), b"", b""),
            (Some(0), b"\xff\xfe\0 garbage\nTYPE\n==\n", b""),
            (Some(0), &[b'='; 100_000], b""),
            (Some(8), b"", b""),
            (Some(4), b"", b"usage"),
            (None, b"", b""),
        ] {
            assert!(matches!(judge(code, out, err), Signatures::Unclear(_)), "{code:?}");
        }
    }

    /// The words go to terminals and logs, and a drive may have been prepared by anybody.
    #[test]
    fn nothing_that_it_says_steers_a_terminal() {
        let escape = b"TYPE=\x1b[2Jext4\n";
        assert_eq!(judge(Some(0), escape, b""), found(None, Some("?[2Jext4")));
        let complaint = judge(Some(4), b"", b"bad\x1b]0;x\x07 drive\r\n");
        let words = "blkid ended with code 4: bad?]0;x? drive";
        assert_eq!(complaint, Signatures::Unclear(words.into()));
    }

    #[test]
    fn a_real_file_is_probed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let path = file.path().to_str().unwrap();
        let limit = Duration::from_secs(20);
        assert_eq!(probe(path, limit), Signatures::Nothing);
        let made = Command::new("mkfs.ext4").args(["-q", path]).status().unwrap();
        assert!(made.success());
        assert_eq!(probe(path, limit), found(None, Some("ext4")));
    }

    #[test]
    fn a_command_that_does_not_end_is_given_up() {
        let mut endless = Command::new("sleep");
        endless.arg("1000");
        assert!(run(endless, Duration::from_millis(50)).unwrap().is_none());
        // One that closes its outputs and stays is no better.
        let mut silent = Command::new("sh");
        silent.args(["-c", "exec sleep 1000 >&- 2>&-"]);
        assert!(run(silent, Duration::from_millis(50)).unwrap().is_none());
        let mut loud = Command::new("sh");
        loud.args(["-c", "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2"]);
        let output = run(loud, Duration::from_secs(20)).unwrap().unwrap();
        assert_eq!((output.stdout.len(), output.stderr.len()), (MAX_OUTPUT, MAX_OUTPUT));
    }
}
