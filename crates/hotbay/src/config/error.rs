//! Why settings cannot be used: where they stand, what is wrong, and what to do. Nothing has been started then.

use std::io;
use std::path::PathBuf;

use hotbay_api::token::NotAToken;
use hotbay_core::ids::NotANodeName;
use hotbay_node::FilterError;
use thiserror::Error;

use super::file::FILE_LIMIT_BYTES;
use crate::client::Exit;

/// A place in a text file, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// Why there are no settings.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("there is no configuration file {}", path.display())]
    Absent { path: PathBuf },
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not a file", path.display())]
    NotAFile { path: PathBuf },
    #[error("{} has more than {FILE_LIMIT_BYTES} bytes; that is no configuration", path.display())]
    TooLarge { path: PathBuf },
    /// It says where to listen, which drives to open and whom to obey: who writes it commands all that.
    #[error("{} can be written by other users (mode {mode:03o})", path.display())]
    Writable { path: PathBuf, mode: u32 },
    #[error("{} holds a join token and can be read by other users (mode {mode:03o})", path.display())]
    Readable { path: PathBuf, mode: u32 },
    #[error("{}, line {}, column {}: {what}", path.display(), at.line, at.column)]
    Text { path: PathBuf, at: At, what: String, hint: Option<String> },
    #[error("{variable} in the environment cannot be used")]
    Environment {
        variable: &'static str,
        #[source]
        source: NotAToken,
    },
    #[error(transparent)]
    Filters(#[from] FilterError),
    #[error("HOME is not set, so there is no place for data")]
    NoHome,
    #[error("the host name cannot be the node's name")]
    NoName(#[from] NotANodeName),
    #[error("cannot make YAML or JSON of the settings")]
    Format(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl ConfigError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Format(_) | Self::Output(_) => Exit::Failed,
            Self::Absent { .. }
            | Self::Read { .. }
            | Self::NotAFile { .. }
            | Self::TooLarge { .. }
            | Self::Writable { .. }
            | Self::Readable { .. }
            | Self::Text { .. }
            | Self::Environment { .. }
            | Self::Filters(_)
            | Self::NoHome
            | Self::NoName(_) => Exit::Usage,
        }
    }

    /// What a person does next, a line each.
    pub(crate) fn next_steps(&self) -> Vec<String> {
        let mut steps = match self {
            Self::Absent { .. } => vec!["name one that is there:  --config FILE".to_owned()],
            Self::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                vec!["run it as root, or name another file:  --config FILE".to_owned()]
            }
            Self::Writable { path, .. } => vec![
                "whoever writes it decides where Hotbay listens and which drives it opens"
                    .to_owned(),
                format!("look at what it says, then:  chmod go-w {}", path.display()),
            ],
            Self::Readable { path, .. } => {
                vec![format!("close it:  chmod 600 {}", path.display())]
            }
            Self::Text { path, hint, .. } => {
                let check =
                    format!("when it is put right:  hotbay config check {}", path.display());
                hint.iter().cloned().chain([check]).collect()
            }
            Self::Filters(FilterError::Writable { path, .. }) => {
                vec![format!("look at what it says, then:  chmod go-w {}", path.display())]
            }
            Self::NoHome => vec!["say where:  --data-dir DIR".to_owned()],
            Self::NoName(_) => vec!["give it one:  --name NAME".to_owned()],
            Self::Read { .. }
            | Self::NotAFile { .. }
            | Self::TooLarge { .. }
            | Self::Environment { .. } => Vec::new(),
            Self::Filters(_) => vec!["when it is put right:  hotbay config check".to_owned()],
            Self::Format(_) | Self::Output(_) => return Vec::new(),
        };
        steps.insert(0, "nothing was started".to_owned());
        steps
    }
}
