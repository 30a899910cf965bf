//! A word that a person has to type before something is done that cannot be taken back.

use std::io::{BufRead, IsTerminal};

use super::error::ClientError;
use super::screen::Screen;

/// Has a person type `expected`, which is named as `what`. Where nobody can be asked, it is not done: `instead` is the
/// option that stands for the word there.
pub(crate) fn typed(
    screen: &mut Screen,
    what: &str,
    expected: &str,
    instead: &'static str,
) -> Result<(), ClientError> {
    let not_confirmed = || ClientError::NotConfirmed { typed: what.to_owned(), instead };
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(not_confirmed());
    }
    screen.line(&format!("Type {what} to go on:"))?;
    let mut line = String::new();
    stdin.lock().read_line(&mut line)?;
    if line.trim() == expected { Ok(()) } else { Err(not_confirmed()) }
}
