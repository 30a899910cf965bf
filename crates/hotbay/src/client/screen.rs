//! Where the client writes: sentences, tables, and one live line at the bottom of a terminal.
//!
//! A reader that hangs up (`hotbay get drives | head -1`) is not an error: what follows is dropped, and the command
//! goes on to its own end.

use std::io::{self, IsTerminal, Write};

use crate::plugin::as_called;

/// Standard output, with what is known of it.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: bool,
    colour: bool,
    /// The live line is on the screen.
    live: bool,
    hung_up: bool,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colour = terminal && !set("NO_COLOR") && !dumb;
        Self { terminal, colour, live: false, hung_up: false }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    pub(crate) fn has_colour(&self) -> bool {
        self.colour
    }

    /// Nobody reads any more.
    pub(crate) fn hung_up(&self) -> bool {
        self.hung_up
    }

    /// Columns and rows of the terminal; `None` if it is none, or does not say.
    pub(crate) fn size(&self) -> Option<(usize, usize)> {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
        (size.ws_col > 0).then(|| (usize::from(size.ws_col), usize::from(size.ws_row)))
    }

    /// Writes a text as it is.
    pub(crate) fn print(&mut self, text: &str) -> io::Result<()> {
        if self.hung_up {
            return Ok(());
        }
        let clear = if std::mem::take(&mut self.live) { "\r\x1b[K" } else { "" };
        let mut out = io::stdout().lock();
        let text = format!("{clear}{text}");
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.hung_up = true;
                Ok(())
            }
            written => written,
        }
    }

    /// Writes one line.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        self.print(&format!("{text}\n"))
    }

    /// Replaces the live line; on anything but a terminal there is none.
    pub(crate) fn live(&mut self, text: &str) -> io::Result<()> {
        if !self.terminal {
            return Ok(());
        }
        let width = self.size().map_or(80, |(columns, _)| columns);
        // One column less: a line that fills the terminal would wrap, and stay.
        self.print(&format!("\r\x1b[K{}", cut_end(text, width.saturating_sub(1))))?;
        self.live = true;
        Ok(())
    }

    /// Takes the live line away.
    pub(crate) fn end_live(&mut self) -> io::Result<()> {
        if self.live { self.print("") } else { Ok(()) }
    }

    /// Says what went wrong, and below it what to do.
    pub(crate) fn error(&mut self, what: &str, next_steps: &[String]) -> io::Result<()> {
        self.end_live()?;
        let mut text = format!("error: {what}\n");
        for step in next_steps {
            text.push_str(&format!("  {}\n", as_called(step)));
        }
        self.aside(&text);
        Ok(())
    }

    /// Writes to standard error, for people; nothing depends on its arriving.
    pub(crate) fn aside(&self, text: &str) {
        io::stderr().write_all(text.as_bytes()).unwrap_or_default();
    }
}

/// Cuts a text to a width, at its end.
pub(crate) fn cut_end(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Cuts a path to a width, at its start and between two folders if it can: its end tells more than its beginning.
pub(crate) fn cut_start(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().skip(length + 1 - width.max(1)).collect();
    let whole_names = kept.find('/').map_or(kept.as_str(), |at| &kept[at..]);
    format!("…{whole_names}")
}

/// A text from outside, safe for a terminal: a drive's model or a process's name may hold control characters.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_texts_have_the_width_asked_for() {
        assert_eq!(cut_end("waiting", 7), "waiting");
        assert_eq!(cut_end("waiting", 5), "wait…");
        assert_eq!(cut_end("a b", 3), "a b");
        assert_eq!(cut_end("a bc", 3), "a…");
        assert_eq!(cut_start("/dev/nvme0n1", 8), "…nvme0n1");
        assert_eq!(cut_start("/dev/loop0", 9), "…/loop0");
        assert_eq!(cut_start("größe", 3), "…ße");
        assert_eq!(cut_start("abc", 1), "…");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain("ACME\u{1b}[2J\nNV"), "ACME?[2J?NV");
    }
}
