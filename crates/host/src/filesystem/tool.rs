//! Programs that are called for a filesystem: bounded in time and output, and ended with the child that called them.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use hotbay_core::words::plain;

use super::FilesystemError;
use crate::scan::blkid::{run, search_path};

/// Most characters of what a program said; the last ones, where it says why it stopped.
const MOST_CHARS: usize = 1500;

/// What a program answered.
pub(super) struct Answer {
    /// `None` if a signal ended it.
    pub(super) code: Option<i32>,
    pub(super) text: String,
}

/// A program, and the package that has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tool {
    pub(super) program: &'static str,
    pub(super) package: &'static str,
}

impl Tool {
    /// Calls it, for at most `limit`.
    pub(super) fn call(
        self,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<Answer, FilesystemError> {
        let program = self.program.to_owned();
        let mut command = Command::new(self.program);
        command.args(arguments).env("LC_ALL", "C").env("PATH", search_path());
        #[expect(unsafe_code, reason = "no safe wrapper for a call between fork and exec")]
        // SAFETY: prctl is a single system call, which is allowed there; it takes integers and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                // Whoever comes after a killed child must not meet its half-done work going on.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        match run(command, limit) {
            Ok(Some(output)) => {
                let text = [output.stdout, output.stderr].concat();
                Ok(Answer { code: output.status.code(), text: last_words(&text) })
            }
            Ok(None) => Err(FilesystemError::TimedOut { program, limit_s: limit.as_secs() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(FilesystemError::ToolMissing { program, package: self.package.to_owned() })
            }
            Err(error) => Err(FilesystemError::Failed {
                step: format!("run {program}"),
                error: error.to_string(),
            }),
        }
    }

    /// Calls it, and takes everything but zero as a failure.
    pub(super) fn must(self, arguments: &[&str], limit: Duration) -> Result<(), FilesystemError> {
        let Answer { code, text } = self.call(arguments, limit)?;
        if code == Some(0) {
            return Ok(());
        }
        Err(FilesystemError::ToolFailed { program: self.program.to_owned(), code, text })
    }
}

fn last_words(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = plain(&lines.join("; "));
    let skipped = text.chars().count().saturating_sub(MOST_CHARS);
    text.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn tool(program: &'static str) -> Tool {
        Tool { program, package: "some-package" }
    }

    #[test]
    fn what_a_program_says_is_in_the_error() {
        let error = tool("sh").must(&["-c", "echo one; echo two >&2; exit 3"], LIMIT).unwrap_err();
        assert_eq!(error.to_string(), "sh failed with code 3: one; two");
        let error = tool("sh").must(&["-c", "kill -9 $$"], LIMIT).unwrap_err();
        assert_eq!(error.to_string(), "sh failed: ");
        let error = tool("mkfs.none").must(&[], LIMIT).unwrap_err();
        assert_eq!(error.to_string(), "mkfs.none is not installed: install some-package");
        let error = tool("sleep").must(&["1000"], Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.to_string(), "sleep did not end within 0 s");
    }

    #[test]
    fn only_the_last_words_are_kept_and_none_steers_a_terminal() {
        let long = [b"x".repeat(10_000), b"\n\x1b[2Jend\n".to_vec()].concat();
        let kept = last_words(&long);
        assert_eq!(kept.chars().count(), MOST_CHARS);
        assert!(kept.ends_with("x; ?[2Jend"), "{kept}");
    }
}
