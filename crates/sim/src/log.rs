//! The story of a run, for a person. Off while many seeds are run: a seed that breaks something is run again with it.

use crate::scenario::Millis;

/// Lines with their virtual time.
#[derive(Debug, Default)]
pub(crate) enum Log {
    #[default]
    Off,
    Kept(Vec<String>),
}

impl Log {
    pub(crate) fn is_on(&self) -> bool {
        matches!(self, Self::Kept(_))
    }

    pub(crate) fn push(&mut self, now: Millis, line: &str) {
        if let Self::Kept(lines) = self {
            lines.push(format!("{:>5}.{:03} s  {line}", now / 1_000, now % 1_000));
        }
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        match self {
            Self::Off => Vec::new(),
            Self::Kept(lines) => lines,
        }
    }
}

/// Notes a line; formats it only if somebody will read it.
macro_rules! note {
    ($world:expr, $($line:tt)*) => {
        if $world.log.is_on() {
            let line = format!($($line)*);
            let now = $world.now;
            $world.log.push(now, &line);
        }
    };
}

pub(crate) use note;
