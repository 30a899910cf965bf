//! Shell commands for the guest, over a virtio serial port that `/init` serves: one at a time, each with a number, so
//! that an answer cannot be taken for another's.
//!
//! ```text
//! to the guest     NUMBER LENGTH, a line; then the command
//! from the guest   ready, a line, once it has booted
//!                  NUMBER CODE LENGTH LENGTH, a line; then standard output and standard error
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::GuestError;
use crate::lines::Lines;

const WHAT: &str = "command port";
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// Most that a command may print to either output.
const MAX_OUTPUT: usize = 16 << 20;

/// What a command came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    pub fn success(&self) -> bool {
        self.code == 0
    }
}

#[derive(Debug)]
pub(crate) struct Commands {
    lines: Lines,
    sent: u64,
}

impl Commands {
    pub(crate) fn connect(socket: &Path) -> Result<Self, GuestError> {
        Ok(Self { lines: Lines::connect(WHAT, socket, CONNECT_LIMIT)?, sent: 0 })
    }

    /// Waits until the guest has booted.
    pub(crate) fn ready(&mut self, limit: Duration) -> Result<(), GuestError> {
        match self.lines.next(limit)? {
            line if line == "ready" => Ok(()),
            line => Err(GuestError::Confused { what: WHAT, line }),
        }
    }

    /// Runs a command. After one that does not end within `limit` the guest answers nothing any more.
    pub(crate) fn run(&mut self, command: &str, limit: Duration) -> Result<Output, GuestError> {
        self.sent += 1;
        let until = Instant::now() + limit;
        self.lines.send(&format!("{} {}\n{command}", self.sent, command.len()))?;
        let line = self.lines.next(limit)?;
        let Some((code, stdout, stderr)) = answer(self.sent, &line) else {
            return Err(GuestError::Confused { what: WHAT, line });
        };
        let mut text = |length| {
            let bytes = self.lines.bytes(length, until)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Output { code, stdout: text(stdout)?, stderr: text(stderr)? })
    }
}

/// Exit code and lengths of the two outputs, if this answers the command of that number.
fn answer(number: u64, line: &str) -> Option<(i32, usize, usize)> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [answered, code, stdout, stderr] = fields[..] else { return None };
    let length = |text: &str| text.parse().ok().filter(|length| *length <= MAX_OUTPUT);
    (answered.parse() == Ok(number)).then_some(())?;
    Some((code.parse().ok()?, length(stdout)?, length(stderr)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_to_the_last_command_counts() {
        assert_eq!(answer(7, "7 3 12 0"), Some((3, 12, 0)));
        for other in ["6 0 0 0", "7 0 0", "7 x 0 0", "7 0 99999999 0", "7 0 0 0 0", "ready", ""] {
            assert_eq!(answer(7, other), None, "{other:?}");
        }
    }
}
