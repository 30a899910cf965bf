//! Why a filesystem was not made, checked, mounted, grown or unmounted.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{FilesystemKind, MountSeen};

/// Why a task was not carried out. After `Failed`, `ToolFailed` and `TimedOut` it may be done in part, and may be
/// repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum FilesystemError {
    #[error("{path} does not lead to the device that is meant")]
    OtherDevice { path: String },
    #[error("{path} has a size of zero: it is fenced, or nothing is behind it")]
    NoSize { path: String },
    #[error("{path} cannot be read: {error}")]
    Unreadable { path: String, error: String },
    #[error("{path} has {what} on it: no filesystem is made over it")]
    HasContents { path: String, what: String },
    #[error("it is not clear what is on {path}, so no filesystem is made: {why}")]
    Unclear { path: String, why: String },
    #[error("the option {option:?} is refused: {why}")]
    Option { option: String, why: String },
    #[error("{program} is not installed: install {package}")]
    ToolMissing { program: String, package: String },
    #[error("{program} did not end within {limit_s} s")]
    TimedOut { program: String, limit_s: u64 },
    #[error("{program} failed{}: {text}", code.map(|code| format!(" with code {code}")).unwrap_or_default())]
    ToolFailed { program: String, code: Option<i32>, text: String },
    #[error(
        "the {kind} filesystem on {path} is damaged, and a person must decide what is repaired: {text}"
    )]
    Damaged { path: String, kind: FilesystemKind, text: String },
    #[error("{path} is not an absolute path with a name at its end")]
    Path { path: String },
    #[error("{path} is a symbolic link, which is not followed")]
    Link { path: String },
    #[error("{path} is {found}, not {wanted}")]
    WrongTarget { path: String, found: String, wanted: String },
    #[error("the parent directory of {path} does not exist")]
    NoParent { path: String },
    #[error("{found} is mounted at {path} already")]
    OtherMount { path: String, found: Box<MountSeen> },
    #[error("nothing is mounted at {path}")]
    NotMounted { path: String },
    #[error("{path} is in use: files on it are open, or something is mounted below it")]
    InUse { path: String },
    #[error("{path} is not empty")]
    NotEmpty { path: String },
    #[error("the kernel has no filesystem {kind}")]
    NotInKernel { kind: FilesystemKind },
    #[error("cannot mount {source_path} at {path}: {error}{}", words(log))]
    Mount {
        source_path: String,
        path: String,
        error: String,
        log: String,
        /// What is on the device, or the device itself, may be the cause.
        suspect: bool,
    },
    #[error("cannot {step}: {error}")]
    Failed { step: String, error: String },
}

impl FilesystemError {
    /// Whether the same task may succeed later with nobody having decided anything.
    pub fn retryable(&self) -> bool {
        match self {
            Self::NoSize { .. }
            | Self::Unreadable { .. }
            | Self::TimedOut { .. }
            | Self::ToolFailed { .. }
            | Self::NoParent { .. }
            | Self::NotMounted { .. }
            | Self::InUse { .. }
            | Self::Mount { .. }
            | Self::Failed { .. } => true,
            Self::OtherDevice { .. }
            | Self::HasContents { .. }
            | Self::Unclear { .. }
            | Self::Option { .. }
            | Self::ToolMissing { .. }
            | Self::Damaged { .. }
            | Self::Path { .. }
            | Self::Link { .. }
            | Self::WrongTarget { .. }
            | Self::OtherMount { .. }
            | Self::NotEmpty { .. }
            | Self::NotInKernel { .. } => false,
        }
    }
}

pub(super) fn failed<E: std::fmt::Display>(step: String) -> impl FnOnce(E) -> FilesystemError {
    move |error| FilesystemError::Failed { step, error: error.to_string() }
}

fn words(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(" ({log})") }
}
