//! What can go wrong with a guest, as opposed to what a test finds out inside it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum GuestError {
    #[error("{} is missing; scripts/setup-guest makes it", path.display())]
    NoParts { path: PathBuf },
    #[error("{program} is not installed; scripts/setup-guest installs it")]
    NoProgram { program: &'static str },
    #[error("{} has no kernel module {name}", folder.display())]
    NoModule { name: String, folder: PathBuf },
    #[error("cannot {doing} {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{program} failed on {}: {said}", path.display())]
    Program { program: &'static str, path: PathBuf, said: String },
    #[error("cannot start {program}")]
    Start {
        program: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the guest's {what} is broken; its console tells more")]
    Broken {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the guest's {what} gave no answer in time")]
    Silent { what: &'static str },
    #[error("the guest's {what} said {line:?}, which nobody asked for")]
    Confused { what: &'static str, line: String },
    #[error("QEMU refused {command}: {why}")]
    Refused { command: String, why: String },
    #[error("not within {} s: {what}", limit.as_secs())]
    NotInTime { what: String, limit: Duration },
}

impl GuestError {
    pub(crate) fn file(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { doing, path, source }
    }
}
